"""What the allocator does, rule by rule. That it is PyTorch's is shown elsewhere, against the real one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from oombisect.memory.allocator import Block, CachingAllocator, Rules, Settings
from oombisect.memory.allocator.initial import adopt
from oombisect.memory.allocator.rules import TORCH_2_9, TORCH_2_14

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RULES = pytest.mark.parametrize("rules", [TORCH_2_9, TORCH_2_14], ids=lambda rules: rules.name)


def make(
    text: str = "",
    rules: Rules = TORCH_2_14,
    limit: int | None = None,
    fraction: float | None = None,
    device: int = GIB,
) -> CachingAllocator:
    return CachingAllocator(Settings.parse(text, rules), rules, device_bytes=device, limit=limit, fraction=fraction)


def get(allocator: CachingAllocator, size: int, stream: int = 0, pool: int = 0) -> Block:
    block = allocator.alloc(size, stream, pool)
    assert block is not None
    return block


def stat(allocator: CachingAllocator, name: str) -> int:
    return allocator.statistics.memory_stats()[name]


def reserved(allocator: CachingAllocator) -> int:
    return allocator.statistics.reserved.current


def test_small_and_large_requests_do_not_share_segments() -> None:
    allocator = make()
    small, large = get(allocator, 512), get(allocator, 2 * MIB)
    assert (small.size, large.size) == (512, 2 * MIB)
    assert reserved(allocator) == 22 * MIB
    again = get(allocator, 512)
    assert again.address == small.address + 512


def test_a_stream_does_not_take_what_another_freed() -> None:
    allocator = make()
    block = get(allocator, 4 * MIB, stream=1)
    allocator.free(block)
    get(allocator, 4 * MIB, stream=2)
    assert reserved(allocator) == 40 * MIB


def test_a_large_block_is_split_only_for_more_than_a_mebibyte() -> None:
    allocator = make()
    assert get(allocator, 11 * MIB).size == 12 * MIB
    assert get(allocator, 11 * MIB - 512).size == 11 * MIB - 512
    assert stat(allocator, "inactive_split_bytes.all.current") == MIB + 512


def test_best_fit_takes_the_smallest_sufficient_block() -> None:
    allocator = make()
    blocks = [get(allocator, size * MIB) for size in (40, 20, 30)]
    addresses = {block.size: block.address for block in blocks}
    for block in blocks:
        allocator.free(block)
    assert get(allocator, 19 * MIB).address == addresses[20 * MIB]
    assert get(allocator, 21 * MIB).address == addresses[30 * MIB]


def test_ties_are_broken_by_age_of_the_segment_or_by_address() -> None:
    for rules, first_made in ((TORCH_2_14, True), (TORCH_2_9, False)):
        allocator = make("", rules)
        first, second = get(allocator, 64 * MIB), get(allocator, 64 * MIB)  # addresses of large segments fall
        assert first.address > second.address
        expected = first.address if first_made else second.address
        allocator.free(first)
        allocator.free(second)
        assert get(allocator, 64 * MIB).address == expected


def test_a_freed_block_joins_both_neighbours() -> None:
    allocator = make()
    blocks = [get(allocator, 2 * MIB) for _ in range(10)]
    assert reserved(allocator) == 20 * MIB
    for block in (*blocks[:4], *blocks[5:]):
        allocator.free(block)
    assert stat(allocator, "inactive_split.all.current") == 2
    allocator.free(blocks[4])
    assert stat(allocator, "inactive_split.all.current") == 0
    assert stat(allocator, "inactive_split_bytes.all.current") == 0
    (segment,) = allocator.segments()
    assert len(segment.blocks) == 1


def test_cached_memory_is_released_and_asked_for_again() -> None:
    allocator = make(limit=100 * MIB)
    allocator.free(get(allocator, 60 * MIB))
    get(allocator, 80 * MIB)
    assert stat(allocator, "num_alloc_retries") == 1
    assert stat(allocator, "num_device_free") == 1
    assert reserved(allocator) == 80 * MIB


def test_out_of_memory() -> None:
    allocator = make(limit=100 * MIB)
    held = get(allocator, 60 * MIB)
    assert allocator.alloc(60 * MIB) is None
    assert (stat(allocator, "num_ooms"), stat(allocator, "num_alloc_retries")) == (1, 1)
    assert stat(allocator, "allocation.all.current") == 1
    allocator.free(held)
    get(allocator, 60 * MIB)


def test_a_segment_with_one_live_block_is_not_released() -> None:
    allocator = make()
    first, second = get(allocator, 4 * MIB), get(allocator, 4 * MIB)
    allocator.free(second)
    allocator.empty_cache()
    assert reserved(allocator) == 20 * MIB
    allocator.free(first)
    allocator.empty_cache()
    assert reserved(allocator) == 0


def test_a_block_that_a_stream_still_uses_is_active_and_not_free() -> None:
    allocator = make()
    block = get(allocator, 20 * MIB)
    allocator.free(block, pending=True)
    assert stat(allocator, "allocated_bytes.all.current") == 0
    assert stat(allocator, "active_bytes.all.current") == 20 * MIB
    get(allocator, 20 * MIB)
    assert reserved(allocator) == 40 * MIB
    allocator.complete(block)
    assert stat(allocator, "active_bytes.all.current") == 20 * MIB
    get(allocator, 20 * MIB)
    assert reserved(allocator) == 40 * MIB


def test_releasing_waits_for_streams() -> None:
    allocator = make(limit=50 * MIB)
    block = get(allocator, 40 * MIB)
    allocator.free(block, pending=True)
    get(allocator, 45 * MIB)
    assert stat(allocator, "num_sync_all_streams") == 1
    allocator.complete(block)  # the stream is found to be done once more: nothing happens
    assert stat(allocator, "active_bytes.all.current") == 46 * MIB


def test_a_block_found_to_be_done_does_not_come_to_life_again() -> None:
    allocator = make()
    first, stays = get(allocator, 4 * MIB), get(allocator, 4 * MIB)
    allocator.free(first, pending=True)
    allocator.empty_cache()
    second = get(allocator, 4 * MIB)
    assert second.address == first.address
    allocator.free(second, pending=True)
    allocator.complete(first)
    assert stat(allocator, "active_bytes.all.current") == 8 * MIB
    (segment,) = allocator.segments({first: 1, second: 2, stays: 3})
    assert [piece.block for piece in segment.blocks] == [2, 3, -1]


def test_max_split_size_keeps_oversize_blocks_for_oversize_requests() -> None:
    allocator = make("max_split_size_mb:64")
    big = get(allocator, 100 * MIB)
    assert stat(allocator, "oversize_allocations.current") == stat(allocator, "oversize_segments.current") == 1
    address = big.address
    allocator.free(big)
    assert get(allocator, 30 * MIB).address != address
    assert get(allocator, 90 * MIB).address == address  # unsplit: 10 MiB are wasted
    assert stat(allocator, "allocated_bytes.all.current") == 130 * MIB
    assert stat(allocator, "inactive_split.all.current") == 0


def test_an_oversize_block_must_not_waste_much() -> None:
    for text, reused in (("max_split_size_mb:64", False), ("max_split_size_mb:64,max_non_split_rounding_mb:40", True)):
        allocator = make(text)
        allocator.free(get(allocator, 100 * MIB))
        get(allocator, 70 * MIB)
        assert reserved(allocator) == (100 if reused else 170) * MIB


def test_oversize_segments_are_released_first_and_do_not_count_as_a_retry() -> None:
    allocator = make("max_split_size_mb:64", limit=200 * MIB)
    cached = [get(allocator, size * MIB) for size in (20, 80, 100)]
    for block in cached:
        allocator.free(block)
    get(allocator, 128 * MIB)
    assert stat(allocator, "num_alloc_retries") == 0
    assert reserved(allocator) == (20 + 128) * MIB


@RULES
def test_fraction_caps_what_is_reserved(rules: Rules) -> None:
    allocator = make("", rules, fraction=0.5)
    assert allocator.alloc(600 * MIB) is None
    get(allocator, 500 * MIB)


def test_a_whole_device_is_a_limit_in_older_releases_only() -> None:
    assert make("", TORCH_2_9, fraction=1.0).allowed == GIB
    assert make("", TORCH_2_14, fraction=1.0).allowed is None


def test_a_fraction_is_rounded_by_newer_releases_and_cut_by_older_ones() -> None:
    for rules, allowed in ((TORCH_2_9, 513802239), (TORCH_2_14, 513802240)):  # 0.7 * 734003200 is a little less
        assert make("", rules, fraction=0.7, device=734003200).allowed == allowed


def test_garbage_collection_frees_the_oldest_first_and_only_with_a_fraction() -> None:
    for fraction, collected in ((0.5, True), (None, False)):
        allocator = make("garbage_collection_threshold:0.5", fraction=fraction)
        third, old, new = (get(allocator, size * MIB) for size in (30, 100, 160))
        allocator.free(third)
        allocator.free(old)
        for _ in range(5):
            allocator.free(get(allocator, 30 * MIB))
        allocator.free(new)
        get(allocator, 170 * MIB)
        assert reserved(allocator) == (30 + 160 + 170 + (0 if collected else 100)) * MIB
        assert stat(allocator, "num_alloc_retries") == 0


def test_private_pools_share_nothing_and_are_released_only_when_given_up() -> None:
    allocator = make()
    block = get(allocator, 20 * MIB, pool=7)
    allocator.free(block)
    get(allocator, 20 * MIB)
    assert reserved(allocator) == 40 * MIB
    allocator.empty_cache()
    assert reserved(allocator) == 40 * MIB
    allocator.release_pool(7)
    allocator.empty_cache()
    assert reserved(allocator) == 20 * MIB


@RULES
def test_nothing_is_released_while_a_graph_is_captured(rules: Rules) -> None:
    allocator = make("", rules, limit=50 * MIB)
    allocator.create_pool(1, graph=True)
    allocator.create_pool(2, graph=False)
    allocator.free(get(allocator, 40 * MIB))
    assert allocator.alloc(40 * MIB, 0, 1) is None
    assert stat(allocator, "num_alloc_retries") == 0
    assert (allocator.alloc(40 * MIB, 0, 2) is not None) == rules.private_pools_release


def test_a_pool_that_does_not_split() -> None:
    allocator = make()
    allocator.create_pool(1, split=False)
    assert get(allocator, 4 * MIB, pool=1).size == 20 * MIB


# ---- expandable segments ----

EXPANDABLE = "expandable_segments:True"


def test_one_range_of_addresses_grows() -> None:
    allocator = make(EXPANDABLE)
    first, second = get(allocator, 30 * MIB), get(allocator, 30 * MIB)
    assert second.address == first.address + 30 * MIB
    assert reserved(allocator) == 60 * MIB
    assert stat(allocator, "segment.all.current") == 0
    assert get(allocator, 512).address != second.address + 30 * MIB
    assert reserved(allocator) == 62 * MIB


def test_a_request_grows_the_free_block_at_the_end() -> None:
    allocator = make(EXPANDABLE)
    first, second = get(allocator, 20 * MIB), get(allocator, 20 * MIB)
    allocator.free(second)
    grown = get(allocator, 60 * MIB)
    assert grown.address == first.address + 20 * MIB
    assert reserved(allocator) == 80 * MIB


def test_whole_pages_are_unmapped_and_the_holes_are_filled_again() -> None:
    allocator = make(EXPANDABLE)
    blocks = [get(allocator, 30 * MIB) for _ in range(4)]
    start = blocks[0].address
    allocator.free(blocks[1])
    allocator.empty_cache()
    # 30..60 MiB is free: of that the page 40..60 goes, and 30..40 stays, for half of its page is in use
    assert reserved(allocator) == 100 * MIB
    assert [(part.address - start, part.size) for part in allocator.segments(dict.fromkeys(blocks, 1))] == [
        (0, 40 * MIB),
        (60 * MIB, 60 * MIB),
    ]
    assert get(allocator, 25 * MIB).address == start + 30 * MIB
    assert reserved(allocator) == 120 * MIB


def test_mapped_blocks_do_not_join_unmapped_ones() -> None:
    allocator = make(EXPANDABLE)
    first, second = get(allocator, 20 * MIB), get(allocator, 20 * MIB)
    allocator.free(second)
    allocator.empty_cache()
    allocator.free(first)
    (part,) = allocator.segments()
    assert part.size == 20 * MIB == reserved(allocator)


def test_a_map_that_fails_leaves_what_was_mapped_and_an_empty_range_stays() -> None:
    allocator = make(EXPANDABLE, limit=50 * MIB)
    get(allocator, 512)
    assert allocator.alloc(60 * MIB) is None
    assert reserved(allocator) == 2 * MIB
    allocator.empty_cache()
    reserves = allocator.device.reserve(2 * MIB, 2 * MIB, 0)
    get(allocator, 20 * MIB)
    assert reserves  # the range of the large home was not reserved anew: it lies above
    assert stat(allocator, "num_device_alloc") == 2


def test_expandable_blocks_are_left_alone_once_switched_off() -> None:
    allocator = make(EXPANDABLE)
    block = get(allocator, 40 * MIB)
    keep = get(allocator, 20 * MIB)
    allocator.free(block)
    allocator.configure(Settings())
    get(allocator, 40 * MIB)
    assert stat(allocator, "segment.all.current") == 1
    assert reserved(allocator) == 100 * MIB
    allocator.configure(Settings(expandable_segments=True))
    assert get(allocator, 40 * MIB).address == keep.address - 40 * MIB


def test_max_split_size_changed_in_the_middle() -> None:
    allocator = make()
    allocator.free(get(allocator, 100 * MIB))
    allocator.configure(Settings.parse("max_split_size_mb:64", TORCH_2_14, allocator.settings))
    get(allocator, 30 * MIB)
    assert reserved(allocator) == 130 * MIB
    allocator.configure(Settings())
    get(allocator, 30 * MIB)
    assert reserved(allocator) == 130 * MIB


# ---- its state ----


def walk(allocator: CachingAllocator, seed: int, count: int) -> Iterator[dict[Block, int]]:
    """Random requests; the live blocks after each."""
    chance = random.Random(seed)
    live: dict[Block, int] = {}
    for number in range(count):
        if live and chance.random() < 0.45:
            block = chance.choice(list(live))
            del live[block]
            allocator.free(block)
        elif chance.random() < 0.02:
            allocator.empty_cache()
        else:
            size = chance.choice((chance.randrange(1, 2 * MIB), chance.randrange(1, 60 * MIB)))
            block_or_none = allocator.alloc(size, chance.randrange(2))
            if block_or_none is not None:
                live[block_or_none] = number
        yield live


@pytest.mark.parametrize("text", ["", EXPANDABLE, "max_split_size_mb:32", "roundup_power2_divisions:4"])
@pytest.mark.parametrize("seed", range(4))
def test_segments_always_add_up_to_the_counters(text: str, seed: int) -> None:
    allocator = make(text, limit=600 * MIB)
    for live in walk(allocator, seed, 300):
        segments = allocator.segments(live)
        pieces = [piece for segment in segments for piece in segment.blocks]
        assert sum(segment.size for segment in segments) == reserved(allocator)
        assert sum(piece.size for piece in pieces) == reserved(allocator)
        assert sum(piece.size for piece in pieces if piece.block >= 0) == stat(allocator, "allocated_bytes.all.current")
        for segment in segments:
            assert segment.blocks[0].address == segment.address
            for before, after in pairwise(segment.blocks):
                assert before.address + before.size == after.address
                assert before.block >= 0 or after.block >= 0  # free neighbours have joined
        for before, after in pairwise(segments):
            assert before.address + before.size <= after.address
        if not any(segment.expandable for segment in segments):
            idle = [
                piece.size
                for segment in segments
                for piece in segment.blocks
                if piece.block < 0 and len(segment.blocks) > 1
            ]
            assert sum(idle) == stat(allocator, "inactive_split_bytes.all.current")
            assert len(idle) == stat(allocator, "inactive_split.all.current")


@pytest.mark.parametrize("text", ["", EXPANDABLE, "max_split_size_mb:32"])
@pytest.mark.parametrize("seed", range(3))
def test_a_state_put_into_an_empty_allocator_is_that_state(text: str, seed: int) -> None:
    original = make(text)
    *_, live = walk(original, seed, 200)
    requested = {number: block.requested for block, number in live.items()}
    copy = make(text)
    adopted = adopt(copy, original.segments(live), requested)
    assert copy.segments({block: number for number, block in adopted.items()}) == original.segments(live)
    ours, theirs = copy.statistics.memory_stats(), original.statistics.memory_stats()
    for name in ours:
        if name.endswith(".current"):
            assert ours[name] == theirs[name], name
    for block, number in live.items():
        original.free(block)
        copy.free(adopted[number])
    original.empty_cache()
    copy.empty_cache()
    assert reserved(copy) == reserved(original) == 0


def test_a_pending_block_is_adopted_as_such() -> None:
    original = make()
    block, other = get(original, 20 * MIB), get(original, 4 * MIB)
    original.free(block, pending=True)
    copy = make()
    adopted = adopt(copy, original.segments({block: 0, other: 1}), [20 * MIB, 4 * MIB])
    assert stat(copy, "active_bytes.all.current") == 24 * MIB
    assert stat(copy, "allocated_bytes.all.current") == 4 * MIB
    copy.complete(adopted[0])
    assert stat(copy, "active_bytes.all.current") == 4 * MIB
