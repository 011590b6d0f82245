"""Which commit of the demo is which. For tests only: nothing that bisects may import this module."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from oombisect.demo.commits import Commit, bridge_commits
from oombisect.demo.repository import DemoRepository


@dataclass(frozen=True, slots=True)
class Truth:
    """Full commit ids.

    Args:
        fragmentation: strands memory; with it the recipe stops fitting (it is the crossing).
        capacity: adds to peak allocated; by then the recipe does not fit any more.
        reverted, revert: adds to peak allocated, and takes that back again.
        roll: moves the submodule, with no effect on memory.
        merge: merges a side branch, with no effect on memory.
        unimportable: the commits between `broken` (included) and its fix, oldest first.
    """

    fragmentation: str
    capacity: str
    reverted: str
    revert: str
    roll: str
    merge: str
    unimportable: tuple[str, ...]


def truth(demo: DemoRepository) -> Truth:
    """The truth about a repository that `build_demo` made."""
    log = _git(demo.path, "log", "--format=%H %s", demo.bad)
    by_subject = {subject: sha for sha, _, subject in (line.partition(" ") for line in log.splitlines())}
    sha = {commit.slug: by_subject[commit.subject] for commit in bridge_commits()}
    return Truth(
        fragmentation=sha["chunk-tensors"],
        capacity=sha["staged-weights"],
        reverted=sha["layer-movement"],
        revert=sha["revert-layer-movement"],
        roll=sha["roll"],
        merge=sha["merge-lora-dropout"],
        unimportable=tuple(sha[commit.slug] for commit in _between("move-helpers", "fix-import")),
    )


def _between(first: str, end: str) -> list[Commit]:
    line = [commit for commit in bridge_commits() if not commit.branch]
    slugs = [commit.slug for commit in line]
    return line[slugs.index(first) : slugs.index(end)]


def _git(repository: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=True).stdout
