"""Why a run needs more memory: capacity, fragmentation, external, or several of them.

A point needs `peak requested + stranded + external`. Requested is what tensors asked for: no allocator does with less.
Stranded is what the allocator cannot avoid holding besides, that is the needed capacity minus the other two: holes, and
what it rounds up or leaves uncut, which counts as allocated. Reserved minus requested is mostly cache that is given
back when memory is short, so it bounds what is stranded and proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

MIB = 1 << 20
Kind = Literal["capacity", "fragmentation", "external", "mixed", "unknown"]
Component = Literal["allocated", "fragmentation", "external"]
COMPONENTS: tuple[Component, ...] = ("allocated", "fragmentation", "external")
_KIND_OF: dict[Component, Kind] = {
    "allocated": "capacity",
    "fragmentation": "fragmentation",
    "external": "external",
}
_DOMINANT = 0.8
NOT_COUNTED = (
    "what was asked for was not counted: peak allocated has rests of blocks in it that another allocator may not need"
)


@dataclass(frozen=True, slots=True)
class PointMemory:
    """What is known of one point's memory, bytes.

    Args:
        peak_allocated, peak_reserved, external: as measured.
        needed_capacity: the smallest device on which it survives with its own allocator settings; None: not measured.
        needed_capacity_expandable: the same with expandable segments.
        fits: it survives within the limit.
        fits_expandable: the same with expandable segments; None: not tried.
        peak_requested: what its tensors asked for and held at the peak; None: not counted.
    """

    peak_allocated: int
    peak_reserved: int
    external: int = 0
    needed_capacity: int | None = None
    needed_capacity_expandable: int | None = None
    fits: bool = True
    fits_expandable: bool | None = None
    peak_requested: int | None = None

    @property
    def tensors(self) -> int:
        """What tensors take: as requested, or as allocated where only that was counted, which may be more."""
        return self.peak_allocated if self.peak_requested is None else self.peak_requested

    @property
    def floor(self) -> int:
        """What a perfect allocator needs; proved where what was requested was counted."""
        return self.tensors + self.external

    def exceeds(self, limit: int) -> bool:
        """Whether it is proved that no allocator can fit it within `limit`."""
        return self.peak_requested is not None and self.floor > limit

    def stranded(self, limit: int | None = None) -> tuple[int, int]:
        """Least and most bytes the allocator strands; equal where the needed capacity was measured.

        A point that fits `limit` strands no more than is left there, however coarsely its need was measured.
        """
        if self.needed_capacity is not None:
            least = most = max(0, self.needed_capacity - self.floor)
        else:
            least, most = 0, max(0, self.peak_reserved - self.tensors)
        if limit is not None and self.fits:
            most = min(most, max(0, limit - self.floor))
        return min(least, most), most

    @property
    def proves_stranding(self) -> bool:
        """Whether there is more evidence of stranded memory than reserved minus allocated."""
        return self.needed_capacity is not None or self.fits_expandable is True


@dataclass(frozen=True, slots=True)
class Classification:
    """The cause of a step or of a point that does not fit.

    Args:
        kind: the cause; `unknown` where the evidence does not carry a verdict.
        fragmentation_bytes: bytes stranded at the bad point beyond the good one; None: not measured.
        evidence: facts by name, plain values, ready for JSON.
    """

    kind: Kind
    fragmentation_bytes: int | None
    evidence: Mapping[str, object]


def classify(good: PointMemory, bad: PointMemory, limit: int | None = None, resolution: int = 0) -> Classification:
    """Classify the change from `good` (the parent) to `bad` (the culprit).

    Where it takes the run across `limit`, the cause is the smallest set of components whose return to the good value
    makes the bad point fit again; otherwise the component that the growth of needed capacity comes from.

    Args:
        resolution: bytes by which needed capacities may be off; smaller growth of stranded memory counts as none.
    """
    evidence: dict[str, object] = {"growth": _growth(good, bad), "notes": _notes(good, bad)}
    if good.peak_requested is None or bad.peak_requested is None:  # both by the same measure
        good, bad = replace(good, peak_requested=None), replace(bad, peak_requested=None)
    if bad.fits_expandable is not None:
        evidence["fits_with_expandable_segments"] = bad.fits_expandable
    for name, point in (("good", good), ("bad", bad)):
        if point.needed_capacity is not None:
            evidence[f"needed_capacity_{name}"] = point.needed_capacity
        if point.needed_capacity_expandable is not None:
            evidence[f"needed_capacity_expandable_{name}"] = point.needed_capacity_expandable
    if limit is not None and good.fits and not bad.fits:
        kind = _against_limit(good, bad, limit, resolution, evidence)
    else:
        kind = _of_growth(good, bad, resolution, evidence)
    stranded = _stranded_growth(good, bad, resolution)
    return Classification(kind, stranded, evidence)


def _growth(good: PointMemory, bad: PointMemory) -> dict[str, int | None]:
    counted = good.peak_requested is not None and bad.peak_requested is not None
    return {
        "requested": bad.tensors - good.tensors if counted else None,
        "allocated": bad.peak_allocated - good.peak_allocated,
        "reserved": bad.peak_reserved - good.peak_reserved,
        "external": bad.external - good.external,
    }


def _stranded_growth(good: PointMemory, bad: PointMemory, resolution: int) -> int | None:
    if good.needed_capacity is None or bad.needed_capacity is None:
        return None
    growth = bad.stranded()[0] - good.stranded()[0]
    return growth if abs(growth) > resolution else 0


def _against_limit(
    good: PointMemory, bad: PointMemory, limit: int, resolution: int, evidence: dict[str, object]
) -> Kind:
    """The smallest set of components whose return makes the bad point fit."""
    evidence["limit"] = limit
    evidence["over_limit_without_stranded"] = bad.floor - limit
    sure, possible = _remedies(good, bad, limit, resolution)
    evidence["would_fit_if_returned"] = [sorted(remedy) for remedy in sure]
    evidence["might_fit_if_returned"] = [sorted(remedy) for remedy in possible]
    size = min((len(remedy) for remedy in sure), default=len(COMPONENTS) + 1)
    if any(len(remedy) < size for remedy in possible) or not sure:
        return "unknown"
    if size > 1:
        return "mixed"
    gains: dict[Component, int] = {
        "allocated": bad.tensors - good.tensors,
        "fragmentation": _likely_stranded_growth(good, bad),
        "external": bad.external - good.external,
    }
    (largest,) = max((remedy for remedy in sure if len(remedy) == 1), key=lambda r: max(gains[c] for c in r))
    if largest == "fragmentation" and bad.fits_expandable is False:
        evidence["reason"] = (
            "less stranded memory would make it fit, yet with expandable segments it does not fit either: that another"
            " layout fits is not shown"
        )
        return "unknown"
    if largest == "allocated" and bad.peak_requested is None:
        evidence["reason"] = NOT_COUNTED
        return "unknown"
    return _KIND_OF[largest]


def _remedies(
    good: PointMemory, bad: PointMemory, limit: int, resolution: int
) -> tuple[list[frozenset[Component]], list[frozenset[Component]]]:
    """Sets of components whose return makes the bad point fit for certain, and those where that is not known."""
    good_stranded, bad_stranded = good.stranded(limit), bad.stranded(limit)
    if _stranded_growth(good, bad, resolution) == 0:
        bad_stranded = good_stranded
    elif bad.needed_capacity is None and bad.floor > limit:
        # No allocator could fit it: what is stranded besides was not measured and is not needed to tell why.
        bad_stranded = (0, 0)
    # Expandable segments strand next to nothing: that the run fits with them is the proof that a return would do.
    rescued = bad.fits_expandable is True and _likely_stranded_growth(good, bad) > resolution
    sure, possible = [], []
    for size in range(1, len(COMPONENTS) + 1):
        for chosen in combinations(COMPONENTS, size):
            remedy = frozenset(chosen)
            tensors = (good if "allocated" in remedy else bad).tensors
            external = (good if "external" in remedy else bad).external
            least, most = good_stranded if "fragmentation" in remedy else bad_stranded
            proven = "fragmentation" not in remedy or bad.proves_stranding
            if proven and (tensors + external + most <= limit or (remedy == {"fragmentation"} and rescued)):
                sure.append(remedy)
            elif tensors + external + least <= limit:
                possible.append(remedy)
    return sure, possible


def _likely_stranded_growth(good: PointMemory, bad: PointMemory) -> int:
    """Growth of stranded memory; of the cache where the needed capacity was not measured."""
    return bad.stranded()[1] - good.stranded()[1]


def _of_growth(good: PointMemory, bad: PointMemory, resolution: int, evidence: dict[str, object]) -> Kind:
    """The component that the growth of needed capacity comes from."""
    measured = good.needed_capacity is not None and bad.needed_capacity is not None
    stranded = _stranded_growth(good, bad, resolution)
    gains: dict[Component, int] = {
        "allocated": max(0, bad.tensors - good.tensors),
        "fragmentation": max(0, _likely_stranded_growth(good, bad) if stranded is None else stranded),
        "external": max(0, bad.external - good.external),
    }
    total = sum(gains.values())
    evidence["shares"] = {name: round(gain / total, 3) if total else 0.0 for name, gain in gains.items()}
    if not total:
        return "unknown"
    if not measured and gains["fragmentation"] > (1 - _DOMINANT) * total:
        evidence["missing"] = "the needed capacity of both points: reserved minus allocated alone proves nothing"
        return "unknown"
    largest = max(gains, key=lambda name: gains[name])
    return _KIND_OF[largest] if gains[largest] >= _DOMINANT * total else "mixed"


def _notes(good: PointMemory, bad: PointMemory) -> list[str]:
    """Growth of the size that library workspaces have: it comes from an upgrade, not from the model."""
    notes = []
    for name, growth in (
        ("allocated", bad.peak_allocated - good.peak_allocated),
        ("external", bad.external - good.external),
    ):
        if growth == 32 * MIB or 47 * MIB <= growth <= 50 * MIB:
            notes.append(f"the {name} growth has the size of a library's workspace: look for an upgraded library first")
    return notes
