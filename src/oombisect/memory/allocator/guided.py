"""Learning in which order the memory was made that an allocator had when its trace begins.

A snapshot does not tell it, and of equally large blocks PyTorch takes (and releases) the oldest. But the trace tells
which one was taken: the others were younger. `GuidedAllocator` takes what was recorded, wherever the rules leave the
choice to age alone, and keeps what that says; `Ages` makes an order of it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Final

from oombisect.memory.allocator.blocks import ADDRESS_BITS, ORDER_BITS, Block, BlockKind, FreeBlocks
from oombisect.memory.allocator.model import CachingAllocator
from oombisect.memory.allocator.recorded import RecordedDevice
from oombisect.memory.allocator.rules import Rules
from oombisect.memory.allocator.settings import Settings

_MOST_LOOKS: Final = 5_000_000
"""How many blocks are looked at before no more is learned: some seconds."""


class Ages:
    """What is known of the order of things numbered from 1 to `count`, which is the order they have as long as nothing
    else is known."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._younger: dict[int, set[int]] = {}

    def learn(self, older: int, younger: int) -> None:
        """One was made before another."""
        self._younger.setdefault(older, set()).add(younger)

    def oldest_first(self) -> list[int]:
        """All numbers, oldest first: as they are, but for what was learned. What contradicts itself is left out."""
        waits = [0] * (self.count + 1)
        for found in self._younger.values():
            for number in found:
                waits[number] += 1
        ready = [number for number in range(1, self.count + 1) if not waits[number]]
        left = set(range(1, self.count + 1)) - set(ready)
        ordered = []
        rest = iter(sorted(left))
        while ready or left:
            if not ready:  # a circle: go on with the first of it
                ready.append(next(number for number in rest if number in left))
                left.remove(ready[0])
            number = heapq.heappop(ready)
            ordered.append(number)
            for younger in self._younger.get(number, ()):
                waits[younger] -= 1
                if not waits[younger] and younger in left:
                    left.remove(younger)
                    heapq.heappush(ready, younger)
        return ordered


class GuidedAllocator(CachingAllocator):
    """An allocator on a recorded device that takes the recorded one of equally large blocks."""

    device: RecordedDevice

    def __init__(self, settings: Settings, rules: Rules, *, device: RecordedDevice, fraction: float | None) -> None:
        super().__init__(settings, rules, device=device, fraction=fraction)
        self._addresses: Sequence[int] = ()
        self._ages = Ages(0)
        self._looks = _MOST_LOOKS

    def began(self, addresses: Sequence[int]) -> None:
        """It begins with these segments, or pieces of them, whose ages are to be learned."""
        self._addresses = addresses
        self._ages = Ages(len(addresses))

    def oldest_first(self) -> tuple[int, ...]:
        """The addresses of what it began with, in the order in which it was made as far as that was learned."""
        return tuple(self._addresses[number - 1] for number in self._ages.oldest_first())

    def configure(self, settings: Settings) -> None:
        """As any allocator does; see `CachingAllocator`."""
        super().configure(settings)
        self._best_fit_is_plain = False  # have `_choose` asked

    def _choose(self, home: FreeBlocks, at: int, size: int) -> int:
        at = super()._choose(home, at, size)
        if at < 0 or home.blocks[at].segment is not None or self._looks <= 0:
            return at
        keys = home.keys
        end = bisect_left(keys, (keys[at] >> ORDER_BITS) + 1 << ORDER_BITS, at)
        if end == at + 1:
            return at
        self._looks -= end - at
        wanted = self.device.wanted
        found = next((i for i in range(at, end) if home.blocks[i].address == wanted), None)
        if found is None:
            return at
        for other in range(at, end):
            self._learn(home.blocks[found], home.blocks[other])
        return found

    def _in_order(self, kind: BlockKind) -> Iterable[Block]:
        recorded = {address: at for at, address in enumerate(self.device.releases())}
        ordered: list[Block] = []
        for _, group in groupby(kind.free_blocks(), key=lambda block: (block.home.stream, block.size)):
            alike = sorted(group, key=lambda block: recorded.get(block.address, len(recorded)))
            told = [block for block in alike if block.address in recorded]
            for older, younger in pairwise(told):
                self._learn(older, younger)
            ordered += alike
        return ordered

    def _learn(self, older: Block, younger: Block) -> None:
        first, second, count = older.order >> ADDRESS_BITS, younger.order >> ADDRESS_BITS, self._ages.count
        if first != second and 0 < first <= count and 0 < second <= count:
            self._ages.learn(first, second)
