"""The axis inside one roll: Megatron-LM's commits from the old pin to the new one, under one Bridge commit."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from oombisect.axes.point import Point, only_fresh, run_numbers
from oombisect.errors import ExitCode, OombisectError
from oombisect.repo.bridge import BridgeRepository, Materialised
from oombisect.repo.changes import changed_paths, weigh
from oombisect.repo.commits import Commit, CommitGraph
from oombisect.repo.slots import Slot
from oombisect.repo.submodule import Pin
from oombisect.repo.trees import MEGATRON_DIR, RelevantTrees

Move = Literal["forward", "sideways", "back"]


@dataclass(slots=True)
class RollRange:
    """Points of a roll; make one with `roll_range`.

    Args:
        bridge: the Bridge commit under which all points are laid out.
        move: `forward` to a descendant, `back` to an ancestor, or `sideways` through the merge base `fork`.
        lumps: points that stand for several commits (ids, oldest first), so that a step there is one of theirs.
    """

    repository: BridgeRepository
    bridge: str
    pin: Pin
    commits: tuple[Commit, ...]
    points: tuple[Point, ...]
    move: Move
    fork: str | None = None
    notes: tuple[str, ...] = ()
    lumps: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    _trees: list[RelevantTrees] = field(default_factory=list)

    @property
    def trees(self) -> list[RelevantTrees]:
        """What a probe can see of each point; read in one pass, once."""
        if not self._trees:
            own = self.repository.relevant_trees(self.bridge)
            packages = self.repository.store.package_trees([replace(self.pin, sha=c.sha) for c in self.commits])
            self._trees = [
                replace(own, gitlink=commit.sha, megatron=package)
                for commit, package in zip(self.commits, packages, strict=True)
            ]
        return self._trees

    def groups(self) -> list[int]:
        """A number per point; neighbours whose probe-visible trees are equal share it."""
        return run_numbers(self.trees)

    def weights(self, imported: Set[str] | None = None) -> list[float]:
        """The weight of each point's own change; 0 for the old pin and for points that look like the one before.

        Args:
            imported: what a probe imported, as it names files ("megatron-lm:megatron/core/x.py").
        """
        mine = "megatron-lm:"
        seen = None if imported is None else {n.removeprefix(mine) for n in imported if n.startswith(mine)}
        pairs = [(commit.sha, next(iter(commit.parents), "")) for commit in self.commits]
        changed = changed_paths(self.repository.store.mirror(self.pin).local, pairs, [MEGATRON_DIR])
        return only_fresh([weigh(c, seen, folder=MEGATRON_DIR) for c in changed], self.groups())

    def signature(self, index: int) -> dict[str, str]:
        return self.trees[index].to_json()

    def materialise(self, index: int, slot: Slot) -> Materialised:
        return self.repository.materialise(self.bridge, slot, megatron=self.points[index].key)


def roll_range(repository: BridgeRepository, bridge: str, old: str, new: str) -> RollRange:
    """The points from the old pin `old` to the new one `new`, laid out under the Bridge commit `bridge`.

    They are the first-parent history of `new`. A sideways move goes from `old` to the merge base first, which stands
    for all that `old`'s own branch did, undone; in a move back to an ancestor the new pin itself does.

    Raises:
        MissingCommit: one of the two is nowhere to be had.
        OombisectError: their histories do not meet in what is at hand.
    """
    pin = repository.pin(bridge)
    assert pin is not None
    for sha in (old, new):
        mirror = repository.store.ensure(replace(pin, sha=sha))
    graph = CommitGraph(mirror)
    fork = graph.merge_base(old, new)
    if fork is None:
        shallow = " (the clone is shallow)" if graph.is_shallow else ""
        raise OombisectError(
            f"The histories of Megatron-LM {old[:12]} and {new[:12]} do not meet in the clone at hand{shallow}",
            "Name a complete Megatron-LM clone with --megatron PATH.",
            ExitCode.INFRASTRUCTURE,
        )
    commits = [graph.commit(old)]
    notes: tuple[str, ...] = ()
    lumps = {}
    move: Move = "forward"
    if fork != old:
        move = "back" if fork == new else "sideways"
        branch = tuple(commit.sha for commit in graph.log("--reverse", "--first-parent", f"{fork}..{old}"))
        lumps[1] = branch
        commits.append(graph.commit(fork))
        where = f"back to its ancestor {new[:12]}" if move == "back" else f"sideways, through {fork[:12]}"
        notes = (f"Megatron-LM moves {where}: a step there is what {len(branch)} commit(s) of {old[:12]} did, undone",)
    commits += graph.log("--reverse", "--first-parent", f"{fork}..{new}")
    if move == "forward" and len(commits) > 1 and commits[1].parents[:1] != (old,):
        notes = (
            f"{old[:12]} is not on the first-parent line of {new[:12]}: the first point after it holds all that was "
            "merged since",
        )
    points = tuple(
        Point(c.sha, c.sha[:9], c.subject, c.author_date, "megatron-lm", next(iter(c.parents), ""), c.author)
        for c in commits
    )
    return RollRange(repository, bridge, pin, tuple(commits), points, move, None if fork == old else fork, notes, lumps)
