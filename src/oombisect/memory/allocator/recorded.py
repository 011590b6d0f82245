"""A device that answers as the recorded one did, and notices when it is asked for something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oombisect.memory.allocator.device import GRANULE
from oombisect.memory.trace import EventKind

_ALLOC, _FREE = int(EventKind.SEGMENT_ALLOC), int(EventKind.SEGMENT_FREE)
_MAP, _UNMAP = int(EventKind.SEGMENT_MAP), int(EventKind.SEGMENT_UNMAP)
_WORDS: Final = {_ALLOC: "allocated", _FREE: "freed", _MAP: "mapped", _UNMAP: "unmapped"}
_ELSEWHERE: Final = 1 << 60
"""Where a range of addresses is put of which no recorded event tells."""


class Mismatch(Exception):
    """The allocator does not do what was recorded; the text says what, in words."""


class RecordedDevice:
    """Plays back recorded segment events.

    What failed was not recorded. But the recorded allocator answered a failure by releasing memory: so a request fails
    here if a release is what was recorded next. `wanted` is where the next request was served when it was recorded,
    0 if it failed then: it gets no segment, and no more pages than it got.

    Args:
        total: the device's memory as CUDA reports it.
        kinds, addresses, sizes, streams: the segment events, oldest first.
    """

    def __init__(
        self,
        total: int,
        kinds: Sequence[int],
        addresses: Sequence[int],
        sizes: Sequence[int],
        streams: Sequence[int],
    ) -> None:
        self.total = total
        self.wanted = -1
        self.played = 0
        self._kinds, self._addresses, self._sizes, self._streams = kinds, addresses, sizes, streams
        self._reserved: list[tuple[int, int]] = []
        self._adopted: list[tuple[int, int]] = []
        self._nowhere = 0

    @property
    def full(self) -> bool:
        """The next request failed when it was recorded."""
        return self.wanted == 0

    def malloc(self, size: int) -> int | None:
        """The recorded address of a new segment; None where that failed, or cached memory was released first.

        Raises:
            Mismatch: something else was recorded.
        """
        at = self.played
        if self.full or self._releases_next():
            return None
        if at == len(self._kinds) or self._kinds[at] != _ALLOC or self._sizes[at] != size:
            raise Mismatch(f"a segment of {size} bytes is allocated, {self._recorded()}")
        self.played += 1
        return self._addresses[at]

    def free(self, address: int, size: int) -> None:
        """Give back a segment, as it was recorded.

        Raises:
            Mismatch: something else was recorded.
        """
        self._expect(_FREE, address, size)

    def reserve(self, size: int, page: int, stream: int) -> int:
        """What is mapped next lies at the beginning of the new range; if that failed, the range it was is guessed:
        the next one in which such pages were mapped for this stream.
        """
        following = self._next()
        if not self.full and following is not None and following[0] == _MAP:
            return self._keep(following[1], size)
        for at in range(self.played, len(self._kinds)):
            alike = self._kinds[at] == _MAP and self._streams[at] == stream and self._sizes[at] % page == 0
            if alike and (page > GRANULE or self._sizes[at] == GRANULE) and not self.knows(self._addresses[at]):
                return self._keep(self._addresses[at], size)
        self._nowhere += size
        return self._keep(_ELSEWHERE + self._nowhere, size)

    def knows(self, address: int) -> bool:
        """It lies in a range that is reserved."""
        return any(start <= address < end for start, end in self._reserved)

    def _keep(self, address: int, size: int) -> int:
        self._reserved.append((address, address + size))
        return address

    def unreserve(self, address: int, size: int) -> None:
        """Give back a range: traces do not tell of that."""
        self._reserved = [(start, end) for start, end in self._reserved if start != address]

    def map(self, address: int, size: int) -> bool:
        """Map memory, as it was recorded; False where that failed, or cached memory was released first.

        Raises:
            Mismatch: something else was recorded.
        """
        if self._releases_next() or (self.full and self._next() != (_MAP, address, size)):
            return False
        self._expect(_MAP, address, size)
        return True

    def unmap(self, address: int, size: int) -> None:
        """Unmap memory, as it was recorded.

        Raises:
            Mismatch: something else was recorded.
        """
        self._expect(_UNMAP, address, size)

    def adopt(self, address: int, size: int) -> None:
        """What lay there before has no events."""

    def unknown_map(self) -> int | None:
        """The address that was mapped next, if it lies in no range that is, or was at first, reserved."""
        following = self._next()
        if following is None or following[0] != _MAP:
            return None
        address = following[1]
        return None if any(start <= address < end for start, end in self._reserved + self._adopted) else address

    def releases(self) -> list[int]:
        """The addresses of the segments that were freed next, in order, up to the next that was made."""
        end = at = self.played
        while end < len(self._kinds) and self._kinds[end] in (_FREE, _UNMAP):
            end += 1
        return [self._addresses[event] for event in range(at, end) if self._kinds[event] == _FREE]

    def adopt_range(self, address: int, size: int) -> None:
        """A range of `size` bytes of an expandable segment that was there before the trace began."""
        self._adopted.append((self._keep(address, size), address + size))

    def finish(self) -> None:
        """Nothing more is asked.

        Raises:
            Mismatch: more was recorded.
        """
        if self.played < len(self._kinds):
            raise Mismatch(f"nothing more is done, {self._recorded()}")

    def _releases_next(self) -> bool:
        return self.played < len(self._kinds) and self._kinds[self.played] in (_FREE, _UNMAP)

    def _next(self) -> tuple[int, int, int] | None:
        at = self.played
        return None if at == len(self._kinds) else (self._kinds[at], self._addresses[at], self._sizes[at])

    def _expect(self, kind: int, address: int, size: int) -> None:
        if self._next() != (kind, address, size):
            raise Mismatch(f"{size} bytes at {address:#x} are {_WORDS[kind]}, {self._recorded()}")
        self.played += 1

    def _recorded(self) -> str:
        at = self.played
        if at == len(self._kinds):
            return "and no such event was recorded"
        return f"but {self._sizes[at]} bytes at {self._addresses[at]:#x} were {_WORDS[self._kinds[at]]}"
