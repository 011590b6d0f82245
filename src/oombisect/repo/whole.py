"""Any git repository, seen whole: for commands that are not Bridge's, which may read every file of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from oombisect.errors import OombisectError
from oombisect.repo import changes
from oombisect.repo.bridge import BridgeRepository, Materialised, open_repository
from oombisect.repo.commits import Commit
from oombisect.repo.mirror import Mirror, Say
from oombisect.repo.revert import Reverted, revert
from oombisect.repo.slots import Slot
from oombisect.repo.trees import RelevantTrees

# A training command may read these, but what they hold hardly ever decides its memory.
_BESIDE_FOLDERS = ("docs", "doc", "tests", "test", ".github", ".gitlab")
_BESIDE_SUFFIXES = (".md", ".rst", ".txt", ".png", ".svg", ".ipynb")
_WHOLE = ("/*",)


def beside(path: str) -> bool:
    """Whether a file is documentation, a test or CI: a change of it alone is a late guess, never none."""
    told = PurePosixPath(path)
    return told.parts[0] in _BESIDE_FOLDERS or told.suffix in _BESIDE_SUFFIXES


@dataclass(slots=True)
class WholeRepository(BridgeRepository):
    """A history whose every file a probe can see. A submodule is laid out where it is Megatron-LM, or the only one."""

    @property
    def project(self) -> str:
        """What its files are called where several projects are told apart."""
        return "repo"

    def trees_of(self, commits: Sequence[Commit]) -> list[RelevantTrees]:
        pins = self.store.pins([commit.tree for commit in commits])
        return [RelevantTrees(commit.tree, pin.sha if pin else "", "", "") for commit, pin in zip(commits, pins)]

    def relevant_trees(self, revision: str, megatron: str | None = None) -> RelevantTrees:
        return self.trees_of([self.commit(revision)])[0]

    def has_package(self, commit: Commit) -> bool:
        """Every commit holds what there is to probe."""
        return True

    def changed(self, commits: Sequence[Commit]) -> list[changes.Changed]:
        pairs = [(commit.sha, next(iter(commit.parents), "")) for commit in commits]
        return changes.changed_paths(self.mirror.local, pairs, ["."])

    def weigh(self, changed: changes.Changed, imported: Set[str] | None, rolls: Mapping[tuple[str, str], int]) -> float:
        if all(beside(path) for path in changed.paths):
            return changes.INVISIBLE
        seen = imported is None or any(path in imported for path in changed.paths)
        weight = changes.IMPORTED if seen else changes.NOT_IMPORTED
        return weight + (max(1, rolls.get(changed.roll, changes.UNKNOWN_ROLL)) if changed.roll else 0)

    @property
    def slots_folder(self) -> Path:
        return super(WholeRepository, self).slots_folder.with_name(f"{self.mirror.path.stem}-whole")

    def materialise(self, revision: str, slot: Slot, megatron: str | None = None) -> Materialised:
        sha = self.resolve(revision)
        pin = self.pin(sha)
        inner: tuple[Mirror, str] | None = (self.store.ensure(pin), pin.sha) if pin else None
        slot.put(sha, pin.path if pin else None, inner, outer_patterns=_WHOLE, inner_patterns=_WHOLE)
        root = slot.path / pin.path if pin else None
        return Materialised(slot.path, root, (), {self.project: slot.path}, sha, pin.sha if pin else "")

    def reverted(self, tip: str, culprit: str) -> Reverted:
        tip, culprit = self.resolve(tip), self.resolve(culprit)
        done = revert(self.mirror, tip, culprit, lambda path: not beside(path))
        self._resolved[done.commit] = done.commit
        return done


def open_whole(
    path: Path | None, cwd: Path, cache: Path, say: Say = lambda _: None, megatron: Path | None = None
) -> WholeRepository:
    """The repository at `path`, else the one that `cwd` lies in.

    Raises:
        OombisectError: there is none.
    """
    try:
        found = open_repository(path or cwd, cwd, cache, say, megatron)
    except OombisectError as error:
        raise OombisectError(
            error.cause, "Name the repository of the command with --repo PATH, or change to it.", error.exit_code
        ) from error
    return WholeRepository(found.mirror, found.cache, found.store, found.reader, found.checkout, found.say, found.clock)
