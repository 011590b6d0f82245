"""The contract between the search and its caller."""

from __future__ import annotations

import pytest

from oombisect.search import (
    Conflict,
    Exact,
    Infra,
    Measure,
    Metrics,
    Options,
    Remeasure,
    Revert,
    Unresolved,
    conclude,
    observe,
    plan,
    replay,
    start,
)
from oombisect.search.state import BadAxis, Contradiction, NoSuchPoint, WrongAnswer
from tests.search.world import GIB, Change, World

SMALL = Exact(Metrics(10 * GIB, 11 * GIB), fits=True)
LARGE = Exact(Metrics(20 * GIB, 21 * GIB), fits=False)


@pytest.mark.parametrize(
    ("count", "axis"),
    [
        (1, {}),
        (3, {"weights": [1, 2]}),
        (3, {"weights": [1, -1, 1]}),
        (3, {"weights": [1, float("nan"), 1]}),
        (3, {"weights": [1, float("inf"), 1]}),
        (3, {"groups": ["a"]}),
        (3, {"known": {3}}),
    ],
)
def test_an_axis_that_cannot_be_searched(count, axis):
    with pytest.raises(BadAxis):
        start(count, Options(), **axis)


@pytest.mark.parametrize("request_", [Measure(5), Measure(-1), Remeasure(5), Revert(0), Revert(5)])
def test_a_point_that_is_not_there(request_):
    with pytest.raises(NoSuchPoint):
        observe(start(5), request_, SMALL)


def test_the_change_of_a_point_equal_to_its_parent_cannot_be_reverted():
    with pytest.raises(NoSuchPoint):
        observe(start(4, groups="aabc"), Revert(1), SMALL)


@pytest.mark.parametrize("request_", [Measure(1), Remeasure(1)])
def test_only_a_revert_can_conflict(request_):
    with pytest.raises(WrongAnswer):
        observe(start(5), request_, Conflict("no"))


def test_a_measurement_cannot_change():
    state = observe(start(5), Measure(0), SMALL)
    assert observe(state, Measure(0), SMALL) == state
    with pytest.raises(Contradiction):
        observe(state, Measure(0), LARGE)
    with pytest.raises(Contradiction):
        observe(observe(start(5), Measure(0), Unresolved("no import")), Measure(0), SMALL)


def test_a_failure_of_the_machine_can_be_made_good():
    lost = observe(start(5), Measure(0), Infra("node lost"))
    assert conclude(observe(lost, Measure(4), LARGE)).kind == "infra"
    assert plan(observe(observe(lost, Measure(0), SMALL), Measure(4), LARGE)) == (Measure(2),)


def test_one_reading_answers_for_all_points_of_its_group():
    state = start(6, groups=["a", "a", "b", "c", "b", "d"])
    state = observe(state, Measure(1), SMALL)
    assert state.seen(0) == SMALL
    state = observe(state, Measure(4), LARGE)
    assert [state.line.first[run] for run in range(len(state.line.first)) if state.seen(run) == LARGE] == [2, 4]
    with pytest.raises(Contradiction):
        observe(state, Measure(2), SMALL)


def test_a_range_of_equal_points_needs_one_probe():
    state = start(7, groups="aaaaaaa")
    assert plan(state, 4) == (Measure(0),)
    state = observe(state, Measure(0), SMALL)
    assert plan(state) == ()
    assert conclude(state).kind == "none"


def test_a_range_of_equal_points_has_one_end_to_learn_the_noise_from():
    state = observe(start(7, Options(noise_bytes=None), groups="aaaaaaa"), Measure(0), SMALL)
    assert plan(state, 4) == (Remeasure(0),)


def test_replaying_the_log_gives_the_same_state():
    world = World(60, {20: Change(allocated=30 * GIB), 40: Change(stranded=12 * GIB)}, broken=frozenset({29, 30, 31}))
    state, conclusion = world.search()
    assert replay(start(60), state.log) == state
    assert conclude(replay(start(60), state.log)) == conclusion


def test_a_search_goes_on_where_it_was():
    world = World(60, {20: Change(allocated=30 * GIB), 40: Change(stranded=12 * GIB)}, broken=frozenset({29, 30, 31}))
    state, _ = world.search()
    for told in range(len(state.log)):
        assert plan(replay(start(60), state.log[:told])) == (state.log[told][0],)


@pytest.mark.parametrize(
    "wrong",
    [{"find": "growth"}, {"explain": 0}, {"explain": 1.1}, {"budget": -1}, {"grid": -1}, {"noise_bytes": -1}],
)
def test_options_that_make_no_sense(wrong):
    with pytest.raises(ValueError):
        Options(**wrong)


def test_no_parallelism_makes_no_sense():
    with pytest.raises(ValueError):
        plan(start(5), 0)
