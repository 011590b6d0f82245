"""Random histories, axes and options. What is true of a history is worked out from its points, never by the search."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hypothesis import strategies as st

from oombisect.search import Conclusion, Delta, Metrics, Options, Request, State, conclude, observe, plan, start
from tests.search.world import GIB, MIB, Change, World

MS = 1_000

STEP = st.builds(
    Change,
    allocated=st.integers(-30, 60).map(lambda n: n * 256 * MIB),
    stranded=st.sampled_from([0, 0, 0, 2 * GIB, 5 * GIB]),
    external=st.sampled_from([0, 0, 0, 32 * MIB, GIB]),
    phase=st.sampled_from([0, 0, GIB]),
    allocations=st.integers(0, 9),
    needed=st.sampled_from([0, 0, 2 * GIB]),
    step_time=st.sampled_from([0, 0, 40 * MS, 300 * MS]),
)


@dataclass(frozen=True)
class Case:
    """A history and the axis it is searched on; `parallel` probes are answered in an order drawn from `order`."""

    world: World
    weights: tuple[float, ...] | None = None
    groups: tuple[int, ...] | None = None
    known: frozenset[int] = frozenset()
    skip: frozenset[int] = frozenset()
    parallel: int = 1
    order: Any = field(default=None, compare=False)

    @property
    def axis(self) -> dict[str, Any]:
        return {"weights": self.weights, "groups": self.groups, "known": self.known, "skip": self.skip}

    def rising(self, **other: object) -> Case:
        """The same case with memory that only ever goes up, which a probe can measure whatever it comes to.

        The groups were drawn for another history, so there are none. `other` replaces more of the history.
        """
        changes = {i: replace(c, allocated=abs(c.allocated)) for i, c in self.world.changes.items()}
        settings: dict[str, Any] = {"changes": changes, "reverted": {}, "card": None, "asked": [], **other}
        return replace(self, world=replace(self.world, **settings), groups=None)

    @cached_property
    def skipped(self) -> frozenset[int]:
        """Points that are skipped, with all that are the same measurement."""
        groups = self.groups or range(self.world.count)
        labels = {groups[i] for i in self.skip}
        return frozenset(i for i in range(self.world.count) if groups[i] in labels)

    @cached_property
    def truth(self) -> Sequence[Metrics]:
        return [self.world.metrics(i) for i in range(self.world.count)]

    def unreadable(self, index: int) -> bool:
        return index in self.world.broken or index in self.world.lost or index in self.skipped

    def dies(self, index: int) -> bool:
        """Whether the run at a point runs out of the card's memory."""
        card = self.world.card
        return card is not None and self.truth[index].reserved + self.truth[index].external > card

    def fits(self, index: int) -> bool:
        used = self.truth[index].reserved + self.truth[index].external
        return used <= min(self.world.limit, self.world.card or self.world.limit)

    def search(self, options: Options, parallel: int | None = None) -> tuple[State, Conclusion]:
        """The whole search; nothing that is skipped may be asked for, and the budget is kept at any time."""
        state = start(self.world.count, options, **self.axis)
        slots = parallel or self.parallel
        for _ in range(50 * self.world.count + 100):
            requests = plan(state, slots)
            assert len(requests) <= slots and len(set(requests)) == len(requests)
            if not requests:
                return state, conclude(state)
            for request in self._arriving(requests):
                assert request.index not in self.skipped
                state = observe(state, request, self.world.answer(request))
        raise AssertionError("the search does not end")

    def _arriving(self, requests: Sequence[Request]) -> Sequence[Request]:
        if self.order is None:
            return requests
        shuffled = list(requests)
        self.order.shuffle(shuffled)
        return shuffled


def spread(first: int, length: int, count: int) -> Collection[int]:
    return range(first, min(count, first + length))


@st.composite
def worlds(draw: st.DrawFn, most: int = 120) -> World:
    """Steps, creep, spikes, reverts, broken stretches, lost nodes, cards too small, in any mixture."""
    count = draw(st.integers(2, most))
    points = st.integers(1, count - 1)
    changes = draw(st.dictionaries(points, STEP, max_size=6))
    if draw(st.booleans()):
        drift = draw(st.integers(1, 40)) * MIB
        changes = {**{i: Change(allocated=drift) for i in range(1, count)}, **changes}
    reverted = {}
    for point in draw(st.lists(st.sampled_from(sorted(changes)), max_size=2, unique=True)) if changes else ():
        later = draw(st.integers(point, count - 1))
        if later not in changes and later not in reverted.values():
            reverted[point] = later
    for point in draw(st.lists(points, max_size=2, unique=True)):  # up at one point, and down again at the next
        if point + 1 < count and not {point, point + 1} & {*changes, *reverted.values()}:
            changes[point], reverted[point] = draw(STEP), point + 1
    broken: set[int] = set()
    for first, length in draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(1, 30)), max_size=3)):
        broken |= set(spread(first, length, count))
    lost = draw(st.frozensets(st.integers(0, count - 1), max_size=3))
    if draw(st.integers(0, 9)):  # mostly the ends can be read
        broken -= {0, count - 1}
        lost -= {0, count - 1}
    return World(
        count,
        changes,
        limit=draw(st.integers(30, 70)) * GIB,
        card=draw(st.sampled_from([None, None, 50 * GIB, 60 * GIB])),
        death=draw(st.sampled_from([None, 5 * GIB])),
        broken=frozenset(broken),
        lost=lost,
        conflicts=frozenset(draw(st.lists(points, max_size=2))),
        reverted=reverted,
    )


@st.composite
def cases(draw: st.DrawFn, most: int = 120) -> Case:
    """A history on an axis with weights, equal neighbours, trees that came back, cached points and skipped ones."""
    history = draw(worlds(most))
    count = history.count
    rng = random.Random(draw(st.integers(0, 1 << 16)))
    indices = st.integers(0, count - 1)
    groups = None
    if draw(st.booleans()):
        groups = _equal(history, rng, returning=draw(st.booleans()))
    skip: frozenset[int] = frozenset()
    if draw(st.booleans()):
        ends = {0, count - 1} if groups is None else {i for i in range(count) if groups[i] in (groups[0], groups[-1])}
        skip = draw(st.frozensets(indices, max_size=20)) - ends
    return Case(
        history,
        weights=tuple(rng.choice((0.0, 1.0, 1.0, 9.0)) for _ in range(count)) if draw(st.booleans()) else None,
        groups=groups,
        known=draw(st.just(frozenset()) | st.frozensets(indices, max_size=20)),
        skip=skip,
        parallel=draw(st.integers(1, 8)),
        order=draw(st.none() | st.randoms(use_true_random=False)),
    )


def _equal(world: World, rng: random.Random, *, returning: bool) -> tuple[int, ...]:
    """Groups of points that are the same in everything: neighbours, or also ones that came back later."""
    moving = {*world.changes, *world.reverted.values()}
    labels: dict[object, int] = {}
    groups: list[int] = []
    stretch = 0
    for i in range(world.count):
        stretch += i in moving or rng.random() < 1 / 3
        same = (world.metrics(i), i in world.broken, i in world.lost)
        groups.append(labels.setdefault(same if returning else (same, stretch), len(labels)))
    return tuple(groups)


OPTIONS = st.builds(
    Options,
    find=st.sampled_from(["regression", "regression", "improvement", "any"]),
    metric=st.sampled_from(
        ["memory", "memory", "memory", "allocated", "reserved", "device", "cached", "fragmentation", "step-time"]
    ),
    threshold_bytes=st.sampled_from([None, None, None, 2 * GIB, 45 * GIB, 55 * GIB]),
    noise_bytes=st.sampled_from([0, 0, None, 10 * MIB]),
    explain=st.sampled_from([0.9, 0.5, 1.0]),
    min_step_bytes=st.sampled_from([None, None, 64 * MIB, GIB]),
    budget=st.sampled_from([None, None, None, 7, 20]),
    exhaustive=st.booleans(),
    grid=st.sampled_from([0, 0, 3, 10]),
    confirm=st.booleans(),
)


def value(metric: str, m: Metrics) -> int:
    """A metric by its definition."""
    assert m.needed is not None and m.step_time is not None
    return {
        "memory": m.reserved + m.external,
        "device": m.reserved + m.external,
        "allocated": m.allocated,
        "reserved": m.reserved,
        "cached": m.reserved - m.allocated,
        "fragmentation": m.needed - m.allocated,
        "step-time": m.step_time,
    }[metric]


def gains(metric: str, find: str, before: Metrics, after: Metrics) -> int:
    """How much of what is sought a change brings, by definition."""
    change = [value(metric, after) - value(metric, before)]
    if metric == "memory":
        change.append(after.allocated - before.allocated)
    return max(abs(c) if find == "any" else c if find == "regression" else -c for c in change)


def epsilon(options: Options) -> int:
    """The smallest difference that means anything, by definition; readings here have none of the noise allowed."""
    return max(MS if options.metric == "step-time" else 2 * MIB, 3 * (options.noise_bytes or 0))


def min_step(options: Options, good: Metrics, bad: Metrics) -> int:
    """The smallest step that is searched for, by definition, where both ends are exact."""
    if options.min_step_bytes is not None:
        return max(options.min_step_bytes, epsilon(options))
    grown = [gains(options.metric, options.find, good, bad)]
    if options.metric == "memory":
        delta = Delta.between(good, bad)
        grown += map(options.wanted, (delta.allocated, delta.reserved - delta.allocated, delta.external))
    return max(epsilon(options), max(grown) // 8)
