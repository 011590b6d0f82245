"""From what the allocator recorded to what the program asked of it: allocations paired with their frees."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from oombisect.memory.allocator import Settings, SettingsError, guess_rules
from oombisect.memory.requests import InitialSegment, Op, Requests
from oombisect.memory.snapshots.rollback import DEFAULT_RULES, Contradiction, SizeRules, State, roll_back
from oombisect.memory.trace import DEFAULT_POOL, DeviceMemory, EventKind, PoolId, Snapshot, Stack, Trace

_ALLOC, _FREE, _FREED = int(EventKind.ALLOC), int(EventKind.FREE_REQUESTED), int(EventKind.FREE_COMPLETED)
_SEGMENT_KINDS = frozenset(
    map(int, (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_FREE, EventKind.SEGMENT_MAP, EventKind.SEGMENT_UNMAP))
)
_RELEASES = frozenset(map(int, (EventKind.SEGMENT_FREE, EventKind.SEGMENT_UNMAP)))
_GROWTH = frozenset(map(int, (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_MAP)))
_OOM = int(EventKind.OOM)
_EMPTY_CACHE = frozenset({"empty_cache", "emptyCache"})


def requests_of(memory: DeviceMemory, snapshot: Snapshot) -> Requests:
    """What the program asked of the allocator of one device.

    Where the trace does not begin with an empty allocator, what it had is found by rolling the snapshot's segments back
    through the trace. Whatever is inferred or left out is said in the result's notes.
    """
    notes: list[str] = []
    state = State((), ())
    paired = _Pairing(memory.trace, state)
    if memory.segments or paired.unmatched:
        try:
            rolled = roll_back(memory, snapshot.pools, _size_rules(snapshot, notes))
        except Contradiction as contradiction:
            notes.append(f"the segments do not agree with the trace ({contradiction}): it is replayed from empty")
        else:
            if rolled.segments:
                state = rolled
                paired = _Pairing(memory.trace, state)
                held = sum(segment.size for segment in state.segments)
                notes.append(
                    f"the trace begins with {len(state.blocks)} blocks in {len(state.segments)} segments"
                    f" ({held} bytes reserved), found by rolling the segments back"
                )
            notes += rolled.notes
    return paired.requests(memory, snapshot, notes)


def _size_rules(snapshot: Snapshot, notes: list[str]) -> SizeRules:
    try:
        settings = Settings.of_snapshot(snapshot.settings, guess_rules(snapshot.settings))
    except SettingsError as error:
        notes.append(f"the sizes of blocks are taken for the default ones: its settings cannot be read ({error})")
        return DEFAULT_RULES
    return SizeRules(settings.roundup, settings.max_split_size, settings.large_segment_size)


class _Pairing:
    """One walk through a trace."""

    def __init__(self, trace: Trace, state: State) -> None:
        self.trace, self.state = trace, state
        self.ops, self.blocks, self.events = bytearray(), array("i"), array("i")
        self.allocations = array("i")  # the event of each block the trace allocates
        self.unmatched = self.ooms = self.twice = 0
        self._walk()

    def _walk(self) -> None:
        trace = self.trace
        kinds, addresses = trace.kinds, trace.addresses
        first = len(self.state.blocks)
        live = {block.address: number for number, block in enumerate(self.state.blocks)}
        pending = {block.address: number for number, block in enumerate(self.state.blocks) if block.pending}
        for address in pending:
            del live[address]
        op, about, at = self.ops.append, self.blocks.append, self.events.append
        allocations = self.allocations
        completed = -1
        count = len(kinds)
        for event, kind in enumerate(kinds):
            if event == completed:
                continue
            address = addresses[event]
            if kind == _ALLOC:
                number = first + len(allocations)
                allocations.append(event)
                self.twice += address in live
                live[address] = number
                op(Op.ALLOC)
            elif kind == _FREE:
                found = live.pop(address, None)
                if found is None:
                    self.unmatched += 1
                    continue
                number = found
                following = event + 1
                if following < count and kinds[following] == _FREED and addresses[following] == address:
                    completed = following
                    op(Op.RELEASE)
                else:
                    pending[address] = number
                    op(Op.FREE)
            elif kind == _FREED:
                found = pending.pop(address, None)
                if found is None:
                    # Its free_requested may be before the trace; one of an unknown block was counted there.
                    found = live.pop(address, None)
                    if found is None:
                        continue
                    op(Op.RELEASE)
                else:
                    op(Op.COMPLETE)
                number = found
            else:
                self.ooms += kind == EventKind.OOM
                continue
            about(number)
            at(event)

    def requests(self, memory: DeviceMemory, snapshot: Snapshot, notes: list[str]) -> Requests:
        trace, known = self.trace, self.state.blocks
        pools = _pools(memory, snapshot, notes)
        streams = _Dense([block.stream for block in known], [trace.streams[event] for event in self.allocations])
        owners = _Dense([block.pool for block in known], [pools[event] for event in self.allocations], DEFAULT_POOL)
        initial = tuple(self._initial(streams, owners))  # which may name more of both
        segments = [event for event, kind in enumerate(trace.kinds) if kind in _SEGMENT_KINDS]
        _insert_empty_caches(self, snapshot.stacks, notes)
        if self.unmatched:
            notes.append(f"{self.unmatched} frees of memory that was allocated before the trace are left out")
        if self.twice:
            notes.append(f"{self.twice} allocations at addresses in use: frees are missing from the trace")
        if self.ooms:
            notes.append(f"{self.ooms} requests ran out of memory while it was recorded; they are left out")
        return Requests(
            ops=self.ops,
            blocks=self.blocks,
            events=self.events,
            sizes=array("Q", [block.requested for block in known])
            + array("Q", [trace.sizes[event] for event in self.allocations]),
            streams=streams.column,
            pools=owners.column,
            stacks=array("i", [block.stack for block in known])
            + array("i", [trace.stacks[event] for event in self.allocations]),
            addresses=array("Q", [block.address for block in known])
            + array("Q", [trace.addresses[event] for event in self.allocations]),
            stream_ids=streams.values or (0,),
            pool_ids=owners.values or (DEFAULT_POOL,),
            initial=initial,
            segment_kinds=bytearray(trace.kinds[event] for event in segments),
            segment_addresses=array("Q", [trace.addresses[event] for event in segments]),
            segment_sizes=array("Q", [trace.sizes[event] for event in segments]),
            trace_events=len(trace),
            unmatched_frees=self.unmatched,
            notes=tuple(notes),
        )

    def _initial(self, streams: _Dense[int], owners: _Dense[PoolId]) -> list[InitialSegment]:
        return [
            InitialSegment(
                segment.address,
                segment.size,
                streams.number(segment.stream),
                segment.small,
                segment.pieces,
                segment.expandable,
                owners.number(segment.pool),
            )
            for segment in self.state.segments
        ]


class _Dense[T]:
    """Values numbered from 0 as they come; `column` holds the numbers."""

    def __init__(self, before: Sequence[T], during: Sequence[T], *first: T) -> None:
        self._numbers: dict[T, int] = {value: number for number, value in enumerate(first)}
        numbers = self._numbers
        self.column = array("i", [numbers.setdefault(v, len(numbers)) for column in (before, during) for v in column])

    @property
    def values(self) -> tuple[T, ...]:
        return tuple(self._numbers)

    def number(self, value: T) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


def _pools(memory: DeviceMemory, snapshot: Snapshot, notes: list[str]) -> Sequence[PoolId]:
    """The pool of each event: as recorded or, before PyTorch recorded it, that of the segment that has its address."""
    trace = memory.trace
    if any(pool >= 0 for pool in trace.pools):
        names = (*snapshot.pools, DEFAULT_POOL)  # -1, told by none, is the last
        return [names[pool] for pool in trace.pools]
    private = [segment for segment in memory.segments if segment.pool != DEFAULT_POOL]
    if not private:
        return [DEFAULT_POOL] * len(trace)
    notes.append(
        "the trace does not name memory pools: private ones are told by the segments that exist at its end, and"
        " what lay in others counts as ordinary"
    )
    starts = [segment.address for segment in private]

    def pool_at(address: int) -> PoolId:
        at = bisect_right(starts, address) - 1
        if at >= 0 and address < private[at].address + private[at].size:
            return private[at].pool
        return DEFAULT_POOL

    return [pool_at(address) for address in trace.addresses]


def _insert_empty_caches(paired: _Pairing, stacks: Sequence[Stack], notes: list[str]) -> None:
    """Add an EMPTY_CACHE where segments were given back and no request that is told was the reason."""
    releases = _releases(paired.trace, stacks)
    calls = [release for release in releases if release.by_empty_cache or release.in_vain]
    events = paired.events
    for call in reversed(calls):  # from the end: earlier places stay where they are
        at = bisect_right(events, call.event)
        paired.ops.insert(at, Op.EMPTY_CACHE)
        paired.blocks.insert(at, -1)
        events.insert(at, call.event)
    if inferred := sum(release.by_empty_cache for release in releases):
        notes.append(f"{inferred} calls of empty_cache are inferred from segments that were given back")
    doubtful = len(releases) - sum(release.certain for release in releases)
    if doubtful:
        notes.append(
            f"{doubtful} releases of cached memory are followed by a new segment, and no call stack tells whether a"
            " request caused them or empty_cache: a request is assumed"
        )


class _Release(NamedTuple):
    """Segments that were given back, one after the other; `event` is the first of them.

    `in_vain`: for a request that ran out of memory all the same, and is left out.
    """

    event: int
    by_empty_cache: bool
    in_vain: bool
    certain: bool


def _releases(trace: Trace, stacks: Sequence[Stack]) -> list[_Release]:
    """Every release of cached memory, and what was the reason.

    A request that cannot be served releases memory, and then takes some or runs out: all of these events have its call
    stack. Released by empty_cache they have the stack of that call or, where only those of allocations were recorded,
    each the one that its segment was made with.
    """
    kinds, found, event = trace.kinds, list[_Release](), 0
    while event < len(kinds):
        if kinds[event] not in _RELEASES:
            event += 1
            continue
        start = event
        while event < len(kinds) and kinds[event] in _RELEASES:
            event += 1
        told = set(trace.stacks[start:event])
        named = any(stack >= 0 and _EMPTY_CACHE & {frame.function for frame in stacks[stack]} for stack in told)
        following = kinds[event] if event < len(kinds) else -1
        wanted = (following in _GROWTH or following == _OOM) and told == {trace.stacks[event]}
        by_empty_cache = named or not wanted
        certain = by_empty_cache or told != {-1}
        found.append(_Release(start, by_empty_cache, wanted and following == _OOM, certain))
    return found
