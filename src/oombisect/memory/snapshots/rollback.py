"""The state that a trace begins with: the segments it ends with, rolled back event by event.

The events of a trace name the size that was requested, not that of the block. A block that is still there at the end
has its size in the segments; for one that is freed in the trace it follows from PyTorch's rules: what was requested,
rounded up, and more if the rest of the block it came from was not cut off (see `SizeRules`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oombisect.memory.allocator.model import SMALL_SEGMENT, SMALL_SIZE, round_up
from oombisect.memory.allocator.settings import DEFAULT_LARGE_SEGMENT, UNLIMITED
from oombisect.memory.requests import InitialBlock
from oombisect.memory.trace import DEFAULT_POOL, DeviceMemory, EventKind, PoolId, Trace
from oombisect.units import counted

_ALLOC, _FREE, _FREED = int(EventKind.ALLOC), int(EventKind.FREE_REQUESTED), int(EventKind.FREE_COMPLETED)
_SEGMENT_ALLOC, _SEGMENT_FREE = int(EventKind.SEGMENT_ALLOC), int(EventKind.SEGMENT_FREE)
_MAP, _UNMAP = int(EventKind.SEGMENT_MAP), int(EventKind.SEGMENT_UNMAP)
_KEPT_WHOLE = 1 << 20


class Contradiction(ValueError):
    """The segments and the trace cannot both be true; the message says where."""


@dataclass(frozen=True, slots=True)
class KnownBlock:
    """A block that was there before the trace. `pending`: freed, and a stream still used it."""

    address: int
    requested: int
    stream: int
    pool: PoolId
    stack: int
    pending: bool


@dataclass(frozen=True, slots=True)
class KnownSegment:
    """A segment that was there before the trace; `pieces` cover it, with the numbers of the state's blocks."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    pool: PoolId
    pieces: tuple[InitialBlock, ...]


@dataclass(frozen=True, slots=True)
class State:
    """What the allocator had: blocks by address, numbered in that order, and segments by address."""

    blocks: tuple[KnownBlock, ...]
    segments: tuple[KnownSegment, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SizeRules:
    """How large a block is that was asked for, by the allocator's settings; bytes.

    Of a block larger than needed the rest is cut off, but from large ones not if it is `_KEPT_WHOLE` or less, and not
    at all if what is needed is `max_split` or more. Small blocks and those of expandable segments are always cut.
    """

    divisions: tuple[int, ...] = ()
    max_split: int = UNLIMITED
    large_segment: int = DEFAULT_LARGE_SEGMENT

    def size(self, requested: int, room: int, *, always_cut: bool) -> int:
        """The size of a block that has `room` bytes until the next one.

        Raises:
            Contradiction: it needs more.
        """
        size = round_up(requested, self.divisions)
        if size > room:
            raise Contradiction(f"a block of {requested} bytes has only {room} bytes of room")
        kept_whole = not always_cut and (room - size <= _KEPT_WHOLE or size >= self.max_split)
        return room if kept_whole else size


DEFAULT_RULES = SizeRules()


@dataclass(slots=True)
class _Live:
    requested: int
    stream: int
    stack: int
    pending: bool
    size: int | None  # None: not known, the block is freed in the trace


@dataclass(slots=True)
class _Range:
    """A segment, or a mapped part of an expandable one."""

    address: int
    size: int
    stream: int
    small: bool | None  # None: not known, it is unmapped in the trace
    expandable: bool
    pool: PoolId | None  # None: not told, it is freed in the trace

    def joins(self, before: _Range) -> bool:
        """Whether this and what lies before it are parts of one expandable segment."""
        return (
            self.expandable
            and before.expandable
            and before.address + before.size == self.address
            and before.stream == self.stream
            and (None in (before.small, self.small) or before.small == self.small)
            and (None in (before.pool, self.pool) or before.pool == self.pool)
        )

    def join(self, before: _Range) -> None:
        self.address = before.address
        self.size += before.size
        self.small = before.small if self.small is None else self.small
        self.pool = before.pool if self.pool is None else self.pool


def roll_back(
    memory: DeviceMemory, pools: Sequence[PoolId] = (DEFAULT_POOL,), rules: SizeRules = DEFAULT_RULES
) -> State:
    """The state before the first event of the trace.

    Args:
        pools: those that the trace's events name.
        rules: how large blocks were made.

    Raises:
        Contradiction: the segments are not those that the trace leads to.
    """
    live: dict[int, _Live] = {}
    ranges = _Ranges()
    for segment in memory.segments:
        ranges.add(
            _Range(segment.address, segment.size, segment.stream, segment.small, segment.expandable, segment.pool)
        )
        for block in segment.blocks:
            if block.state != "inactive":
                pending = block.state == "active_pending_free"
                live[block.address] = _Live(block.requested, segment.stream, block.stack, pending, block.size)
    keep_stacks = _undo_all(memory.trace, live, ranges, pools, rules)
    return _state(live, ranges, rules, keep_stacks)


def _undo_all(trace: Trace, live: dict[int, _Live], ranges: _Ranges, pools: Sequence[PoolId], rules: SizeRules) -> bool:
    """Undo every event; whether the stack of a free is that of its allocation, as far as the trace shows.

    (It is, unless PyTorch was told to record a stack for each free.)
    """
    kinds, addresses, sizes, streams, stacks = trace.kinds, trace.addresses, trace.sizes, trace.streams, trace.stacks
    same = differ = False
    for event in range(len(kinds) - 1, -1, -1):
        kind, address = kinds[event], addresses[event]
        if kind == _FREED:
            if address in live:
                raise Contradiction(f"event {event} completes a free at an address that is in use after it")
            live[address] = _Live(sizes[event], streams[event], stacks[event], True, None)
        elif kind == _FREE:
            found = live.get(address)
            if found is None or not found.pending:
                raise Contradiction(f"event {event} frees a block that is not being freed after it")
            found.pending = False
        elif kind == _ALLOC:
            found = live.pop(address, None)
            if found is None:
                raise Contradiction(f"event {event} allocates a block that is not there after it")
            if found.size is None:
                same |= found.stack == stacks[event]
                differ |= found.stack != stacks[event]
            if ranges.of_unknown_kind:
                ranges.learn(address, round_up(sizes[event], rules.divisions) <= SMALL_SIZE)
        elif kind in (_SEGMENT_ALLOC, _MAP):
            ranges.remove(address, sizes[event], event)
        elif kind in (_SEGMENT_FREE, _UNMAP):
            size, pool = sizes[event], trace.pools[event]
            small = None if kind == _UNMAP else size == SMALL_SEGMENT
            owner = None if pool < 0 else pools[pool]
            ranges.add(_Range(address, size, streams[event], small, kind == _UNMAP, owner))
    return same and not differ


class _Ranges:
    """Segments by address; parts of an expandable segment come and go."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._of: dict[int, _Range] = {}
        self.of_unknown_kind = 0

    def __iter__(self) -> Iterator[_Range]:
        return (self._of[start] for start in self._starts)

    def add(self, new: _Range) -> None:
        at = bisect_left(self._starts, new.address)
        after = self._of[self._starts[at]] if at < len(self._starts) else None
        before = self._of[self._starts[at - 1]] if at else None
        if (after and new.address + new.size > after.address) or (
            before and before.address + before.size > new.address
        ):
            raise Contradiction(f"segments overlap at address {new.address}")
        if before and new.joins(before):
            self._drop(before)
            new.join(before)
        if after and after.joins(new):
            self._drop(after)
            after.join(new)
            new = after
        insort(self._starts, new.address)
        self._of[new.address] = new
        self.of_unknown_kind += new.small is None

    def learn(self, address: int, small: bool) -> None:
        """A block of this kind is at that address."""
        at = bisect_right(self._starts, address) - 1
        found = self._of[self._starts[at]] if at >= 0 else None
        if found is not None and found.small is None and address < found.address + found.size:
            found.small = small
            self.of_unknown_kind -= 1

    def remove(self, address: int, size: int, event: int) -> None:
        at = bisect_right(self._starts, address) - 1
        found = self._of[self._starts[at]] if at >= 0 else None
        if found is None or address + size > found.address + found.size:
            raise Contradiction(f"event {event} makes a segment that is not there after it")
        if not found.expandable and (found.address, found.size) != (address, size):
            raise Contradiction(f"event {event} makes a segment of another size than the one after it")
        self._drop(found)
        end = found.address + found.size
        for start, stop in ((found.address, address), (address + size, end)):
            if stop > start:
                self.add(_Range(start, stop - start, found.stream, found.small, found.expandable, found.pool))

    def _drop(self, old: _Range) -> None:
        del self._starts[bisect_left(self._starts, old.address)]
        del self._of[old.address]
        self.of_unknown_kind -= old.small is None


def _state(live: dict[int, _Live], ranges: _Ranges, rules: SizeRules, keep_stacks: bool) -> State:
    addresses = sorted(live)
    blocks: list[KnownBlock] = []
    segments: list[KnownSegment] = []
    guessed = forgotten = 0
    for segment in ranges:
        end = segment.address + segment.size
        first, last = bisect_left(addresses, segment.address), bisect_left(addresses, end)
        inside = [live[address] for address in addresses[first:last]]
        small = _is_small(segment, inside, rules) if segment.small is None else segment.small
        pool = DEFAULT_POOL if segment.pool is None else segment.pool
        pieces: list[InitialBlock] = []
        at = segment.address
        for index, block in enumerate(inside, first):
            address = addresses[index]
            if address < at:
                raise Contradiction(f"blocks overlap at address {address}")
            if address > at:
                pieces.append(InitialBlock(at, address - at))
            size, stack = block.size, block.stack
            if size is None:
                if stack >= 0 and not keep_stacks:
                    stack = -1
                    forgotten += 1
                room = (addresses[index + 1] if index + 1 < last else end) - address
                size = rules.size(block.requested, room, always_cut=small or segment.expandable)
                guessed += 1
            pieces.append(InitialBlock(address, size, len(blocks), block.pending))
            blocks.append(KnownBlock(address, block.requested, block.stream, pool, stack, block.pending))
            at = address + size
        if at > end:
            raise Contradiction(f"blocks reach beyond the segment at address {segment.address}")
        if at < end:
            pieces.append(InitialBlock(at, end - at))
        segments.append(
            KnownSegment(
                segment.address,
                segment.size,
                segment.stream,
                small,
                segment.expandable,
                pool,
                tuple(pieces),
            )
        )
    if len(blocks) != len(live):
        raise Contradiction("blocks lie outside all segments")
    notes = []
    if guessed:
        notes.append(f"from what was requested follows the size of {counted(guessed, 'block')} from before the trace")
    if forgotten:
        notes.append(
            f"frees have stacks of their own: not known is where {counted(forgotten, 'earlier block')} came from"
        )
    return State(tuple(blocks), tuple(segments), tuple(notes))


def _is_small(segment: _Range, blocks: Sequence[_Live], rules: SizeRules) -> bool:
    """Whether a part of an expandable segment is of the small kind, by its blocks or, if it has none, its pages."""
    if blocks:
        return round_up(blocks[0].requested, rules.divisions) <= SMALL_SIZE
    return segment.size % rules.large_segment != 0
