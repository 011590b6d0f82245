"""What the allocator asks of the device: memory at an address, and, for expandable segments, addresses and pages apart.

`VirtualDevice` gives out addresses as CUDA drivers were seen to (addresses in published PyTorch snapshots), and as
this project's virtual GPU does. Where equally large free blocks compete, addresses decide which is taken. All sizes are
bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, Protocol

GRANULE: Final = 2 << 20
CHUNK: Final = 32 << 20
_ROW: Final = 256


class Device(Protocol):
    """The part of a CUDA device that the allocator uses; `total` is its memory as CUDA reports it."""

    total: int

    def malloc(self, size: int) -> int | None:
        """cudaMalloc: the address, None if there is not that much memory."""

    def free(self, address: int, size: int) -> None:
        """cudaFree."""

    def reserve(self, size: int, page: int, stream: int) -> int:
        """cuMemAddressReserve: addresses without memory; `page` and `stream` say what for."""

    def unreserve(self, address: int, size: int) -> None:
        """cuMemAddressFree."""

    def map(self, address: int, size: int) -> bool:
        """cuMemCreate and cuMemMap of all pages of a range; False, and nothing is mapped, if memory is short."""

    def unmap(self, address: int, size: int) -> None:
        """cuMemUnmap and cuMemRelease of all pages of a range."""

    def adopt(self, address: int, size: int) -> None:
        """Memory that the allocator had before anything was recorded."""

    def adopt_range(self, address: int, size: int) -> None:
        """Addresses that it had reserved by then."""


class Ranges:
    """Free ranges of addresses: sorted, joined with their neighbours; the lowest that is large enough is taken.

    They lie in rows, each of which knows the size of its largest: so that neither many ranges nor many sizes are slow.

    Args:
        border: ranges on two sides of a multiple of this are not joined; 0: there are no borders.
    """

    def __init__(self, border: int = 0) -> None:
        self._border = border
        self._rows: list[_Row] = [_Row([], [])]
        self._firsts = [0]

    def put(self, start: int, end: int) -> None:
        """Give back a range, which lies between two borders."""
        at = max(bisect_right(self._firsts, start) - 1, 0)
        row = self._rows[at]
        index = bisect_left(row.starts, start)
        if index < len(row.starts):
            self._join(row, index, start, end)
        else:  # what follows is the first of the next row
            following = at + 1
            if following < len(self._rows) and self._rows[following].starts[0] == end and not self._is_border(end):
                end = self._rows[following].ends[0]
                self._drop(following, 0)
            self._join(row, index, start, end)
        if len(row.starts) > 2 * _ROW:
            self._rows.insert(at + 1, row.cut())
            self._firsts.insert(at + 1, self._rows[at + 1].starts[0])

    def _join(self, row: _Row, index: int, start: int, end: int) -> None:
        """Put a range in front of that at `index`, joined with those it touches."""
        if index < len(row.starts) and row.starts[index] == end and not self._is_border(end):
            end = row.ends[index]
            row.remove(index)
        if index and row.ends[index - 1] == start and not self._is_border(start):
            start = row.starts[index - 1]
            row.remove(index - 1)
            index -= 1
        row.insert(index, start, end)

    def _is_border(self, address: int) -> bool:
        return bool(self._border) and address % self._border == 0

    def _drop(self, at: int, index: int) -> None:
        row = self._rows[at]
        row.remove(index)
        if not row.starts and len(self._rows) > 1:
            del self._rows[at], self._firsts[at]
        elif row.starts and at:
            self._firsts[at] = row.starts[0]

    def take(self, size: int) -> int | None:
        """The start of a range of `size`, which is free no longer; None if there is none."""
        for at, row in enumerate(self._rows):
            if row.largest >= size:
                index = next(i for i, (start, end) in enumerate(zip(row.starts, row.ends)) if end - start >= size)
                start, end = row.starts[index], row.ends[index]
                if end - start > size:
                    row.replace(index, start + size, end)
                    if at and index == 0:
                        self._firsts[at] = start + size
                else:
                    self._drop(at, index)
                return start
        return None


class _Row:
    """Some ranges that follow each other; `largest` is the size of the largest."""

    __slots__ = ("ends", "largest", "starts")

    def __init__(self, starts: list[int], ends: list[int]) -> None:
        self.starts, self.ends = starts, ends
        self._measure()

    def _measure(self) -> None:
        self.largest = max((end - start for start, end in zip(self.starts, self.ends)), default=0)

    def insert(self, index: int, start: int, end: int) -> None:
        self.starts.insert(index, start)
        self.ends.insert(index, end)
        self.largest = max(self.largest, end - start)

    def remove(self, index: int) -> None:
        size = self.ends.pop(index) - self.starts.pop(index)
        if size == self.largest:
            self._measure()

    def replace(self, index: int, start: int, end: int) -> None:
        """It has become smaller."""
        size = self.ends[index] - self.starts[index]
        self.starts[index], self.ends[index] = start, end
        if size == self.largest:
            self._measure()

    def cut(self) -> _Row:
        """Keep the first half; the other one."""
        half = len(self.starts) // 2
        rest = _Row(self.starts[half:], self.ends[half:])
        del self.starts[half:], self.ends[half:]
        self._measure()
        return rest


class Addresses:
    """Addresses in the order in which drivers give them out.

    What is smaller than 32 MiB is packed upwards into chunks of 32 MiB and never crosses from one into the next; what
    is larger begins at a multiple of 32 MiB, and each goes below the last. Both first take what was given back.
    """

    def __init__(self, start: int = 0x1000_0000_0000, size: int = 64 << 40) -> None:
        self._small, self._large = Ranges(CHUNK), Ranges()
        self._start = start
        self._low = start + CHUNK
        self._high = start + size - CHUNK
        self._beyond = start + size

    def take(self, size: int) -> int:
        """The start of `size` addresses."""
        if size < CHUNK:
            size = _whole(size, GRANULE)
            while (found := self._small.take(size)) is None:
                self._small.put(self._low, self._low + CHUNK)
                self._low += CHUNK
            return found
        size = _whole(size, CHUNK)  # what is left of the last chunk is too small for what comes here
        found = self._large.take(size)
        if found is not None:
            return found
        if self._high - size < self._low:  # more than any device has: let it lie where there is room
            self._beyond += size
            return self._beyond - size
        self._high -= size
        return self._high

    def give(self, address: int, size: int) -> None:
        """Take them back; addresses that were never given out are ignored."""
        if not self._start <= address < self._beyond:
            return
        if address < self._low:
            self._small.put(address, address + _whole(size, GRANULE))
        else:
            self._large.put(address, address + _whole(size, CHUNK))


def _whole(size: int, unit: int) -> int:
    """`size` rounded up to whole units."""
    return -(-size // unit) * unit


class VirtualDevice:
    """A device that only counts.

    Args:
        total: its memory as CUDA reports it.
        capacity: how much of it there is to take; all of it if None.
        addresses: who says at which address.
    """

    __slots__ = ("_addresses", "capacity", "total", "used")

    def __init__(self, total: int, capacity: int | None = None, addresses: Addresses | None = None) -> None:
        self.total = total
        self.capacity = total if capacity is None else capacity
        self.used = 0
        self._addresses = addresses or Addresses()

    def malloc(self, size: int) -> int | None:
        """The address of `size` new bytes; None if fewer are left."""
        if self.used + size > self.capacity:
            return None
        self.used += size
        return self._addresses.take(size)

    def free(self, address: int, size: int) -> None:
        """Give back what `malloc` gave."""
        self.used -= size
        self._addresses.give(address, size)

    def reserve(self, size: int, page: int, stream: int) -> int:
        """The address of a range of `size` bytes that takes no memory yet."""
        return self._addresses.take(size)

    def unreserve(self, address: int, size: int) -> None:
        """Give back a range; nothing in it is mapped."""
        self._addresses.give(address, size)

    def map(self, address: int, size: int) -> bool:
        """Put `size` bytes of memory behind addresses; False if fewer are left."""
        if self.used + size > self.capacity:
            return False
        self.used += size
        return True

    def unmap(self, address: int, size: int) -> None:
        """Take the memory away from addresses."""
        self.used -= size

    def adopt(self, address: int, size: int) -> None:
        """Count memory that was there before the trace began."""
        self.used += size

    def adopt_range(self, address: int, size: int) -> None:
        """They lie below all that is given out."""
