"""The tip without one commit's change, as a commit of our own mirror: no branch, index or user identity is involved.

Reverting C on tip T is the three-way merge of T and C's parent over the base C. `git merge-tree --write-tree` does
that on trees alone; as git 2.39 finds the base by itself, it is given two throw-away commits whose only common
ancestor is C's tree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oombisect.errors import OombisectError
from oombisect.repo.git import Git
from oombisect.repo.mirror import Mirror

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


class RevertConflict(OombisectError):
    """The change does not come out of the tip cleanly; `paths` are those in conflict."""

    def __init__(self, culprit: str, tip: str, paths: tuple[str, ...]) -> None:
        shown = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
        super().__init__(
            f"Commit {culprit[:12]} does not revert cleanly on {tip[:12]}: {shown or 'conflict'}",
            "Later commits build on it; revert it by hand to check it.",
        )
        self.culprit, self.tip, self.paths = culprit, tip, paths


@dataclass(frozen=True, slots=True)
class Reverted:
    """A commit holding the tip without the culprit's change.

    `changed`: False when the tip already lacks it. `ignored`: paths in conflict that no probe reads, as at the tip.
    """

    commit: str
    changed: bool
    ignored: tuple[str, ...] = ()


def revert(mirror: Mirror, tip: str, culprit: str, matters: Callable[[str], bool]) -> Reverted:
    """Undo on `tip` what `culprit` did to its first parent (a merge: all it brought in).

    Args:
        matters: whether a probe reads the path; a conflict elsewhere (uv.lock, docs) is settled as the tip has it.

    Raises:
        RevertConflict: a conflict in a path that matters.
    """
    git, local = mirror.git, mirror.local  # commits are made by the latter, under an identity of ours
    parents = local.run("rev-list", "--parents", "--max-count=1", culprit).split()[1:]
    before = tree_of(local, parents[0]) if parents else EMPTY_TREE
    if not parents:
        local.run("hash-object", "-t", "tree", "-w", "--stdin", stdin=b"")
    base = commit_of_tree(local, tree_of(local, culprit))
    ours, theirs = commit_of_tree(local, tree_of(local, tip), base), commit_of_tree(local, before, base)
    code, output = git.call("merge-tree", "--write-tree", "--no-messages", "--name-only", "-z", ours, theirs, ok=(0, 1))
    merged, *names = output.decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
    conflicts = tuple(sorted({name for name in names if name})) if code else ()
    if code and (not conflicts or any(matters(path) for path in conflicts)):
        raise RevertConflict(culprit, tip, tuple(p for p in conflicts if matters(p)) or conflicts)
    tree = _settle(git, merged.strip(), tip, conflicts) if conflicts else merged.strip()
    return Reverted(commit_of_tree(local, tree, tip, f"Revert {culprit}"), tree != tree_of(local, tip), conflicts)


def tree_of(git: Git, commit: str) -> str:
    """The tree of a commit."""
    return git.run("rev-parse", "--verify", f"{commit}^{{tree}}").strip()


def commit_of_tree(git: Git, tree: str, parent: str | None = None, message: str = "oombisect") -> str:
    """A commit of ours; the same tree, parent and message give the same id where `git` is a local one."""
    return git.run("commit-tree", tree, *(("-p", parent) if parent else ()), stdin=message).strip()


def _settle(git: Git, merged: str, tip: str, paths: tuple[str, ...]) -> str:
    """The merged tree with `paths` as the tip has them (absent where it has none)."""
    with tempfile.TemporaryDirectory(prefix="oombisect-index-") as scratch:
        index = Git(git.directory, git.kind, git.settings, {"GIT_INDEX_FILE": str(Path(scratch) / "index")})
        index.run("read-tree", merged)
        listing = git.run("ls-tree", "-r", "-z", tip, "--", *(f":(literal){p}" for p in paths))
        removals = "".join(f"0 {'0' * 40}\t{path}\0" for path in paths)
        index.run("update-index", "-z", "--index-info", stdin=removals)
        index.run("update-index", "-z", "--index-info", stdin=listing)
        return index.run("write-tree", "--missing-ok").strip()
