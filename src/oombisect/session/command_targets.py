"""Commits at which a training command is run: what a probe can see there, the command, how it comes onto the disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from oombisect.probing.build import Build
from oombisect.probing.command_call import CommandCall
from oombisect.probing.workload import Sources, Workload
from oombisect.recipes import megatron_ci
from oombisect.repo.slots import Slot
from oombisect.repo.submodule import MissingCommit
from oombisect.repo.trees import RelevantTrees
from oombisect.repo.whole import WholeRepository
from oombisect.session.hotfixes import Hotfixes
from oombisect.session.measuring import CannotProbe, NotAtHand, Target


@dataclass(frozen=True, slots=True)
class _Built:
    """What a build left in the slot: of which commit and tree, and which files it added."""

    commit: str
    tree: str
    files: frozenset[str]
    sources: Sources


@dataclass
class CommandTargets:
    """Makes targets of commits of any repository, laid out whole, built where there is a build."""

    repository: WholeRepository
    slot: Slot
    workload: Workload
    hotfixes: Hotfixes
    build: Build | None = None
    _failed: dict[str, str] = field(default_factory=dict)
    _built: dict[Path, _Built] = field(default_factory=dict)

    def of(self, sha: str, subject: str, trees: RelevantTrees, *, date: str = "", key: str = "") -> Target:
        """The target of a commit, the user's or ours (a reverted tip, known by `key`); `date` is ISO 8601."""
        return Target(
            key=key or sha,
            subject=subject,
            trees={"tree": trees.bridge},
            committed=datetime.fromisoformat(date) if date else None,
            call=lambda: self._call(sha),
            lay_out=lambda slot=None: self._lay_out(sha, trees.bridge, slot or self.slot),
            repo=self.repository.project,
        )

    def _call(self, sha: str) -> CommandCall:
        test = megatron_ci.asked(self.workload.recipe)
        if test is None or self.workload.command:
            return CommandCall(self.workload.command, self.workload.recipe)
        at = self.repository.resolve(test.revision) if test.revision else self.hotfixes.on(sha)
        try:
            return megatron_ci.command_of_test(
                test.name,
                self._contents(at, megatron_ci.configuration_path(test.name)),
                self._contents(self.hotfixes.on(sha), megatron_ci.ARGUMENTS),
                self.workload.iterations,
            )
        except megatron_ci.UnreadableTest as error:
            raise CannotProbe(f"{megatron_ci.configuration_path(test.name)} at {at[:12]}: {error}") from error

    def _contents(self, sha: str, path: str) -> bytes:
        entry = self.repository.entry(sha, path)
        if entry is None or not entry.mode.startswith("100"):
            raise CannotProbe(f"{sha[:12]} has no {path}")
        return self.repository.mirror.contents([entry.sha])[0]

    def _lay_out(self, sha: str, tree: str, slot: Slot) -> Sources:
        """On disk, and built, once as long as the slot holds this tree; a build that failed is not tried again."""
        if tree in self._failed:
            raise CannotProbe(self._failed[tree])
        commit = self.hotfixes.on(sha)
        built = self._built.pop(slot.path, None)
        if built is not None and built.tree == tree and built.commit == slot.laid:
            slot.outer.restore(built.files)
            self._built[slot.path] = built
            return built.sources
        try:
            laid = self.repository.materialise(commit, slot)
        except MissingCommit as error:
            raise NotAtHand(f"{error.cause}. {error.way_out}") from error
        if self.build is not None:
            failure = self.build.run(laid.root, slot.path.with_name(f"{slot.path.name}.build-log.txt"))
            if failure is not None:
                self._failed[tree] = failure
                raise CannotProbe(failure)
        sources = Sources(laid.source_paths, dict(laid.roots))
        files = slot.outer.added() if self.build is not None else None
        if files is not None:
            self._built[slot.path] = _Built(commit, tree, files, sources)
        return sources
