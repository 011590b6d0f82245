"""Why one measurement does not fit, proved: by replays, and by an A/B probe with expandable segments."""

from __future__ import annotations

from typing import Any

from oombisect.memory.classify import PointMemory
from oombisect.memory.point import classify_point
from oombisect.memory.ranks import asked
from oombisect.probing.workload import EXPANDABLE, Variation
from oombisect.readings import Outcome, RankReading
from oombisect.session.measuring import Measured, Measurer, Target
from oombisect.session.needs import Candidate, needed_capacities, stranded_evidence


def why_it_does_not_fit(measurer: Measurer, target: Target, measured: Measured, limit: int) -> dict[str, Any]:
    """The class of a measurement that does not fit `limit` bytes, and its evidence; plain values, ready for JSON."""
    complete = measured.reading.outcome is Outcome.EXACT
    ranks = measurer.deciding(target, measured, limit)
    rank = max(ranks, key=lambda found: (asked(found) + found.external, found.peak_device))
    point = PointMemory(asked(rank), rank.peak_reserved, rank.external, fits=False)
    evidence: dict[str, Any] = {}
    if point.floor <= limit:
        point, evidence = _compared(measurer, target, measured, rank, limit, point)
    found = classify_point(point, limit, complete=complete)
    return {"class": found.kind, "rank": rank.rank, **found.evidence, **evidence}


def _compared(
    measurer: Measurer, target: Target, measured: Measured, rank: RankReading, limit: int, point: PointMemory
) -> tuple[PointMemory, dict[str, Any]]:
    expandable = Variation(alloc_conf=EXPANDABLE)
    other = measurer.measure(target, "expandable", expandable, ranks=(rank.rank,))
    survives = measurer.fits(target, other, limit, expandable)
    plain = Candidate(target, measured)
    needs = needed_capacities(measurer, limit, rank.rank, [plain, Candidate(target, other, expandable)])
    needed, needed_expandable = needs.sizes
    known = PointMemory(
        point.peak_allocated,
        point.peak_reserved,
        point.external,
        needed_capacity=needed,
        needed_capacity_expandable=needed_expandable,
        fits=False,
        fits_expandable=survives,
    )
    evidence = {
        "needed_capacity_method": needs.method,
        "resolution_bytes": needs.resolution,
        "expandable_segments": {
            "outcome": str(other.reading.outcome),
            "reason": other.reading.reason or None,
            "peak_allocated": other.reading.peak_allocated,
            "peak_reserved": other.reading.peak_reserved,
            "fits": survives,
        },
        "stranded": stranded_evidence(measurer, plain, rank.rank, limit),
    }
    return known, evidence
