"""Why a run needs more memory, by what is known of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oombisect.memory.classify import PointMemory, classify

GIB = 1 << 30
MIB = 1 << 20
LIMIT = 80 * GIB


def point(allocated, stranded=0.0, external=1.0, *, cache=None, measured=True, limit=LIMIT, expandable=None):
    """A point from its true needs in GiB; `cache` is what it holds beyond allocated when memory is plenty."""
    need = round((allocated + stranded + external) * GIB)
    return PointMemory(
        peak_allocated=round(allocated * GIB),
        peak_reserved=round((allocated + (stranded if cache is None else cache)) * GIB),
        external=round(external * GIB),
        needed_capacity=need if measured else None,
        fits=need <= limit,
        fits_expandable=expandable,
        peak_requested=round(allocated * GIB),
    )


AGAINST_LIMIT = [
    # good and bad as (allocated, stranded, external)
    ("capacity", (60, 1, 1), (85, 1, 1)),
    ("capacity", (78, 0.5, 1), (79, 0.5, 1)),
    ("fragmentation", (60, 1, 1), (60, 25, 1)),
    ("fragmentation", (60, 1, 1), (59, 22, 1)),
    ("fragmentation", (60, 1, 1), (62, 20, 1)),
    ("external", (70, 1, 1), (70, 1, 12)),
    ("external", (60, 1, 2), (75, 0, 40)),
    ("mixed", (60, 1, 2), (79, 0, 40)),
    # Only together do they not fit, and the return of no one of them is enough.
    ("mixed", (60, 1, 1), (82, 20, 1)),
    ("mixed", (60, 1, 1), (60, 21, 21)),
    ("mixed", (60, 1, 1), (81, 21, 21)),
    # The return of either would do: the one that grew more is the cause.
    ("capacity", (60, 1, 1), (75, 5, 2)),
    ("fragmentation", (68, 1, 1), (70, 15, 2)),
    # Stranded memory that was there before is no cause.
    ("capacity", (60, 15, 1), (66, 15, 1)),
]


@pytest.mark.parametrize(("kind", "good", "bad"), AGAINST_LIMIT)
def test_against_a_limit(kind, good, bad):
    found = classify(point(*good), point(*bad), LIMIT)
    assert found.kind == kind
    assert found.fragmentation_bytes == round((bad[1] - good[1]) * GIB)


GROWTH = [
    ("capacity", (10, 0, 1), (14, 0, 1)),
    ("capacity", (10, 1, 1), (14, 0, 1)),
    ("capacity", (10, 0, 1), (18, 2, 1)),
    ("mixed", (10, 0, 1), (17.9, 2.1, 1)),
    ("mixed", (10, 0, 1), (12, 2, 3)),
    ("fragmentation", (10, 0, 1), (9, 4, 1)),
    ("external", (10, 0, 1), (10, 0, 3)),
    ("unknown", (10, 0, 1), (10, 0, 1)),
    ("unknown", (10, 2, 1), (9, 1, 1)),
]


@pytest.mark.parametrize(("kind", "good", "bad"), GROWTH)
@pytest.mark.parametrize("limit", [None, LIMIT])
def test_of_a_step_that_crosses_no_limit(kind, good, bad, limit):
    assert classify(point(*good), point(*bad), limit).kind == kind


def test_a_step_beyond_the_limit_is_classified_by_its_growth():
    assert classify(point(90), point(95), LIMIT).kind == "capacity"
    assert classify(point(90), point(90, 5), LIMIT).kind == "fragmentation"


# What the allocator rounds up or leaves uncut is its own doing


def uncut(requested, allocated, *, counted=True, **more):
    """A point that needs what it has allocated, GiB: the rests of its blocks are cut by expandable segments only."""
    sizes = {"peak_allocated": allocated * GIB, "peak_reserved": allocated * GIB, "external": GIB}
    known = {"needed_capacity": (allocated + 1) * GIB, "fits": allocated + 1 <= 80, **more}
    return PointMemory(**sizes, peak_requested=requested * GIB if counted else None, **known)


def test_rests_that_are_left_uncut_are_fragmentation_not_capacity():
    found = classify(uncut(75, 75), uncut(75, 82, fits_expandable=True), LIMIT)
    assert (found.kind, found.fragmentation_bytes) == ("fragmentation", 7 * GIB)
    assert found.evidence["growth"] == {"requested": 0, "allocated": 7 * GIB, "reserved": 7 * GIB, "external": 0}
    assert classify(uncut(70, 70), uncut(71, 75), LIMIT).kind == "fragmentation"  # of the growth, within the limit
    assert classify(uncut(75, 75), uncut(82, 82), LIMIT).kind == "capacity"


def test_where_requests_were_not_counted_more_allocated_than_the_limit_is_no_capacity():
    for good, bad in ((True, False), (False, True), (False, False)):
        found = classify(uncut(75, 75, counted=good), uncut(75, 82, counted=bad), LIMIT)
        assert found.kind == "unknown" and "not counted" in str(found.evidence["reason"])
        assert found.evidence["growth"]["requested"] is None


def test_no_fragmentation_where_expandable_segments_do_not_fit_it_either():
    found = classify(uncut(75, 75), uncut(75, 82, fits_expandable=False), LIMIT)
    assert found.kind == "unknown" and "does not fit either" in str(found.evidence["reason"])


# Reserved minus allocated alone proves nothing


def test_reserved_growth_alone_is_unknown():
    good, bad = point(10, measured=False, cache=1), point(10, measured=False, cache=9)
    found = classify(good, bad)
    assert found.kind == "unknown" and found.fragmentation_bytes is None and "missing" in found.evidence


def test_reserved_growth_across_a_limit_alone_is_unknown():
    good = point(60, measured=False, cache=1)
    bad = point(60, 25, measured=False, cache=25)
    assert not bad.fits
    assert classify(good, bad, LIMIT).kind == "unknown"


def test_a_run_that_fits_with_expandable_segments_is_proof():
    good = point(60, measured=False, cache=1)
    bad = point(60, 25, measured=False, cache=25, expandable=True)
    found = classify(good, bad, LIMIT)
    assert found.kind == "fragmentation" and found.evidence["fits_with_expandable_segments"] is True


def test_a_run_that_does_not_fit_with_expandable_segments_either_is_none():
    good = point(60, measured=False, cache=1)
    bad = point(60, 25, measured=False, cache=25, expandable=False)
    assert classify(good, bad, LIMIT).kind == "unknown"


def test_cache_that_was_there_before_is_not_the_cause_though_expandable_segments_help():
    good = point(64, 15, measured=False, cache=15)
    bad = point(68, 15, measured=False, cache=15, expandable=True)
    assert classify(good, bad, LIMIT).kind == "capacity"


def test_expandable_segments_prove_what_bounds_leave_open():
    good = point(60, 1, measured=False, cache=19)
    bad = point(62, 25, measured=False, cache=25, expandable=True)
    assert classify(good, bad, LIMIT).kind == "fragmentation"


def test_cache_that_did_not_grow_leaves_it_open():
    good = point(64, 15, measured=False, cache=16)
    bad = point(68, 15, measured=False, cache=16, expandable=True)
    assert classify(good, bad, LIMIT).kind == "unknown"


def test_tensors_alone_beyond_the_limit_are_capacity_without_further_evidence():
    good, bad = point(70, measured=False, cache=5), point(85, measured=False, cache=12)
    found = classify(good, bad, LIMIT)
    assert found.kind == "capacity" and found.evidence["over_limit_without_stranded"] == 6 * GIB


def test_external_memory_beyond_the_limit_is_external_without_further_evidence():
    good, bad = point(70, 0, 1, measured=False), point(70, 0, 12, measured=False)
    assert classify(good, bad, LIMIT).kind == "external"


def test_allocated_growth_with_reserved_in_step_is_capacity_without_further_evidence():
    good, bad = point(10, measured=False, cache=1), point(14, measured=False, cache=1.2)
    assert classify(good, bad).kind == "capacity"


def test_a_great_cache_that_the_run_can_do_without_is_not_fragmentation():
    """As a Llama3-70B run showed: 6 to 15 GiB reserved beyond allocated, of which well under 1 GiB is needed."""
    good, bad = point(60, 0.3, cache=6), point(66, 0.5, cache=15)
    found = classify(good, bad)
    assert found.kind == "capacity" and found.fragmentation_bytes == round(0.5 * GIB) - round(0.3 * GIB)


# Coarse measurements


def test_stranded_growth_below_the_resolution_counts_as_none():
    good, bad = point(10, 0.0), point(10.125, 0.05)
    assert classify(good, bad).kind == "mixed"
    found = classify(good, bad, resolution=64 * MIB)
    assert found.kind == "capacity" and found.fragmentation_bytes == 0


@pytest.mark.parametrize("excess", [0, 100, 200, 300, 400, 500])
def test_a_tight_point_that_fits_is_not_made_a_riddle_by_a_coarse_need(excess):
    """The need of a point that fits may have been read as above the limit, by less than the resolution."""
    need = 79 * GIB + 800 * MIB + excess * MIB
    good = PointMemory(78 * GIB, 79 * GIB, GIB, needed_capacity=need, fits=True, peak_requested=78 * GIB)
    bad = PointMemory(82 * GIB, 83 * GIB, GIB, needed_capacity=84 * GIB, fits=False, peak_requested=82 * GIB)
    assert classify(good, bad, LIMIT, resolution=512 * MIB).kind == "capacity"


def test_a_coarse_need_of_the_bad_point_does_not_make_it_mixed():
    good, bad = point(70, 8.8), point(76, 9.2)
    assert classify(good, bad, LIMIT).kind == "mixed"
    assert classify(good, bad, LIMIT, resolution=512 * MIB).kind == "capacity"


# Workspaces


@pytest.mark.parametrize("mib", [32, 47, 49, 50])
@pytest.mark.parametrize("name", ["allocated", "external"])
def test_workspace_sized_growth_is_noted(mib, name):
    good = point(10)
    bad = point(10 + mib / 1024) if name == "allocated" else point(10, 0, 1 + mib / 1024)
    found = classify(good, bad)
    assert found.kind == ("capacity" if name == "allocated" else "external")
    (note,) = found.evidence["notes"]
    assert name in note


@pytest.mark.parametrize("mib", [31, 33, 46, 51, 1024])
def test_other_growth_is_not(mib):
    assert classify(point(10), point(10 + mib / 1024)).evidence["notes"] == []


SIZES = st.integers(0, 100 * 1024).map(lambda mib: mib / 1024)
POINTS = st.tuples(SIZES, SIZES, SIZES)


@given(POINTS, POINTS)
def test_the_remedy_is_a_remedy_and_none_smaller_is(good, bad):
    """Where all is measured: returning what was named makes the bad point fit, and no smaller set would."""
    before, after = point(*good), point(*bad)
    if not before.fits or after.fits:
        return
    found = classify(before, after, LIMIT)
    names = ("allocated", "fragmentation", "external")
    parts = [dict(zip(names, (p.peak_allocated, p.needed_capacity - p.floor, p.external))) for p in (before, after)]

    def fits_with(returned):
        return sum(parts[0 if name in returned else 1][name] for name in names) <= LIMIT

    alone = [name for name in names if fits_with({name})]
    if found.kind == "mixed":
        assert not alone
    else:
        part = "allocated" if found.kind == "capacity" else found.kind
        assert part in alone
        growth = {name: parts[1][name] - parts[0][name] for name in alone}
        assert growth[part] == max(growth.values())


@given(POINTS, POINTS, st.booleans())
def test_it_never_says_fragmentation_without_proof(good, bad, crossing):
    before = point(*good, measured=False)
    after = point(*bad, measured=False)
    assert classify(before, after, LIMIT if crossing else None).kind != "fragmentation"
