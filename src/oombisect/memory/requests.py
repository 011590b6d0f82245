"""What a program asked of the allocator, in order: all that a replay needs, and nothing of what the allocator answered.

All sizes are bytes.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum

from oombisect.memory.trace import DEFAULT_POOL, PoolId


class Op(IntEnum):
    """ALLOC: a block is asked for. RELEASE: it is freed and no stream uses it, so that its memory is free at once.

    FREE: it is freed, but a stream still uses it (record_stream, or a graph is being captured). COMPLETE: the streams
    are done with it, its memory is free. EMPTY_CACHE: torch.cuda.empty_cache(); its block is -1. DROP_POOL: the graphs
    that used a private pool are gone, so that its memory is given back with other cached memory. CLOSE_POOL: the same
    of a MemPool, and it is given back at once. In place of a block these have the index of the pool.
    """

    ALLOC = 0
    RELEASE = 1
    FREE = 2
    COMPLETE = 3
    EMPTY_CACHE = 4
    DROP_POOL = 5
    CLOSE_POOL = 6


@dataclass(frozen=True, slots=True)
class InitialBlock:
    """A piece of a segment that was there before the trace began; `block` is its number, -1 if it is free.

    `pending`: freed before, and a stream still uses it.
    """

    address: int
    size: int
    block: int = -1
    pending: bool = False


@dataclass(frozen=True, slots=True)
class InitialSegment:
    """A segment that was there before the trace began, with its blocks by address; `stream` and `pool` are indices."""

    address: int
    size: int
    stream: int
    small: bool
    blocks: tuple[InitialBlock, ...]
    expandable: bool = False
    pool: int = 0


@dataclass(frozen=True, slots=True)
class InitialRange:
    """Where an expandable segment begins that was there before the trace; `stream` and `pool` are indices."""

    address: int
    stream: int
    small: bool
    pool: int = 0


@dataclass(slots=True)
class Requests:
    """The requests of one device, in columns.

    Per operation: `ops` (`Op`), `blocks` (the number of the block it is about) and `events` (its index in the trace).
    Per block, numbered from 0 (those of `initial` first, then in order of their ALLOC): `sizes` (requested), `streams`
    and `pools` (dense indices into `stream_ids` and `pool_ids`), `stacks` (index into the snapshot's, -1: none),
    `addresses` (what the recorded allocator returned; 0: the request failed then).

    Per recorded segment event (`EventKind` SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP or SEGMENT_UNMAP), in order:
    `segment_kinds`, `segment_addresses`, `segment_sizes` and `segment_streams`. `unmatched_frees` counts frees of
    memory that nothing here ever allocated: they are left out. `notes` says in words what was inferred or left out.

    `open_pools` are those that a request may release cached memory for: no pool of a graph that is being captured.

    What was learned from the recorded addresses (`oombisect.memory.replay.learn`): `oldest_first` has the addresses of
    the segments in `initial`, or of their pieces, in the order in which they were made; `ranges` are expandable
    segments that begin elsewhere than with their first mapped address; `whole_pools` are those whose blocks are never
    split (torch.cuda.MemPool(no_split=True)).
    """

    ops: bytearray = field(default_factory=bytearray)
    blocks: array[int] = field(default_factory=lambda: array("i"))
    events: array[int] = field(default_factory=lambda: array("i"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    streams: array[int] = field(default_factory=lambda: array("i"))
    pools: array[int] = field(default_factory=lambda: array("i"))
    stacks: array[int] = field(default_factory=lambda: array("i"))
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    stream_ids: tuple[int, ...] = (0,)
    pool_ids: tuple[PoolId, ...] = (DEFAULT_POOL,)
    open_pools: frozenset[int] = frozenset()
    whole_pools: frozenset[int] = frozenset()
    initial: tuple[InitialSegment, ...] = ()
    ranges: tuple[InitialRange, ...] = ()
    oldest_first: tuple[int, ...] = ()
    segment_kinds: bytearray = field(default_factory=bytearray)
    segment_addresses: array[int] = field(default_factory=lambda: array("Q"))
    segment_sizes: array[int] = field(default_factory=lambda: array("Q"))
    segment_streams: array[int] = field(default_factory=lambda: array("i"))
    trace_events: int = 0
    unmatched_frees: int = 0
    notes: tuple[str, ...] = ()

    def peak_requested(self) -> int:
        """The most bytes that were asked for and not freed at a time: what no allocator can go under.

        Requests that failed when they were recorded count, too. Memory that a stream still uses after it was freed does
        not.
        """
        known = (block for segment in self.initial for block in segment.blocks if block.block >= 0)
        held = {block.block for block in known if not block.pending}
        now = peak = sum(self.sizes[block] for block in held)
        for op, block in zip(self.ops, self.blocks, strict=True):
            if op == Op.ALLOC:
                now += self.sizes[block]
                peak = max(peak, now)
            elif op in (Op.RELEASE, Op.FREE):
                now -= self.sizes[block]
        return peak
