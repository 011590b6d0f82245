"""What is alive at the peak: every block that was allocated when most memory was, sized as the allocator counts it.

PyTorch's `allocated_bytes` counts whole blocks. A block is what was asked for, rounded up, and sometimes more: the
allocator does not cut a large block whose rest would be 1 MiB or less. How large a block was is read off the recorded
addresses: it reaches to the next block in use, or to the end of its segment, unless that is far enough for a cut.
The rules of rounding and cutting are those of PyTorch's CUDACachingAllocator.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from oombisect.memory.requests import Op, Requests
from oombisect.memory.trace import DeviceMemory, EventKind, Trace
from oombisect.readings import PhaseMetrics

SMALLEST = 512
SMALL_LIMIT = 1 << 20  # requests up to here live in the small pool, whose blocks are always cut
KEPT_WHOLE = 1 << 20  # a large block is not cut if this or less would be left
NEVER = 1 << 63

BEFORE_TRACE = "before the trace"
AFTER_PHASES = "after the last phase"


def rounded(size: int) -> int:
    """What the allocator makes of a request without further settings, bytes."""
    return max(SMALLEST, -(-size // SMALLEST) * SMALLEST)


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block that is allocated at the peak.

    `size` is what the allocator counts, `requested` what was asked for, bytes. `stack` indexes the snapshot's stacks,
    -1: none recorded. `allocation` counts the trace's allocations from 0; None: it was there before the trace began.
    """

    size: int
    requested: int
    stack: int
    allocation: int | None


@dataclass(frozen=True, slots=True)
class LiveSet:
    """All that is allocated at the first moment when most is.

    Attributes:
        blocks: in order of their allocation; their sizes sum to `peak`.
        peak: bytes.
        allocation: the trace's allocation (from 0) that reaches the peak; None: most is allocated before it begins.
        allocations: how many the whole trace has.
        unmatched_frees: frees of memory of which nothing is known: where there are any, `peak` is a lower bound.
        missing: bytes allocated when the snapshot was taken, by its segments, minus what the trace leaves: 0 proves
            that every size was found and nothing left out.
    """

    blocks: tuple[LiveBlock, ...]
    peak: int
    allocation: int | None
    allocations: int
    unmatched_frees: int = 0
    missing: int = 0


def live_at_peak(memory: DeviceMemory, requests: Requests, sizes: Sequence[int] | None = None) -> LiveSet:
    """The blocks that are allocated when most is.

    Args:
        requests: those of `memory`.
        sizes: of each block of `requests`; None: `block_sizes` under the allocator's usual settings.
    """
    sizes = block_sizes(memory.trace, requests) if sizes is None else sizes
    known = [b for segment in requests.initial for b in segment.blocks if b.block >= 0]
    at_first = {b.block for b in known if not b.pending}
    first = len(known)
    now = peak = sum(sizes[block] for block in at_first)
    reached = -1
    for index, (op, block) in enumerate(zip(requests.ops, requests.blocks)):
        if op == Op.ALLOC:
            now += sizes[block]
            if now > peak:
                peak, reached = now, index
        elif op in (Op.RELEASE, Op.FREE):
            now -= sizes[block]
    alive = at_first
    for op, block in zip(requests.ops[: reached + 1], requests.blocks):
        if op == Op.ALLOC:
            alive.add(block)
        elif op in (Op.RELEASE, Op.FREE):
            alive.discard(block)
    held = sum(b.size for segment in memory.segments for b in segment.blocks if b.state == "active_allocated")
    return LiveSet(
        blocks=tuple(
            LiveBlock(sizes[n], requests.sizes[n], requests.stacks[n], n - first if n >= first else None)
            for n in sorted(alive)
        ),
        peak=peak,
        allocation=requests.blocks[reached] - first if reached >= 0 else None,
        allocations=len(requests.sizes) - first,
        unmatched_frees=requests.unmatched_frees,
        missing=held - now,
    )


def block_sizes(
    trace: Trace, requests: Requests, rounding: Callable[[int], int] = rounded, max_split_size: int = NEVER
) -> array[int]:
    """The size of every block of `requests` as the allocator counts it, bytes.

    Args:
        rounding: what the allocator makes of a request, bytes to bytes.
        max_split_size: blocks of this size and above are never cut.
    """
    sizes = array("Q", bytes(8 * len(requests.sizes)))
    segments = _Segments()
    for segment in requests.initial:
        if not segment.expandable and not segment.small:
            segments.add(segment.address, segment.size)
        for piece in segment.blocks:
            if piece.block >= 0:
                sizes[piece.block] = piece.size
                segments.use(piece.address)
    changes = _segment_events(trace)
    change = next(changes, None)
    for op, block, event in zip(requests.ops, requests.blocks, requests.events):
        while change is not None and change[0] < event:
            segments.change(*change[1:])
            change = next(changes, None)
        if op == Op.ALLOC:
            wanted, address = rounding(requests.sizes[block]), requests.addresses[block]
            sizes[block] = wanted
            if wanted > SMALL_LIMIT and (room := segments.room(address)) is not None:
                rest = room - wanted
                if rest >= 0 and (rest <= KEPT_WHOLE or wanted >= max_split_size):
                    sizes[block] = room
                segments.use(address)
        elif op in (Op.RELEASE, Op.COMPLETE) and sizes[block] > SMALL_LIMIT:
            segments.release(requests.addresses[block])
    return sizes


def _segment_events(trace: Trace) -> Iterator[tuple[int, int, int, int]]:
    """Index, kind, address and size of each event about a segment that does not grow."""
    for index, kind in enumerate(trace.kinds):
        if kind in (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_FREE):
            yield index, kind, trace.addresses[index], trace.sizes[index]


class _Segments:
    """Segments that do not grow, and where in them blocks are in use (free to the touch of no stream)."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._used: dict[int, list[int]] = {}

    def change(self, kind: int, address: int, size: int) -> None:
        if kind == EventKind.SEGMENT_ALLOC:
            self.add(address, size)
        else:
            self._remove(address)

    def add(self, address: int, size: int) -> None:
        if address not in self._ends:
            insort(self._starts, address)
        self._ends[address] = address + size
        self._used[address] = []

    def _remove(self, address: int) -> None:
        if self._ends.pop(address, None) is not None:
            del self._starts[bisect_left(self._starts, address)]
            del self._used[address]

    def _around(self, address: int) -> int | None:
        """The start of the segment that the address is in."""
        at = bisect_right(self._starts, address) - 1
        return self._starts[at] if at >= 0 and address < self._ends[self._starts[at]] else None

    def room(self, address: int) -> int | None:
        """Bytes from a free address to the next block in use or the end; None if it is in no segment here."""
        start = self._around(address)
        if start is None:
            return None
        used = self._used[start]
        following = bisect_right(used, address)
        return (used[following] if following < len(used) else self._ends[start]) - address

    def use(self, address: int) -> None:
        if (start := self._around(address)) is not None:
            insort(self._used[start], address)

    def release(self, address: int) -> None:
        if (start := self._around(address)) is not None:
            used = self._used[start]
            at = bisect_left(used, address)
            if at < len(used) and used[at] == address:
                del used[at]


class Phases:
    """Which phase of a probe an allocation belongs to: the reading counts the allocations of each, in order."""

    def __init__(self, phases: Mapping[str, PhaseMetrics]) -> None:
        self._names = tuple(phases)
        self._ends = tuple(accumulate(phase.allocations for phase in phases.values()))

    @classmethod
    def of(cls, phases: Mapping[str, PhaseMetrics], live: LiveSet) -> Phases | None:
        """None where the trace does not hold all the allocations that were counted, so that it begins later."""
        found = cls(phases)
        complete = (
            found._ends and found._ends[-1] <= live.allocations and all(b.allocation is not None for b in live.blocks)
        )
        return found if complete else None

    def name(self, allocation: int | None) -> str:
        """The phase of the trace's allocation (from 0); None stands for what was there before the trace."""
        if allocation is None:
            return BEFORE_TRACE
        at = bisect_right(self._ends, allocation)
        return self._names[at] if at < len(self._names) else AFTER_PHASES
