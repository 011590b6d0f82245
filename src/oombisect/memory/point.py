"""Why one run does not fit: too much is needed, or what is needed cannot be laid out. Pure.

The definitions: **capacity** if what was asked for at the peak and external memory exceed the limit, so that no
allocator can fit the run; **fragmentation** if they do not, it runs out of memory all the same, and another layout is
shown to fit: with expandable segments. What external memory may have to do with it shows only against another run
(`classify`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from oombisect.memory.classify import NOT_COUNTED, PointMemory

PointKind = Literal["fits", "capacity", "fragmentation", "unknown"]


@dataclass(frozen=True, slots=True)
class PointClass:
    """The class of one run under a limit; `evidence` holds facts by name, plain values, ready for JSON."""

    kind: PointKind
    evidence: Mapping[str, object]


def classify_point(point: PointMemory, limit: int, *, complete: bool = True) -> PointClass:
    """Classify a run against `limit` bytes.

    Args:
        point: what is known of it. Of a run that ran out of memory, its peaks include what it then asked for.
        complete: the run came to its end. If not, its peak is a lower bound: it proves that too much is needed, but
            never that what is needed would have fitted.
    """
    kind, reason = _kind(point, limit, complete)
    evidence: dict[str, object] = {
        "limit": limit,
        "perfect_allocator_needs": point.floor,
        "perfect_allocator_is_lower_bound": not complete,
        "requested_counted": point.peak_requested is not None,
        "reserved_minus_allocated": max(0, point.peak_reserved - point.peak_allocated),
    }
    if point.needed_capacity is not None:
        evidence["needed_capacity"] = point.needed_capacity
        evidence["stranded_bytes"] = max(0, point.needed_capacity - point.floor)
    if point.needed_capacity_expandable is not None:
        evidence["needed_capacity_expandable"] = point.needed_capacity_expandable
    if point.fits_expandable is not None:
        evidence["fits_with_expandable_segments"] = point.fits_expandable
    if reason:
        evidence["reason"] = reason
    return PointClass(kind, evidence)


def _kind(point: PointMemory, limit: int, complete: bool) -> tuple[PointKind, str]:
    """The class, and why it is none."""
    if point.fits:
        return "fits", ""
    if point.exceeds(limit):
        return "capacity", ""
    if point.fits_expandable is True:
        return "fragmentation", ""
    if not complete:
        return "unknown", "it ran out of memory before its end: what it would have asked for next is not known"
    if point.floor > limit:
        return "unknown", NOT_COUNTED
    either = point.fits_expandable is False
    tried = "it does not fit with expandable segments either" if either else "expandable segments told nothing"
    return "unknown", f"a perfect allocator would fit it, but no real layout is shown to: {tried}"
