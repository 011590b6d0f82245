"""What the readings add up to: the axis cut into intervals between measured runs, each with its change.

The intervals always sum to bad minus good, so that attribution is complete by construction.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from oombisect.search.metric import Movement, finest, moved, unit, value
from oombisect.search.observation import NOTHING, Censored, Delta, Exact, Infra, Metrics, Reading, fits, metrics_of
from oombisect.search.options import Options
from oombisect.search.split import can_split
from oombisect.search.state import State


class Kind(StrEnum):
    """STEP: one change moved memory. QUIET: the ends agree. OPEN: may be split. BLURRED: only broken points within.

    UNKNOWN: both ends ran out of memory, so that nothing can be said of what lies between.
    """

    STEP = "step"
    QUIET = "quiet"
    OPEN = "open"
    BLURRED = "blurred"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Interval:
    """From the measured run `low` to the measured run `high`, with nothing readable measured in between.

    Args:
        delta: the change of memory across.
        moved: the change across in what is searched for.
        bound: 0 if these are exact; 1 if the change is at least this, as the far end ran out of memory; -1 if it is
            at most this, as the near end did.
        broken: runs in between that were measured and told nothing, ascending.
        flips: the ends lie on either side of the limit.
    """

    low: int
    high: int
    kind: Kind
    delta: Delta
    moved: Movement
    bound: int = 0
    broken: tuple[int, ...] = ()
    flips: bool = False

    @property
    def censored(self) -> bool:
        """Whether `delta` is no exact size."""
        return self.bound != 0 or self.kind is Kind.UNKNOWN

    @property
    def single(self) -> bool:
        """Whether it holds one change only."""
        return self.high - self.low == 1


@dataclass(frozen=True)
class Survey:
    """A state's readings in order, judged."""

    state: State

    @property
    def options(self) -> Options:
        return self.state.options

    @property
    def good(self) -> Reading | None:
        return self.state.reading(0)

    @property
    def bad(self) -> Reading | None:
        return self.state.reading(self.state.line.end)

    @cached_property
    def epsilon(self) -> int:
        """The smallest difference that means anything."""
        return max(finest(self.options.metric), 3 * self.noise)

    @property
    def epsilon_bytes(self) -> int:
        """The smallest difference of a phase's peak that means anything, bytes."""
        return self.epsilon if unit(self.options.metric) == "bytes" else finest("memory")

    @cached_property
    def noise(self) -> int:
        """The noise given, or the largest difference between two readings of an end."""
        given = self.options.noise_bytes
        if given is not None:
            return given
        worst = 0
        for run in (0, self.state.line.end):
            first, second = self.state.reading(run), self.state.fresh.get(run)
            if isinstance(first, Exact) and isinstance(second, Exact):
                worst = max(worst, self.moved(first, second).size)
        return worst

    @cached_property
    def span(self) -> Interval | None:
        """The whole axis as one interval; None until both ends are known."""
        return None if self.good is None or self.bad is None else self._interval(0, self.state.line.end)

    @property
    def growth(self) -> Delta:
        """Bad minus good; a bound if an end is censored."""
        return NOTHING if self.span is None else self.span.delta

    def moved(self, before: Reading, after: Reading) -> Movement:
        """How what is searched for differs between two readings; a bound if one of them is."""
        return moved(self.options.metric, metrics_of(before), metrics_of(after))

    def low_side(self, reading: Reading) -> bool | None:
        """Whether a reading lies on the lower side of the threshold, or fits the limit; None: there is neither."""
        threshold = self.options.threshold_bytes
        if threshold is not None:
            return value(self.options.metric, metrics_of(reading)) <= threshold
        return None if self.options.metric == "step-time" else fits(reading)

    def gain(self, interval: Interval) -> int:
        """How much of what is sought a change brings at the least; negative if it goes the other way."""
        wanted = self.options.wanted
        if interval.kind is Kind.UNKNOWN or (interval.bound and wanted(interval.bound) < 0):
            return 0
        if self.options.find == "any" and interval.bound:
            return self.movement(interval)
        return max(map(wanted, interval.moved.sought))

    @cached_property
    def grew(self) -> bool:
        """Whether the ends differ in the way that is sought."""
        return self.span is not None and self.gain(self.span) > self.epsilon

    @cached_property
    def min_step(self) -> int:
        """The smallest change that is searched for and named."""
        asked = self.options.min_step_bytes
        if asked is not None:
            return max(asked, self.epsilon)
        if self.span is None:
            return self.epsilon
        if not self.span.censored:
            largest = max(self.gain(self.span), *map(self.options.wanted, self.span.moved.channels))
        elif isinstance(self.good, Exact):  # a run may die early, its bounds far below what others reach
            largest = max(self.gain(self._interval(0, run)) for run in self.readable[1:])
        else:
            largest = max(self.gain(self._interval(run, self.state.line.end)) for run in self.readable[:-1])
        return max(self.epsilon, largest // 8)

    @cached_property
    def readable(self) -> tuple[int, ...]:
        """Runs with a reading, ascending."""
        places = self.state.line.places
        return tuple(sorted(r for g, o in self.state.readings.items() if self.state.told(o) for r in places[g]))

    @cached_property
    def blind(self) -> tuple[int, ...]:
        """Runs that were measured and told nothing, ascending."""
        line, readings = self.state.line, self.state.readings
        told_nothing = (r for g, o in readings.items() if not self.state.told(o) for r in line.places[g])
        return tuple(sorted(run for run in told_nothing if not line.is_skipped(run)))

    @cached_property
    def intervals(self) -> tuple[Interval, ...]:
        """The whole axis, in order; empty until both ends are known."""
        if self.good is None or self.bad is None:
            return ()
        return tuple(self._interval(low, high) for low, high in pairwise(self.readable))

    def _interval(self, low: int, high: int) -> Interval:
        before, after = self.state.reading(low), self.state.reading(high)
        assert before is not None and after is not None
        broken = self.blind[bisect_left(self.blind, low) : bisect_left(self.blind, high)]
        return Interval(
            low,
            high,
            self._kind(low, high, before, after, broken),
            Delta.between(metrics_of(before), metrics_of(after)),
            self.moved(before, after),
            isinstance(after, Censored) - isinstance(before, Censored),
            broken,
            self.low_side(before) != self.low_side(after),
        )

    def _kind(self, low: int, high: int, before: Reading, after: Reading, broken: tuple[int, ...]) -> Kind:
        if self.state.line.group[low] == self.state.line.group[high] and high - low == 1:
            return Kind.QUIET
        if isinstance(before, Censored) and isinstance(after, Censored):
            return Kind.UNKNOWN
        if self.agree(before, after):
            return Kind.QUIET
        if high - low == 1:
            return Kind.STEP
        if can_split(self.state.line, low, high, broken, patient=self.options.exhaustive):
            return Kind.OPEN
        return Kind.BLURRED

    def agree(self, before: Reading, after: Reading) -> bool:
        """Whether two readings are the same in all they measured. A censored one agrees with nothing.

        A search for step time asks for no more than that: its noise says nothing of bytes.
        """
        if not (isinstance(before, Exact) and isinstance(after, Exact)):
            return False
        if self.low_side(before) != self.low_side(after) or self.moved(before, after).size > self.epsilon:
            return False
        if self.options.metric == "step-time":
            return True
        one, two = before.metrics, after.metrics
        counts = abs(one.allocations - two.allocations) <= 3 * self.options.noise_allocations
        return counts and Delta.between(one, two).size <= self.epsilon and self.phase_movement(one, two) <= self.epsilon

    @staticmethod
    def phase_movement(before: Metrics, after: Metrics) -> int:
        """The largest difference of any phase's peak, bytes; a phase that only one side has counts in full."""
        one, two = dict(before.phases), dict(after.phases)
        return max((abs(two.get(name, 0) - one.get(name, 0)) for name in one.keys() | two.keys()), default=0)

    def movement(self, interval: Interval) -> int:
        """By how much an interval's ends differ at the least, in any quantity the search follows."""
        if interval.kind is Kind.UNKNOWN:
            return 0
        if interval.bound:
            return max(0, *(interval.bound * change for change in interval.moved.sought))
        if not self.options.exhaustive or self.options.metric == "step-time":
            return interval.moved.size
        before, after = self.state.reading(interval.low), self.state.reading(interval.high)
        assert before is not None and after is not None
        phases = self.phase_movement(metrics_of(before), metrics_of(after))
        return max(interval.moved.size, interval.delta.size, phases)

    def swing(self, interval: Interval) -> int:
        """All movement across an interval, the channels taken together."""
        return self.movement(interval) if interval.censored else sum(map(abs, interval.moved.channels))

    def worth_splitting(self, interval: Interval) -> bool:
        if interval.kind is not Kind.OPEN:
            return False
        return self.options.exhaustive or self.movement(interval) >= self.min_step

    @cached_property
    def crossing(self) -> Interval | None:
        """The interval from whose far end on every known point lies on the bad side of the limit."""
        if self.span is None or not self.span.flips:
            return None
        assert self.good is not None
        if (self.options.find == "regression") != self.low_side(self.good) and self.options.find != "any":
            return None
        for interval in reversed(self.intervals):
            if interval.flips:
                return interval
        return None

    @property
    def open_crossing(self) -> Interval | None:
        """The crossing as long as it can be narrowed down."""
        return self.crossing if self.crossing is not None and self.crossing.kind is Kind.OPEN else None

    @cached_property
    def unexplained(self) -> int:
        """What the intervals that may be split still hide."""
        return sum(self.swing(i) for i in self.intervals if i.kind is Kind.OPEN)

    @cached_property
    def explained(self) -> float:
        """The share of all movement that single changes account for, 0..1."""
        total = sum(map(self.swing, self.intervals))
        single = sum(self.swing(i) for i in self.intervals if i.kind is Kind.STEP)
        return single / total if total else 1.0

    def infra_only(self, interval: Interval) -> bool:
        """Whether only failures of the machine blur an interval."""
        skipped = interval.high - interval.low - 1 - self.state.line.between(interval.low, interval.high)
        return not skipped and all(isinstance(self.state.seen(run), Infra) for run in interval.broken)
