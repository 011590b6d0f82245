"""Where the memory is that nobody uses and nobody gets: free bytes beside living blocks, and unused ones inside them.

When a request fails the allocator has already given back every segment that was wholly free. What it still holds and
does not use lies beside living blocks. Each free piece is put down to the block that keeps it longest: in an ordinary
segment the one that is freed last, for the segment goes back as a whole; in an expandable one the neighbour freed last.

A living block may also be larger than what was asked for: requests are rounded up, and a rest of up to 1 MiB is not cut
off a large block.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from oombisect.memory.requests import InitialBlock, InitialSegment, Op, Requests


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Per block number, the index of the operation that allocates it and of the one that frees it.

    A block from before the trace is born at -1; one that is never freed dies at the number of operations.
    """

    births: array[int]
    deaths: array[int]

    @classmethod
    def of(cls, requests: Requests) -> Lifetimes:
        """Those of all blocks of `requests`."""
        births = array("i", [-1]) * len(requests.sizes)
        deaths = array("i", [len(requests.ops)]) * len(requests.sizes)
        for index, (op, block) in enumerate(zip(requests.ops, requests.blocks, strict=True)):
            if op == Op.ALLOC:
                births[block] = index
            elif op in (Op.RELEASE, Op.FREE):
                deaths[block] = index
        return cls(births, deaths)

    def outlives(self, block: int) -> tuple[int, int]:
        """Sorts blocks: the one freed last is greatest, of those the one allocated first."""
        return self.deaths[block], -self.births[block]


@dataclass(frozen=True, slots=True)
class Holder:
    """Blocks allocated at one place that keep memory nobody uses from being given back, bytes.

    Args:
        stack: where they were allocated, an index into the snapshot's stacks; -1: not told.
        blocks, size: how many they are, and their own bytes.
        stranded: the free bytes they hold, or those inside them that were not asked for.
        forever: how many of them are never freed in the trace.
    """

    stack: int
    blocks: int
    size: int
    stranded: int
    forever: int


@dataclass(frozen=True, slots=True)
class Stranded:
    """Free memory that the allocator held when it ran out, bytes.

    Args:
        total: all of it.
        usable_elsewhere: the part that belongs to other streams, pools or sizes, where the request could not be served.
        largest: the largest free piece where the request could have been served.
        idle: segments without a living block that were not given back (those of private pools).
        holders: who keeps it, most first.
        requested: what was asked for of the living blocks. With `rounding` and `total` it is all that is reserved.
        rounding: the bytes inside living blocks beyond that.
        rounders: whose blocks those are, most first.
    """

    total: int
    usable_elsewhere: int
    largest: int
    idle: int
    holders: tuple[Holder, ...]
    requested: int
    rounding: int
    rounders: tuple[Holder, ...]


def stranded(
    segments: Iterable[InitialSegment], requests: Requests, *, stream: int, pool: int, small: bool
) -> Stranded:
    """What `segments`, the state of an allocator, keep free, and which blocks of `requests` are the reason.

    Args:
        stream, pool, small: where the request that failed had to be served.
    """
    lifetimes = Lifetimes.of(requests)
    total = elsewhere = largest = idle = 0
    held: defaultdict[int, int] = defaultdict(int)  # by block number
    inside: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for segment in segments:
        here = (segment.stream, segment.pool, segment.small) == (stream, pool, small)
        for block in segment.blocks:
            if block.block >= 0:
                sizes[block.block] = block.size
                if rest := block.size - requests.sizes[block.block]:
                    inside[block.block] = rest
        for free, holder in _holders(segment, lifetimes):
            total += free.size
            if here:
                largest = max(largest, free.size)
            else:
                elsewhere += free.size
            if holder is None:
                idle += free.size
            else:
                held[holder] += free.size
    rounding = sum(inside.values())
    return Stranded(
        total,
        elsewhere,
        largest,
        idle,
        _by_stack(held, sizes, requests, lifetimes),
        sum(sizes.values()) - rounding,
        rounding,
        _by_stack(inside, sizes, requests, lifetimes),
    )


def _holders(segment: InitialSegment, lifetimes: Lifetimes) -> Iterable[tuple[InitialBlock, int | None]]:
    """Each free piece of a segment with the number of the block that keeps it; None where nothing lives there."""
    pieces = segment.blocks
    longest = max((p.block for p in pieces if p.block >= 0), key=lifetimes.outlives, default=None)
    if not segment.expandable or longest is None:
        yield from ((piece, longest) for piece in pieces if piece.block < 0)
        return
    before = _nearest(pieces)
    after = _nearest(pieces[::-1])[::-1]
    for piece, *neighbours in zip(pieces, before, after, strict=True):
        if piece.block < 0:
            yield piece, max((n for n in neighbours if n is not None), key=lifetimes.outlives)


def _nearest(pieces: Iterable[InitialBlock]) -> list[int | None]:
    """For each piece the living block at it or nearest before it."""
    nearest: list[int | None] = []
    for piece in pieces:
        nearest.append(piece.block if piece.block >= 0 else nearest[-1] if nearest else None)
    return nearest


def _by_stack(
    held: dict[int, int], sizes: dict[int, int], requests: Requests, lifetimes: Lifetimes
) -> tuple[Holder, ...]:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for block in held:
        groups[requests.stacks[block]].append(block)
    holders = [
        Holder(
            stack,
            len(blocks),
            sum(sizes[block] for block in blocks),
            sum(held[block] for block in blocks),
            sum(lifetimes.deaths[block] == len(requests.ops) for block in blocks),
        )
        for stack, blocks in groups.items()
    ]
    return tuple(sorted(holders, key=lambda holder: (-holder.stranded, holder.stack)))
