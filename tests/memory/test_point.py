"""The class of one run under a limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oombisect.memory.classify import PointMemory
from oombisect.memory.point import classify_point

GIB = 1 << 30
LIMIT = 80 * GIB


def memory(allocated, reserved, external=1, **more):
    known = {"peak_requested": allocated * GIB} | more
    return PointMemory(allocated * GIB, reserved * GIB, external * GIB, **known)


def test_a_run_that_fits_needs_no_reason_however_great_its_cache():
    found = classify_point(memory(60, 85), LIMIT)
    assert found.kind == "fits"
    assert found.evidence["reserved_minus_allocated"] == 25 * GIB


@pytest.mark.parametrize("complete", [True, False])
def test_more_allocated_than_the_limit_is_capacity_whatever_expandable_segments_do(complete):
    for expandable in (True, False, None):
        point = memory(80, 82, fits=False, fits_expandable=expandable)
        assert classify_point(point, LIMIT, complete=complete).kind == "capacity"


def test_less_asked_for_that_fits_with_expandable_segments_is_fragmentation():
    needs = {"needed_capacity": 83 * GIB, "needed_capacity_expandable": 72 * GIB}
    found = classify_point(memory(70, 85, fits=False, fits_expandable=True, **needs), LIMIT)
    assert found.kind == "fragmentation"
    assert found.evidence["stranded_bytes"] == 12 * GIB
    assert found.evidence["needed_capacity_expandable"] == 72 * GIB


@pytest.mark.parametrize("expandable", [False, None])
def test_without_a_real_layout_that_fits_it_is_not_called_fragmentation(expandable):
    found = classify_point(memory(70, 85, fits=False, fits_expandable=expandable), LIMIT)
    assert found.kind == "unknown"
    assert "no real layout is shown to" in str(found.evidence["reason"])


def test_exactly_the_limit_is_within_it():
    assert classify_point(memory(79, 85, fits=False, fits_expandable=True), LIMIT).kind == "fragmentation"


def test_blocks_left_uncut_beyond_the_limit_are_no_capacity():
    point = memory(82, 85, fits=False, peak_requested=75 * GIB)
    assert classify_point(point, LIMIT).kind == "unknown"
    found = classify_point(replace(point, fits_expandable=True, needed_capacity=83 * GIB), LIMIT)
    assert found.kind == "fragmentation"
    assert (found.evidence["perfect_allocator_needs"], found.evidence["stranded_bytes"]) == (76 * GIB, 7 * GIB)


def test_where_requests_were_not_counted_nothing_is_called_capacity():
    point = memory(82, 85, fits=False, peak_requested=None, fits_expandable=False)
    found = classify_point(point, LIMIT)
    assert found.kind == "unknown" and "not counted" in str(found.evidence["reason"])
    assert found.evidence["requested_counted"] is False
    assert classify_point(replace(point, fits_expandable=True), LIMIT).kind == "fragmentation"


def test_a_run_that_died_may_have_needed_more_than_it_got_to_ask_for():
    died = memory(70, 78, fits=False)
    assert classify_point(died, LIMIT, complete=False).kind == "unknown"
    assert classify_point(memory(70, 78, fits=False, fits_expandable=False), LIMIT, complete=False).kind == "unknown"


def test_a_run_that_died_and_ends_well_with_expandable_segments_was_fragmented():
    died = memory(70, 78, fits=False, fits_expandable=True)
    assert classify_point(died, LIMIT, complete=False).kind == "fragmentation"
