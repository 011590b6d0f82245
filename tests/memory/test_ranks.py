"""Ranks beside each other: which does not fit, what the others have to spare, and what the one has more of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oombisect.memory.ranks import RankFindings, compare_ranks
from oombisect.readings import Oom, PhaseMetrics, RankReading
from oombisect.units import GIB

LIMIT = 80 * GIB


def rank(number: int, allocated: float, reserved: float, external: float = 1, oom: Oom | None = None) -> RankReading:
    sizes = {f"{name}_peak": int(size * GIB) for name, size in (("allocated", allocated), ("reserved", reserved))}
    phase = PhaseMetrics(**sizes, requested_peak=int(allocated * GIB))
    return RankReading(number, {"step_1": PhaseMetrics(), "step_2": phase}, int(external * GIB), oom)


def compare(*ranks: RankReading, needed: dict[int, float] | None = None, **more: Any) -> RankFindings:
    sizes = {number: int(size * GIB) for number, size in (needed or {}).items()}
    found = compare_ranks(ranks, LIMIT, sizes, **more)
    assert found is not None
    return found


def cause(found: RankFindings) -> str:
    (excess,) = found.excesses
    return excess.cause


def test_one_rank_has_nobody_to_be_compared_with() -> None:
    assert compare_ranks([rank(0, 90, 91)], LIMIT) is None
    assert compare_ranks([], LIMIT) is None


def test_a_lone_rank_with_more_allocated_is_imbalance_with_numbers() -> None:
    found = compare(rank(0, 60, 62), rank(1, 58, 61), rank(2, 58, 61), rank(3, 82.5, 84))
    assert [r.rank for r in found.over] == [3]
    assert cause(found) == "imbalance"
    who, why, usual, uneven = found.sentences()
    assert who == (
        "rank 3 alone does not fit: it needs at least 83.50 GiB of 80.00 GiB,"
        " the 3 that fit have at least 17.00 GiB to spare"
    )
    more = "+22.50 GiB asked for at the peak, stranded not measured, +0 B outside PyTorch"
    assert why == f"rank 3 against rank 0: {more}: imbalance"
    assert "pipeline stage" in usual and "GiB" not in usual
    assert uneven == "peak allocated is uneven: 82.50 GiB on rank 3, 58.00 GiB on rank 1"
    assert found.imbalance == pytest.approx(82.5 / ((60 + 58 + 58 + 82.5) / 4))


def test_the_same_allocated_but_more_needed_is_fragmentation_on_that_rank() -> None:
    found = compare(rank(0, 70, 76), rank(1, 70, 84), needed={0: 72, 1: 82})
    assert cause(found) == "fragmentation"
    assert found.excesses[0].stranded == 10 * GIB and found.excesses[0].allocated == 0
    who, why = found.sentences()
    assert "needs 82.00 GiB of 80.00 GiB" in who and "rank 0 has at least 8.00 GiB to spare" in who
    assert "+10.00 GiB stranded" in why and why.endswith("outside PyTorch: fragmentation")


def test_reserved_minus_allocated_alone_is_never_fragmentation() -> None:
    found = compare(rank(0, 70, 71), rank(1, 70, 84), fits=False)
    assert [r.rank for r in found.over] == [1], "the only one in doubt, and the run does not fit"
    assert cause(found) == "unknown"
    assert found.ranks[1].headroom is None
    assert "although what it asked for and memory outside PyTorch are 71.00 GiB" in found.sentences()[0]


def test_memory_outside_pytorch_on_one_rank_is_external() -> None:
    found = compare(rank(0, 75, 76, external=8), rank(1, 75, 76, external=1))
    assert cause(found) == "external" and [r.rank for r in found.over] == [0]
    assert "+7.00 GiB outside PyTorch" in found.sentences()[1]


def test_no_single_difference_that_explains_it_is_mixed() -> None:
    found = compare(rank(0, 70, 71, external=1), rank(1, 81, 82, external=12))
    assert cause(found) == "mixed"


def test_a_rank_that_fits_only_because_its_cache_is_given_back_has_the_headroom_of_its_need() -> None:
    found = compare(rank(0, 70, 90), rank(1, 60, 61), needed={0: 72})
    assert found.over == () and found.least_headroom is not None
    assert (found.least_headroom.rank, found.least_headroom.headroom) == (0, 8 * GIB)


def test_in_doubt_is_no_answer() -> None:
    found = compare(rank(0, 70, 90), rank(1, 70, 90), rank(2, 60, 61), rank(3, 90, 91))
    assert [r.fits for r in found.ranks] == [None, None, True, False]
    assert found.ranks[0].headroom is None
    assert found.sentences()[0].startswith("rank 3 does not fit"), "not alone: of two it is not known"
    assert all(r.fits for r in compare(rank(0, 70, 90), rank(1, 60, 61), fits=True).ranks)


def test_what_a_rank_asked_for_when_it_died_counts() -> None:
    oom = Oom("step_1", "CUDA out of memory", requested=15 * GIB, allocated=69 * GIB)
    found = compare(rank(0, 60, 61), rank(1, 70, 72, oom=oom), requested={1: 84 * GIB})
    assert found.ranks[1].peak_allocated == 84 * GIB and found.ranks[1].died
    assert "needs at least 85.00 GiB" in found.sentences()[0]
    assert "at least 84.00 GiB on rank 1" in found.sentences()[-1]
    assert cause(found) == "imbalance"


def test_of_a_rank_that_died_without_a_history_only_what_it_got_is_certain() -> None:
    oom = Oom("step_1", "CUDA out of memory", requested=15 * GIB, allocated=69 * GIB)
    found = compare(rank(0, 60, 61), rank(1, 70, 72, oom=oom))
    assert "are at least 71.00 GiB" in found.sentences()[0] and cause(found) == "unknown"


def test_blocks_left_uncut_on_one_rank_are_fragmentation_of_that_rank() -> None:
    uncut = {"step_1": PhaseMetrics(allocated_peak=82 * GIB, reserved_peak=82 * GIB, requested_peak=75 * GIB)}
    found = compare(rank(0, 75, 76), RankReading(1, uncut, GIB), needed={0: 77, 1: 83})
    assert cause(found) == "fragmentation" and found.excesses[0].requested == 0
    assert found.excesses[0].stranded == 6 * GIB and found.excesses[0].allocated == 7 * GIB
    not_counted = {"step_1": PhaseMetrics(allocated_peak=82 * GIB, reserved_peak=82 * GIB)}
    assert compare(rank(0, 75, 76), RankReading(1, not_counted, GIB)).ranks[1].fits is None


def test_a_need_that_looks_like_the_limit_is_told_with_more_digits() -> None:
    found = compare(rank(0, 60, 61), rank(1, 79.001, 79.5))
    assert "needs at least 80.001 GiB of 80.000 GiB" in found.sentences()[0]


def test_a_rank_that_died_below_the_limit_is_not_called_fragmented() -> None:
    found = compare(rank(0, 70, 71), rank(1, 70, 78, oom=Oom("step_1", "CUDA out of memory", requested=GIB)))
    assert cause(found) == "unknown"


def test_several_over_and_all_over() -> None:
    some = compare(rank(0, 90, 91), rank(1, 60, 61), rank(2, 85, 86))
    assert some.sentences()[0].startswith("ranks 0, 2 do not fit: rank 0 needs at least 91.00 GiB")
    assert [e.rank for e in some.excesses] == [0, 2]
    every = compare(rank(0, 90, 91), rank(1, 89, 91))
    assert every.sentences() == ("none of the 2 ranks measured fits",) and every.excesses == ()


def test_even_ranks_that_fit_need_no_words() -> None:
    assert compare(rank(0, 70, 71), rank(1, 69, 71)).sentences() == ()


gibs = st.floats(0, 200, allow_nan=False)
readings = st.lists(
    st.tuples(gibs, gibs, st.floats(0, 40), st.booleans(), st.none() | gibs), min_size=2, max_size=9
)  # fmt: skip


@given(readings, st.none() | st.booleans())
def test_whatever_is_measured_the_answer_is_consistent(
    sizes: list[tuple[float, float, float, bool, float | None]], fits: bool | None
) -> None:
    oom = Oom("step_1", "CUDA out of memory", requested=GIB)
    ranks = [rank(i, a, a + r, e, oom if died else None) for i, (a, r, e, died, _) in enumerate(sizes)]
    found = compare(*ranks, needed={i: n for i, (*_, n) in enumerate(sizes) if n is not None}, fits=fits)
    assert [r.rank for r in found.ranks] == list(range(len(ranks)))
    for one in found.ranks:
        if one.peak_allocated + one.external > LIMIT or one.died:
            assert one.fits is False
        if one.fits:
            assert one.headroom is not None and one.headroom >= 0
            assert one.headroom <= LIMIT - one.peak_allocated - one.external
        elif one.headroom is not None:
            assert one.headroom < 0
    assert len(found.excesses) == (len(found.over) if any(r.fits for r in found.ranks) else 0)
    for excess in found.excesses:
        assert excess.cause != "imbalance" or excess.allocated > 0
        assert excess.cause != "external" or excess.external > 0
        assert excess.cause != "fragmentation" or found.ranks[excess.rank].needed_capacity is not None
    assert found.imbalance >= 1 or found.largest.peak_allocated == 0
    told = found.to_json()
    assert json.loads(json.dumps(told)) == told
    assert bool(told["do_not_fit"]) <= bool(told["sentences"]) or any(r.fits is None for r in found.ranks)
