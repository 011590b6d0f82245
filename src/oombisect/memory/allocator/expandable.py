"""Expandable segments: one range of addresses for each home, where pages of memory are mapped as they are needed.

The range is larger than the device's memory (9/8 of it). A request takes the lowest run of free and unmapped blocks
that is long enough and maps what is missing, whole pages at a time; memory that is given back is unmapped by the page.
"""

from __future__ import annotations

from oombisect.memory.allocator.blocks import FREE, UNMAPPED, Block, FreeBlocks, Orders
from oombisect.memory.allocator.device import Device
from oombisect.memory.allocator.statistics import Statistics


def range_size(total: int, page: int) -> int:
    """How many addresses an expandable segment has on a device of `total` bytes."""
    return -(-(total + total // 8) // page) * page


class ExpandableSegment:
    """A reserved range of addresses, mapped in pages of `page` bytes."""

    __slots__ = ("base", "page", "size")

    def __init__(self, base: int, size: int, page: int) -> None:
        self.base = base
        self.size = size
        self.page = page

    def page_at_or_after(self, address: int) -> int:
        """The address of the first page that does not begin before `address`."""
        return self.base + -(-(address - self.base) // self.page) * self.page

    def page_at_or_before(self, address: int) -> int:
        """The address of the last page that does not begin after `address`."""
        return self.base + (address - self.base) // self.page * self.page


class ExpandableSegments:
    """Maps and unmaps the expandable segments of one device."""

    def __init__(self, device: Device, statistics: Statistics, orders: Orders) -> None:
        self._device = device
        self._statistics = statistics
        self._orders = orders

    def allocate(self, home: FreeBlocks, size: int, page: int) -> Block | None:
        """A block of at least `size` bytes, taken out of the free blocks; None if the device has not enough memory.

        What was mapped before the device ran out stays mapped, as free blocks.
        """
        block = self._lowest_run(home, size) or self._new_segment(home, page)
        if block.state == UNMAPPED and block.next is None and block.size < size:
            return None  # more than a segment has addresses for: more than the device has memory
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None  # the run is long enough
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following  # it has absorbed what lay before it
        home.remove(block)
        return block

    def _lowest_run(self, home: FreeBlocks, size: int) -> Block | None:
        """The first block of the lowest run of free and unmapped neighbours that has room for `size`."""
        for block in home.unmapped:
            before = block.previous
            first = before if before is not None and before.state >= FREE else block
            room, piece = 0, first
            while room < size and piece is not None and piece.state >= FREE:
                room += piece.size
                piece = piece.next  # type: ignore[assignment]
            if room >= size:
                return first
        return None

    def _new_segment(self, home: FreeBlocks, page: int) -> Block:
        size = range_size(self._device.total, page)
        segment = ExpandableSegment(self._device.reserve(size, page, home.stream), size, page)
        block = Block(self._orders.of_segment(segment.base), size, home, segment)
        home.insert_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Back the first `size` bytes of an unmapped block, rounded up to whole pages, and free them."""
        segment, home = block.segment, block.home
        assert segment is not None
        mapped = segment.page_at_or_after(block.address + size) - block.address
        if not self._device.map(block.address, mapped):
            return False
        home.remove_unmapped(block)
        if mapped < block.size:
            order = self._orders.of_piece(block.order, block.address + mapped)
            rest = Block(order, block.size - mapped, home, segment, block, block.next)
            if rest.next is not None:
                rest.next.previous = rest
            block.next = rest
            block.size = mapped
            home.insert_unmapped(rest)
        for neighbour in (block.previous, block.next):
            if neighbour is not None and neighbour.state == FREE:
                home.remove(neighbour)
                self._absorb(block, neighbour)
        home.insert(block)
        self._statistics.add_reserved(mapped, small=home.kind.small)
        self._statistics.device_allocs += 1
        return True

    def release(self, block: Block) -> None:
        """Unmap the whole pages of a free block; what is left of pages stays free.

        A segment that is now wholly unmapped gives its addresses back.
        """
        segment, home = block.segment, block.home
        assert segment is not None
        first, end = block.address, block.address + block.size
        start, stop = segment.page_at_or_after(first), segment.page_at_or_before(end)
        if start >= stop:
            return
        self._device.unmap(start, stop - start)
        home.remove(block)
        if first < start:
            order = self._orders.of_piece(block.order, first)
            before = Block(order, start - first, home, segment, block.previous, block)
            if before.previous is not None:
                before.previous.next = before
            block.previous = before
            home.insert(before)
        if stop < end:
            after = Block(self._orders.of_piece(block.order, stop), end - stop, home, segment, block, block.next)
            if after.next is not None:
                after.next.previous = after
            block.next = after
            home.insert(after)
        block.order += start - first
        block.size = stop - start
        for neighbour in (block.previous, block.next):
            if neighbour is not None and neighbour.state == UNMAPPED:
                home.remove_unmapped(neighbour)
                self._absorb(block, neighbour)
        home.insert_unmapped(block)
        self._statistics.subtract_reserved(stop - start, small=home.kind.small)
        self._statistics.device_frees += 1
        home.kind.pool.segments -= 1
        if not block.is_split:
            home.remove_unmapped(block)
            self._device.unreserve(segment.base, segment.size)

    def _absorb(self, block: Block, neighbour: Block) -> None:
        """Join a neighbour, in front or behind, to `block`; whoever holds the neighbour must have let go of it."""
        if block.previous is neighbour:
            block.order = self._orders.of_joined(block.order, neighbour.order)
            block.previous = neighbour.previous
            if block.previous is not None:
                block.previous.next = block
        else:
            block.next = neighbour.next
            if block.next is not None:
                block.next.previous = block
        block.size += neighbour.size
