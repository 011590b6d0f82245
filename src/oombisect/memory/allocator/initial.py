"""An allocator that is not empty when a trace begins: its segments as a snapshot tells them, put in place."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, zip_longest

from oombisect.memory.allocator.blocks import LIVE, UNMAPPED, Block, FreeBlocks
from oombisect.memory.allocator.device import CHUNK
from oombisect.memory.allocator.expandable import ExpandableSegment, range_size
from oombisect.memory.allocator.model import SMALL_SEGMENT, CachingAllocator
from oombisect.memory.requests import InitialRange, InitialSegment

type HomeKey = tuple[int, int, bool]  # pool, stream, small
type Requested = Sequence[int] | Mapping[int, int]


def adopt(
    allocator: CachingAllocator,
    segments: Iterable[InitialSegment],
    requested: Requested,
    oldest_first: Sequence[int] = (),
    ranges: Iterable[InitialRange] = (),
) -> dict[int, Block]:
    """Put segments into an empty allocator, as they are.

    Args:
        segments: `stream` and `pool` are those the allocator is to use.
        requested: by block number, what the program asked for, bytes.
        oldest_first: addresses of segments or, under rules by which pieces have an age, of their pieces, in the order
            in which they were made. Others come after these, in the order in which drivers give out addresses.
        ranges: where expandable segments begin; others are taken to begin at their first mapped address.

    Returns:
        The blocks that the program has, or that are pending, by number.
    """
    ordered = sorted(segments, key=lambda segment: segment.address)
    starts = [*ranges]
    orders = _orders(allocator, ordered, oldest_first)
    adoption = _Adoption(allocator, requested, orders)
    for segment in ordered:
        if not segment.expandable:
            adoption.add(segment)
    expandable = sorted((segment for segment in ordered if segment.expandable), key=_home_key)
    mapped = {key: list(group) for key, group in groupby(expandable, key=_home_key)}
    for key in sorted({*mapped, *map(_home_key, starts)}):
        adoption.add_expandable(
            _home(allocator, key),
            mapped.get(key, []),
            [start.address for start in starts if _home_key(start) == key],
        )
    stats = allocator.statistics
    stats.peak_allocations, stats.peak_allocated = stats.allocations - stats.frees, stats.current_allocated
    stats.peak_actives, stats.peak_active = stats.allocations, stats.current_active
    stats.peak_requested = stats.current_requested
    allocator.began([*orders])
    return adoption.live


def _orders(
    allocator: CachingAllocator, segments: Sequence[InitialSegment], oldest_first: Sequence[int]
) -> dict[int, int]:
    """The order of each segment by its address; of each piece, where the rules say that pieces have an age."""
    known = {address: at for at, address in enumerate(oldest_first)}
    pieces = allocator.numbers_pieces

    def age(part: tuple[InitialSegment, int]) -> tuple[int, bool, int, int]:
        segment, address = part
        large = segment.size >= CHUNK  # these are given out downwards
        return known.get(address, len(known)), large, -segment.address if large else segment.address, address

    parts = [
        (segment, address)
        for segment in segments
        for address in ([piece.address for piece in segment.blocks] if pieces else [segment.address])
    ]
    return {address: allocator.order_of_segment(address) for _, address in sorted(parts, key=age)}


class _Adoption:
    """Segments are put into an allocator one after the other; `live` has the blocks of the program, by number."""

    def __init__(self, allocator: CachingAllocator, requested: Requested, orders: Mapping[int, int]) -> None:
        self.allocator, self.requested, self.orders = allocator, requested, orders
        self.live: dict[int, Block] = {}

    def add(self, segment: InitialSegment) -> None:
        """One that does not grow."""
        self._place(segment, None, self.orders[segment.address], None)
        self.allocator.statistics.add_segment(small=segment.small)
        if segment.size >= self.allocator.settings.max_split_size:
            self.allocator.statistics.oversize_segments.add(1)

    def add_expandable(self, home: FreeBlocks, mapped: Sequence[InitialSegment], starts: Sequence[int]) -> None:
        """The expandable segments of one home: its mapped stretches, by address, each in the range that reaches it."""
        allocator = self.allocator
        page = SMALL_SEGMENT if home.kind.small else allocator.settings.large_segment_size
        size = range_size(allocator.device.total, page)
        bases = sorted(starts)
        for stretch in mapped:
            reach = bisect_right(bases, stretch.address) - 1
            if reach < 0 or stretch.address + stretch.size > bases[reach] + size:
                bases.insert(reach + 1, stretch.address)
        for base, following in zip_longest(bases, bases[1:]):
            inside = [s for s in mapped if base <= s.address and (following is None or s.address < following)]
            self._add_range(home, ExpandableSegment(base, size, page), inside)

    def _add_range(self, home: FreeBlocks, segment: ExpandableSegment, mapped: Sequence[InitialSegment]) -> None:
        base, end = segment.base, segment.base + segment.size
        if mapped:
            end = max(end, mapped[-1].address + mapped[-1].size)
        order = self.orders[base] if base in self.orders else self.allocator.order_of_segment(base)
        self.allocator.device.adopt_range(base, end - base)
        last: Block | None = None
        reached = base
        for stretch in mapped:
            if reached < stretch.address:
                last = _unmapped(order + (reached - base), stretch.address - reached, home, segment, last)
            last = self._place(stretch, segment, order + (stretch.address - base), last)
            reached = stretch.address + stretch.size
        if reached < end:
            _unmapped(order + (reached - base), end - reached, home, segment, last)

    def _place(
        self, told: InitialSegment, segment: ExpandableSegment | None, order: int, previous: Block | None
    ) -> Block | None:
        """Line up the blocks of a segment behind `previous`; the last of them."""
        allocator, stats = self.allocator, self.allocator.statistics
        home = _home(allocator, _home_key(told))
        for piece in told.blocks:
            block = Block(self.orders.get(piece.address, order), piece.size, home, segment, previous)
            if previous is not None:
                previous.next = block
            order += piece.size
            previous = block
            if piece.block < 0 and not piece.pending:
                home.insert(block)
                if segment is None and len(told.blocks) > 1:
                    stats.splits.add(1)
                    stats.split_bytes.add(piece.size)
                continue
            block.state = LIVE
            block.requested = self.requested[piece.block] if piece.block >= 0 else piece.size
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
                self.live[piece.block] = block
        # A pool is forgotten when as many stretches were unmapped as were mapped: how many that were is not known.
        home.kind.pool.segments += 1 if segment is None else told.size // segment.page
        stats.add_reserved(told.size, small=told.small)
        allocator.device.adopt(told.address, told.size)
        return previous


def _unmapped(order: int, size: int, home: FreeBlocks, segment: ExpandableSegment, previous: Block | None) -> Block:
    block = Block(order, size, home, segment, previous)
    if previous is not None:
        previous.next = block
    block.state = UNMAPPED
    home.insert_unmapped(block)
    return block


def _home(allocator: CachingAllocator, key: HomeKey) -> FreeBlocks:
    pool = allocator.pool(key[0])
    return (pool.small if key[2] else pool.large).home(key[1])


def _home_key(told: InitialSegment | InitialRange) -> HomeKey:
    return told.pool, told.stream, told.small
