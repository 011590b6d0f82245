"""The class of one run under a limit."""

from __future__ import annotations

import pytest

from oombisect.memory.classify import PointMemory
from oombisect.memory.point import classify_point

GIB = 1 << 30
LIMIT = 80 * GIB


def memory(allocated, reserved, external=1, **more):
    return PointMemory(allocated * GIB, reserved * GIB, external * GIB, **more)


def test_a_run_that_fits_needs_no_reason_however_great_its_cache():
    found = classify_point(memory(60, 85), LIMIT)
    assert found.kind == "fits"
    assert found.evidence["reserved_minus_allocated"] == 25 * GIB


@pytest.mark.parametrize("complete", [True, False])
def test_more_allocated_than_the_limit_is_capacity_whatever_expandable_segments_do(complete):
    for expandable in (True, False, None):
        point = memory(80, 82, fits=False, fits_expandable=expandable)
        assert classify_point(point, LIMIT, complete=complete).kind == "capacity"


def test_less_allocated_that_still_does_not_fit_is_fragmentation():
    point = memory(70, 85, fits=False, needed_capacity=83 * GIB, needed_capacity_expandable=72 * GIB)
    found = classify_point(point, LIMIT)
    assert found.kind == "fragmentation"
    assert found.evidence["stranded_bytes"] == 12 * GIB
    assert found.evidence["needed_capacity_expandable"] == 72 * GIB


def test_exactly_the_limit_is_within_it():
    assert classify_point(memory(79, 85, fits=False), LIMIT).kind == "fragmentation"


def test_a_run_that_died_may_have_needed_more_than_it_got_to_ask_for():
    died = memory(70, 78, fits=False)
    assert classify_point(died, LIMIT, complete=False).kind == "unknown"
    assert classify_point(memory(70, 78, fits=False, fits_expandable=False), LIMIT, complete=False).kind == "unknown"


def test_a_run_that_died_and_ends_well_with_expandable_segments_was_fragmented():
    died = memory(70, 78, fits=False, fits_expandable=True)
    assert classify_point(died, LIMIT, complete=False).kind == "fragmentation"
