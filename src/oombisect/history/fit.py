"""Steps and creep of a series of readings over commits: pure, deterministic; docs/history.md says it in words.

The exact readings are cut into level and drifting stretches (`partition`). Where two stretches meet lies a step; a
drift, or many changes none of which is much of their sum, is creep. Readings cut short by running out of memory are
lower bounds: they are never averaged with exact ones, and stand between two steps of at least some size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from statistics import median_low
from typing import Literal

from oombisect.history.partition import Stretch, partition
from oombisect.units import MIB

State = Literal["in force", "fixed", "partly fixed"]

PENALTY = 3.0
"""A cut costs `PENALTY * log(readings) * noise ** 2`."""
SLOPE_PENALTY = 1.5
"""A drift costs `SLOPE_PENALTY * log(readings) * noise ** 2`: it has one number to choose, a step a place as well."""
LEAST_CHANGE = 2 * MIB
"""Less than this, or than three times the noise, is no creep, and no remainder of a step."""
SHARE_OF_CREEP = 8
"""Changes that are each less than this part of their sum are creep, as in a search (docs/search.md)."""
EXACT_NOISE = MIB // 2
"""Bytes. What stands for the noise of a series that has none: a virtual device's."""
LEAST_NOISE = 0.0025
"""Of the level: the least noise that is taken for granted on real devices."""
MOST_NOISE = 0.02
"""Of the level: the most noise that is believed."""
MOST_OFF = 0.04
_ENOUGH = 16
# To a standard deviation: from the median of differences, and from the root mean square off the middle of three.
_OF_MEDIAN, _OF_MIDDLE = 1.4826 / 2**0.5, 1.131
_LEAST_COUNT = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """What was read at a point.

    Args:
        point: its key.
        place: where on the line of commits it lies; ascending through a series.
        value: bytes; None: unresolved.
        bound: it ran out of memory: `value` is a lower bound.
    """

    point: str
    place: int
    value: int | None
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A change of level between two neighbouring readings. Sizes are bytes.

    Args:
        point: the first reading of the new level.
        previous: the last reading of the old one.
        blurred: how many commits lie between the two, unresolved or never probed: any of them may have done it.
        at_least: one side ran out of memory, so that its size, and `delta_bytes`, are lower bounds.
        left_bytes: what of it later steps have not taken back, signed as `delta_bytes`.
        taken_back_by: the point of the step that took back the last of it that was.
        readings: how many readings there are of the new level, up to the next step.
    """

    point: str
    previous: str
    delta_bytes: int
    before: int
    after: int
    state: State = "in force"
    blurred: int = 0
    at_least: bool = False
    left_bytes: int = 0
    taken_back_by: str | None = None
    readings: int = 0


@dataclass(frozen=True, slots=True)
class Creep:
    """Growth (or shrinking) that no single commit did, from the point `first` to the point `last`. Sizes are bytes.

    Args:
        commits: how many commits it is spread over.
        changes: how many single changes were told apart in it; 0: none, it drifts evenly.
        largest_bytes: the largest of these.
    """

    first: str
    last: str
    delta_bytes: int
    commits: int
    changes: int = 0
    largest_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """Steps in order, creep in order, and the noise they rest on (bytes, one standard deviation)."""

    steps: tuple[Step, ...] = ()
    creeps: tuple[Creep, ...] = ()
    noise: int = 0


@dataclass(frozen=True, slots=True)
class _Level:
    """What a stretch says the value is at a place."""

    value: float
    slope: float = 0.0
    origin: int = 0

    def at(self, place: float) -> int:
        return round(self.value + self.slope * (place - self.origin))


@dataclass(frozen=True, slots=True)
class _Change:
    """Something that moved the level: a step between two samples, or (`step` None) a drift from one to another."""

    first: Sample
    last: Sample
    delta: int
    step: Step | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """A step between exact readings, into running out of memory, or out of it."""

    step: Step
    kind: Literal["exact", "into", "out of"] = "exact"


def fit(samples: Sequence[Sample], *, exact: bool) -> Fit:
    """Steps and creep of a series.

    Args:
        samples: in the order of the line, places ascending, one for each point.
        exact: equal runs read equal numbers, as on a virtual device; else the noise is estimated from the readings.
    """
    read = [sample for sample in samples if sample.value is not None and not sample.bound]
    values = [sample.value or 0 for sample in read]
    noise = EXACT_NOISE if exact else estimate_noise(values)
    unit = log(max(len(read), _LEAST_COUNT)) * noise**2
    places = [sample.place for sample in read]
    stretches = [
        Stretch(stretch.first + part.first, stretch.first + part.last, part.drifts)
        for stretch in partition(values, places, PENALTY * unit, SLOPE_PENALTY * unit)
        for part in _without_leaps(stretch, values, places, PENALTY * unit)
    ]
    least = max(LEAST_CHANGE, 3 * noise)
    changes = _changes(read, stretches, least)
    spans = _creeping(changes)
    creeps = [creep for span in spans if abs((creep := _creep(changes[span])).delta_bytes) >= least]
    swallowed = {id(change) for span in spans for change in changes[span]}
    levels = [_level(read, stretch) for stretch in stretches for _ in range(stretch.first, stretch.last + 1)]
    steps = [change.step for change in changes if change.step and id(change) not in swallowed]
    balance = _Balance(least)
    for told in _counted(_through_bounds(samples, levels, steps), samples):
        balance.add(told)
    return Fit(tuple(balance.steps), tuple(creeps), noise)


def _without_leaps(stretch: Stretch, values: Sequence[int], places: Sequence[int], penalty: float) -> list[Stretch]:
    """The stretch from 0 on; a drift most of which lies between two neighbouring readings as levels: nothing tells it
    from a step there, and a step says where it is and how far it is blurred."""
    part = slice(stretch.first, stretch.last + 1)
    apart = [after - before for before, after in pairwise(places[part])]
    if stretch.drifts and 2 * max(apart) > sum(apart):
        return partition(values[part], places[part], penalty, float("inf"))
    return [Stretch(0, stretch.last - stretch.first, stretch.drifts)]


def estimate_noise(values: Sequence[int]) -> int:
    """One standard deviation, bytes: the larger of two estimates that steps and drifts hardly touch.

    One is the median of how differences of neighbours differ from each other. The other is what readings are off the
    middle one of themselves and their neighbours; it counts rare noise as well, each reading by `MOST_OFF` of the
    level at most, so that a true excursion does not hide itself. The result lies within `LEAST_NOISE` and `MOST_NOISE`
    of the level; of few readings, which cannot tell noise from steps, less than that is believed.
    """
    if not values:
        return 0
    level = abs(median_low(values))
    differences = [after - before for before, after in pairwise(values)]
    usual = median_low(differences) if differences else 0
    spread = median_low(abs(difference - usual) for difference in differences) if differences else 0
    neighbours = zip(values, values[1:], values[2:], strict=False)
    off = [min(abs(value - sorted((before, value, after))[1]), level * MOST_OFF) for before, value, after in neighbours]
    rare = (sum(one * one for one in off) / len(off)) ** 0.5 if off else 0.0
    most = level * MOST_NOISE * min(1, len(values) / _ENOUGH)
    return max(round(min(max(spread * _OF_MEDIAN, rare * _OF_MIDDLE), most)), round(level * LEAST_NOISE), 1)


def _level(read: Sequence[Sample], stretch: Stretch) -> _Level:
    """Of a level stretch the middle reading, which was really read; of a drift the line of least squares."""
    part = read[stretch.first : stretch.last + 1]
    values = [sample.value or 0 for sample in part]
    if not stretch.drifts:
        return _Level(median_low(values))
    count, places = len(part), [sample.place for sample in part]
    place, value = sum(places), sum(values)
    spread = count * sum(p * p for p in places) - place * place
    together = count * sum(p * v for p, v in zip(places, values, strict=True)) - place * value
    slope = together / spread
    return _Level(value / count + slope * (places[0] - place / count), slope, places[0])


def _changes(read: Sequence[Sample], stretches: Sequence[Stretch], least: int) -> list[_Change]:
    """What moved the level, in order. At the edge of a drift a jump of less than `least` belongs to the drift."""
    levels = [_level(read, stretch) for stretch in stretches]
    changes: list[_Change] = []
    edges = [float(read[0].place)] if read else []
    steps: list[Step | None] = []
    for n, (before, after) in enumerate(pairwise(stretches)):
        last, first = read[before.last], read[after.first]
        edges.append((last.place + first.place) / 2)
        old, new = levels[n].at(edges[-1]), levels[n + 1].at(edges[-1])
        drifting = before.drifts or after.drifts
        told = new != old and (not drifting or abs(new - old) >= least)
        steps.append(_step(last, first, old, new) if told else None)
    edges.append(float(read[-1].place) if read else 0.0)
    for n, stretch in enumerate(stretches):
        first, last = read[stretch.first], read[stretch.last]
        if stretch.drifts:
            changes.append(_Change(first, last, levels[n].at(edges[n + 1]) - levels[n].at(edges[n])))
        if n < len(steps) and (step := steps[n]):
            changes.append(_Change(last, read[stretch.last + 1], step.delta_bytes, step))
    return changes


def _step(last: Sample, first: Sample, old: int, new: int, *, at_least: bool = False) -> Step:
    delta = new - old
    between = first.place - last.place - 1
    return Step(first.point, last.point, delta, old, new, blurred=between, at_least=at_least, left_bytes=delta)


def _creeping(changes: Sequence[_Change]) -> list[slice]:
    """The runs of changes that are creep: a drift, or changes that are each little of their sum.

    Where one is not little, it stands for itself, and what lies before and after it is looked at in turn.
    """
    spans = []
    open_ = [(0, len(changes))]
    while open_:
        first, end = open_.pop()
        if first == end:
            continue
        total = abs(sum(change.delta for change in changes[first:end]))
        steps = [n for n in range(first, end) if changes[n].step]
        largest = max(steps, key=lambda n: abs(changes[n].delta), default=None)
        if largest is None:
            spans += [slice(n, n + 1) for n in range(first, end)]
        elif abs(changes[largest].delta) * SHARE_OF_CREEP < total:
            spans.append(slice(first, end))
        else:
            open_ += [(first, largest), (largest + 1, end)]
    return sorted(spans, key=lambda span: int(span.start))


def _creep(changes: Sequence[_Change]) -> Creep:
    steps = [change.delta for change in changes if change.step]
    first, last = changes[0].first, changes[-1].last
    delta = sum(change.delta for change in changes)
    largest = max(steps, key=abs, default=0)
    return Creep(first.point, last.point, delta, last.place - first.place, len(steps), largest)


def _through_bounds(samples: Sequence[Sample], levels: Sequence[_Level], steps: Sequence[Step]) -> list[_Told]:
    """The steps with those into and out of each run of readings that ran out of memory; in order."""
    by_point = {step.point: step for step in steps}
    known = iter(levels)
    result: list[_Told] = []
    before: tuple[Sample, int] | None = None  # the last exact reading and its level
    out: list[Sample] = []  # what has run out of memory since then

    def enter() -> None:
        if before is not None:
            last, old = before
            bound = _most(out)
            step = _step(last, out[0], old, max(old, bound), at_least=True)
            result.append(_Told(replace(step, after=bound), "into"))

    for sample in samples:
        if sample.value is None:
            continue
        if sample.bound:
            out.append(sample)
            continue
        level = next(known).at(sample.place)
        if out:
            enter()
            bound = _most(out)
            step = _step(out[-1], sample, bound, min(level, bound), at_least=True)
            result.append(_Told(replace(step, after=level), "out of"))
            out = []
        elif sample.point in by_point:
            result.append(_Told(by_point[sample.point]))
        before = sample, level
    if out:
        enter()
    return result


def _most(out: Sequence[Sample]) -> int:
    return max(sample.value or 0 for sample in out)


def _counted(told: Sequence[_Told], samples: Sequence[Sample]) -> list[_Told]:
    """The steps with the number of readings of their new level."""
    starts = {one.step.point: n for n, one in enumerate(told)}
    counts = [0] * len(told)
    at: int | None = None
    for sample in samples:
        at = starts.get(sample.point, at)
        if at is not None and sample.value is not None:
            counts[at] += 1
    return [replace(one, step=replace(one.step, readings=n)) for one, n in zip(told, counts, strict=True)]


class _Balance:
    """What later steps take back of earlier ones. Sizes below `least` are nothing."""

    def __init__(self, least: int) -> None:
        self.steps: list[Step] = []
        self._least = least
        self._open: list[int] = []
        self._into: int | None = None
        self._out_of: int | None = None

    def add(self, told: _Told) -> None:
        step, number = told.step, len(self.steps)
        self.steps.append(step)
        if told.kind == "into":
            if self._out_of is not None:
                self._leave(self._out_of, 0, step)
            self._into = number
        elif told.kind == "out of":
            if self._into is not None:
                left = step.after - self.steps[self._into].before
                self._leave(self._into, max(left, 0), step)
                if left > self._least:
                    self._open.append(self._into)
                self._take_back(min(left, 0), step)
            self._into, self._out_of = None, number
        else:
            self._take_back(step.delta_bytes, step)
            self._open.append(number)

    def _take_back(self, change: int, by: Step) -> None:
        """The open opposite step of that size is taken back, else the newest ones."""
        opposite = [n for n in self._open if self.steps[n].left_bytes * change < 0]
        equal = [n for n in opposite if self._is_equal(self.steps[n].left_bytes, -change)]
        rest = abs(change)
        for number in equal[-1:] or opposite[::-1]:
            if rest <= self._least:
                break
            left = self.steps[number].left_bytes
            taken = abs(left) if equal else min(abs(left), rest)
            self._leave(number, left - taken if left > 0 else left + taken, by)
            rest -= taken
        self._open = [n for n in self._open if self.steps[n].state != "fixed"]

    def _is_equal(self, one: int, other: int) -> bool:
        return abs(one - other) <= max(self._least, abs(one) // 20)

    def _leave(self, number: int, left: int, by: Step) -> None:
        gone = abs(left) <= self._least
        state: State = "fixed" if gone else "partly fixed"
        self.steps[number] = replace(
            self.steps[number], state=state, left_bytes=0 if gone else left, taken_back_by=by.point
        )
