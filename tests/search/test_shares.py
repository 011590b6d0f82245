"""A change shared out among what was changed together."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from oombisect.search.observation import NOTHING, Delta, Metrics
from oombisect.search.shares import share_out

BRIDGE, MEGATRON, ENV = "bridge", "megatron-lm", "dependencies"
NONE, ONLY_BRIDGE, ONLY_MEGATRON, BOTH = (
    frozenset(),
    frozenset({BRIDGE}),
    frozenset({MEGATRON}),
    frozenset({BRIDGE, MEGATRON}),
)


def at(allocated: int) -> Metrics:
    return Metrics(allocated, 2 * allocated)


def test_parts_that_do_not_meet_get_what_each_adds() -> None:
    corners = {NONE: at(100), ONLY_BRIDGE: at(110), ONLY_MEGATRON: at(130), BOTH: at(140)}
    found = share_out([BRIDGE, MEGATRON], corners)
    assert found is not None and found.orders == 2
    assert found.shares == {BRIDGE: Delta(10, 20), MEGATRON: Delta(30, 60)}
    assert found.interaction == NOTHING


def test_parts_that_only_add_together_get_half_each_and_the_interaction_is_told() -> None:
    corners = {NONE: at(100), ONLY_BRIDGE: at(100), ONLY_MEGATRON: at(100), BOTH: at(140)}
    found = share_out([BRIDGE, MEGATRON], corners)
    assert found is not None
    assert found.shares == {BRIDGE: Delta(20, 40), MEGATRON: Delta(20, 40)}
    assert found.interaction == Delta(40, 80)


def test_with_one_corner_missing_the_other_tells() -> None:
    corners = {NONE: at(100), ONLY_BRIDGE: at(104), BOTH: at(140)}
    found = share_out([BRIDGE, MEGATRON], corners)
    assert found is not None and found.orders == 1 and found.interaction is None
    assert found.shares == {BRIDGE: Delta(4, 8), MEGATRON: Delta(36, 72)}


def test_with_both_corners_missing_nothing_is_told() -> None:
    assert share_out([BRIDGE, MEGATRON], {NONE: at(100), BOTH: at(140)}) is None


def test_one_part_has_it_all() -> None:
    found = share_out([MEGATRON], {NONE: at(100), ONLY_MEGATRON: at(140)})
    assert found is not None and found.shares == {MEGATRON: Delta(40, 80)} and found.interaction == NOTHING


SIZES = st.integers(0, 1 << 40)
PARTS = (BRIDGE, MEGATRON, ENV)
CORNERS = [frozenset(c) for n in range(4) for c in combinations(PARTS, n)]


@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=8, max_size=8), st.sets(st.sampled_from(CORNERS[1:-1])))
def test_shares_add_up_to_the_byte_whatever_is_missing(sizes: list[tuple[int, int, int]], missing: set) -> None:
    corners = {c: Metrics(*s) for c, s in zip(CORNERS, sizes) if c not in missing}
    found = share_out(PARTS, corners)
    if found is None:
        return
    total = NOTHING
    for share in found.shares.values():
        total += share
    assert total == Delta.between(corners[frozenset()], corners[frozenset(PARTS)])


@given(st.lists(SIZES, min_size=4, max_size=4))
def test_the_order_the_parts_are_named_in_does_not_matter(sizes: list[int]) -> None:
    """But for the odd byte that rounding gives to one of them."""
    corners = {c: at(size) for c, size in zip((NONE, ONLY_BRIDGE, ONLY_MEGATRON, BOTH), sizes)}
    one, other = share_out([BRIDGE, MEGATRON], corners), share_out([MEGATRON, BRIDGE], corners)
    assert one is not None and other is not None
    for part in (BRIDGE, MEGATRON):
        assert abs(one.shares[part].allocated - other.shares[part].allocated) <= 1


def test_the_shares_of_a_metric_add_up_to_its_change() -> None:
    """Of reserved minus allocated, whatever allocated does beside."""
    corners = {
        NONE: Metrics(100, 150),
        frozenset({BRIDGE}): Metrics(300, 353),
        frozenset({MEGATRON}): Metrics(100, 170),
        BOTH: Metrics(300, 374),
    }
    found = share_out([BRIDGE, MEGATRON], corners, "cached")
    assert found is not None and sum(found.changes.values()) == 24
    assert found.changes == {BRIDGE: 3, MEGATRON: 21} or found.changes == {BRIDGE: 4, MEGATRON: 20}
    assert found.shares[BRIDGE].allocated == 200
