"""Blocks, the pieces segments are cut into, and the sorted sets that hold the free ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oombisect.memory.allocator.expandable import ExpandableSegment

LIVE: Final = 0
"""The program has it."""
PENDING: Final = 1
"""The program gave it back, a stream still uses it."""
FREE: Final = 2
"""Cached: it lies in its home's free blocks."""
UNMAPPED: Final = 3
"""Addresses of an expandable segment without memory behind them."""

ADDRESS_BITS: Final = 64
ORDER_BITS: Final = 96
_ADDRESS_MASK: Final = (1 << ADDRESS_BITS) - 1


class Block:
    """A piece of a segment; `previous` and `next` are its neighbours in the segment, None at its ends.

    `order` tells equally large blocks apart: the number of the segment, where the rules want it, above the address. A
    piece cut off `n` bytes further on has an order `n` higher.
    """

    __slots__ = ("home", "next", "order", "previous", "requested", "segment", "since", "size", "state")

    def __init__(
        self,
        order: int,
        size: int,
        home: FreeBlocks,
        segment: ExpandableSegment | None = None,
        previous: Block | None = None,
        next: Block | None = None,
    ) -> None:
        self.order = order
        self.size = size
        self.requested = 0
        self.state = LIVE
        self.previous = previous
        self.next = next
        self.home = home
        self.segment = segment
        self.since = 0

    @property
    def address(self) -> int:
        """Where it begins: an address of the device."""
        return self.order & _ADDRESS_MASK

    @property
    def is_split(self) -> bool:
        """It is not the whole of its segment."""
        return self.previous is not None or self.next is not None


class Orders:
    """Gives blocks their `order`, which decides between equally large ones.

    Args:
        number_segments: each segment has a number of its own, and its pieces have it too.
        number_pieces: each piece that is cut off has a number of its own.

    `made` is how many numbers were given out; they begin with 1.
    """

    __slots__ = ("made", "number_pieces", "number_segments")

    def __init__(self, *, number_segments: bool, number_pieces: bool) -> None:
        self.number_segments = number_segments or number_pieces
        self.number_pieces = number_pieces
        self.made = 0

    def of_segment(self, address: int) -> int:
        """The order of a new segment."""
        self.made += 1
        return self.made << ADDRESS_BITS | address if self.number_segments else address

    def of_piece(self, order: int, address: int) -> int:
        """The order of a piece at `address`, cut off a block of `order`."""
        return self.of_segment(address) if self.number_pieces else order & ~_ADDRESS_MASK | address

    def of_joined(self, order: int, before: int) -> int:
        """The order of a block of `order` that has taken in the one before it."""
        return order & ~_ADDRESS_MASK | before & _ADDRESS_MASK if self.number_pieces else before


class FreeBlocks:
    """The free blocks of one pool, one kind (small or large) and one stream: where a request looks for memory.

    Sorted by size, then by `Block.order`, so that the first of sufficient size is the best fit. `keys` and `blocks` run
    in parallel. `unmapped` are the blocks without memory of its expandable segments, by address.
    """

    __slots__ = ("blocks", "keys", "kind", "stream", "unmapped")

    def __init__(self, kind: BlockKind, stream: int) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.unmapped: list[Block] = []
        self.kind = kind
        self.stream = stream

    def insert(self, block: Block) -> None:
        """A block becomes free."""
        key = block.size << ORDER_BITS | block.order
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.blocks.insert(at, block)
        block.state = FREE
        block.since = self.kind.searches

    def remove(self, block: Block) -> None:
        """A block is free no longer, or changes its size."""
        at = bisect_left(self.keys, block.size << ORDER_BITS | block.order)
        del self.keys[at], self.blocks[at]

    def first_of(self, size: int) -> int:
        """The index of the first block of at least `size`; `len(self.keys)` if there is none."""
        return bisect_left(self.keys, size << ORDER_BITS)

    def insert_unmapped(self, block: Block) -> None:
        """A block has lost its memory and keeps its addresses."""
        block.state = UNMAPPED
        insort(self.unmapped, block, key=_address)

    def remove_unmapped(self, block: Block) -> None:
        """A block that has no memory gets some, or becomes part of another."""
        del self.unmapped[bisect_left(self.unmapped, block.address, key=_address)]


class BlockKind:
    """The small or the large blocks of one pool; `searches` counts requests, while garbage is collected."""

    __slots__ = ("homes", "pool", "searches", "small")

    def __init__(self, pool: Pool, *, small: bool) -> None:
        self.small = small
        self.pool = pool
        self.homes: dict[int, FreeBlocks] = {}
        self.searches = 0

    def home(self, stream: int) -> FreeBlocks:
        """The free blocks of one stream, made when first asked for."""
        found = self.homes.get(stream)
        if found is None:
            found = self.homes[stream] = FreeBlocks(self, stream)
        return found

    def free_blocks(self) -> Iterator[Block]:
        """All free blocks, by stream, size and order: a copy, so that they may be released meanwhile."""
        for stream in sorted(self.homes):
            yield from tuple(self.homes[stream].blocks)


class Pool:
    """A memory pool: the ordinary one (number 0) or a private one, of CUDA graphs or a torch.cuda.MemPool.

    Args:
        number: how the caller names it.
        graph: memory is asked for while a graph is captured, so that nothing may be released meanwhile.
        split: blocks may be split (False: MemPool(no_split=True)).
    """

    __slots__ = ("graph", "large", "number", "released", "segments", "small", "split")

    def __init__(self, number: int, *, graph: bool = False, split: bool = True) -> None:
        self.number = number
        self.graph = graph
        self.split = split
        self.small = BlockKind(self, small=True)
        self.large = BlockKind(self, small=False)
        self.segments = 0
        self.released = False


def _address(block: Block) -> int:
    return block.address
