"""What the caching allocator would have done with a program's requests: under other settings, or with less memory.

All sizes are bytes. `limit` is what the allocator may take from the device: what else lies there (the CUDA context,
other libraries) is the caller's to subtract.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from oombisect.memory.allocator import Block, CachingAllocator, Rules, Settings, VirtualDevice
from oombisect.memory.allocator.device import Addresses
from oombisect.memory.allocator.guided import GuidedAllocator
from oombisect.memory.allocator.initial import adopt
from oombisect.memory.allocator.model import SMALL_SIZE, round_up, segment_size
from oombisect.memory.allocator.recorded import Mismatch, RecordedDevice
from oombisect.memory.capacity import NeededCapacity
from oombisect.memory.requests import InitialRange, InitialSegment, Op, Requests
from oombisect.memory.trace import DEFAULT_POOL
from oombisect.units import format_bytes

UNBOUNDED: Final = 1 << 62
RESOLUTION: Final = 2 << 20
ADDRESSES: Final = 0x1000_0000_0000
NOWHERE: Final = 0
"""In place of a recorded address: the request failed when it was recorded."""
BEFORE: Final = -1
"""In place of an operation's index: the state that the trace begins with did not fit."""

_MOST_GUESSES: Final = 64
"""How many things are guessed from where a replay differs from what was recorded: each takes a replay."""

_ALLOC, _RELEASE, _FREE = int(Op.ALLOC), int(Op.RELEASE), int(Op.FREE)
_EMPTY_CACHE, _CLOSE_POOL = int(Op.EMPTY_CACHE), int(Op.CLOSE_POOL)


class ReplayError(ValueError):
    """The requests are none that a replay can follow, or it cannot give what is asked."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A request that failed, and the allocator at that moment; bytes.

    Args:
        op, event: its index in the operations, and in the trace; -1: the state the trace begins with did not fit.
        block: the number of the block that was asked for.
        requested, size, segment: what was asked for, the block for it, and what was asked of the device for that.
        allocated, active, reserved: what the program had, that and what streams still used, what the allocator had.
        stream, pool, small: where it was to be served; indices of the requests.
        segments: all the allocator had, block by block; the numbers are those of the requests.
    """

    op: int
    event: int
    block: int
    requested: int
    size: int
    segment: int
    allocated: int
    active: int
    reserved: int
    stream: int
    pool: int
    small: bool
    segments: tuple[InitialSegment, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay showed; bytes and counts. If it stopped at its first OOM, up to there.

    Args:
        peak_*, final_*: as torch.cuda.memory_stats has them (`active`: allocated or still used by a stream).
        ooms, retries: requests that failed; releases of all cached memory to serve one.
        first_oom: the first that failed, None if none did.
        skipped: requests that failed and were left out, with what was done to their blocks later.
        statistics: all counters, under their names in torch.cuda.memory_stats.
        notes: what is not exact, in words; empty if the replay is exact.
    """

    peak_allocated: int
    peak_active: int
    peak_requested: int
    peak_reserved: int
    final_allocated: int
    final_active: int
    final_reserved: int
    ooms: int
    retries: int
    first_oom: OutOfMemory | None
    statistics: dict[str, int]
    notes: tuple[str, ...] = ()

    @property
    def survived(self) -> bool:
        """No request failed."""
        return self.first_oom is None


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How far a replay under the recorded settings does what was recorded.

    Args:
        exact: every address and every segment event is as recorded.
        allocations, segment_events: how many were compared before the first mismatch.
        mismatch: the first one, in words.
        event: where in the trace it is; -1 if there is none.
        replay: what the replay showed up to there.
    """

    exact: bool
    allocations: int
    segment_events: int
    mismatch: str
    event: int
    replay: Replay


def replay(
    requests: Requests,
    settings: Settings,
    rules: Rules,
    *,
    device_bytes: int,
    limit: int | None = None,
    fraction: float | None = None,
    stop_at_oom: bool = True,
    as_recorded: bool = True,
) -> Replay:
    """Give the requests to an allocator.

    Args:
        settings, rules: what the allocator was told, and its PyTorch release.
        device_bytes: the device's memory, as CUDA reports it.
        limit: how much of it the allocator may take; None: as much as it likes, also more than there is.
        fraction: torch.cuda.set_per_process_memory_fraction.
        stop_at_oom: end at the first request that fails; otherwise leave it out, and what is done to its block later.
        as_recorded: these are the settings of the recorded run, so that what it had when the trace begins lies where it
            lay; otherwise that is asked for anew, in order of address, and the result is approximate.

    Raises:
        ReplayError: the requests contradict themselves.
    """
    capacity = UNBOUNDED if limit is None else limit
    device = VirtualDevice(device_bytes, capacity, Addresses(_free_addresses(requests)))
    run = _Run(requests, CachingAllocator(settings, rules, fraction=fraction, device=device), capacity)
    run.begin(as_recorded)
    run.go(stop_at_oom)
    return run.result()


def needed(
    requests: Requests,
    settings: Settings,
    rules: Rules,
    *,
    device_bytes: int,
    fraction: float | None = None,
    limit_is_fraction: bool = False,
    resolution: int = RESOLUTION,
    as_recorded: bool = True,
    unlimited: Replay | None = None,
) -> int:
    """The smallest limit under which no request fails, bytes: one that was seen to suffice, to within `resolution`.

    Of the limits that were tried, the largest below it failed, and is at most `resolution` below. (Survival need not be
    monotonic in the limit: not every smaller one is claimed to fail.)

    Args:
        limit_is_fraction: the memory fraction is set to each limit that is tried, so that garbage is collected.
        resolution: how close the result must come, bytes; with the default it is exact, unless a large segment is set
            to a size that is no multiple of 2 MiB.
        unlimited: the replay without a limit, where it was made before.

    Raises:
        ReplayError: the requests fail although memory is unlimited (a `fraction` forbids it).
    """

    def run(limit: int | None) -> Replay:
        share = min(1.0, limit / device_bytes) if limit_is_fraction and limit is not None else fraction
        return replay(
            requests,
            settings,
            rules,
            device_bytes=device_bytes,
            limit=limit,
            fraction=share,
            as_recorded=as_recorded,
        )

    unlimited = unlimited or run(None)
    if unlimited.first_oom is not None:
        raise ReplayError(_why_never(unlimited.first_oom, device_bytes, fraction or settings.memory_fraction))
    if unlimited.peak_reserved == 0:
        return 0
    # In steps of the resolution: what is reserved is a multiple of it, so that no limit between two steps does more.
    least, enough = min(requests.peak_requested(), unlimited.peak_reserved), unlimited.peak_reserved
    while limit_is_fraction and run(enough).first_oom is not None:  # collecting garbage may fragment memory
        enough += -(-max(enough // 8, 1) // resolution) * resolution
        if enough > 2 * max(unlimited.peak_reserved, device_bytes):
            raise ReplayError("a request fails under each limit that was tried while garbage is collected")
    search = NeededCapacity.start(-(-least // resolution), -(-enough // resolution), 1)
    while (steps := search.next()) is not None:
        oom = run(steps * resolution).first_oom
        # All that could be released was: with as much more as was asked for, this request would have been served.
        hint = None if oom is None else -(-(oom.reserved + oom.segment) // resolution)
        search = search.observe(steps, oom is None, hint)
    return min(search.result * resolution, enough)


def _why_never(oom: OutOfMemory, device_bytes: int, fraction: float | None) -> str:
    if fraction is not None:
        return f"a request fails however large the limit is: the memory fraction ({fraction:g}) forbids it"
    asked = f"a request of {format_bytes(oom.size)} fails however large the limit is"
    return f"{asked}: a device of {format_bytes(device_bytes)}, as is assumed, has no room for it"


def check(
    requests: Requests, settings: Settings, rules: Rules, *, device_bytes: int, fraction: float | None = None
) -> Fidelity:
    """Does a replay under the recorded settings do what was recorded: every address, every segment event?

    The segments get the addresses they had; where a release was recorded, the device is taken to have been full.

    Args:
        settings, rules: those of the recorded run, as far as they are known.
    """
    device = _recorded(requests, device_bytes)
    run = _Run(requests, CachingAllocator(settings, rules, fraction=fraction, device=device), UNBOUNDED)
    mismatch = _follow(run, device)
    compared = requests.ops[: run.reached + 1].count(_ALLOC) - bool(mismatch and run.reached >= 0)
    return Fidelity(
        exact=not mismatch,
        allocations=compared,
        segment_events=device.played,
        mismatch=mismatch,
        event=requests.events[run.reached] if mismatch and run.reached >= 0 else BEFORE,
        replay=run.result(),
    )


def learn(
    requests: Requests, settings: Settings, rules: Rules, *, device_bytes: int, fraction: float | None = None
) -> Requests:
    """The same requests with what the recorded answers tell of the state that the trace begins with, and of pools.

    That is the order in which its memory was made (`Requests.oldest_first`): where the rules leave it to age which of
    equally large blocks is taken, the recorded one was the oldest. And where expandable segments begin
    (`Requests.ranges`): memory that was mapped outside of all that are known is part of another one. And which pools
    split no blocks (`Requests.whole_pools`). A guess is kept if more is then as recorded. What the trace does not show
    stays as it was.

    Args:
        settings, rules: those of the recorded run, as far as they are known.
    """
    if not requests.initial and not any(map(bool, requests.pools)):
        return requests
    guided, reached, allocator = _guided(requests, settings, rules, device_bytes, fraction)
    for _ in range(_MOST_GUESSES):
        if guided is None:
            break
        further = _guided(guided, settings, rules, device_bytes, fraction)
        if further[1] <= reached:
            break
        requests, (guided, reached, allocator) = guided, further
    return replace(requests, oldest_first=allocator.oldest_first()) if rules.age_decides else requests


def _guided(
    requests: Requests, settings: Settings, rules: Rules, device_bytes: int, fraction: float | None
) -> tuple[Requests | None, int, GuidedAllocator]:
    """Follow what was recorded.

    Returns:
        Where something was other than recorded, the requests with what would explain that, if anything does; the last
        operation that was followed; the allocator.
    """
    device = _recorded(requests, device_bytes)
    allocator = GuidedAllocator(settings, rules, fraction=fraction, device=device)
    run = _Run(requests, allocator, UNBOUNDED)
    if not _follow(run, device) or run.reached < 0 or requests.ops[run.reached] != _ALLOC:
        return None, run.reached, allocator
    block = requests.blocks[run.reached]
    stream, pool = requests.streams[block], requests.pools[block]
    base = device.unknown_map()
    if base is not None:
        small = round_up(requests.sizes[block], settings.roundup) <= SMALL_SIZE
        ranges = (*requests.ranges, InitialRange(base, stream, small, pool))
        return replace(requests, ranges=ranges), run.reached, allocator
    if requests.pool_ids[pool] != DEFAULT_POOL and pool not in requests.whole_pools:
        return replace(requests, whole_pools=requests.whole_pools | {pool}), run.reached, allocator
    return None, run.reached, allocator


def _recorded(requests: Requests, device_bytes: int) -> RecordedDevice:
    return RecordedDevice(
        device_bytes,
        requests.segment_kinds,
        requests.segment_addresses,
        requests.segment_sizes,
        _renumber(requests.segment_streams, _stream_numbers(requests)),
    )


def _follow(run: _Run, device: RecordedDevice) -> str:
    """Replay what was recorded on its own device, up to the first thing that is not as it was: that, in words."""
    try:
        run.begin(as_recorded=True)
        run.go(True, device)
        if run.first_oom is not None:
            raise Mismatch(f"{run.first_oom.requested} bytes are refused, and were granted")
        run.reached = len(run.requests.ops) - 1
        device.finish()
    except Mismatch as found:
        return str(found)
    return ""


class _Run:
    """One replay: an allocator, and the blocks the program has."""

    def __init__(self, requests: Requests, allocator: CachingAllocator, capacity: int) -> None:
        self.requests = requests
        self.capacity = capacity
        self.allocator = allocator
        self.live: list[Block | None] = [None] * len(requests.sizes)
        self.first_oom: OutOfMemory | None = None
        self.reached = BEFORE
        self.notes: list[str] = []
        self._stream_numbers = _stream_numbers(requests)
        # The ordinary pool is number 0.
        self._pool_numbers = [0 if pool == DEFAULT_POOL else at + 1 for at, pool in enumerate(requests.pool_ids)]
        self.streams = _renumber(requests.streams, self._stream_numbers)
        self.pools = _renumber(requests.pools, self._pool_numbers)
        if any(self._pool_numbers):
            self.notes.append("private pools are taken for those of CUDA graphs, unless the trace shows otherwise")
        for index in sorted(requests.open_pools | requests.whole_pools):
            split, graph = index not in requests.whole_pools, index not in requests.open_pools
            allocator.create_pool(self._pool_numbers[index], graph=graph, split=split)

    def begin(self, as_recorded: bool) -> None:
        """Bring the allocator into the state that the trace begins with."""
        requests, allocator = self.requests, self.allocator
        if not requests.initial:
            return
        if as_recorded:
            segments = [
                replace(
                    segment,
                    stream=self._stream_numbers[segment.stream],
                    pool=self._pool_numbers[segment.pool],
                )
                for segment in requests.initial
            ]
            ranges = [
                replace(each, stream=self._stream_numbers[each.stream], pool=self._pool_numbers[each.pool])
                for each in requests.ranges
            ]
            live = adopt(allocator, segments, requests.sizes, requests.oldest_first, ranges)
            for number, adopted in live.items():
                self.live[number] = adopted
            if allocator.rules.age_decides and not requests.oldest_first:
                self.notes.append("the order in which the memory from before the trace was made is not known")
            if allocator.statistics.reserved.current > self.capacity:
                allocator.empty_cache()
            if allocator.statistics.reserved.current > self.capacity:
                self.first_oom = self._out_of_memory(BEFORE, BEFORE)
            return
        self.notes.append("what was allocated before the trace begins is placed as if it were asked for anew")
        for segment in sorted(requests.initial, key=lambda segment: segment.address):
            for piece in segment.blocks:
                if piece.block < 0:
                    continue
                block = allocator.alloc(requests.sizes[piece.block], self.streams[piece.block], self.pools[piece.block])
                if block is None:
                    self.first_oom = self._out_of_memory(BEFORE, piece.block)
                    return
                self.live[piece.block] = block
                if piece.pending:
                    allocator.free(block, pending=True)

    def go(self, stop_at_oom: bool, recorded: RecordedDevice | None = None) -> None:
        """Give the allocator all requests.

        Args:
            recorded: the device, if every block has to be where it was recorded.

        Raises:
            Mismatch: one is elsewhere.
        """
        if self.first_oom is not None and stop_at_oom:
            return
        requests, live = self.requests, self.live
        sizes, streams, pools = requests.sizes, self.streams, self.pools
        alloc, free, complete = self.allocator.alloc, self.allocator.free, self.allocator.complete
        for index, (op, number) in enumerate(zip(requests.ops, requests.blocks, strict=True)):
            if op == _ALLOC:
                if recorded is not None:
                    self.reached = index
                    recorded.wanted = requests.addresses[number]
                if (block := alloc(sizes[number], streams[number], pools[number])) is not None:
                    live[number] = block
                    if recorded is not None and block.address != requests.addresses[number]:
                        raise Mismatch(_elsewhere(sizes[number], block.address, requests.addresses[number]))
                elif recorded is not None and recorded.full:
                    continue  # as it was recorded
                else:
                    if self.first_oom is None:
                        self.first_oom = self._out_of_memory(index, number)
                    if stop_at_oom:
                        return
            elif op >= _EMPTY_CACHE:
                self.reached = index
                self._release(op, number)
            elif (block := live[number]) is not None:  # otherwise it was asked for in vain
                if op == _RELEASE:
                    live[number] = None
                    free(block)
                elif op == _FREE:
                    free(block, pending=True)
                else:
                    live[number] = None
                    complete(block)

    def _release(self, op: int, pool: int) -> None:
        if op == _EMPTY_CACHE:
            self.allocator.empty_cache()
        else:
            self.allocator.release_pool(self._pool_numbers[pool], at_once=op == _CLOSE_POOL)

    def _out_of_memory(self, index: int, number: int) -> OutOfMemory:
        requests, stats, settings = self.requests, self.allocator.statistics, self.allocator.settings
        requested = requests.sizes[number] if number >= 0 else 0
        size = round_up(requested, settings.roundup)
        return OutOfMemory(
            op=index,
            event=requests.events[index] if index >= 0 else BEFORE,
            block=number,
            requested=requested,
            size=size,
            segment=segment_size(size, settings.large_segment_size),
            allocated=stats.current_allocated,
            active=stats.current_active,
            reserved=stats.reserved.current,
            stream=requests.streams[number] if number >= 0 else 0,
            pool=requests.pools[number] if number >= 0 else 0,
            small=size <= SMALL_SIZE,
            segments=self.segments(),
        )

    def segments(self) -> tuple[InitialSegment, ...]:
        """All that the allocator has; streams and pools are indices of the requests."""
        numbers = {block: number for number, block in enumerate(self.live) if block is not None}
        streams = {number: index for index, number in enumerate(self._stream_numbers)}
        pools = {number: index for index, number in enumerate(self._pool_numbers)}
        return tuple(
            replace(segment, stream=streams[segment.stream], pool=pools[segment.pool])
            for segment in self.allocator.segments(numbers)
        )

    def result(self) -> Replay:
        stats = self.allocator.statistics
        return Replay(
            peak_allocated=stats.peak_allocated,
            peak_active=stats.peak_active,
            peak_requested=stats.peak_requested,
            peak_reserved=stats.reserved.peak,
            final_allocated=stats.current_allocated,
            final_active=stats.current_active,
            final_reserved=stats.reserved.current,
            ooms=stats.ooms,
            retries=stats.retries,
            first_oom=self.first_oom,
            statistics=stats.memory_stats(),
            notes=(*self.requests.notes, *self.notes),
        )


def _elsewhere(size: int, address: int, recorded: int) -> str:
    if recorded == NOWHERE:
        return f"{size} bytes are allocated at {address:#x}, but were refused"
    return f"{size} bytes are allocated at {address:#x}, but were at {recorded:#x}"


def _stream_numbers(requests: Requests) -> list[int]:
    """How streams are called in the allocator: there they sort as they do in PyTorch, by their handles."""
    ranks = {handle: rank for rank, handle in enumerate(sorted(requests.stream_ids))}
    return [ranks[handle] for handle in requests.stream_ids]


def _renumber(column: array[int], numbers: Sequence[int]) -> array[int]:
    if list(numbers) == list(range(len(numbers))):
        return column
    return array("i", [numbers[index] for index in column])


def _free_addresses(requests: Requests) -> int:
    """Where addresses begin that nothing had before the trace."""
    highest = max((segment.address + segment.size for segment in requests.initial), default=0)
    return ADDRESSES if highest <= ADDRESSES else -(-highest // ADDRESSES) * ADDRESSES
