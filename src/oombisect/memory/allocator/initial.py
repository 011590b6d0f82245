"""An allocator that is not empty when a trace begins: its segments as a snapshot tells them, put in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from oombisect.memory.allocator.blocks import LIVE, UNMAPPED, Block, FreeBlocks
from oombisect.memory.allocator.expandable import ExpandableSegment
from oombisect.memory.allocator.model import SMALL_SEGMENT, CachingAllocator
from oombisect.memory.requests import InitialBlock, InitialSegment


def adopt(
    allocator: CachingAllocator, segments: Iterable[InitialSegment], requested: Sequence[int] | Mapping[int, int]
) -> dict[int, Block]:
    """Put segments into an empty allocator, as they are.

    In which order they were made is not known: the lowest address is taken for the oldest. Where an expandable segment
    begins is not known either: at the first of its mapped addresses.

    Args:
        segments: `stream` and `pool` are those the allocator is to use.
        requested: by block number, what the program asked for, bytes.

    Returns:
        The blocks that the program has, or that are pending, by number.
    """
    live: dict[int, Block] = {}
    ordered = sorted(segments, key=lambda segment: segment.address)
    for segment in ordered:
        if not segment.expandable:
            home = _home(allocator, segment)
            _place(allocator, segment.blocks, None, home, allocator.order_of_segment(segment.address), requested, live)
            allocator.statistics.add_segment(small=segment.small)
            if segment.size >= allocator.settings.max_split_size:
                allocator.statistics.oversize_segments.add(1)
            _count(allocator, home, segment)
    expandable = sorted((segment for segment in ordered if segment.expandable), key=_home_key)
    for _, group in groupby(expandable, key=_home_key):
        _adopt_expandable(allocator, list(group), requested, live)
    stats = allocator.statistics
    stats.peak_allocations, stats.peak_allocated = stats.allocations - stats.frees, stats.current_allocated
    stats.peak_actives, stats.peak_active = stats.allocations, stats.current_active
    stats.peak_requested = stats.current_requested
    return live


def _adopt_expandable(
    allocator: CachingAllocator,
    mapped: list[InitialSegment],
    requested: Sequence[int] | Mapping[int, int],
    live: dict[int, Block],
) -> None:
    """The mapped stretches of one home: of one range of addresses, as far as it can reach."""
    home = _home(allocator, mapped[0])
    page = SMALL_SEGMENT if mapped[0].small else allocator.settings.large_segment_size
    total = allocator.device.total
    size = -(-(total + total // 8) // page) * page
    while mapped:
        base = mapped[0].address
        inside = [segment for segment in mapped if segment.address + segment.size <= base + size] or mapped[:1]
        mapped = mapped[len(inside) :]
        end = max(base + size, inside[-1].address + inside[-1].size)
        segment = ExpandableSegment(base, end - base, page)
        order = allocator.order_of_segment(base)
        last: Block | None = None
        reached = base
        for stretch in inside:
            if reached < stretch.address:
                last = _unmapped(order + (reached - base), stretch.address - reached, home, segment, last)
            last = _place(
                allocator, stretch.blocks, segment, home, order + (stretch.address - base), requested, live, last
            )
            reached = stretch.address + stretch.size
            _count(allocator, home, stretch)
        if reached < end:
            _unmapped(order + (reached - base), end - reached, home, segment, last)


def _place(
    allocator: CachingAllocator,
    blocks: Sequence[InitialBlock],
    segment: ExpandableSegment | None,
    home: FreeBlocks,
    order: int,
    requested: Sequence[int] | Mapping[int, int],
    live: dict[int, Block],
    previous: Block | None = None,
) -> Block | None:
    """Line up the blocks of a segment behind `previous`; the last of them."""
    stats = allocator.statistics
    for piece in blocks:
        block = Block(order, piece.size, home, segment, previous)
        if previous is not None:
            previous.next = block
        order += piece.size
        previous = block
        if piece.block < 0 and not piece.pending:
            home.insert(block)
            if segment is None and len(blocks) > 1:
                stats.splits.add(1)
                stats.split_bytes.add(piece.size)
            continue
        block.state = LIVE
        block.requested = requested[piece.block] if piece.block >= 0 else piece.size
        stats.allocations += 1
        stats.allocated += piece.size
        stats.requested += block.requested
        if piece.pending:
            stats.frees += 1
            stats.freed += piece.size
            allocator.wait_for(block)
        elif piece.size >= allocator.settings.max_split_size:
            stats.oversize_allocations.add(1)
        if piece.block >= 0:
            live[piece.block] = block
    return previous


def _unmapped(order: int, size: int, home: FreeBlocks, segment: ExpandableSegment, previous: Block | None) -> Block:
    block = Block(order, size, home, segment, previous)
    if previous is not None:
        previous.next = block
    block.state = UNMAPPED
    home.insert_unmapped(block)
    return block


def _count(allocator: CachingAllocator, home: FreeBlocks, segment: InitialSegment) -> None:
    home.kind.pool.segments += 1
    allocator.statistics.add_reserved(segment.size, small=segment.small)
    allocator.device.adopt(segment.address, segment.size)


def _home(allocator: CachingAllocator, segment: InitialSegment) -> FreeBlocks:
    pool = allocator.pool(segment.pool)
    return (pool.small if segment.small else pool.large).home(segment.stream)


def _home_key(segment: InitialSegment) -> tuple[int, int, bool]:
    return segment.pool, segment.stream, segment.small
