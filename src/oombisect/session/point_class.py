"""Why one measurement does not fit, proved: by replays, and by a second run with expandable segments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oombisect.memory.classify import PointMemory
from oombisect.memory.point import classify_point
from oombisect.memory.ranks import asked
from oombisect.probing.workload import EXPANDABLE, Variation
from oombisect.readings import Outcome, RankReading
from oombisect.session.measuring import Measured, Measurer, Target
from oombisect.session.needs import Candidate, memory_of, needed_capacities, stranded_evidence


def why_it_does_not_fit(measurer: Measurer, target: Target, measured: Measured, limit: int) -> dict[str, Any]:
    """The class of a measurement that does not fit `limit` bytes, and its evidence; plain values, ready for JSON."""
    complete = measured.reading.outcome is Outcome.EXACT
    ranks = measurer.deciding(target, measured, limit)
    rank = max(ranks, key=lambda found: (asked(found) + found.external, found.peak_device))
    point = memory_of(measurer, measured, rank, fits=False)
    evidence: dict[str, Any] = {}
    if rank.oom is not None:
        counted = (point.peak_requested or 0) > (rank.peak_requested or 0)
        evidence = {"failed_request_bytes": rank.oom.requested, "failed_request_counted": counted}
    if not point.exceeds(limit):
        point, compared = _compared(measurer, target, measured, rank, limit, point)
        evidence |= compared
    found = classify_point(point, limit, complete=complete)
    return {"class": found.kind, "rank": rank.rank, **found.evidence, **evidence}


def _compared(
    measurer: Measurer, target: Target, measured: Measured, rank: RankReading, limit: int, point: PointMemory
) -> tuple[PointMemory, dict[str, Any]]:
    expandable = Variation(alloc_conf=EXPANDABLE)
    other = measurer.measure(target, "expandable", expandable, ranks=(rank.rank,))
    survives = measurer.fit(target, other, limit, expandable)
    plain = Candidate(target, measured)
    needs = needed_capacities(measurer, limit, rank.rank, [plain, Candidate(target, other, expandable)])
    needed, needed_expandable = needs.sizes
    known = replace(
        point,
        needed_capacity=needed,
        needed_capacity_expandable=needed_expandable,
        fits_expandable=survives.fits,
    )
    evidence = {
        "needed_capacity_method": needs.method,
        "resolution_bytes": needs.resolution,
        "expandable_segments": {
            "outcome": str(other.reading.outcome),
            "reason": other.reading.reason or None,
            "peak_allocated": other.reading.peak_allocated,
            "peak_reserved": other.reading.peak_reserved,
            "peak_device": other.reading.peak_device,
            "fits": survives.fits,
            "fits_by": survives.by,
        },
        "stranded": stranded_evidence(measurer, plain, rank.rank, limit),
    }
    return known, evidence
