"""The ranks of one measurement beside each other, with what their histories tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oombisect.memory.ranks import RankFindings, compare_ranks
from oombisect.readings import Outcome
from oombisect.session.measuring import Measured, Measurer


def rank_findings(
    measurer: Measurer, measured: Measured, limit: int, fits: bool | None, found: Mapping[str, Any] | None = None
) -> RankFindings | None:
    """What the measured ranks show beside each other under `limit` bytes; None for fewer than two.

    Args:
        fits: whether the run as a whole fits.
        found: `why_it_does_not_fit` of the measurement, where that was asked: it may have a need that a probe found.
    """
    ranks = measured.reading.ranks
    if len(ranks) < 2:
        return None
    needed: dict[int, int] = {}
    if fits is False and measured.reading.outcome is Outcome.EXACT:
        sizes = {rank.rank: measurer.replays.needed(measured.probe, rank) for rank in ranks}
        needed = {rank: size for rank, size in sizes.items() if size is not None}
    if found is not None and found.get("needed_capacity") is not None:
        needed.setdefault(found["rank"], found["needed_capacity"])
    told = {rank.rank: measurer.replays.peak_requested(measured.probe, rank) for rank in ranks if rank.oom}
    requested = {rank: size for rank, size in told.items() if size is not None}
    return compare_ranks(ranks, limit, needed, requested=requested, fits=fits)
