"""Commits as probe targets: what a probe can see there, which recipe function it calls, how it comes onto the disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from oombisect.axes.commits import CommitRange
from oombisect.probing.workload import ConfigCall, RecipeCall, Sources
from oombisect.recipes.resolve import UnknownRecipe, resolve
from oombisect.recipes.scan import RecipeScanner
from oombisect.repo.bridge import BridgeRepository
from oombisect.repo.revert import RevertConflict
from oombisect.repo.slots import Slot
from oombisect.repo.submodule import MissingCommit
from oombisect.repo.trees import RelevantTrees
from oombisect.session.bisection import CannotRevert
from oombisect.session.hotfixes import Hotfixes
from oombisect.session.measuring import CannotProbe, NotAtHand, Target
from oombisect.session.point_environment import LockEnvironments


class Targets(Protocol):
    """Makes targets of commits."""

    @property
    def repository(self) -> BridgeRepository: ...

    @property
    def hotfixes(self) -> Hotfixes: ...

    def of(self, sha: str, subject: str, trees: RelevantTrees, *, date: str = "", key: str = "") -> Target:
        """The target of a commit, the user's or ours (a reverted tip, known by `key`); `date` is ISO 8601."""
        ...


@dataclass
class CommitTargets:
    """Makes targets of commits of one repository, laid out in `slot` where no other is named.

    `locks`: each commit is probed in the environment of its own lock; None: in the session's.
    `config`: what every commit runs with, in the place of what its recipe makes.
    """

    repository: BridgeRepository
    slot: Slot
    scanner: RecipeScanner
    recipe: str
    hotfixes: Hotfixes
    locks: LockEnvironments | None = None
    config: Mapping[str, Any] | None = None

    def of(
        self,
        sha: str,
        subject: str,
        trees: RelevantTrees,
        *,
        date: str = "",
        key: str = "",
        megatron: str | None = None,
        repo: str = "bridge",
    ) -> Target:
        """The target of a commit, the user's or ours (a reverted tip, known by `key`); `date` is ISO 8601.

        With `megatron` that commit of Megatron-LM lies in the place of the pinned one: the key is `bridge+megatron`.
        `repo`: on whose history the point lies.
        """
        target = Target(
            key=key or (f"{sha}+{megatron}" if megatron else sha),
            subject=subject,
            trees={"bridge": trees.bridge, "megatron-lm": trees.megatron},
            submodule=trees.gitlink,
            committed=datetime.fromisoformat(date) if date else None,
            call=lambda: self._call(sha),
            lay_out=lambda slot=None: self._lay_out(sha, megatron, slot or self.slot),
            repo=repo,
        )
        return self.locks.of(trees.env_lock).around(target) if self.locks else target

    def _call(self, sha: str) -> RecipeCall | ConfigCall:
        try:
            found = resolve(self.recipe, self.scanner.table(self.hotfixes.on(sha)))
        except UnknownRecipe as error:
            raise CannotProbe(f"{error.cause}. {error.way_out}") from error
        call = RecipeCall(self.recipe, found.module, found.function, found.kwargs)
        return call if self.config is None else ConfigCall(call, config=self.config, complete=True)

    def _lay_out(self, sha: str, megatron: str | None, slot: Slot) -> Sources:
        try:
            laid = self.repository.materialise(self.hotfixes.on(sha), slot, megatron)
        except MissingCommit as error:
            raise NotAtHand(f"{error.cause}. {error.way_out}") from error
        return Sources(laid.source_paths, {name: Path(root) for name, root in laid.roots.items()})


@dataclass
class CommitLine:
    """A range of commits, ready for a session."""

    axis: CommitRange
    make: Targets

    @cached_property
    def targets(self) -> Sequence[Target]:
        pairs = zip(self.axis.points, self.axis.trees, strict=True)
        return [self.make.of(point.key, point.subject, trees, date=point.author_date) for point, trees in pairs]

    @cached_property
    def weights(self) -> Sequence[float]:
        return self.axis.weights()

    def lump(self, index: int) -> tuple[str, ...]:
        """The commits a point stands for, where it stands for more than its own."""
        return self.axis.lumps.get(index, ())

    def reverted(self, index: int) -> Target:
        """See `Line.reverted`."""
        return self.reverted_on(self.axis.points[-1].key, self.axis.trees[-1], index)

    def reverted_on(self, tip: str, tip_trees: RelevantTrees, index: int) -> Target:
        """As `reverted`, on any commit in the place of the bad tip."""
        if index in self.axis.lumps:
            raise CannotRevert(f"the point stands for {len(self.axis.lumps[index])} commits")
        culprit = self.axis.points[index]
        try:
            done = self.make.repository.reverted(tip, culprit.key)
            self.make.hotfixes.on(done.commit)
        except RevertConflict as error:
            raise CannotRevert(error.cause) from error
        except CannotProbe as error:
            raise CannotRevert(f"without it {error}") from error
        subject = f"without {culprit.subject}"
        trees = self.make.repository.relevant_trees(done.commit)
        target = self.make.of(done.commit, subject, trees, key=f"{tip}-{culprit.key}")
        return self._environment_without(index, target, tip_trees)

    def _environment_without(self, index: int, target: Target, tip_trees: RelevantTrees) -> Target:
        """`target` in the tip's environment less what the point changed in it: a lock hardly ever reverts as text."""
        locks = self.make.locks if isinstance(self.make, CommitTargets) else None
        if locks is None:
            return target
        sides = (tip_trees, self.axis.trees[index - 1], self.axis.trees[index])
        tip, before, after = (locks.of(trees.env_lock) for trees in sides)
        return tip.without(before, after).around(target)
