"""Why one run does not fit: too much is needed, or what is needed cannot be laid out. Pure.

The definitions: **capacity** if peak allocated and external memory exceed the limit, so that no allocator can fit the
run; **fragmentation** if they do not, and still it runs out of memory. What external memory may have to do with it
shows only against another run (`classify`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from oombisect.memory.classify import PointMemory

PointKind = Literal["fits", "capacity", "fragmentation", "unknown"]


@dataclass(frozen=True, slots=True)
class PointClass:
    """The class of one run under a limit; `evidence` holds facts by name, plain values, ready for JSON."""

    kind: PointKind
    evidence: Mapping[str, object]


def classify_point(point: PointMemory, limit: int, *, complete: bool = True) -> PointClass:
    """Classify a run against `limit` bytes.

    Args:
        point: what is known of it. Of a run that ran out of memory, peak allocated includes what it then asked for.
        complete: the run came to its end. If not, its peak is a lower bound: it proves that too much is needed, but
            never that what is needed would have fitted.
    """
    evidence: dict[str, object] = {
        "limit": limit,
        "perfect_allocator_needs": point.floor,
        "perfect_allocator_is_lower_bound": not complete,
        "reserved_minus_allocated": max(0, point.peak_reserved - point.peak_allocated),
    }
    if point.needed_capacity is not None:
        evidence["needed_capacity"] = point.needed_capacity
        evidence["stranded_bytes"] = max(0, point.needed_capacity - point.floor)
    if point.needed_capacity_expandable is not None:
        evidence["needed_capacity_expandable"] = point.needed_capacity_expandable
    if point.fits_expandable is not None:
        evidence["fits_with_expandable_segments"] = point.fits_expandable
    return PointClass(_kind(point, limit, complete), evidence)


def _kind(point: PointMemory, limit: int, complete: bool) -> PointKind:
    if point.fits:
        return "fits"
    if point.floor > limit:
        return "capacity"
    if complete or point.fits_expandable is True:
        return "fragmentation"
    return "unknown"
