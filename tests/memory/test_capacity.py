"""The bisection for the needed capacity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oombisect.memory.capacity import CapacityError, NeededCapacity

MIB = 1 << 20


def search(lower: int, upper: int, resolution: int, truth: int) -> tuple[NeededCapacity, list[int]]:
    need, tried = NeededCapacity.start(lower, upper, resolution), []
    while (capacity := need.next()) is not None:
        tried.append(capacity)
        need = need.observe(capacity, capacity >= truth)
    return need, tried


@given(st.data())
def test_it_finds_the_need_to_within_the_resolution(data):
    lower = data.draw(st.integers(0, 100_000))
    upper = data.draw(st.integers(lower, 200_000))
    truth = data.draw(st.integers(lower, upper))
    resolution = data.draw(st.integers(1, 5_000))
    need, tried = search(lower, upper, resolution, truth)
    assert truth <= need.result < truth + resolution
    assert len(set(tried)) == len(tried) <= 2 + ((upper - lower) // resolution + 1).bit_length()
    assert all(lower <= capacity < upper for capacity in tried)


@given(st.data())
def test_hints_of_whatever_kind_do_no_harm(data):
    lower = data.draw(st.integers(0, 100_000))
    upper = data.draw(st.integers(lower, 200_000))
    truth = data.draw(st.integers(lower, upper))
    resolution = data.draw(st.integers(1, 5_000))
    need, tries = NeededCapacity.start(lower, upper, resolution), 0
    while (capacity := need.next()) is not None:
        tries += 1
        hint = data.draw(st.one_of(st.none(), st.just(truth), st.integers(0, 300_000)))
        need = need.observe(capacity, capacity >= truth, hint)
    assert truth <= need.result < truth + resolution
    assert tries <= 7 * (2 + ((upper - lower) // resolution + 1).bit_length())


def test_a_good_hint_ends_it_at_once():
    need, tried = NeededCapacity.start(40_000 * MIB, 52_000 * MIB, 2 * MIB), []
    while (capacity := need.next()) is not None:
        tried.append(capacity)
        need = need.observe(capacity, capacity >= 41_234 * MIB, 41_234 * MIB)
    assert need.result == 41_234 * MIB
    assert len(tried) == 3  # above the lower bound, the hint, just below it


def test_a_run_that_strands_nothing_needs_one_try():
    need, tried = search(40_000 * MIB, 52_000 * MIB, 64 * MIB, 40_010 * MIB)
    assert len(tried) == 1 and need.result <= 40_064 * MIB


def test_close_bounds_need_no_try():
    assert search(1000, 1063, 64, 1050)[1] == []


def test_the_state_is_a_value():
    need = NeededCapacity.start(0, 100, 10)
    need.observe(50, survived=True)
    assert need.result == 100


@pytest.mark.parametrize(("lower", "upper", "resolution"), [(5, 4, 1), (-1, 4, 1), (0, 4, 0)])
def test_bounds_that_are_none(lower, upper, resolution):
    with pytest.raises(CapacityError):
        NeededCapacity.start(lower, upper, resolution)


def test_contradictions():
    need = NeededCapacity.start(10, 100, 5).observe(40, survived=False).observe(70, survived=True)
    for capacity, survived in ((40, True), (20, True), (70, False), (100, False)):
        with pytest.raises(CapacityError):
            need.observe(capacity, survived)
