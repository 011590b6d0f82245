"""Which probe-visible files each commit changed, and how likely that makes it to have changed memory.

A weight only steers where the search looks first; every point stays reachable whatever its weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from oombisect.repo.git import NULL_SHA, Git
from oombisect.repo.trees import ENV_FILES, SOURCE_DIR

# Chosen, not measured: a changed file the probe imported counts 1; one it did not import may still be imported after
# the change; a lock file counts little while the environment is held fixed. 10 is the median real submodule move.
IMPORTED, NOT_IMPORTED, ENV_ONLY, INVISIBLE = 1.0, 0.1, 0.02, 0.01
UNKNOWN_ROLL = 10


@dataclass(frozen=True, slots=True)
class Changed:
    """What one commit changed, of the paths asked about. `roll`: the submodule commits before and after a move."""

    paths: tuple[str, ...] = ()
    roll: tuple[str, str] | None = None


def changed_paths(git: Git, commits: Sequence[tuple[str, str]], paths: Sequence[str]) -> list[Changed]:
    """What each commit changed of `paths`, in one process; needs trees only, no file contents.

    Args:
        commits: (commit, parent to compare with) pairs; a parent of "" compares with nothing.
    """
    if not commits:
        return []
    options = ("--stdin", "--always", "--root", "-r", "--no-renames", "-z")
    pairs = "".join(f"{commit} {parent}".rstrip() + "\n" for commit, parent in commits)
    output = git.raw("diff-tree", *options, "--", *paths, stdin=pairs)
    found: dict[str, Changed] = {}
    fields = iter(output.decode("utf-8", "surrogateescape").split("\0"))
    sha, names, roll = "", [], None
    for field in fields:
        if field.startswith(":"):
            old_mode, new_mode, old, new, _ = field[1:].split(" ")
            names.append(next(fields))
            if "160000" in (old_mode, new_mode):
                roll = (old if old_mode == "160000" else NULL_SHA, new if new_mode == "160000" else NULL_SHA)
        else:
            if sha:
                found[sha] = Changed(tuple(names), roll)
            sha, names, roll = field.strip(), [], None
    return [found.get(commit, Changed()) for commit, _ in commits]


def weigh(
    changed: Changed,
    imported: Set[str] | None,
    roll_sizes: Mapping[tuple[str, str], int] | None = None,
    folder: str = SOURCE_DIR,
) -> float:
    """How much a commit counts when an interval is split; never 0.

    Args:
        imported: files a probe imported ("src/megatron/bridge/x.py"); None while no probe has told.
        roll_sizes: submodule commits in each move, where known.
        folder: where the sources lie.
    """
    source = [p for p in changed.paths if p.startswith(f"{folder}/")]
    weight = INVISIBLE
    if any(p in ENV_FILES for p in changed.paths):
        weight = ENV_ONLY
    if source:
        weight = IMPORTED if imported is None or any(p in imported for p in source) else NOT_IMPORTED
    if changed.roll:
        weight += max(1, (roll_sizes or {}).get(changed.roll, UNKNOWN_ROLL))
    return weight


def roll_sizes(git: Git, rolls: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """First-parent submodule commits in each move, for those whose ends are at hand.

    One walk serves all moves along one line; a move off that line (sideways) is counted by itself.
    """
    ends = sorted({sha for roll in rolls for sha in roll if sha != NULL_SHA})
    if not ends:
        return {}
    known = git.run("cat-file", "--batch-check=%(objecttype) %(objectname)", stdin="".join(f"{e}\n" for e in ends))
    present = {line.split()[1] for line in known.splitlines() if line.startswith("commit ")}
    first_parent: dict[str, str] = {}
    if present:
        walked = git.run("rev-list", "--first-parent", "--parents", "--stdin", stdin="".join(f"{e}\n" for e in present))
        first_parent = {sha: parents[0] if parents else "" for sha, *parents in map(str.split, walked.splitlines())}
    depth = _depths(first_parent)
    sizes = {}
    for old, new in rolls:
        if old in present and new in present:
            straight = _steps(first_parent, depth, old, new)
            sizes[old, new] = straight if straight is not None else _sideways(git, old, new)
    return sizes


def _depths(first_parent: Mapping[str, str]) -> dict[str, int]:
    """Distance of each commit from the root of its first-parent line."""
    depth: dict[str, int] = {}
    for start in first_parent:
        line, at = [], start
        while at and at not in depth:
            line.append(at)
            at = first_parent.get(at, "")
        base = depth.get(at, -1)
        for step, sha in enumerate(reversed(line), 1):
            depth[sha] = base + step
    return depth


def _steps(first_parent: Mapping[str, str], depth: Mapping[str, int], old: str, new: str) -> int | None:
    """Steps from `old` to `new` along first parents, None if `new` does not descend from `old` that way."""
    distance = depth[new] - depth[old]
    at = new
    for _ in range(max(distance, 0)):
        at = first_parent[at]
    return distance if distance >= 0 and at == old else None


def _sideways(git: Git, old: str, new: str) -> int:
    return int(git.run("rev-list", "--count", "--first-parent", f"{old}...{new}").strip())
