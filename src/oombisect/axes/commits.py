"""The axis of commits: a range of Bridge history, good end first.

By default the line is the first-parent history of the bad end: one point per change that landed, a merge counting as
one. With `first_parent=False` every commit of the range is a point, in topological order (a commit never before its
parents); neighbours on that line need not be parent and child, so a step between them is what lies between two states
of the tree, and `Point.parent` says what the commit itself was made on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from oombisect.axes.point import Point, only_fresh, run_numbers
from oombisect.errors import OombisectError
from oombisect.repo.bridge import BridgeRepository, Materialised
from oombisect.repo.changes import roll_sizes
from oombisect.repo.commits import Commit
from oombisect.repo.slots import Slot
from oombisect.repo.trees import RelevantTrees


def parse_range(text: str) -> tuple[str, str]:
    """`good..bad` -> (good, bad); an end left out is HEAD.

    Raises:
        OombisectError: it is no such range.
    """
    good, dots, bad = text.strip().partition("..")
    if not dots or ".." in bad or bad.startswith(".") or not (good or bad):
        raise OombisectError(f"{text!r} is no range of commits", "Write it GOOD..BAD, for example v0.5.0..main.")
    return good or "HEAD", bad or "HEAD"


def range_ends(repository: BridgeRepository, text: str) -> tuple[str, str, str | None]:
    """The ends of a range, and what to say of them: `a..b` as written, `a...b` from where the two parted to b.

    Raises:
        OombisectError: it is no range, or its commits have no history in common.
    """
    one, dots, other = text.strip().partition("...")
    if not dots or ".." in one or ".." in other or other.startswith(".") or not (one or other):
        return (*parse_range(text), None)
    one, other = one or "HEAD", other or "HEAD"
    first, last = repository.resolve(one), repository.resolve(other)
    base = _merge_base(repository, one, other, first, last)
    if base == last:
        raise OombisectError(f"{other} has no commits that {one} lacks", f"Swap them: {other}...{one}")
    return base, other, f"{one} and {other} parted at {base[:12]}: the range begins there"


def points_to_skip(axis: CommitRange, texts: Sequence[str]) -> tuple[str, ...]:
    """The points that `--skip` names: a commit each, or `A..B`, those that B has and A lacks, as `git bisect skip`.

    Raises:
        OombisectError: no such commit, none of them is a point, or one is an end.
    """
    repository, found = axis.repository, dict[str, None]()
    for text in texts:
        if ".." in text:
            low, high = (repository.resolve(end) for end in parse_range(text))
            asked = {commit.sha for commit in repository.log(f"{low}..{high}")}
        else:
            asked = {repository.resolve(text)}
        points = [point.key for point in axis.points if point.key in asked]
        if not points:
            raise OombisectError(
                f"--skip {text}: no point of the range", "Name commits of it; a merged branch is one point, its merge."
            )
        if end := next((key for key in (axis.points[0].key, axis.points[-1].key) if key in asked), None):
            raise OombisectError(
                f"--skip {text}: {end[:12]} is an end of the range, which must be measured", "Choose another end."
            )
        found |= dict.fromkeys(points)
    return tuple(found)


@dataclass(slots=True)
class CommitRange:
    """Points of a range; make one with `commit_range`.

    `lumps`: points that stand for several commits (ids, oldest first), so that a step there is one of theirs.
    `per_lock`: probes see the environment of each point's own lock too.
    """

    repository: BridgeRepository
    commits: tuple[Commit, ...]
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()
    lumps: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    per_lock: bool = False
    _trees: list[RelevantTrees] = field(default_factory=list)

    @property
    def trees(self) -> list[RelevantTrees]:
        """What a probe can see of each point; read in one pass, once."""
        if not self._trees:
            self._trees = self.repository.trees_of(self.commits)
        return self._trees

    def groups(self) -> list[int]:
        """A number per point; neighbours whose probe-visible trees are equal share it."""
        return run_numbers(self.trees, self.per_lock)

    def weights(self, imported: Set[str] | None = None) -> list[float]:
        """The weight of each point's own change; 0 for the good end and for points that look like the one before.

        Args:
            imported: what a probe imported, as it names files ("bridge:src/megatron/bridge/x.py").
        """
        own = f"{self.repository.project}:"
        seen = None if imported is None else {n.removeprefix(own) for n in imported if n.startswith(own)}
        changed = self.repository.changed(self.commits)
        rolls = [c.roll for c in changed if c.roll]
        sizes: dict[tuple[str, str], int] = {}
        pin = next((p for p in self.repository.store.pins([c.tree for c in reversed(self.commits)]) if p), None)
        if rolls and pin:
            sizes = roll_sizes(self.repository.store.mirror(pin).local, rolls)
        return only_fresh([self.repository.weigh(c, seen, sizes) for c in changed], self.groups())

    def signature(self, index: int) -> dict[str, str]:
        return self.trees[index].to_json()

    def index(self, revision: str) -> int:
        """The place of a commit on the line.

        Raises:
            OombisectError: it is not on it.
        """
        sha = self.repository.resolve(revision)
        for place, point in enumerate(self.points):
            if point.key == sha:
                return place
        raise OombisectError(f"{revision} is not a point of this range", "Name a commit that the range lists.")

    def materialise(self, index: int, slot: Slot) -> Materialised:
        return self.repository.materialise(self.points[index].key, slot)


def commit_range(
    repository: BridgeRepository,
    good: str,
    bad: str,
    *,
    first_parent: bool = True,
    paths: Sequence[str] = (),
    per_lock: bool = False,
) -> CommitRange:
    """The points from `good` to `bad`.

    Where `bad` does not descend from `good` (tags often lie on release branches), the line goes from `good` to the
    merge base and on to `bad`: the merge base stands for all that `good`'s own branch did, undone.

    Args:
        first_parent: only the bad end's own line of commits (default); False: every commit, in topological order.
        paths: only commits that touch one of these are points between the ends (each is laid out whole all the same).
        per_lock: each point is probed in the environment of its own lock.

    Raises:
        OombisectError: an end is unknown, the range is reversed or empty, or no Bridge is in it.
    """
    first, last = repository.resolve(good), repository.resolve(bad)
    if first == last:
        raise OombisectError(
            f"{good} and {bad} are the same commit ({first[:12]})", "Give two commits, the good one first: GOOD..BAD."
        )
    fork = None if repository.is_ancestor(first, last) else _fork(repository, good, bad, first, last)
    start = fork or first
    options = ["--reverse", "--first-parent"] if first_parent else ["--reverse", "--topo-order", "--full-history"]
    between = repository.log(*options, f"{start}..{last}", paths=paths)
    touched = bool(between)
    if not between or between[-1].sha != last:
        between.append(repository.commit(last))
    head = [repository.commit(sha) for sha in ((first, fork) if fork else (first,))]
    commits = (*head, *between)
    if not any(repository.has_package(c) for c in (commits[0], commits[-1])):
        raise OombisectError(
            f"Neither {good} nor {bad} holds src/megatron/bridge", "Name a Megatron Bridge repository with --repo PATH."
        )
    notes, lumps = [], {}
    if fork:
        branch = repository.log("--reverse", "--first-parent", f"{fork}..{first}")
        lumps[1] = tuple(commit.sha for commit in branch)
        notes.append(
            f"{bad} does not descend from {good}: their histories parted at {fork[:12]}, so the line goes through it; "
            f"a step there is what {good}'s own {len(branch)} commit(s) since then did, undone"
        )
    elif first_parent and not paths and commits[1].parents[:1] != (first,):
        notes.append(
            f"{good} is not on the first-parent line of {bad}: the first point after it holds all that was merged since"
        )
    if paths and not touched:
        notes.append(f"No commit from {good} to {bad} touches {', '.join(paths)}: the two ends are the only points")
    if paths:
        lumps |= _left_out(commits, [c.sha for c in repository.log(*options, f"{start}..{last}")])
    project = repository.project
    points = tuple(
        Point(c.sha, c.sha[:9], c.subject, c.author_date, project, c.parents[0] if c.parents else "", c.author)
        for c in commits
    )
    return CommitRange(repository, commits, points, tuple(notes), lumps, per_lock)


def _left_out(commits: Sequence[Commit], everything: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Points before which a path filter left commits out, with those commits and their own."""
    places = {commit.sha: index for index, commit in enumerate(commits)}
    lumps, pending = {}, []
    for sha in everything:
        pending.append(sha)
        if sha in places:
            if len(pending) > 1:
                lumps[places[sha]] = tuple(pending)
            pending = []
    return lumps


def _fork(repository: BridgeRepository, good: str, bad: str, first: str, last: str) -> str:
    """The merge base of two ends of which neither descends from the other.

    Raises:
        OombisectError: the range is reversed, or the histories have nothing in common that is at hand.
    """
    if repository.is_ancestor(last, first):
        raise OombisectError(f"The range is reversed: {bad} comes before {good}", f"Swap them: {bad}..{good}")
    return _merge_base(repository, good, bad, first, last)


def _merge_base(repository: BridgeRepository, good: str, bad: str, first: str, last: str) -> str:
    """Where the histories of two commits parted.

    Raises:
        OombisectError: they have nothing in common that is at hand.
    """
    if repository.is_ancestor(first, last):
        return first
    if repository.is_shallow:
        raise OombisectError(
            f"The clone is shallow and does not hold the history from {good} to {bad}",
            "`git fetch --unshallow` brings the rest of it.",
        )
    base = repository.merge_base(first, last)
    if base is None:
        raise OombisectError(f"{good} and {bad} share no history", "Give two commits of one history: GOOD..BAD.")
    return base
