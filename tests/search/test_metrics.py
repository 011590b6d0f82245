"""Searches for another quantity than memory as a whole, across a threshold, and around points that are skipped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oombisect.search import (
    Censored,
    Exact,
    Kind,
    Measure,
    Metrics,
    Observation,
    Options,
    Remeasure,
    Request,
    Revert,
    Unresolved,
    conclude,
    observe,
    plan,
    start,
)
from oombisect.search.metric import METRICS
from oombisect.search.state import BadAxis, WrongAnswer
from tests.search.test_search import world
from tests.search.world import GIB, Change, World, probes

MS = 1_000

# Each change moves one quantity more than any other change does.
CHANGES = {
    20: Change(allocated=2 * GIB, stranded=-2 * GIB),
    40: Change(stranded=5 * GIB),
    60: Change(external=6 * GIB),
    75: Change(needed=3 * GIB),
    90: Change(step_time=400 * MS),
}
TRUTH = {
    "memory": (60, 6 * GIB),
    "allocated": (20, 2 * GIB),
    "reserved": (40, 5 * GIB),
    "device": (60, 6 * GIB),
    "cached": (40, 5 * GIB),
    "fragmentation": (75, 3 * GIB),
    "step-time": (90, 400 * MS),
}


@pytest.mark.parametrize("metric", METRICS)
def test_each_metric_has_its_culprit(metric):
    _, found = World(100, CHANGES).search(Options(metric=metric))
    named = {step.index: step for step in found.steps if step.named}
    point, size = TRUTH[metric]
    assert max(named, key=lambda index: named[index].change) == point
    assert named[point].change == size and named[point].confirmed == "yes"
    assert found.kind == "culprit"
    if metric not in ("memory", "device", "cached", "fragmentation"):
        assert list(named) == [point] and found.change == size
    assert sum((stretch.delta for stretch in found.stretches[1:]), found.stretches[0].delta) == found.growth


@pytest.mark.parametrize("metric", METRICS)
def test_each_metric_can_fall(metric):
    falls = {point: -change for point, change in CHANGES.items()}
    _, found = World(100, falls, base=80 * GIB).search(Options(metric=metric, find="improvement"))
    point, size = TRUTH[metric]
    assert {s.index: s.change for s in found.steps if s.named}[point] == -size


VALUES = {
    "allocated": lambda m: m.allocated,
    "reserved": lambda m: m.reserved,
    "device": lambda m: m.reserved + m.external,
    "cached": lambda m: m.reserved - m.allocated,
    "fragmentation": lambda m: m.needed - m.allocated,
    "step-time": lambda m: m.step_time,
}


@pytest.mark.parametrize("metric", VALUES)
@pytest.mark.parametrize("point", CHANGES)
def test_only_what_moves_the_metric_is_searched_for(metric, point):
    history = World(100, {point: CHANGES[point]})
    value = VALUES[metric]
    change = value(history.metrics(99)) - value(history.metrics(0))
    state, found = history.search(Options(metric=metric))
    assert found.change == change
    assert [(step.index, step.change) for step in found.steps if step.named] == (
        [(point, change)] if change > 0 else []
    )
    assert change > 0 or probes(state) == 2


def test_either_way():
    changes = {20: Change(allocated=6 * GIB), 60: Change(allocated=-9 * GIB)}
    history = World(100, changes)
    _, found = history.search(Options(find="any", grid=3))
    assert {step.index: step.change for step in found.steps if step.named} == {20: 6 * GIB, 60: -9 * GIB}


def test_where_several_quantities_are_sought_a_step_says_what_moved_most():
    _, found = World(100, {40: Change(allocated=2 * GIB, stranded=-2 * GIB), 60: Change(external=GIB)}).search()
    assert {step.index: step.change for step in found.steps} == {40: 2 * GIB, 60: GIB}


def test_cached_memory_that_grew_alone_is_a_growth_of_what_is_cached():
    """A search for memory sees no growth: tensors gave back what the allocator kept."""
    changes = {40: Change(allocated=-3 * GIB, stranded=3 * GIB)}
    assert World(100, changes).search()[1].kind == "none"
    _, found = World(100, changes).search(Options(metric="cached"))
    assert [(step.index, step.change, step.named) for step in found.steps] == [(40, 3 * GIB, True)]


@pytest.mark.parametrize("seed", range(20))
def test_a_slower_step_is_found_in_noise(seed):
    history = World(
        200, {77: Change(step_time=200 * MS)}, time_noise=15 * MS, seed=seed, limit=1 << 60, broken=frozenset({99})
    )
    _, found = history.search(Options(metric="step-time", noise_bytes=30 * MS))
    assert (found.kind, found.crossing) == ("culprit", None)
    (step,) = found.steps
    assert (step.index, step.confirmed) == (77, "yes") and abs(step.change - 200 * MS) <= 30 * MS
    assert not found.good_fits and not found.notes


def test_noise_in_step_time_is_learned_from_the_ends():
    history = World(200, {77: Change(step_time=200 * MS)}, time_noise=5 * MS)
    _, found = history.search(Options(metric="step-time", noise_bytes=None))
    assert Remeasure(0) in history.asked and MS < found.epsilon <= 3 * 10 * MS
    assert found.kind == "culprit" and found.steps[0].index == 77


def test_memory_that_moved_is_no_reason_to_split_a_search_for_time():
    changes = {i: Change(allocated=GIB) for i in range(1, 60)} | {30: Change(allocated=GIB, step_time=90 * MS)}
    state, found = World(60, changes, limit=50 * GIB).search(Options(metric="step-time", exhaustive=True))
    assert [step.index for step in found.steps] == [30] and probes(state) <= 2 + 6


@pytest.mark.parametrize("metric", ["cached", "fragmentation", "step-time"])
def test_a_run_that_died_tells_nothing_of(metric):
    """Its bounds are none of a difference, and it took no step: it is gone around like a point that does not build."""
    changes = {
        20: Change(stranded=5 * GIB, needed=5 * GIB, step_time=900 * MS),
        50: Change(allocated=60 * GIB),
        60: Change(allocated=-60 * GIB),
    }
    _, found = World(100, changes, card=80 * GIB).search(Options(metric=metric, grid=9))
    assert found.kind == "culprit" and found.unresolved
    assert all(50 <= first <= last <= 59 for first, last in found.unresolved)
    assert [step.index for step in found.steps if step.named] == [20]
    assert not any(stretch.censored for stretch in found.stretches)
    _, found = World(100, changes, base=70 * GIB, card=80 * GIB).search(Options(metric=metric))
    assert found.kind == "culprit"  # neither end died
    _, found = World(60, changes, card=80 * GIB).search(Options(metric=metric))
    assert found.kind == "blurred" and f"the bad end ran out of memory, which does not tell its {metric}" in found.notes


def test_a_fresh_run_that_died_does_not_bear_out_a_change_of_time():
    class Once(World):
        def answer(self, request: Request) -> Observation:
            seen = super().answer(request)
            return Censored(self.metrics(request.index)) if request == Remeasure(30) else seen

    _, found = Once(60, {30: Change(step_time=90 * MS)}).search(Options(metric="step-time"))
    assert [(step.index, step.confirmed, step.named) for step in found.steps] == [(30, "refuted", False)]


@pytest.mark.parametrize("request_", [Measure(2), Remeasure(2), Revert(2)])
@pytest.mark.parametrize(("metric", "lacking"), [("step-time", "step time"), ("fragmentation", "needed capacity")])
def test_a_reading_without_what_is_searched_for(metric, lacking, request_):
    with pytest.raises(WrongAnswer, match=lacking):
        observe(start(5, Options(metric=metric)), request_, Exact(Metrics(GIB, GIB), fits=True))


@pytest.mark.parametrize("wrong", [{"metric": "speed"}, {"threshold_bytes": -1}, {"find": "change"}])
def test_options_that_make_no_sense(wrong):
    with pytest.raises(ValueError):
        Options(**wrong)


# A threshold


RAMP = {i: Change(allocated=GIB) for i in range(1, 40)} | {10: Change(stranded=8 * GIB)}


@pytest.mark.parametrize(
    ("metric", "truth"),
    [
        ("memory", lambda m: m.reserved + m.external),
        ("device", lambda m: m.reserved + m.external),
        ("reserved", lambda m: m.reserved),
        ("allocated", lambda m: m.allocated),
    ],
)
@pytest.mark.parametrize("threshold", [45 * GIB, 52 * GIB, 52 * GIB + 1, 60 * GIB, 77 * GIB])
def test_a_threshold_takes_the_place_of_the_limit(metric, truth: Callable[[Metrics], int], threshold):
    history = World(40, RAMP, limit=50 * GIB)
    _, found = history.search(Options(metric=metric, threshold_bytes=threshold))
    assert found.crossing == next(i for i in range(40) if truth(history.metrics(i)) > threshold)
    assert (found.good_fits, found.bad_fits) == (True, False)


def test_a_value_equal_to_the_threshold_is_not_above_it():
    _, found = World(9, {4: Change(allocated=GIB), 5: Change(allocated=1)}).search(
        Options(metric="allocated", threshold_bytes=41 * GIB, min_step_bytes=1)
    )
    assert found.crossing == 5


def test_a_threshold_of_time():
    changes = {i: Change(step_time=10 * MS) for i in range(1, 100)}
    history = World(100, changes)
    _, found = history.search(Options(metric="step-time", threshold_bytes=1_500 * MS))
    assert found.kind == "creep" and found.crossing == next(
        i for i in range(100) if history.metrics(i).step_time > 1_500 * MS
    )


@pytest.mark.parametrize(
    ("threshold", "find", "note"),
    [
        (30 * GIB, "regression", "both ends are above the threshold"),
        (90 * GIB, "regression", "neither end is above the threshold"),
        (50 * GIB, "improvement", "the threshold is crossed the other way round"),
    ],
)
def test_a_threshold_that_is_not_crossed(threshold, find, note):
    _, found = World(50, {20: Change(allocated=20 * GIB)}).search(
        Options(metric="allocated", threshold_bytes=threshold, find=find)
    )
    assert found.crossing is None and any(text.startswith(note) for text in found.notes)
    assert not any("limit" in text for text in found.notes)


def test_a_run_that_died_is_above_a_threshold_below_its_bounds_and_tells_nothing_below_them():
    changes = {10: Change(allocated=20 * GIB), 30: Change(allocated=60 * GIB)}
    _, found = World(40, changes, card=80 * GIB).search(Options(metric="allocated", threshold_bytes=62 * GIB))
    assert (found.kind, found.crossing, found.steps[0].censored) == ("culprit", 30, True)
    _, found = World(40, changes, card=80 * GIB, death=5 * GIB).search(
        Options(metric="allocated", threshold_bytes=62 * GIB)
    )
    assert (found.kind, found.crossing) == ("blurred", None)
    assert "the bad end ran out of memory, which does not tell its side of the threshold" in found.notes


# Points to skip


def test_a_skipped_point_is_never_probed_and_costs_nothing():
    for point in range(1, 9):
        history = world("0000055555", 3)
        state, found = history.search(skip={point})
        assert point not in {request.index for request, _ in state.log}
        assert point not in {request.index for request in history.asked}
        if point in (4, 5):
            assert (found.kind, found.crossing_range, found.unresolved) == (
                "blurred",
                (point, point + 1),
                ((point, point),),
            )
            assert found.steps[0].blurred_with == (point, point + 1)
        else:
            assert (found.kind, found.crossing) == ("culprit", 5)
        assert found.measured == sum(isinstance(request, Measure) for request, _ in state.log)


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_however_many_are_skipped_the_rest_is_searched(parallel):
    """Skipped points are no evidence of a broken stretch, and use up no patience."""
    for step in (1, 37, 64, 128, 200, 255):
        skip = {i for i in range(1, 255) if i % 3} - {step, step - 1}
        history = World(256, {step: Change(allocated=9 * GIB)}, limit=45 * GIB)
        state, found = history.search(skip=skip, parallel=parallel)
        assert (found.kind, found.crossing) == ("culprit", step)
        assert parallel > 1 or probes(state) <= 2 + 8


def test_all_but_the_ends_skipped():
    state, found = world("0000055555", 3).search(skip=set(range(1, 9)))
    assert (found.kind, found.crossing_range, found.unresolved) == ("blurred", (1, 9), ((1, 8),))
    assert [stretch.kind for stretch in found.stretches] == [Kind.BLURRED] and state.probes == 2


def test_skipped_points_beside_broken_ones():
    _, found = world("0000??5555", 3).search(skip={3, 6})
    assert (found.kind, found.unresolved, found.crossing_range) == ("blurred", ((3, 6),), (3, 7))


def test_what_only_a_failing_machine_hides_is_worth_another_try_and_what_is_skipped_is_not():
    assert world("0000!!5555", 3).search()[1].kind == "infra"
    assert world("0000!!5555", 3).search(skip={4})[1].kind == "blurred"


def test_a_skipped_point_is_skipped_with_all_that_are_the_same_measurement():
    groups = ["a", "b", "c", "b", "d", "d", "e"]
    state, found = world("0000555", 3).search(groups=groups, skip={3}, known={1, 2})
    assert not {1, 3} & {request.index for request, _ in state.log}
    assert found.crossing_range == (3, 4)


def test_a_cached_point_that_is_skipped_is_not_asked_for():
    state = start(101, known={45}, skip={45})
    for request in (Measure(0), Measure(100)):
        state = observe(state, request, Exact(Metrics((10 + request.index) * GIB, 200 * GIB), fits=True))
    assert plan(state) == (Measure(50),)


def test_sentinels_keep_off_what_is_skipped():
    history = World(100, {30: Change(allocated=9 * GIB)}, reverted={30: 60})
    _, found = history.search(Options(grid=4), skip={20, 40, 60, 80})
    assert len(history.asked) == 6 and found.non_monotone


@pytest.mark.parametrize(
    ("skip", "groups", "why"),
    [({0}, None, "good end"), ({4}, None, "bad end"), ({2}, "abaca", "good end"), ({7}, None, "not on the axis")],
)
def test_an_end_cannot_be_skipped(skip, groups, why):
    with pytest.raises(BadAxis, match=why):
        start(5, groups=groups, skip=skip)


def test_a_skipped_point_that_is_reported_all_the_same_counts():
    state = start(9, Options(confirm=False), skip={4})
    history = world("000055555", 3)
    for index in (0, 8, 4, 3):
        state = observe(state, Measure(index), history.answer(Measure(index)))
    assert plan(state) == () and conclude(state).crossing == 4
    state = observe(start(9, skip={4}), Measure(4), Unresolved("does not import"))
    assert conclude(state).measured == 1
