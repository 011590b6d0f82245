"""What the allocator asks of the device: memory at an address, and, for expandable segments, addresses and pages apart.

`VirtualDevice` gives out addresses as CUDA drivers were seen to (addresses in published PyTorch snapshots), and as
this project's virtual GPU does. Where equally large free blocks compete, addresses decide which is taken. All sizes are
bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Protocol

GRANULE: Final = 2 << 20
CHUNK: Final = 32 << 20


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
    """Free ranges of addresses: sorted, joined with their neighbours; the lowest that is large enough is taken."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def put(self, start: int, end: int) -> None:
        """Give back a range."""
        starts, ends = self._starts, self._ends
        at = bisect_left(starts, start)
        joins_left = at > 0 and ends[at - 1] == start
        joins_right = at < len(starts) and starts[at] == end
        if joins_left and joins_right:
            ends[at - 1] = ends[at]
            del starts[at], ends[at]
        elif joins_left:
            ends[at - 1] = end
        elif joins_right:
            starts[at] = start
        else:
            starts.insert(at, start)
            ends.insert(at, end)

    def take(self, size: int, *, within_chunk: bool = False) -> int | None:
        """The start of a range of `size`, which is free no longer; None if there is none.

        Args:
            within_chunk: the range must not cross a multiple of `CHUNK`.
        """
        for at, (first, last) in enumerate(zip(self._starts, self._ends, strict=True)):
            if last - first < size:
                continue
            start = first
            if within_chunk and start // CHUNK != (start + size - 1) // CHUNK:
                start = _whole(start, CHUNK)
            end = start + size
            if end > last:
                continue
            del self._starts[at], self._ends[at]
            if end < last:
                self._starts.insert(at, end)
                self._ends.insert(at, last)
            if first < start:
                self._starts.insert(at, first)
                self._ends.insert(at, start)
            return start
        return None


class Addresses:
    """Addresses in the order in which drivers give them out.

    What is smaller than 32 MiB is packed upwards into chunks of 32 MiB and never crosses from one into the next; what
    is larger begins at a multiple of 32 MiB, and each goes below the last. Both first take what was given back.
    """

    def __init__(self, start: int = 0x1000_0000_0000, size: int = 64 << 40) -> None:
        self._small, self._large = Ranges(), Ranges()
        self._start, self._end = start, start + size
        self._low = start + CHUNK
        self._high = start + size - CHUNK

    def take(self, size: int) -> int:
        """The start of `size` addresses."""
        if size < CHUNK:
            size = _whole(size, GRANULE)
            while (found := self._small.take(size, within_chunk=True)) is None:
                self._small.put(self._low, self._low + CHUNK)
                self._low += CHUNK
            return found
        size = _whole(size, CHUNK)  # what is left of the last chunk is too small for what comes here
        found = self._large.take(size)
        if found is None:
            found = self._high = self._high - size
        return found

    def give(self, address: int, size: int) -> None:
        """Take them back; addresses that were never given out are ignored."""
        if not self._start <= address < self._end:
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
        if self.used + size > self.capacity:
            return None
        self.used += size
        return self._addresses.take(size)

    def free(self, address: int, size: int) -> None:
        self.used -= size
        self._addresses.give(address, size)

    def reserve(self, size: int, page: int, stream: int) -> int:
        return self._addresses.take(size)

    def unreserve(self, address: int, size: int) -> None:
        self._addresses.give(address, size)

    def map(self, address: int, size: int) -> bool:
        if self.used + size > self.capacity:
            return False
        self.used += size
        return True

    def unmap(self, address: int, size: int) -> None:
        self.used -= size

    def adopt(self, address: int, size: int) -> None:
        self.used += size

    def adopt_range(self, address: int, size: int) -> None:
        """They lie below all that is given out."""
