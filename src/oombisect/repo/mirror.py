"""Our own bare repositories in the cache, through which every history is read and every commit is laid out.

A user's repository is never written to: not its refs, not its configuration, not `.git/worktrees`. A mirror is a bare
repository without refs whose `objects/info/alternates` names the object directories of the user's repositories, so it
costs no copy, sees new commits at once, keeps our worktrees and the trees we synthesise to itself, and knows no
configuration but ours. A history that has to be downloaded is a blobless clone, which is a mirror of itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from oombisect.errors import ExitCode, OombisectError
from oombisect.repo.git import Git, GitError, Kind
from oombisect.repo.trees import batch

Say = Callable[[str], None]

# $GIT_DIR/info/attributes outranks every .gitattributes: no filter or merge driver of anybody's runs, files lie on disk
# as they are in blobs.
_ATTRIBUTES = "* -filter -ident -text -working-tree-encoding merge\n"
_ALL_REFS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


@dataclass(frozen=True, slots=True)
class Promisor:
    """Where a partial clone gets the objects it lacks, and the filter it was made with.

    It is told to git by the command line alone: a mirror whose own configuration names no promisor answers questions
    about missing objects with "missing", at once, and downloads only where we mean it to.
    """

    url: str
    filter: str = "blob:none"

    @property
    def settings(self) -> tuple[str, ...]:
        remote = {"url": self.url, "promisor": "true", "partialclonefilter": self.filter}
        return tuple(f"remote.origin.{key}={value}" for key, value in remote.items())


@dataclass(frozen=True, slots=True)
class Mirror:
    """A bare repository of ours. `promisor` is None where all objects are local."""

    path: Path
    promisor: Promisor | None = None

    @property
    def git(self) -> Git:
        """Runs git in the mirror for what reads file contents: a partial mirror downloads those it lacks."""
        return self.at(self.path)

    @property
    def local(self) -> Git:
        """Runs git in the mirror for what needs commits and trees only; never over the network."""
        return Git(self.path)

    def at(self, worktree: Path, keep_open: tuple[int, ...] = ()) -> Git:
        """As `git`, in a linked worktree of the mirror."""
        kind, settings = (Kind.NETWORK, self.promisor.settings) if self.promisor else (Kind.LOCAL, ())
        return Git(worktree, kind, settings, keep_open=keep_open)

    def has_commit(self, sha: str) -> bool:
        return self.local.call("cat-file", "-e", f"{sha}^{{commit}}", ok=(0, 1, 128))[0] == 0

    def contents(self, blobs: Sequence[str]) -> list[bytes]:
        """The contents of some blobs by id, in order; a partial mirror downloads those it lacks, in one go.

        Raises:
            OombisectError: one cannot be had.
        """
        if self.promisor is not None:
            self._fetch_missing(self.promisor, blobs)
        found = list(batch(self.local, blobs))
        for blob, data in zip(blobs, found):
            if data is None:
                raise OombisectError(
                    f"The contents of blob {blob[:12]} are in no clone at hand",
                    "Name a complete clone with --repo PATH, or check the network.",
                    ExitCode.INFRASTRUCTURE,
                )
        return [data for data in found if data is not None]

    def _fetch_missing(self, promisor: Promisor, objects: Sequence[str]) -> None:
        told = self.local.run("cat-file", "--batch-check=%(objectname)", stdin="".join(f"{o}\n" for o in objects))
        missing = [line.split()[0] for line in told.splitlines() if line.endswith(" missing")]
        if missing:
            options = ("--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--quiet", "--filter=blob:none", "--stdin")
            git = Git(self.path, Kind.NETWORK, (*promisor.settings, "fetch.negotiationAlgorithm=noop"))
            try:
                git.run("fetch", *options, "origin", stdin="".join(f"{o}\n" for o in missing))
            except GitError as error:
                raise unreachable(promisor.url, error, "fetch file contents") from error

    def fetch(self, *refspecs: str) -> None:
        """Fetch from the promisor, file contents left behind.

        Raises:
            GitError: no network, no such commit, no access.
        """
        assert self.promisor is not None
        options = ["--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--quiet", "--force"]
        self.git.run("fetch", *options, f"--filter={self.promisor.filter}", "origin", *refspecs)


def mirror_of(root: Path, label: str, seed: str, sources: Sequence[Path], promisor: Promisor | None = None) -> Mirror:
    """The mirror in `root` over the object directories of `sources` (git directories), made if it is not there.

    One mirror per label and seed; new sources are added to those it has, vanished ones dropped.
    """
    path = root / f"{label}-{hashlib.sha256(os.fsencode(seed)).hexdigest()[:12]}.git"
    with locked(path):
        if not (path / "HEAD").is_file():
            _make(path)
        alternates = path / "objects" / "info" / "alternates"
        known = [Path(line) for line in read_text(alternates).splitlines()] if alternates.is_file() else []
        ours = [(source / "objects").resolve() for source in sources]
        wanted = [p for p in dict.fromkeys([*ours, *known]) if p.is_dir()]
        if wanted != known:
            write_atomically(alternates, "".join(f"{p}\n" for p in wanted))
        _copy_shallow([objects.parent for objects in wanted], path)
    return Mirror(path, promisor)


def _make(path: Path) -> None:
    with staged(path) as stage:
        Git(stage.parent).run("init", "--quiet", "--bare", str(stage))
        configure(stage)


def _copy_shallow(sources: Sequence[Path], path: Path) -> None:
    """A shallow source's boundary must be ours too, or walking its history dies at the missing parents.

    A boundary commit whose parents another source has is none.
    """
    cut = sorted({line for s in sources if (s / "shallow").is_file() for line in (s / "shallow").read_text().split()})
    git = Git(path)
    ends = [commit for commit in cut if not _has_all_parents(git, commit)]
    target = path / "shallow"
    wanted = "".join(f"{commit}\n" for commit in ends)
    if wanted and not (target.is_file() and target.read_text() == wanted):
        write_atomically(target, wanted)
    if not wanted:
        target.unlink(missing_ok=True)


def _has_all_parents(git: Git, commit: str) -> bool:
    header = git.raw("cat-file", "commit", commit, ok=(0, 1, 128)).split(b"\n\n", 1)[0].decode("utf-8", "replace")
    parents = [line.removeprefix("parent ") for line in header.splitlines() if line.startswith("parent ")]
    return all(git.call("cat-file", "-e", parent, ok=(0, 1, 128))[0] == 0 for parent in parents)


def configure(path: Path) -> None:
    """What a fresh mirror needs: worktree configuration, no filters, no housekeeping."""
    git = Git(path)
    git.run("config", "core.repositoryFormatVersion", "1")
    git.run("config", "gc.auto", "0")
    git.run("config", "gc.worktreePruneExpire", "never")
    git.run("config", "core.hooksPath", os.devnull)
    git.run("config", "core.sparseCheckout", "true")
    git.run("config", "core.sparseCheckoutCone", "false")
    (path / "info").mkdir(exist_ok=True)
    write_atomically(path / "info" / "attributes", _ATTRIBUTES)


def clone(url: str, path: Path, say: Say, what: str) -> Mirror:
    """The blobless clone of `url` at `path`; downloaded once, put in place only when it is whole.

    Raises:
        OombisectError: it could not be downloaded.
    """
    promisor = Promisor(url)
    if (path / "HEAD").is_file():
        return Mirror(path, promisor)
    say(f"Cloning {what} once into the cache, without file contents: {url}")
    with locked(path):
        if not (path / "HEAD").is_file():
            with staged(path) as stage:
                _download(stage, promisor, what)
    return Mirror(path, promisor)


def _download(stage: Path, promisor: Promisor, what: str) -> None:
    Git(stage.parent).run("init", "--quiet", "--bare", str(stage))
    configure(stage)
    mirror = Mirror(stage, promisor)
    try:
        head = mirror.git.run("ls-remote", "--symref", "origin", "HEAD").split()
        mirror.fetch(*_ALL_REFS)
    except GitError as error:
        raise unreachable(promisor.url, error, f"clone {what}") from error
    if head[:1] == ["ref:"]:
        mirror.local.run("symbolic-ref", "HEAD", head[1])


def update(mirror: Mirror) -> None:
    """Bring a clone's branches and tags up to date."""
    assert mirror.promisor is not None
    try:
        mirror.fetch(*_ALL_REFS)
    except GitError as error:
        raise unreachable(mirror.promisor.url, error, "update the cached clone") from error


def unreachable(url: str, error: GitError, deed: str, clone_option: str = "--repo") -> OombisectError:
    """The message for a download that failed; a clone named with `clone_option` would make it needless."""
    return OombisectError(
        f"Could not {deed} from {url}: {error.reason}",
        f"Check the network (or the proxy), or name a local clone with {clone_option} PATH.",
        ExitCode.INFRASTRUCTURE,
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing the mirror at `path` meanwhile; the lock dies with its holder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A place beside `path`, renamed onto it at the end; nothing is left of a failure.

    For the holder of `locked(path)`: what a killed run left behind is swept away.
    """
    for left_over in path.parent.glob(f".{path.name}.*"):
        shutil.rmtree(left_over, ignore_errors=True)
    outer = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield outer / path.name
        (outer / path.name).rename(path)
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def read_text(path: Path) -> str:
    """The text of a file that may hold paths: bytes that are not UTF-8 survive as surrogates."""
    return path.read_text("utf-8", "surrogateescape")


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary name in the same directory, then rename; nothing is left of a failure.

    Surrogates stand for bytes that are not UTF-8, as in the paths Python hands out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode("utf-8", "surrogateescape")
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
        written = Path(stream.name)
        try:
            stream.write(data)
            stream.flush()
        except OSError:
            written.unlink()
            raise
    written.replace(path)
