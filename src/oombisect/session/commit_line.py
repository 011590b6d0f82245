"""Commits as probe targets: what a probe can see there, which recipe function it calls, how it comes onto the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from oombisect.axes.commits import CommitRange
from oombisect.errors import OombisectError
from oombisect.probing.workload import RecipeCall, Sources
from oombisect.recipes.resolve import UnknownRecipe, resolve
from oombisect.recipes.scan import RecipeScanner
from oombisect.repo.bridge import BridgeRepository, Materialised
from oombisect.repo.revert import RevertConflict
from oombisect.repo.slots import Slot
from oombisect.repo.trees import RelevantTrees
from oombisect.session.bisection import CannotRevert
from oombisect.session.measuring import CannotLayOut, Target


@dataclass
class CommitTargets:
    """Makes targets of commits of one repository, all laid out in one slot."""

    repository: BridgeRepository
    slot: Slot
    scanner: RecipeScanner
    recipe: str

    def of(self, sha: str, subject: str, trees: RelevantTrees, *, date: str = "", key: str = "") -> Target:
        """The target of a commit, the user's or ours (a reverted tip, known by `key`); `date` is ISO 8601."""
        call, obstacle = self._call(sha)
        return Target(
            key=key or sha,
            subject=subject,
            trees={"bridge": trees.bridge, "megatron-lm": trees.megatron},
            submodule=trees.gitlink,
            committed=datetime.fromisoformat(date) if date else None,
            lay_out=lambda: self._lay_out(lambda: self.repository.materialise(sha, self.slot)),
            call=call,
            obstacle=obstacle,
        )

    def _call(self, sha: str) -> tuple[RecipeCall | None, str]:
        try:
            found = resolve(self.recipe, self.scanner.table(sha))
        except UnknownRecipe as error:
            return None, f"{error.cause}. {error.way_out}"
        return RecipeCall(self.recipe, found.module, found.function, found.kwargs), ""

    def _lay_out(self, materialise: Callable[[], Materialised]) -> Sources:
        try:
            laid = materialise()
        except OombisectError as error:
            raise CannotLayOut(error.cause) from error
        return Sources(laid.source_paths, {name: Path(root) for name, root in laid.roots.items()})


@dataclass
class CommitLine:
    """A range of commits, ready for a session."""

    axis: CommitRange
    make: CommitTargets

    @cached_property
    def targets(self) -> Sequence[Target]:
        pairs = zip(self.axis.points, self.axis.trees, strict=True)
        return [self.make.of(point.key, point.subject, trees, date=point.author_date) for point, trees in pairs]

    @cached_property
    def weights(self) -> Sequence[float]:
        return self.axis.weights()

    def reverted(self, index: int) -> Target:
        """See `Line.reverted`."""
        tip, culprit = self.axis.points[-1], self.axis.points[index]
        try:
            done = self.make.repository.reverted(tip.key, culprit.key)
        except RevertConflict as error:
            raise CannotRevert(error.cause) from error
        subject = f"{tip.short} without {culprit.short} {culprit.subject}"
        trees = self.make.repository.relevant_trees(done.commit)
        return self.make.of(done.commit, subject, trees, key=f"{tip.key}-{culprit.key}")
