"""From what the allocator recorded to what the program asked of it: allocations paired with their frees."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from oombisect.memory.allocator import Settings, SettingsError, guess_rules
from oombisect.memory.requests import InitialSegment, Op, Requests
from oombisect.memory.snapshots.releases import Releases, releases_of
from oombisect.memory.snapshots.rollback import DEFAULT_RULES, Contradiction, SizeRules, State, roll_back
from oombisect.memory.trace import DEFAULT_POOL, DeviceMemory, EventKind, PoolId, Snapshot, Trace
from oombisect.units import counted, format_bytes

_ALLOC, _FREE, _FREED = int(EventKind.ALLOC), int(EventKind.FREE_REQUESTED), int(EventKind.FREE_COMPLETED)
_SEGMENT_KINDS = frozenset(
    map(int, (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_FREE, EventKind.SEGMENT_MAP, EventKind.SEGMENT_UNMAP))
)
_OOM = int(EventKind.OOM)
_OF_POOLS = frozenset((int(Op.DROP_POOL), int(Op.CLOSE_POOL)))
_JUST_FREED = bytes([_FREED])


def requests_of(memory: DeviceMemory, snapshot: Snapshot, *, failed: bool = True) -> Requests:
    """What the program asked of the allocator of one device.

    Where the trace does not begin with an empty allocator, what it had is found by rolling the snapshot's segments back
    through the trace. Whatever is inferred or left out is said in the result's notes.

    Args:
        failed: have the requests that ran out of memory too: blocks at address 0, released at once if the program went
            on, since nobody had them.
    """
    notes: list[str] = []
    releases = releases_of(memory.trace, snapshot.stacks)
    state = State((), ())
    paired = _Pairing(memory.trace, state, releases, failed)
    if memory.segments or paired.unmatched:
        try:
            rolled = roll_back(memory, snapshot.pools, _size_rules(snapshot, notes))
        except Contradiction as contradiction:
            notes.append(f"the segments do not agree with the trace ({contradiction}): it is replayed from empty")
        else:
            if rolled.segments:
                state = rolled
                paired = _Pairing(memory.trace, state, releases, failed)
                held = sum(segment.size for segment in state.segments)
                segments = counted(len(state.segments), "segment")
                notes.append(
                    f"the trace begins with {counted(len(state.blocks), 'block')} in {segments}"
                    f" ({format_bytes(held)} reserved), found by rolling the segments back"
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

    def __init__(self, trace: Trace, state: State, releases: Releases, failed: bool) -> None:
        self.trace, self.state, self.releases, self.failed = trace, state, releases, failed
        self.ops, self.blocks, self.events = bytearray(), array("i"), array("i")
        self.made = array("i")  # the event of each block that is not of the state
        self.unmatched = self.ooms = self.twice = 0
        self._live = {block.address: number for number, block in enumerate(state.blocks) if not block.pending}
        self._pending = {block.address: number for number, block in enumerate(state.blocks) if block.pending}
        self._walk()

    def _walk(self) -> None:
        kinds, addresses = self.trace.kinds, self.trace.addresses
        emptied = self.releases.empty_cache if self.failed else self.releases.empty_cache | self.releases.in_vain
        waited, given_up = self.releases.waited, self.releases.dropped.keys() | self.releases.closed.keys()
        live, pending = self._live, self._pending
        put, made, first = self._put, self.made, len(self.state.blocks)
        unknown: set[int] = set()  # freed, and never allocated here
        late: list[tuple[int, int]] = []  # completed while the next request waited for it
        completed = -1
        for event, kind in enumerate(kinds):
            if event == completed:
                continue
            if event in given_up:
                self._give_up(event)
            address = addresses[event]
            if kind == _ALLOC:
                if address in live or address in pending:
                    self._end(event, address)
                number = first + len(made)
                made.append(event)
                live[address] = number
                put(Op.ALLOC, number, event)
            elif kind == _FREE:
                found = live.pop(address, None)
                if found is None:
                    self.unmatched += 1
                    unknown.add(address)
                elif kinds[event + 1 : event + 2] == _JUST_FREED and addresses[event + 1] == address:
                    completed = event + 1
                    put(Op.RELEASE, found, event)
                else:
                    pending[address] = found
                    put(Op.FREE, found, event)
            elif kind == _FREED:
                found = pending.pop(address, None)
                if found is None:
                    self._complete_unknown(event, address, unknown)
                elif event in waited:
                    late.append((found, event))
                else:
                    put(Op.COMPLETE, found, event)
            elif kind == _OOM:
                self.ooms += 1
                if self.failed:
                    put(Op.ALLOC, first + len(made), event)
                    made.append(event)
            elif event in emptied:
                put(Op.EMPTY_CACHE, -1, event)
            if late and kind in (_ALLOC, _OOM):
                for found, at in late:
                    put(Op.COMPLETE, found, at)
                late.clear()
            if kind == _OOM and self.failed and kinds.find(_ALLOC, event) >= 0:
                put(Op.RELEASE, first + len(made) - 1, event)

    def _put(self, op: Op, block: int, event: int) -> None:
        self.ops.append(op)
        self.blocks.append(block)
        self.events.append(event)

    def _give_up(self, event: int) -> None:
        """Private pools are no longer used: they are put down by their index in the snapshot."""
        for pool in self.releases.dropped.get(event, ()):
            self._put(Op.DROP_POOL, pool, event)
        if event in self.releases.closed:
            self._put(Op.CLOSE_POOL, self.releases.closed[event], event)

    def _end(self, event: int, address: int) -> None:
        """What is at an address that is allocated anew: its free was not recorded."""
        self.twice += 1
        found = self._live.pop(address, None)
        if found is not None:
            self._put(Op.RELEASE, found, event)
        else:
            self._put(Op.COMPLETE, self._pending.pop(address), event)

    def _complete_unknown(self, event: int, address: int, unknown: set[int]) -> None:
        """A free is completed that was requested before the trace, or of unknown memory."""
        found = self._live.pop(address, None)
        if found is not None:
            self._put(Op.RELEASE, found, event)
        elif address in unknown:
            unknown.remove(address)  # counted when it was requested
        else:
            self.unmatched += 1

    def requests(self, memory: DeviceMemory, snapshot: Snapshot, notes: list[str]) -> Requests:
        trace, known = self.trace, self.state.blocks
        pools = _pools(memory, snapshot, notes)
        streams = _Dense([block.stream for block in known], [trace.streams[event] for event in self.made])
        owners = _Dense([block.pool for block in known], [pools[event] for event in self.made], DEFAULT_POOL)
        initial = tuple(self._initial(streams, owners))  # which may name more of both
        self._number_pools([owners.number(pool) for pool in snapshot.pools])
        segments = [event for event, kind in enumerate(trace.kinds) if kind in _SEGMENT_KINDS]
        of_segments = array("i", [streams.number(trace.streams[event]) for event in segments])
        self._note_releases(notes)
        if self.unmatched:
            notes.append(f"left out: {counted(self.unmatched, 'free')} of memory that was allocated before the trace")
        if self.twice:
            notes.append(f"{self.twice} allocations at addresses in use: the frees that the trace lacks are added")
        if self.ooms:
            notes.append(
                f"{counted(self.ooms, 'request')} ran out of memory while it was recorded"
                + ("" if self.failed else "; they are left out")
            )
        return Requests(
            ops=self.ops,
            blocks=self.blocks,
            events=self.events,
            sizes=array("Q", [block.requested for block in known])
            + array("Q", [trace.sizes[event] for event in self.made]),
            streams=streams.column,
            pools=owners.column,
            stacks=array("i", [block.stack for block in known])
            + array("i", [trace.stacks[event] for event in self.made]),
            addresses=array("Q", [block.address for block in known])
            + array("Q", [trace.addresses[event] if trace.kinds[event] == _ALLOC else 0 for event in self.made]),
            stream_ids=streams.values or (0,),
            pool_ids=owners.values or (DEFAULT_POOL,),
            open_pools=frozenset(owners.number(snapshot.pools[pool]) for pool in self.releases.served),
            initial=initial,
            segment_kinds=bytearray(trace.kinds[event] for event in segments),
            segment_addresses=array("Q", [trace.addresses[event] for event in segments]),
            segment_sizes=array("Q", [trace.sizes[event] for event in segments]),
            segment_streams=of_segments,
            trace_events=len(trace),
            unmatched_frees=self.unmatched,
            notes=tuple(notes),
        )

    def _number_pools(self, numbers: Sequence[int]) -> None:
        """Put down the requests' own numbers of pools, where those of the snapshot are."""
        for at, op in enumerate(self.ops):
            if op in _OF_POOLS:
                self.blocks[at] = numbers[self.blocks[at]]

    def _note_releases(self, notes: list[str]) -> None:
        releases = self.releases
        if releases.empty_cache:
            notes.append(
                f"{len(releases.empty_cache)} calls of empty_cache are inferred from segments that were given back"
            )
        if releases.doubtful:
            notes.append(
                f"{releases.doubtful} releases of cached memory are followed by a new segment, and no call stack tells"
                " whether a request caused them or empty_cache: a request is assumed"
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
