"""Makes the demo's two git repositories: a Bridge of its own and, as its submodule, the installed megatron-core.

Authors, dates and settings of git are fixed, so the same templates and the same megatron-core give the same commits
everywhere. Nothing of megatron-core is shipped: its files are copied from where pip put them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oombisect.demo.commits import Commit, bridge_commits, fingerprint, megatron_commits, write_base
from oombisect.errors import ExitCode, OombisectError

BRIDGE, MEGATRON, SUBMODULE = "Megatron-Bridge", "Megatron-LM", "3rdparty/Megatron-LM"
_MARKER = ".oombisect-demo.json"
_FIRST_COMMIT = 1_772_442_000  # 2 March 2026, 09:00 UTC
_HOURS_BETWEEN = 17
_FIND = (
    "import importlib.util as u; s = u.find_spec('megatron.core'); print(s.submodule_search_locations[0] if s else '')"
)


@dataclass(frozen=True, slots=True)
class DemoRepository:
    """What to bisect.

    Args:
        path: the checkout of the demo's Megatron Bridge, its submodule in place.
        good, bad: revisions; at `bad` the recipe does not fit the device.
        recipe, device: what to run, and on which simulated GPU.
    """

    path: Path
    good: str = "v0.3.0"
    bad: str = "v0.4.0"
    recipe: str = "petrel_3b_pretrain"
    device: str = "virtual:h100-80gb"


def find_megatron_core(python: Path) -> Path:
    """The package folder of the megatron-core that `python` would import, found without importing it.

    Raises:
        OombisectError: it has none.
    """
    try:
        done = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OombisectError(f"{python} cannot be run: {error}", "Name another interpreter with --python.") from error
    found = Path(done.stdout.strip())
    if done.returncode or not done.stdout.strip() or not found.is_dir():
        raise OombisectError(
            f"The demo trains with megatron-core, and {python} has none.",
            "Install oombisect[probe] there, or name another interpreter with --python.",
        )
    return found


def build_demo(target: Path, megatron_core: Path, say: Callable[[str], None] = lambda _: None) -> DemoRepository:
    """Makes the demo below `target`, or finds it there as made before.

    Args:
        target: a folder of the demo's own: absent, empty, or made by this function.
        megatron_core: the installed package `megatron/core`.

    Raises:
        OombisectError: `target` holds something else, git is missing or fails, the disk is full.
    """
    target = target.absolute()
    demo = DemoRepository(path=target / BRIDGE)
    key = _key(megatron_core)
    try:
        if _is_made(target, key):
            return demo
        _clear(target)
        say("making the demo's repository")
        _make(target, megatron_core)
        (target / _MARKER).write_text(json.dumps({"made": key}))
    except OSError as error:
        raise OombisectError(
            f"The demo repository cannot be made in {target}: {error.strerror or error}",
            "Free some space (about 50 MB), or choose another folder.",
            ExitCode.INFRASTRUCTURE,
        ) from error
    return demo


def _key(megatron_core: Path) -> str:
    digest = hashlib.sha256()
    for part in fingerprint():
        digest.update(part)
    for file in _core_files(megatron_core):
        digest.update(str(file.relative_to(megatron_core)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _core_files(megatron_core: Path) -> list[Path]:
    """What belongs into a repository: no bytecode, nothing compiled on this machine."""
    if not (megatron_core / "package_info.py").is_file():
        raise OombisectError(f"{megatron_core} is not the package megatron.core.", "Reinstall megatron-core.")
    wanted = (f for f in megatron_core.rglob("*") if f.is_file() and f.suffix not in (".pyc", ".so"))
    return sorted(f for f in wanted if "__pycache__" not in f.parts)


def _is_made(target: Path, key: str) -> bool:
    try:
        return bool(json.loads((target / _MARKER).read_text()).get("made") == key)
    except (FileNotFoundError, ValueError, AttributeError):
        return False


def _clear(target: Path) -> None:
    """Removes what an earlier, perhaps interrupted, making left; never anything else."""
    marker = target / _MARKER
    if target.exists() and any(target.iterdir()) and not marker.exists():
        raise OombisectError(
            f"{target} holds files that are not the demo's.", "Choose an empty folder, or one that does not exist."
        )
    target.mkdir(parents=True, exist_ok=True)
    marker.write_text("{}")
    for name in (BRIDGE, MEGATRON):
        shutil.rmtree(target / name, ignore_errors=True)


def _make(target: Path, megatron_core: Path) -> None:
    megatron = _Repository(target / MEGATRON)
    for file in _core_files(megatron_core):
        copy = megatron.root / "megatron" / "core" / file.relative_to(megatron_core)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    pins = megatron.commit_all(megatron_commits(), {})
    bridge = _Repository(target / BRIDGE)
    write_base(bridge.root)
    (bridge.root / SUBMODULE).mkdir(parents=True)
    bridge.commit_all(bridge_commits(), pins)
    bridge.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")


class _Repository:
    """A new repository at `root`, committed to with fixed authors, dates and settings."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "HOME": str(root),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_DEFAULT_HASH": "sha1",
            "GIT_TERMINAL_PROMPT": "0",
        }
        self.git("init", "--quiet", "--initial-branch=main", "--template=")

    def git(self, *arguments: str) -> str:
        """Runs git here.

        Raises:
            OombisectError: there is no git, or it fails.
        """
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=self.root, env=self._environment, capture_output=True, text=True, check=False
            )
        except FileNotFoundError as error:
            raise OombisectError("The demo needs git, and there is none on PATH.", "Install git.") from error
        if done.returncode:
            said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
            raise OombisectError(
                f"git {arguments[0]} failed while making the demo repository: {said}",
                "Check free space and permissions of the folder.",
                ExitCode.INFRASTRUCTURE,
            )
        return done.stdout.strip()

    def commit_all(self, commits: tuple[Commit, ...], pins: dict[str, str]) -> dict[str, str]:
        """Makes all commits, oldest first, and says which is which. `pins`: the submodule's commits."""
        made: dict[str, str] = {}
        for number, commit in enumerate(commits):
            self._sign(commit.author, _FIRST_COMMIT + number * _HOURS_BETWEEN * 3600 + 977 * (number % 11))
            made[commit.slug] = self._commit(commit, made, pins)
            if commit.tag:
                self.git("tag", commit.tag)
        self.git("checkout", "--quiet", "main")
        return made

    def _sign(self, author: str, seconds: int) -> None:
        email = f"{author.lower().replace(' ', '.')}@petrel.example"
        for role in ("AUTHOR", "COMMITTER"):
            self._environment[f"GIT_{role}_NAME"] = author
            self._environment[f"GIT_{role}_EMAIL"] = email
            self._environment[f"GIT_{role}_DATE"] = f"{seconds} +0000"

    def _commit(self, commit: Commit, made: dict[str, str], pins: dict[str, str]) -> str:
        message = f"{commit.subject}\n\n{commit.body}".strip()
        if made:
            self._check_out(commit.branch or "main")
        if commit.merge:
            self.git("merge", "--quiet", "--no-ff", "-m", message, commit.merge)
            self.git("branch", "--quiet", "--delete", commit.merge)
            return self.git("rev-parse", "HEAD")
        if commit.revert:
            sha = made[commit.revert]
            self.git("revert", "--no-commit", sha)
            message = f"{commit.subject}\n\nThis reverts commit {sha}.\n\n{commit.body}".strip()
        for change in commit.changes:
            change.apply(self.root)
        if commit.pin:
            self.git("update-index", "--add", "--cacheinfo", f"160000,{pins[commit.pin]},{SUBMODULE}")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--no-verify", "-m", message)
        return self.git("rev-parse", "HEAD")

    def _check_out(self, branch: str) -> None:
        if self.git("branch", "--list", branch):
            self.git("checkout", "--quiet", branch)
        else:
            self.git("checkout", "--quiet", "-b", branch, "main")
