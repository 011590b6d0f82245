"""Allocated and reserved bytes after each event of a recorded run, thinned out for a plot; no peak is lost. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from oombisect.memory.requests import Op, Requests
from oombisect.memory.trace import EventKind, Trace
from oombisect.readings import PhaseMetrics

_TAKES = (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_MAP)
_RETURNS = (EventKind.SEGMENT_FREE, EventKind.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase of a run: its name, how many allocations came before it, and how many it made."""

    name: str
    begin: int
    count: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The moments of a run that a plot of it needs, in order; columns of equal length.

    Attributes:
        allocations: how many allocations were made up to that moment.
        seconds: since the first event.
        allocated: bytes of blocks as the allocator counts them.
        reserved: bytes the allocator had from the device.
        moments: how many there were before they were thinned out.
        phases: in order, each allocation in one of them; none where they are not known.
    """

    allocations: tuple[int, ...]
    seconds: tuple[float, ...]
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    moments: int
    phases: tuple[PhaseSpan, ...] = ()

    @property
    def peak_allocated(self) -> int:
        """The most that was allocated, bytes: of all moments, also those left out."""
        return max(self.allocated, default=0)

    @property
    def peak_reserved(self) -> int:
        """The most that was reserved, bytes: of all moments, also those left out."""
        return max(self.reserved, default=0)


def timeline(
    trace: Trace,
    requests: Requests,
    sizes: Sequence[int],
    *,
    phases: Mapping[str, PhaseMetrics] | None = None,
    most: int = 4000,
) -> Timeline:
    """Allocated and reserved bytes after each event of `trace`.

    Args:
        requests: those of `trace`.
        sizes: of each block of `requests`, as the allocator counts it (`live_sets.block_sizes`).
        phases: what the run told of its phases. They are left out where the trace does not hold all their allocations.
        most: about how many moments to keep. Of each run of moments the first, the last and all four extremes stay, so
            that the highest and the lowest values are exact.
    """
    known = sum(piece.block >= 0 for segment in requests.initial for piece in segment.blocks)
    columns = [array("q") for _ in range(4)]
    for moment in _moments(trace, requests, sizes):
        for column, value in zip(columns, moment):
            column.append(value)
    allocations, times, allocated, reserved = columns
    start = times[0] if times else 0
    kept = _kept(allocated, reserved, most)
    return Timeline(
        allocations=tuple(allocations[index] for index in kept),
        seconds=tuple(round((times[index] - start) / 1e6, 6) for index in kept),
        allocated=tuple(allocated[index] for index in kept),
        reserved=tuple(reserved[index] for index in kept),
        moments=len(times),
        phases=() if known else _spans(phases or {}, len(requests.sizes)),
    )


def _moments(trace: Trace, requests: Requests, sizes: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Allocations so far, the time in microseconds, allocated and reserved bytes; after what was there before, too."""
    pieces = [piece for segment in requests.initial for piece in segment.blocks if piece.block >= 0]
    allocated = sum(sizes[piece.block] for piece in pieces if not piece.pending)
    reserved = sum(segment.size for segment in requests.initial)
    made = 0
    if not len(trace):
        return
    yield made, trace.times[0], allocated, reserved
    op, count = 0, len(requests.ops)
    for event, kind in enumerate(trace.kinds):
        if kind in _TAKES:
            reserved += trace.sizes[event]
        elif kind in _RETURNS:
            reserved -= trace.sizes[event]
        while op < count and requests.events[op] <= event:
            block = requests.blocks[op]
            if requests.ops[op] == Op.ALLOC:
                made += 1
                # A request that failed is not held.
                allocated += sizes[block] if requests.addresses[block] else 0
            elif requests.ops[op] in (Op.RELEASE, Op.FREE):
                allocated -= sizes[block]
            op += 1
        yield made, trace.times[event], allocated, reserved


def _kept(allocated: Sequence[int], reserved: Sequence[int], most: int) -> list[int]:
    """The indices to keep: of each stretch its ends and the first of each extreme."""
    count = len(allocated)
    if count <= most:
        return list(range(count))
    stretch = -(-count * 6 // most)
    kept: list[int] = []
    for begin in range(0, count, stretch):
        indices = range(begin, min(begin + stretch, count))
        chosen = {indices[0], indices[-1]}
        for values in (allocated, reserved):
            chosen |= {max(indices, key=values.__getitem__), min(indices, key=values.__getitem__)}
        kept += sorted(chosen)
    return kept


def _spans(phases: Mapping[str, PhaseMetrics], allocations: int) -> tuple[PhaseSpan, ...]:
    spans, begin = [], 0
    for name, phase in phases.items():
        spans.append(PhaseSpan(name, begin, phase.allocations))
        begin += phase.allocations
    return tuple(spans) if 0 < begin <= allocations else ()


def aligned(runs: Iterable[Timeline]) -> list[tuple[float, ...]]:
    """Positions of each run's moments on one axis, on which all runs' phases begin and end at the same places.

    A phase is as wide as the most allocations that a run makes in it. Where a run's phases are not known, or are others
    than the first run's, positions are numbers of allocations.
    """
    told = list(runs)
    widths = shared_widths(told)
    return [tuple(map(float, run.allocations)) if widths is None else _positions(run, widths) for run in told]


def shared_widths(runs: Sequence[Timeline]) -> dict[str, int] | None:
    """The phases that all runs share, each with its width on their common axis; None where they do not."""
    names = [[span.name for span in run.phases] for run in runs]
    if not names or not names[0] or any(other != names[0] for other in names):
        return None
    return {spans[0].name: max(1, *(span.count for span in spans)) for spans in zip(*(run.phases for run in runs))}


def _positions(run: Timeline, widths: Mapping[str, int]) -> tuple[float, ...]:
    ends = []
    offset = 0
    for span in run.phases:
        ends.append((span.begin, span.count, offset, widths[span.name]))
        offset += widths[span.name]
    found, at = [], 0
    for made in run.allocations:
        while at + 1 < len(ends) and made > ends[at][0] + ends[at][1]:
            at += 1
        begin, count, place, width = ends[at]
        inside = (made - begin) / count * width if count else 0.0
        found.append(round(place + max(0.0, inside), 3))
    return tuple(found)
