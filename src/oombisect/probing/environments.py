"""Python environments of points: the session's own with other versions of some packages, built by uv and kept.

What a probe needs besides is held as the session's environment has it: it is linked file by file, not installed again,
so that a container's own torch stays, and an environment that differs in one small package costs next to nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from oombisect import hints
from oombisect.errors import ExitCode, OombisectError
from oombisect.printable import printable
from oombisect.probing.installed import Installed, survey
from oombisect.probing.interpreter import Interpreter, inspect_interpreter

# What a probe imports besides Bridge and Megatron-LM themselves (the extras `probe` and `bridge`, less what is never
# imported): these, and all they need, are what a lock is asked about.
NEEDED = (
    *("accelerate", "einops", "hydra-core", "numpy", "nvidia-ml-py", "omegaconf", "onnx", "packaging", "peft"),
    *("psutil", "pyyaml", "regex", "rich", "six", "tensorboard", "torch", "tqdm", "transformer-engine"),
    "transformers",
)
_RECORD = "built.json"
_UNSOLVABLE = 1  # uv's exit status where the packages are to blame; 2 is the network, the disk, its own arguments
_SHOWN_LINES = 4


class CannotBuild(Exception):
    """There is no such environment: uv's reason. It says nothing about memory."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is put over the session's environment: requirements as pip writes them, sorted.

    `dependencies`: what they need is installed too where the environment has no version that serves; else exactly
    these are installed, whatever they say they need.
    """

    requirements: tuple[str, ...]
    dependencies: bool = False

    def key(self, base: Interpreter) -> str:
        """Names the environment among all that can be built."""
        parts = (str(base.path), base.fingerprint, str(self.dependencies), *self.requirements)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


@dataclass
class Environments:
    """Builds environments over `base` in the cache folder; each once, also among processes.

    What it gave out is in use until it is gone itself, and its process: `prune` leaves that alone.
    """

    base: Interpreter
    cache: Path
    say: Callable[[str], None] = lambda _: None
    _built: dict[str, Interpreter] = field(default_factory=dict)
    _survey: Installed | None = None

    @property
    def installed(self) -> Installed:
        """What the session's own environment holds."""
        if self._survey is None:
            self._survey = survey(self.base)
        return self._survey

    def interpreter(self, change: Change) -> Interpreter:
        """The Python of the environment, built on first use; without requirements the session's own.

        Raises:
            CannotBuild: the packages do not exist, conflict, or do not build.
            OombisectError: uv is missing, or the network or the disk fails.
        """
        if not change.requirements:
            return self.base
        key = change.key(self.base)
        if key not in self._built:
            home = self.cache / "environments" / key
            try:
                with _locked(home):
                    if not _is_whole(home):
                        self._build(change, home)
                    self._use(home)
            except OSError as error:
                raise OombisectError(
                    f"An environment cannot be built in {home.parent}: {error.strerror or error}",
                    "Free some space there, or choose another cache folder.",
                    ExitCode.INFRASTRUCTURE,
                ) from error
            try:
                self._built[key] = inspect_interpreter(home / "bin" / "python")
            except OombisectError as error:  # it was built here, so it is the machine that fails
                raise OombisectError(error.cause, f"Delete {home} and try again.", ExitCode.INFRASTRUCTURE) from error
        return self._built[key]

    def _use(self, home: Path) -> None:
        """Say that the environment is in use, and when it last was."""
        record = os.open(home / _RECORD, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, record)
        fcntl.flock(record, fcntl.LOCK_SH)
        os.utime(record)

    def _build(self, change: Change, home: Path) -> None:
        """Build apart, then rename; whoever holds the lock may clear what a killed builder of this one left."""
        for leftover in (home, *home.parent.glob(f".{home.name}-*")):
            shutil.rmtree(leftover, ignore_errors=True)
        self.say(f"building an environment with {_listed(change.requirements)}")
        scratch = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
        try:
            scratch.chmod(0o755)
            place = scratch / "environment"
            uv = Uv(scratch)
            uv.run("venv", "--quiet", "--relocatable", "--no-project", "--python", str(self.base.path), str(place))
            python = place / "bin" / "python"
            folder = next(place.glob("lib/python*/site-packages"))
            link_sites(self.installed.sites, folder)
            options = [] if change.dependencies else ["--no-deps"]
            for requirement in change.requirements:
                if "<=" in requirement:  # the newest is meant, not whatever is there
                    options += ["--upgrade-package", requirement.partition("<=")[0]]
            uv.run("pip", "install", "--quiet", "--python", str(python), *options, *change.requirements)
            # The CUDA libraries and headers of another torch must not lie beside those of this one. Some are the very
            # same files (nvidia-cudnn-cu12, nvidia-cudnn-cu13), so that what came anew is put there once more.
            after = survey(Interpreter(python, self.base.version, ()))
            orphans = self.installed.orphans(after, "torch")
            if orphans:
                came = {n: p.version for n, p in after.packages.items() if self.installed.packages.get(n) != p}
                uv.run("pip", "uninstall", "--quiet", "--python", str(python), *orphans, *came)
                again = [f"{name}=={version}" for name, version in came.items()]
                uv.run("pip", "install", "--quiet", "--python", str(python), "--no-deps", *again)
            record = {"base": str(self.base.path), "requirements": change.requirements, "removed": orphans}
            (place / _RECORD).write_text(json.dumps(record, indent=1) + "\n")
            place.rename(home)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Pruned:
    """An environment that was deleted: what it had over the session's, and the bytes of the files it alone had."""

    path: Path
    requirements: tuple[str, ...]
    bytes: int


def prune(cache: Path, unused_for: float) -> tuple[Pruned, ...]:
    """Delete the environments of the cache folder that nobody has used for so many seconds.

    What killed builders left goes too. One that a running session holds stays, however long ago it began to use it.
    Files that uv's own cache holds too are no bytes of an environment: `uv cache prune` is what frees them.

    Raises:
        OSError: something cannot be deleted.
    """
    found, folder = list[Pruned](), cache / "environments"
    names = {path.stem.split("-")[0].lstrip(".") for path in folder.glob("*")}
    for home in (folder / name for name in sorted(names)):
        with contextlib.suppress(BlockingIOError), _locked(home, wait=False):
            for leftover in folder.glob(f".{home.name}-*"):  # no builder is at work: it would hold the lock
                shutil.rmtree(leftover)
            if home.is_dir() and _is_unused(home, unused_for):
                found.append(Pruned(home, _requirements_of(home), _own_bytes(home)))
                gone = home.with_name(f".{home.name}-gone")
                home.rename(gone)  # whoever is killed here leaves no half an environment
                shutil.rmtree(gone)
    return tuple(found)


def _is_unused(home: Path, unused_for: float) -> bool:
    try:
        record = os.open(home / _RECORD, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # half deleted by hand
    try:
        fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return time.time() - os.fstat(record).st_mtime >= unused_for
    except BlockingIOError:
        return False
    finally:
        os.close(record)


def _requirements_of(home: Path) -> tuple[str, ...]:
    try:
        return tuple(map(str, json.loads((home / _RECORD).read_text())["requirements"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _own_bytes(home: Path) -> int:
    """The bytes of the files that are linked from nowhere else."""
    files = [Path(where, name).lstat() for where, _, names in os.walk(home) for name in names]
    return sum(file.st_blocks * 512 for file in files if file.st_nlink == 1)


def releases(environments: Environments, package: str, good: str, bad: str) -> tuple[str, ...]:
    """The releases of `package` from `good` to `bad`, both included, that uv would install in the base's Python.

    uv is asked for the newest one below the last, until there is none: so its index, its notion of yanked and of
    what has a wheel for this Python count. Pre-releases are left out, but for an end that is one.

    Raises:
        CannotBuild: an end does not exist, or has no wheel for this Python.
        OombisectError: uv is missing, or the index does not answer.
    """
    home = environments.cache / "environments"
    home.mkdir(parents=True, exist_ok=True)
    uv = Uv(home)

    def newest(specifier: str, prerelease: str) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".in", dir=home) as wanted:
            wanted.write(f"{package}{specifier}\n")
            wanted.flush()
            options = ("--no-deps", "--no-build", "--no-header", "--no-annotate", "--prerelease", prerelease)
            python = ("--python", str(environments.base.path))
            told = uv.run("pip", "compile", "--quiet", *options, *python, wanted.name)
        return told.strip().rpartition("==")[2]

    found = [newest(f"=={bad}", "allow")]
    first = newest(f"=={good}", "allow")
    while True:
        try:
            found.append(newest(f">={good},!={good},<{found[-1]}", "disallow"))
        except CannotBuild:
            return (first, *reversed(found))


@dataclass(frozen=True, slots=True)
class Uv:
    """The uv of this machine, run in `folder`, so that no project's own settings have a say; the user's have."""

    folder: Path

    def run(self, *arguments: str) -> str:
        """What it printed.

        Raises:
            CannotBuild: the packages are to blame.
            OombisectError: uv is missing, or it failed for another reason.
        """
        environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
        try:
            done = subprocess.run(
                [find_uv(), "--no-progress", "--color", "never", *arguments],
                cwd=self.folder, env=environment, capture_output=True, text=True, errors="replace",
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except OSError as error:
            raise OombisectError(f"uv does not run: {error}", _INSTALL_UV, ExitCode.INFRASTRUCTURE) from error
        if done.returncode == 0:
            return done.stdout
        reason = _reason(done.stderr) or f"uv ended with {done.returncode}"
        if done.returncode == _UNSOLVABLE:
            raise CannotBuild(reason)
        raise OombisectError(
            f"uv failed: {reason}",
            f"Mend that (the network, the package index uv is set to, disk space), then go on "
            f"with `{hints.command('resume')}`.",
            ExitCode.INFRASTRUCTURE,
        )


_INSTALL_UV = "Install it (pip install 'oombisect[environments]', or https://docs.astral.sh/uv); it builds them."


def find_uv() -> str:
    """The uv on PATH, beside the Python of oombisect, where its installer puts it, or that of the package `uv`.

    Raises:
        OombisectError: there is none.
    """
    beside = [str(Path(sys.executable).parent), *(str(Path.home() / folder) for folder in (".local/bin", ".cargo/bin"))]
    found = shutil.which("uv") or shutil.which("uv", path=os.pathsep.join(beside)) or _packaged_uv()
    if found is None:
        raise OombisectError("uv is not installed", _INSTALL_UV, ExitCode.INFRASTRUCTURE)
    return found


def _packaged_uv() -> str | None:
    """The program of the package `uv`, wherever pip put it (`--user`, `--target`)."""
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        return None


def link_sites(sites: tuple[Path, ...], into: Path) -> None:
    """Have all of the package folders `sites` in `into`, without copying: what an earlier one has hides a later one's.

    Files are linked (symbolically where they lie on another file system, or are someone else's); links stay links.
    """
    for site in sites:
        _link_tree(site, into, {_distribution(path.name) for path in into.iterdir()} - {""})


def _link_tree(source: Path, target: Path, hidden: set[str]) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            place = target / entry.name
            if entry.is_dir(follow_symlinks=False):
                if _distribution(entry.name) in hidden:
                    continue
                if not place.exists():
                    place.mkdir()
                elif (place / "__init__.py").exists():
                    continue
                _link_tree(Path(entry.path), place, set())
            elif not place.exists():
                _link(Path(entry.path), place)


def _link(source: Path, place: Path) -> None:
    if not source.is_symlink():
        try:
            os.link(source, place)
            return
        except OSError:
            pass  # another file system, another owner, or no more links
    place.symlink_to(os.path.realpath(source))


def _distribution(name: str) -> str:
    """The distribution whose metadata a folder of this name holds; empty for any other."""
    stem, dot, suffix = name.rpartition(".")
    return stem.partition("-")[0].lower().replace("-", "_") if dot and suffix in ("dist-info", "egg-info") else ""


@contextlib.contextmanager
def _locked(home: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of one environment; the kernel releases that of a process that died.

    Raises:
        BlockingIOError: another has it, and `wait` is False.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(home.with_name(f"{home.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(file)


def _is_whole(home: Path) -> bool:
    """Whether it was built to the end and what it is linked to is still there."""
    return (home / _RECORD).is_file() and (home / "bin" / "python").exists()


def _reason(text: str) -> str:
    """What uv complained of, on one line: its first lines that are no warning."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("warning")]
    start = next((i for i, line in enumerate(lines) if line.startswith("error")), 0)
    return printable(" ".join(lines[start : start + _SHOWN_LINES]))[:500].removeprefix("error: ")


def _listed(requirements: tuple[str, ...], most: int = 4) -> str:
    rest = len(requirements) - most
    return ", ".join(requirements[:most]) + (f" and {rest} more" if rest > 0 else "")
