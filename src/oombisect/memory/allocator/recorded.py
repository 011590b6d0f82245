"""A device that answers as the recorded one did, and notices when it is asked for something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
    here if a release is what was recorded next. `full` says that the next request failed when it was recorded: it gets
    no segment, and no more pages than it got then.

    Args:
        total: the device's memory as CUDA reports it.
        kinds, addresses, sizes: the segment events, oldest first.
    """

    def __init__(self, total: int, kinds: Sequence[int], addresses: Sequence[int], sizes: Sequence[int]) -> None:
        self.total = total
        self.full = False
        self.played = 0
        self._kinds, self._addresses, self._sizes = kinds, addresses, sizes
        self._reserved: list[tuple[int, int]] = []

    def malloc(self, size: int) -> int | None:
        at = self.played
        if self.full or self._releases_next():
            return None
        if at == len(self._kinds) or self._kinds[at] != _ALLOC or self._sizes[at] != size:
            raise Mismatch(f"a segment of {size} bytes is allocated, {self._recorded()}")
        self.played += 1
        return self._addresses[at]

    def free(self, address: int, size: int) -> None:
        self._expect(_FREE, address, size)

    def reserve(self, size: int) -> int:
        """What is mapped next lies at the beginning of the new range; if that failed, the range it was is guessed."""
        failed = self._releases_next()
        for at in range(self.played, len(self._kinds)):
            address = self._addresses[at]
            known = failed and any(start <= address < end for start, end in self._reserved)
            if self._kinds[at] == _MAP and not known:
                self._reserved.append((address, address + size))
                return address
        return _ELSEWHERE

    def unreserve(self, address: int, size: int) -> None:
        self._reserved = [(start, end) for start, end in self._reserved if start != address]

    def map(self, address: int, size: int) -> bool:
        if self._releases_next() or (self.full and self._next() != (_MAP, address, size)):
            return False
        self._expect(_MAP, address, size)
        return True

    def unmap(self, address: int, size: int) -> None:
        self._expect(_UNMAP, address, size)

    def adopt(self, address: int, size: int) -> None:
        """What lay there before has no events."""

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
