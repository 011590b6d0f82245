"""Worktree slots: a commit of Bridge, and inside it at the gitlink path the Megatron-LM commit it pins, on disk.

A slot is one linked worktree of the Bridge mirror with one of the Megatron-LM mirror inside. Going to a neighbouring
commit rewrites the files that differ and no others. Only what a probe reads is checked out (sparse): the rest of a
checkout costs time, and files missing from a partial clone would stop it.

A slot belongs to the process that holds the lock on its lock file. The lock dies with the process and the git commands
it started, so whatever a killed run left behind (index locks, a half-done checkout) is mended by the next owner.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from oombisect.errors import ExitCode, OombisectError
from oombisect.repo.git import Git, GitError
from oombisect.repo.mirror import Mirror, read_text, write_atomically
from oombisect.repo.trees import MEGATRON_DIR

# What a probe reads. Root-level modules of Megatron-LM are importable too: its root goes on sys.path.
BRIDGE_PATTERNS = ("/src/", "/pyproject.toml", "/uv.lock", "/.gitmodules")
MEGATRON_PATTERNS = (f"/{MEGATRON_DIR}/", "/*.py", "/pyproject.toml")
MAXIMUM_SLOTS = 64


def is_probed(path: str) -> bool:
    """Whether a file of Megatron-LM is one that `MEGATRON_PATTERNS` check out."""
    return path.startswith(f"{MEGATRON_DIR}/") or ("/" not in path and path.endswith(".py"))


@dataclass(slots=True)
class Worktree:
    """One linked worktree of a mirror at `path`."""

    mirror: Mirror
    path: Path
    patterns: tuple[str, ...] = ()
    keep_open: tuple[int, ...] = ()

    @property
    def git(self) -> Git:
        return self.mirror.at(self.path, self.keep_open)

    def put(self, sha: str, keep: Sequence[str] = ()) -> None:
        """Check `sha` out; untracked files are removed, those under `keep` left. A damaged worktree is made anew."""
        if self._git_dir() is not None:
            try:
                return self._put(sha, keep)
            except GitError:
                self.remove()
        self._put(sha, keep)

    def _put(self, sha: str, keep: Sequence[str]) -> None:
        git_dir = self._ready(sha)
        sparse = git_dir / "info" / "sparse-checkout"
        wanted = "".join(f"{p}\n" for p in (*self.patterns, *(f"/{k}/" for k in keep)))
        changed = not sparse.is_file() or sparse.read_text() != wanted
        if changed:
            write_atomically(sparse, wanted)
        self.git.run("checkout", "--quiet", "--detach", "--force", "--no-recurse-submodules", sha)
        if changed:
            self.git.run("sparse-checkout", "reapply")
        self.git.run("clean", "-f", "-d", "-x", "--quiet", *(f"--exclude=/{k}" for k in keep))

    def _ready(self, sha: str) -> Path:
        """The worktree's git directory; made, or mended after a crash."""
        git_dir = self._git_dir()
        if git_dir is None:
            self._drop()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.mirror.local.run("worktree", "prune", "--expire=now")
            self.mirror.local.run("worktree", "add", "--force", "--detach", "--no-checkout", str(self.path), sha)
            git_dir = self._git_dir()
            assert git_dir is not None
        for stale in git_dir.glob("*.lock"):
            stale.unlink(missing_ok=True)
        return git_dir

    def _git_dir(self) -> Path | None:
        """Where the worktree's `.git` file points, if that is a live worktree of our mirror that points back."""
        try:
            target = Path(read_text(self.path / ".git").removeprefix("gitdir: ").strip())
            back = Path(read_text(target / "gitdir").strip())
        except OSError:
            return None
        ours = target.parent == self.mirror.path / "worktrees" and back == self.path / ".git"
        return target if ours and (target / "HEAD").is_file() else None

    def _drop(self) -> None:
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)

    def added(self) -> frozenset[str] | None:
        """The untracked files, ignored ones included; None where tracked files differ from the commit's."""
        if self.git.run("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"):
            return None
        return frozenset(filter(None, self.git.run("ls-files", "--others", "-z").split("\0")))

    def restore(self, keep: frozenset[str]) -> None:
        """Tracked files as the commit has them, and of the others those in `keep` alone."""
        self.git.run("checkout", "--quiet", "--force", "--", ".")
        for name in filter(None, self.git.run("ls-files", "--others", "-z").split("\0")):
            if name not in keep:
                (self.path / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Take the worktree away, its registration too."""
        git_dir = self._git_dir()
        self._drop()
        if git_dir is not None:
            shutil.rmtree(git_dir, ignore_errors=True)


@dataclass(slots=True)
class Slot:
    """A place to lay commits out in, held by this process alone until `release`. `laid`: what lies there, if known."""

    path: Path
    lock: IO[str]
    bridge: Mirror
    laid: str = ""

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let others have the slot. Its files stay, so that the next owner starts from a near commit."""
        self.lock.close()

    def put(
        self,
        sha: str,
        inner_path: str | None,
        inner: tuple[Mirror, str] | None,
        *,
        outer_patterns: tuple[str, ...] = BRIDGE_PATTERNS,
        inner_patterns: tuple[str, ...] = MEGATRON_PATTERNS,
    ) -> None:
        """Lay `sha` out, and `inner` (mirror, commit) at `inner_path` in it; of both, what the patterns name.

        Raises:
            OombisectError: git could not do it (disk full, objects missing).
        """
        self.laid = ""
        try:
            self._forget_other_inners(inner_path if inner else None)
            held = (self.lock.fileno(),)
            Worktree(self.bridge, self.path, outer_patterns, held).put(sha, [inner_path] if inner_path else [])
            if inner_path and inner:
                mirror, pinned = inner
                self._record(inner_path, mirror)
                Worktree(mirror, self.path / inner_path, inner_patterns, held).put(pinned)
        except (GitError, OSError) as error:
            why = error.reason if isinstance(error, GitError) else error.strerror or str(error)
            raise OombisectError(
                f"Could not lay out commit {sha[:12]} in {self.path}: {why}",
                "Check the free space there, and that the clone holds this commit's files.",
                ExitCode.INFRASTRUCTURE,
            ) from error
        self.laid = sha

    @property
    def outer(self) -> Worktree:
        """The worktree of the commit itself, as it lies there."""
        return Worktree(self.bridge, self.path, keep_open=(self.lock.fileno(),))

    @property
    def _note(self) -> Path:
        return self.path.with_name(f"{self.path.name}.inner")

    def _record(self, inner_path: str, mirror: Mirror) -> None:
        text = f"{inner_path}\n{mirror.path}\n"
        if not self._note.is_file() or read_text(self._note) != text:
            write_atomically(self._note, text)

    def _recorded(self) -> tuple[str, Path] | None:
        """The inner worktree of an earlier commit (maybe of an earlier process): path in the tree, mirror."""
        if not self._note.is_file():
            return None
        inner_path, _, mirror = read_text(self._note).strip().partition("\n")
        return inner_path, Path(mirror)

    def _forget_other_inners(self, wanted: str | None) -> None:
        """Remove an inner worktree that is not where this commit wants one: always before the outer one moves."""
        recorded = self._recorded()
        if recorded and recorded[0] != wanted:
            Worktree(Mirror(recorded[1]), self.path / recorded[0]).remove()
            self._note.unlink(missing_ok=True)

    def remove(self) -> None:
        """Take the slot off the disk: the inner worktree first, then the outer one, then the lock."""
        self._forget_other_inners(None)
        Worktree(self.bridge, self.path).remove()
        self.release()


def acquire(root: Path, bridge: Mirror) -> Slot:
    """The first slot under `root` nobody holds, made if need be.

    Raises:
        OombisectError: all are held.
    """
    root.mkdir(parents=True, exist_ok=True)
    for number in range(MAXIMUM_SLOTS):
        slot = _try(root / f"slot-{number}", bridge)
        if slot is not None:
            return slot
    raise OombisectError(
        f"All {MAXIMUM_SLOTS} worktree slots under {root} are in use",
        "Let other oombisect processes end, or choose another cache directory.",
        ExitCode.INFRASTRUCTURE,
    )


def _try(path: Path, bridge: Mirror) -> Slot | None:
    lock = path.with_name(f"{path.name}.lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    lock.seek(0)
    lock.truncate()
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return Slot(path, lock, bridge)


def prune(root: Path, bridge: Mirror) -> int:
    """Remove every slot no living process holds; how many."""
    removed = 0
    for lock in sorted(root.glob("slot-*.lock")):
        slot = _try(lock.with_suffix(""), bridge)
        if slot is not None:
            slot.remove()
            removed += 1
    return removed
