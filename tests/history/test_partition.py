"""The partition is the cheapest there is: a search through all of them, with exact fractions, finds none cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from oombisect.history.partition import LEAST_DRIFT, Stretch, partition


def off_level(values: Sequence[int]) -> Fraction:
    mean = Fraction(sum(values), len(values))
    return sum(((value - mean) ** 2 for value in values), Fraction())


def off_line(values: Sequence[int], places: Sequence[int]) -> Fraction:
    """By the normal equations, in the plainest way."""
    n = len(values)
    mean, middle = Fraction(sum(values), n), Fraction(sum(places), n)
    spread = sum(((p - middle) ** 2 for p in places), Fraction())
    slope = sum(((p - middle) * (v - mean) for p, v in zip(places, values, strict=True)), Fraction()) / spread
    return sum(((v - mean - slope * (p - middle)) ** 2 for p, v in zip(places, values, strict=True)), Fraction())


def cost(
    stretches: Sequence[Stretch], values: Sequence[int], places: Sequence[int], cut: Fraction, slope: Fraction
) -> Fraction:
    total = cut * (len(stretches) - 1)
    for stretch in stretches:
        part = slice(stretch.first, stretch.last + 1)
        total += slope + off_line(values[part], places[part]) if stretch.drifts else off_level(values[part])
    return total


def all_partitions(values: Sequence[int], start: int = 0) -> Iterator[list[Stretch]]:
    if start == len(values):
        yield []
    for end in range(start + 1, len(values) + 1):
        if end < len(values) and values[end] == values[end - 1]:
            continue
        for drifts in (False, True)[: 2 if end - start >= LEAST_DRIFT else 1]:
            for rest in all_partitions(values, end):
                yield [Stretch(start, end - 1, drifts), *rest]


@st.composite
def series(draw: st.DrawFn, most: int = 9) -> tuple[list[int], list[int]]:
    """Levels, drifts and noise in any mixture, on places with gaps."""
    values: list[int] = []
    while len(values) < 1 or (len(values) < most and draw(st.booleans())):
        level, slope = draw(st.integers(-50, 50)), draw(st.sampled_from((0, 0, 0, 7, -3)))
        count = draw(st.integers(1, most - len(values)))
        values += [level + slope * n + draw(st.sampled_from((0, 0, 0, 1, -2))) for n in range(count)]
    places = [0]
    for _ in values[1:]:
        places.append(places[-1] + draw(st.sampled_from((1, 1, 1, 2, 5))))
    return values, places


@settings(max_examples=150, deadline=None)
@given(series(), st.integers(0, 2000), st.integers(0, 2000))
def test_no_partition_is_cheaper(made: tuple[list[int], list[int]], cut: int, slope: int) -> None:
    values, places = made
    found = partition(values, places, cut, slope)
    assert [n for s in found for n in range(s.first, s.last + 1)] == list(range(len(values)))
    least = min(cost(one, values, places, Fraction(cut), Fraction(slope)) for one in all_partitions(values))
    assert found in list(all_partitions(values))
    assert cost(found, values, places, Fraction(cut), Fraction(slope)) - least <= Fraction(1, 10**6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(1, 40))
def test_pruning_loses_nothing_on_long_series(steps: list[int], cut: int) -> None:
    """Against the same recurrence without pruning; long enough for starts to be dropped."""
    values = [10 * sum(steps[: n + 1]) + (n * 7919) % 5 for n in range(len(steps))]
    places = list(range(len(values)))
    best: list[Fraction] = [Fraction(-cut)]
    level, line = {}, {}
    for end in range(1, min(len(values), 40) + 1):
        for start in range(end):
            level[start, end] = off_level(values[start:end])
            if end - start >= LEAST_DRIFT:
                line[start, end] = off_line(values[start:end], places[start:end]) + cut
        costs = [
            best[start] + cut + min(level[start, end], line.get((start, end), level[start, end]))
            for start in range(end)
            if start == 0 or values[start] != values[start - 1]
        ]
        best.append(min(costs))
    count = min(len(values), 40)
    found = partition(values[:count], places[:count], cut, cut)
    assert abs(cost(found, values, places, Fraction(cut), Fraction(cut)) - best[count]) <= Fraction(1, 10**6)


def test_sizes_of_real_runs_are_not_rounded_away() -> None:
    """A change of 4 MiB between values near 2**40, squared about 2**80: more than a float holds."""
    values = [(1 << 40) + (4 << 20 if n >= 500 else 0) + (n % 2) for n in range(1000)]
    found = partition(values, list(range(1000)), 1e13, 1e13)
    assert found == [Stretch(0, 499, False), Stretch(500, 999, False)]


def test_nothing_and_one() -> None:
    assert partition([], [], 1, 1) == []
    assert partition([5], [0], 1, 1) == [Stretch(0, 0, False)]
