"""A change applied to every commit before it is probed, as a commit of our own mirror: the user's repository is never
written to, and what a worktree is laid out from stays one commit.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oombisect.errors import OombisectError
from oombisect.repo.git import Git, GitError
from oombisect.repo.mirror import Mirror
from oombisect.repo.revert import EMPTY_TREE, commit_of_tree, tree_of

MAX_PATCH = 4 << 20
_APPLY = ("apply", "--cached", "--whitespace=nowarn")


@dataclass(frozen=True, slots=True)
class Hotfix:
    """A patch, and where it is from: a file's path or a commit. `patch` is empty until it was read."""

    source: str
    patch: str = ""

    @property
    def name(self) -> str:
        """What to call it to people."""
        return Path(self.source).name[:40]

    @property
    def digest(self) -> str:
        """What tells it from others: a hash of its text."""
        return hashlib.sha256(self.patch.encode("utf-8", "surrogateescape")).hexdigest()


class HotfixConflict(OombisectError):
    """A hotfix does not apply to a commit, and is not in it yet."""

    def __init__(self, hotfix: Hotfix, why: str) -> None:
        super().__init__(f"the hotfix {hotfix.name} does not apply: {why}", "Mend the patch.")


def patch_of_file(path: Path) -> Hotfix:
    """The hotfix in a file.

    Raises:
        OombisectError: it cannot be read, or is too large.
    """
    try:
        if path.stat().st_size > MAX_PATCH:
            raise OombisectError(f"--hotfix {path} is larger than {MAX_PATCH >> 20} MiB", "Name a smaller patch.")
        return Hotfix(str(path.absolute()), path.read_bytes().decode("utf-8", "surrogateescape"))
    except OSError as error:
        raise OombisectError(f"--hotfix {path} cannot be read: {error.strerror}", "Name a readable patch.") from error


def patch_of_commit(mirror: Mirror, commit: str) -> Hotfix:
    """What a commit changed against its first parent."""
    parents = mirror.local.run("rev-list", "--parents", "--max-count=1", commit).split()[1:]
    before = parents[0] if parents else EMPTY_TREE
    options = ("-p", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv")
    return Hotfix(commit, mirror.git.run("diff-tree", *options, before, commit))


def check(mirror: Mirror, hotfix: Hotfix) -> Hotfix:
    """The hotfix itself.

    Raises:
        OombisectError: it changes nothing, or is no patch.
    """
    try:
        mirror.local.run("apply", "--numstat", stdin=hotfix.patch)
    except GitError as error:
        raise OombisectError(
            f"--hotfix {hotfix.source} is no patch: {error.reason}", "Write one with `git diff` or name a commit."
        ) from error
    return hotfix


def with_hotfixes(mirror: Mirror, commit: str, hotfixes: Sequence[Hotfix]) -> str:
    """`commit` with these changes on top, in order, as a commit; those it has already (they come out cleanly) are not
    made again.

    Raises:
        HotfixConflict: one neither applies nor is there.
    """
    with tempfile.TemporaryDirectory(prefix="oombisect-index-") as scratch:
        git = replace(mirror.git, variables={"GIT_INDEX_FILE": str(Path(scratch) / "index")})
        git.run("read-tree", commit)
        for hotfix in hotfixes:
            why = _apply(git, hotfix)
            if why and _apply(git, hotfix, "--reverse", "--check"):
                raise HotfixConflict(hotfix, why)
        tree = git.run("write-tree", "--missing-ok").strip()
    if tree == tree_of(mirror.local, commit):
        return commit
    return commit_of_tree(mirror.local, tree, commit, f"{commit} with hotfixes")


def _apply(git: Git, hotfix: Hotfix, *how: str) -> str:
    """Apply it to the index; why it does not apply, if so."""
    try:
        git.run(*_APPLY, *how, stdin=hotfix.patch)
    except GitError as error:
        if error.status not in (1, 128):
            raise
        return error.reason
    return ""
