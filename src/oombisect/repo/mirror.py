"""Our own bare repositories in the cache, through which every history is read and every commit is laid out.

A user's repository is never written to: not its refs, not its configuration, not `.git/worktrees`. A mirror is a bare
repository without refs whose `objects/info/alternates` names the object directories of the user's repositories, so it
costs no copy, sees new commits at once, keeps our worktrees and the trees we synthesise to itself, and knows no
configuration but ours. A history that has to be downloaded is a blobless clone, which is a mirror of itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from oombisect.errors import ExitCode, OombisectError
from oombisect.repo.git import Git, GitError, Kind

Say = Callable[[str], None]

# $GIT_DIR/info/attributes outranks every .gitattributes: no filter driver runs, files lie on disk as they are in blobs.
_ATTRIBUTES = "* -filter -ident -text -working-tree-encoding\n"
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

    def at(self, worktree: Path) -> Git:
        """As `git`, in a linked worktree of the mirror."""
        return Git(worktree, Kind.NETWORK, self.promisor.settings) if self.promisor else Git(worktree)

    def has_commit(self, sha: str) -> bool:
        return self.local.call("cat-file", "-e", f"{sha}^{{commit}}", ok=(0, 1, 128))[0] == 0

    def prefetch(self, objects: Sequence[str]) -> None:
        """Download in one go those of some objects that a partial mirror lacks (git would fetch them one by one)."""
        if self.promisor is None or not objects:
            return
        told = self.local.run("cat-file", "--batch-check=%(objectname)", stdin="".join(f"{o}\n" for o in objects))
        missing = [line.split()[0] for line in told.splitlines() if line.endswith(" missing")]
        if missing:
            options = ("--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--quiet", "--filter=blob:none", "--stdin")
            git = Git(self.path, Kind.NETWORK, (*self.promisor.settings, "fetch.negotiationAlgorithm=noop"))
            git.run("fetch", *options, "origin", stdin="".join(f"{o}\n" for o in missing))

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
    path = root / f"{label}-{hashlib.sha256(seed.encode()).hexdigest()[:12]}.git"
    if not (path / "HEAD").is_file():
        with staged(path) as stage:
            Git(stage.parent).run("init", "--quiet", "--bare", str(stage))
            configure(stage)
    objects = [source / "objects" for source in sources]
    alternates = path / "objects" / "info" / "alternates"
    known = [Path(line) for line in alternates.read_text().splitlines()] if alternates.is_file() else []
    wanted = [p for p in dict.fromkeys([*(o.resolve() for o in objects), *known]) if p.is_dir()]
    if wanted != known:
        write_atomically(alternates, "".join(f"{p}\n" for p in wanted))
    _copy_shallow(sources, path)
    return Mirror(path, promisor)


def _copy_shallow(sources: Sequence[Path], path: Path) -> None:
    """A shallow source's boundary must be ours too, or walking its history dies at the missing parents."""
    cut = sorted({line for s in sources if (s / "shallow").is_file() for line in (s / "shallow").read_text().split()})
    target = path / "shallow"
    if cut:
        write_atomically(target, "".join(f"{line}\n" for line in cut))
    else:
        target.unlink(missing_ok=True)


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
    if not (path / "HEAD").is_file():
        say(f"Cloning {what} once into the cache, without file contents: {url}")
        with staged(path) as stage:
            Git(stage.parent).run("init", "--quiet", "--bare", str(stage))
            configure(stage)
            try:
                Mirror(stage, promisor).fetch(*_ALL_REFS)
            except GitError as error:
                raise unreachable(url, error, f"clone {what}") from error
    return Mirror(path, promisor)


def update(mirror: Mirror) -> None:
    """Bring a clone's branches and tags up to date."""
    assert mirror.promisor is not None
    try:
        mirror.fetch(*_ALL_REFS)
    except GitError as error:
        raise unreachable(mirror.promisor.url, error, "update the cached clone") from error


def unreachable(url: str, error: GitError, deed: str) -> OombisectError:
    """The message for a download that failed."""
    return OombisectError(
        f"Could not {deed} from {url}: {error.reason}",
        "Check the network (or the proxy), or name a local clone with --repo PATH.",
        ExitCode.INFRASTRUCTURE,
    )


class staged:
    """A directory made beside `path` and renamed onto it at the end; nothing is left of one that failed.

    Of two processes that make the same thing the second one's work is dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._outer = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.", dir=self.path.parent))
        return self._outer / self.path.name

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._rename()
        finally:
            shutil.rmtree(self._outer, ignore_errors=True)

    def _rename(self) -> None:
        try:
            (self._outer / self.path.name).rename(self.path)
        except OSError:
            if not self.path.is_dir():
                raise


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary name in the same directory, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
        stream.write(text)
    Path(stream.name).replace(path)
