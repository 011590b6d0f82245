"""An exact model of PyTorch's native CUDACachingAllocator, for one device.

The algorithm is PyTorch's (c10/cuda/CUDACachingAllocator.cpp); this is a description of it in Python. It hands out the
addresses, keeps the counters and runs out of memory exactly where PyTorch does; releases differ by their `Rules`.

A request is rounded (`Settings`), then served by the first of these that can:

1. the best fit among the free blocks of its home: its pool, its kind (small: up to 1 MiB) and its stream;
2. new memory from the device: a segment of its own or, with expandable segments, pages mapped into the home's segment.
   Before that, if a fraction of the device is set and a threshold too, old cached segments are collected;
3. the same after releasing cached segments that are at least `max_split_size` (only if that is set);
4. the same after releasing every segment that is wholly free: this counts as a retry.

Otherwise it is out of memory. A block larger than its request is split; a freed block joins its free neighbours.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from oombisect.memory.allocator.blocks import (
    FREE,
    LIVE,
    ORDER_BITS,
    PENDING,
    UNMAPPED,
    Block,
    BlockKind,
    FreeBlocks,
    Orders,
    Pool,
)
from oombisect.memory.allocator.device import Device, VirtualDevice
from oombisect.memory.allocator.expandable import ExpandableSegments
from oombisect.memory.allocator.rules import Rules
from oombisect.memory.allocator.settings import LEAST_LARGE_SEGMENT, MIB, UNLIMITED, Settings
from oombisect.memory.allocator.statistics import Statistics
from oombisect.memory.requests import InitialBlock, InitialSegment

LEAST_BLOCK: Final = 512
SMALL_SIZE: Final = MIB
"""The largest block of the small kind; a large block is not split for a remainder of this size or less."""
SMALL_SEGMENT: Final = 2 * MIB
SEGMENT_GRANULE: Final = 2 * MIB


def round_up(requested: int, divisions: tuple[int, ...]) -> int:
    """The size of the block for a request, bytes.

    A multiple of 512 B or, with `roundup_power2_divisions`, the next of that many even steps between powers of two.
    """
    if divisions and requested >= LEAST_BLOCK:
        power = requested.bit_length() - 1
        count = divisions[min(max(power - 20, 0), len(divisions) - 1)]
        if count > 1 and requested > LEAST_BLOCK * count:
            step = (1 << power) // count
            return -(-requested // step) * step
    return max(-(-requested // LEAST_BLOCK) * LEAST_BLOCK, LEAST_BLOCK)


def segment_size(size: int, large_segment: int) -> int:
    """What is asked of the device for a block of `size`, bytes."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < LEAST_LARGE_SEGMENT:
        return large_segment
    return -(-size // SEGMENT_GRANULE) * SEGMENT_GRANULE


class CachingAllocator:
    """The caching allocator of one device. All sizes are bytes.

    Args:
        settings: what PYTORCH_CUDA_ALLOC_CONF says.
        rules: those of a PyTorch release.
        device_bytes: the device's memory as CUDA reports it.
        limit: how much of it there is for the allocator; all of it if None.
        fraction: torch.cuda.set_per_process_memory_fraction; None if it was not called.
        device: another device than the model of one; the two arguments above are then not used.
    """

    def __init__(
        self,
        settings: Settings,
        rules: Rules,
        *,
        device_bytes: int = 0,
        limit: int | None = None,
        fraction: float | None = None,
        device: Device | None = None,
    ) -> None:
        self.rules = rules
        self.device: Device = device or VirtualDevice(device_bytes, limit)
        self.statistics = Statistics()
        self.allowed: int | None = None
        orders = Orders(number_segments=rules.older_segments_first, number_pieces=rules.older_blocks_first)
        self._orders = orders
        self.numbers_pieces = orders.number_pieces
        self.order_of_segment = orders.of_segment
        self._pools = {0: Pool(0)}
        self._pending: dict[Block, None] = {}
        self._expandables = ExpandableSegments(self.device, self.statistics, orders)
        self._has_expandables = False
        fraction = settings.memory_fraction if fraction is None else fraction
        self.configure(settings)
        if fraction is not None:
            self.set_fraction(fraction)

    def began(self, addresses: Sequence[int]) -> None:
        """It has now what a trace begins with; the addresses are those of the numbers given out, from 1."""

    # ---- what the program may change ----

    def configure(self, settings: Settings) -> None:
        """Put settings in force, also in the middle of a run."""
        self.settings = settings
        self._max_split = settings.max_split_size
        self._has_expandables |= settings.expandable_segments
        self._best_fit_is_plain = not self._has_expandables and settings.max_split_size == UNLIMITED
        self._update_collection()

    def set_fraction(self, fraction: float) -> None:
        """torch.cuda.set_per_process_memory_fraction: cap what is reserved at a fraction of the device's memory."""
        share = fraction * self.device.total
        whole = math.floor(share + 0.5) if self.rules.fraction_is_rounded else int(share)
        limited = fraction < 1 or self.rules.whole_device_is_a_limit
        self.allowed = whole if limited else None
        self._update_collection()

    def _update_collection(self) -> None:
        self._collects = self.allowed is not None and self.settings.garbage_collection_threshold > 0

    def pool(self, number: int) -> Pool:
        """The pool of this number; a private one that was not created is taken for a graph's."""
        found = self._pools.get(number)
        if found is None:
            found = self._pools[number] = Pool(number, graph=True)
        return found

    def create_pool(self, number: int, *, graph: bool = True, split: bool = True) -> None:
        """Make a private pool: that of graphs, or of a torch.cuda.MemPool."""
        self._pools[number] = Pool(number, graph=graph, split=split)

    def release_pool(self, number: int, *, at_once: bool | None = None) -> None:
        """The last graph or MemPool object that used a private pool is gone: its free segments may be released.

        Args:
            at_once: they are; None: if it is that of a MemPool.
        """
        pool = self._pools.get(number)
        if pool is not None:
            if not pool.released:  # put it last: PyTorch's hash table decides, but a trace shows in which order
                self._pools[number] = self._pools.pop(number)
            pool.released = True
            if not pool.graph if at_once is None else at_once:
                self._synchronize(pool)
                self._release_pool(pool)

    # ---- requests ----

    def alloc(self, requested: int, stream: int = 0, pool: int = 0) -> Block | None:
        """A block for `requested` bytes, None if there is not enough memory.

        Args:
            stream: any number; streams sort by it when segments are released (PyTorch: by the stream's handle).
            pool: 0, or the number of a private pool.
        """
        settings = self.settings
        if settings.roundup:
            size = round_up(requested, settings.roundup)
        else:
            size = (requested + (LEAST_BLOCK - 1)) & -LEAST_BLOCK or LEAST_BLOCK
        owner = self._pools.get(pool) or self.pool(pool)
        kind = owner.small if size <= SMALL_SIZE else owner.large
        home = kind.homes.get(stream) or kind.home(stream)

        if self._collects:
            kind.searches += 1
        keys = home.keys
        at = bisect_left(keys, size << ORDER_BITS)
        if at < len(keys) and (self._best_fit_is_plain or (at := self._choose(home, at, size)) >= 0):
            block = home.blocks[at]
            del keys[at], home.blocks[at]
        else:
            found = self._new_memory(home, size)
            if found is None:
                self.statistics.ooms += 1
                return None
            block = found

        # Split it if what is left over is worth keeping.
        stats = self.statistics
        was_split = block.previous is not None or block.next is not None
        rest = block.size - size
        if rest >= LEAST_BLOCK and (
            kind.small or settings.expandable_segments or (rest > SMALL_SIZE and size < self._max_split)
        ) and owner.split:  # fmt: skip
            remaining = block
            before = remaining.previous
            order = remaining.order
            if self.numbers_pieces:
                order = self._orders.of_piece(order, remaining.address)
            block = Block(order, size, home, remaining.segment, before, remaining)
            if before is not None:
                before.next = block
            remaining.previous = block
            remaining.order += size
            remaining.size = rest
            key = rest << ORDER_BITS | remaining.order
            at = bisect_left(keys, key)
            keys.insert(at, key)
            home.blocks.insert(at, remaining)
            remaining.state = FREE
            remaining.since = kind.searches
            if remaining.segment is None:
                if was_split:
                    stats.split_bytes.current -= size
                else:
                    stats.split_bytes.add(rest)
                    stats.splits.add(1)
        else:
            size = block.size
            block.state = LIVE
            if was_split and block.segment is None:
                stats.split_bytes.current -= size
                stats.splits.current -= 1
        block.requested = requested

        stats.allocations = count = stats.allocations + 1
        if count - stats.frees > stats.peak_allocations:
            stats.peak_allocations = count - stats.frees
        if count - stats.completions > stats.peak_actives:
            stats.peak_actives = count - stats.completions
        stats.allocated = total = stats.allocated + size
        if total - stats.freed > stats.peak_allocated:
            stats.peak_allocated = total - stats.freed
        if total - stats.completed > stats.peak_active:
            stats.peak_active = total - stats.completed
        stats.requested = total = stats.requested + requested
        if total - stats.completed_requested > stats.peak_requested:
            stats.peak_requested = total - stats.completed_requested
        if size >= self._max_split:
            stats.oversize_allocations.add(1)
        return block

    def free(self, block: Block, *, pending: bool = False) -> None:
        """Give a block back.

        Args:
            pending: another stream still uses it (record_stream): its memory is free only after `complete`.
        """
        stats = self.statistics
        stats.frees += 1
        stats.freed += block.size
        if block.size >= self._max_split:
            stats.oversize_allocations.subtract(1)
        if pending:
            self.wait_for(block)
        else:
            self._free(block)

    def wait_for(self, block: Block) -> None:
        """A stream still uses a block that was freed."""
        block.state = PENDING
        self._pending[block] = None

    def complete(self, block: Block) -> None:
        """The streams are done with a block that was freed `pending`; no effect if that was found out before."""
        if block in self._pending:
            del self._pending[block]
            self._free(block)

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache(): give every segment that is wholly free back to the device."""
        self._release_cached()

    def _free(self, block: Block) -> None:
        """The memory of a block is free: join it with its free neighbours."""
        stats, home = self.statistics, block.home
        size = block.size
        stats.completions += 1
        stats.completed += size
        stats.completed_requested += block.requested
        keys, blocks = home.keys, home.blocks
        joined = 0

        neighbour = block.previous
        if neighbour is not None and neighbour.state == FREE:
            at = bisect_left(keys, neighbour.size << ORDER_BITS | neighbour.order)
            del keys[at], blocks[at]
            joined = 1
            order = neighbour.order
            block.order = self._orders.of_joined(block.order, order) if self.numbers_pieces else order
            block.previous = before = neighbour.previous
            if before is not None:
                before.next = block
            size += neighbour.size
        neighbour = block.next
        if neighbour is not None and neighbour.state == FREE:
            at = bisect_left(keys, neighbour.size << ORDER_BITS | neighbour.order)
            del keys[at], blocks[at]
            joined += 1
            block.next = after = neighbour.next
            if after is not None:
                after.previous = block
            size += neighbour.size

        if block.segment is None:
            # "inactive split" memory is free and cannot be released; expandable segments do not count.
            if block.previous is not None or block.next is not None:
                stats.split_bytes.add(block.size)
                if joined == 0:
                    stats.splits.add(1)
                elif joined == 2:
                    stats.splits.current -= 1
            else:
                stats.split_bytes.current -= size - block.size
                stats.splits.current -= joined
        block.size = size
        key = size << ORDER_BITS | block.order
        at = bisect_left(keys, key)
        keys.insert(at, key)
        blocks.insert(at, block)
        block.state = FREE
        block.since = home.kind.searches

    # ---- finding memory ----

    def _choose(self, home: FreeBlocks, at: int, size: int) -> int:
        """The index of the free block to take, from `at`, the smallest that is large enough; -1: none may be taken."""
        blocks = home.blocks
        block = blocks[at]
        if block.segment is not None:
            if self.settings.expandable_segments:
                # A block counts for as much as it can grow to: one that can grow less may fit better.
                while block.segment is not None and at + 1 < len(blocks) and _growth(blocks[at + 1]) < _growth(block):
                    at += 1
                    block = blocks[at]
            else:
                # They were switched off since: what is left of them is not used.
                while block.segment is not None:
                    at += 1
                    if at == len(blocks):
                        return -1
                    block = blocks[at]
        limit = self._max_split
        if size < limit <= block.size:  # an oversize block is kept for oversize requests,
            return -1
        if size >= limit and block.size >= size + self.settings.non_split_rounding:  # which must not waste much of it
            return -1
        return at

    def _new_memory(self, home: FreeBlocks, size: int) -> Block | None:
        """A block of at least `size` bytes that no free block could serve."""
        if self._collects:
            self._collect_garbage()
        block = self._ask_device(home, size)
        if block is None and self._release_oversize(home, size):
            block = self._ask_device(home, size)
        if block is None and self._may_release(home.kind.pool):
            self._release_cached()
            self.statistics.retries += 1
            block = self._ask_device(home, size)
        return block

    def _may_release(self, pool: Pool) -> bool:
        """Nothing is given back while a graph is captured; older releases take the use of a MemPool for a capture."""
        return pool.number == 0 or (self.rules.private_pools_release and not pool.graph)

    def _ask_device(self, home: FreeBlocks, size: int) -> Block | None:
        stats, kind = self.statistics, home.kind
        asked = segment_size(size, self.settings.large_segment_size)
        if self.allowed is not None and stats.reserved.current + asked > self.allowed:
            return None
        if self.settings.expandable_segments:
            page = SMALL_SEGMENT if kind.small else self.settings.large_segment_size
            block = self._expandables.allocate(home, size, page)
            if block is not None:
                kind.pool.segments += 1
            return block
        address = self.device.malloc(asked)
        if address is None:
            return None
        kind.pool.segments += 1
        stats.add_segment(small=kind.small)
        stats.add_reserved(asked, small=kind.small)
        if asked >= self._max_split:
            stats.oversize_segments.add(1)
        stats.device_allocs += 1
        return Block(self.order_of_segment(address), asked, home)

    # ---- giving memory back ----

    def _collect_garbage(self) -> None:
        """Release unsplit large segments that lay unused for at least the mean time, until below the threshold."""
        assert self.allowed is not None
        stats, kind = self.statistics, self._pools[0].large
        excess = stats.reserved.current - int(self.settings.garbage_collection_threshold * self.allowed)
        if excess <= 0:
            return
        candidates = [block for block in self._in_order(kind) if not block.is_split]
        total_age = sum(kind.searches - block.since for block in candidates)
        released = 0
        while released < excess and candidates:
            mean_age = total_age / len(candidates)
            kept = []
            for block in candidates:
                age = kind.searches - block.since
                if block.segment is not None or age < mean_age:
                    kept.append(block)
                    continue
                released += block.size
                total_age -= age
                self._release(block)
            if len(kept) == len(candidates):
                break
            candidates = kept

    def _release_oversize(self, home: FreeBlocks, size: int) -> bool:
        """Release a cached oversize segment that is large enough or, largest first, as many as together suffice."""
        if self._max_split == UNLIMITED:
            return False
        wanted = max(size, self._max_split)
        at = home.first_of(wanted)
        if at < len(home.blocks) and home.blocks[at].segment is None:
            self._release(home.blocks[at])
            return True
        released = 0
        for block in reversed(home.blocks[:at]):
            if released >= wanted or block.size < self._max_split:
                break
            if block.segment is None:
                released += block.size
                self._release(block)
        return released >= wanted

    def _release_cached(self) -> None:
        """Wait for the streams, then release every segment that is wholly free; of private pools only released ones."""
        self._synchronize(None)
        ordinary = self._pools[0]
        self._release_kind(ordinary.large)
        self._release_kind(ordinary.small)
        for pool in [pool for pool in self._pools.values() if pool.released]:
            self._release_pool(pool)

    def _synchronize(self, pool: Pool | None) -> None:
        """Wait for the streams: what waited for them is free; only the blocks of one pool if it is given."""
        self.statistics.synchronizations += 1
        for block in [block for block in self._pending if pool is None or block.home.kind.pool is pool]:
            del self._pending[block]
            self._free(_renewed(block))

    def _release_pool(self, pool: Pool) -> None:
        self._release_kind(pool.small)
        self._release_kind(pool.large)
        if pool.segments == 0:
            del self._pools[pool.number]

    def _release_kind(self, kind: BlockKind) -> None:
        expandable = []
        for block in self._in_order(kind):
            if block.segment is not None:
                expandable.append(block)
            elif not block.is_split:
                self._release(block)
        for block in expandable:
            self._expandables.release(block)

    def _in_order(self, kind: BlockKind) -> Iterable[Block]:
        """The free blocks in the order in which they are released."""
        return kind.free_blocks()

    def _release(self, block: Block) -> None:
        """Give a segment, which is one free block, back to the device."""
        stats, home = self.statistics, block.home
        home.remove(block)
        self.device.free(block.address, block.size)
        home.kind.pool.segments -= 1
        stats.subtract_segment(small=home.kind.small)
        stats.subtract_reserved(block.size, small=home.kind.small)
        if block.size >= self._max_split:
            stats.oversize_segments.subtract(1)
        stats.device_frees += 1

    # ---- its state ----

    def segments(self, numbers: Mapping[Block, int] | None = None) -> tuple[InitialSegment, ...]:
        """All mapped memory, by address: of an expandable segment each stretch that is mapped.

        Args:
            numbers: the blocks the program has, or that are pending, and what they are called; of others nothing shows.
        """
        numbers = numbers or {}
        free = [
            block for pool in self._pools.values() for kind in (pool.small, pool.large) for block in kind.free_blocks()
        ]
        found = [
            _view(block, numbers)
            for block in {*(block for block in numbers if block.state != FREE), *self._pending, *free}
            if block.previous is None or block.previous.state == UNMAPPED
        ]
        return tuple(sorted(found, key=lambda segment: segment.address))


def _renewed(block: Block) -> Block:
    """Another block in its place: the program still has a name for the old one, which must not come to life again."""
    new = Block(block.order, block.size, block.home, block.segment, block.previous, block.next)
    new.requested = block.requested
    if new.previous is not None:
        new.previous.next = new
    if new.next is not None:
        new.next.previous = new
    block.state = FREE
    return new


def _growth(block: Block) -> int:
    """The size of a block and of the addresses behind it that have no memory yet."""
    following = block.next
    return block.size + (following.size if following is not None and following.state == UNMAPPED else 0)


def _view(head: Block, numbers: Mapping[Block, int]) -> InitialSegment:
    pieces = []
    block: Block | None = head
    while block is not None and block.state != UNMAPPED:
        pieces.append(InitialBlock(block.address, block.size, numbers.get(block, -1), pending=block.state == PENDING))
        block = block.next
    return InitialSegment(
        address=head.address,
        size=sum(piece.size for piece in pieces),
        stream=head.home.stream,
        small=head.home.kind.small,
        blocks=tuple(pieces),
        expandable=head.segment is not None,
        pool=head.home.kind.pool.number,
    )
