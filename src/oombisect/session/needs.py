"""How much memory a measurement needs, and what it strands: by replays of its history, else by probes with a limit.

Reserved minus allocated proves nothing: it is mostly cache. What decides is the *needed capacity*, the smallest device
the run survives on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oombisect.memory.capacity import NeededCapacity
from oombisect.memory.classify import PointMemory
from oombisect.memory.live_sets import AFTER_PHASES, Phases
from oombisect.memory.ranks import asked
from oombisect.memory.replay import RESOLUTION
from oombisect.memory.stranded import Holder, Stranded, stranded
from oombisect.probing.workload import PLAIN, Variation
from oombisect.readings import Outcome, RankReading
from oombisect.session.measuring import Measured, Measurer, Target
from oombisect.session.replaying import History
from oombisect.units import MIB

_FINEST_PROBED = 64 * MIB
_MOST_HOLDERS = 5
_LEAST_SHARE = 50  # one part in so many of what is stranded is worth a line


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something measured whose need is asked: `variation` is how it was measured."""

    target: Target
    measured: Measured
    variation: Variation = PLAIN

    def rank(self, rank: int) -> RankReading | None:
        """What `rank` measured; None where the measurement is no exact one, so that no bound is known."""
        if self.measured.reading.outcome is not Outcome.EXACT:
            return None
        return next((found for found in self.measured.reading.ranks if found.rank == rank), None)


@dataclass(frozen=True, slots=True)
class Needs:
    """Needed capacities of several candidates, found the same way so that they compare; bytes, external included.

    Args:
        sizes: in the candidates' order; None where a candidate has none, or a probe told nothing.
        method: `replay` or `probes`.
        resolution: how far each may be above the true value.
    """

    sizes: tuple[int | None, ...]
    method: str
    resolution: int


def memory_of(measurer: Measurer, measured: Measured, rank: RankReading, fits: bool) -> PointMemory:
    """What is known of one rank of a measurement, before anything further is tried.

    Of a rank that ran out of memory, with what it asked for in vain.
    """
    requested = measurer.replays.peak_requested(measured.probe, rank)
    return PointMemory(asked(rank), rank.peak_reserved, rank.external, fits=fits, peak_requested=requested)


def needed_capacities(
    measurer: Measurer, limit: int, rank: int, candidates: Sequence[Candidate], coarse: int = _FINEST_PROBED
) -> Needs:
    """The smallest device that `rank` of each candidate survives on.

    Args:
        coarse: the resolution if probes must tell.
    """
    ranks = [candidate.rank(rank) for candidate in candidates]
    replayed = [
        None if found is None else measurer.replays.needed(candidate.measured.probe, found)
        for candidate, found in zip(candidates, ranks, strict=True)
    ]
    if all(size is not None for size, found in zip(replayed, ranks, strict=True) if found is not None):
        return Needs(tuple(replayed), "replay", RESOLUTION)
    resolution = max(_FINEST_PROBED, coarse)
    probed = tuple(
        None if found is None else _probed(measurer, limit, candidate, found, resolution)
        for candidate, found in zip(candidates, ranks, strict=True)
    )
    return Needs(probed, "probes", resolution)


def _probed(measurer: Measurer, limit: int, candidate: Candidate, rank: RankReading, resolution: int) -> int | None:
    floor = rank.external if rank.floor is None else rank.floor
    search = NeededCapacity.start(floor, rank.peak_device, resolution)
    if floor <= limit < rank.peak_device:
        fits = measurer.fits(candidate.target, candidate.measured, limit, candidate.variation)
        search = search if fits is None else search.observe(limit, fits)
    while (capacity := search.next()) is not None:
        survived = measurer.survives(candidate.target, rank, capacity, candidate.variation, "capacity")
        if survived is None:
            return None
        search = search.observe(capacity, survived)
    return search.result


def stranded_evidence(measurer: Measurer, candidate: Candidate, rank: int, limit: int) -> dict[str, Any] | None:
    """What the allocator strands where it runs out of memory under `limit`, or just below what it needs if it does not.

    None where no replay can tell, or the allocator strands nothing.
    """
    found = candidate.rank(rank)
    history = None if found is None else measurer.replays.history(candidate.measured.probe, found)
    if found is None or history is None:
        return None
    needed = measurer.replays.needed(candidate.measured.probe, found)
    if needed is None:
        return None
    enforced = limit if limit < needed else needed - RESOLUTION
    told = describe_stranded(history, enforced - found.external, found)
    return None if told is None else {"limit_bytes": enforced, "enforced": limit < needed, **told}


def describe_stranded(history: History, limit: int | None, rank: RankReading | None) -> dict[str, Any] | None:
    """The first request that fails under `limit` bytes of the allocator alone, and who holds what it could not get.

    `rank`: what the recorded rank read; None: not known, nor are its phases.
    """
    oom = history.replay(limit).first_oom
    if oom is None:
        return None
    held = stranded(oom.segments, history.requests, stream=oom.stream, pool=oom.pool, small=oom.small)
    return {
        "event": oom.event,
        "phase": _phase(history, oom.block, rank),
        "requested_bytes": oom.requested,
        "segment_bytes": oom.segment,
        "allocated_bytes": oom.allocated,
        "reserved_bytes": oom.reserved,
        "requested_by": history.frames(history.requests.stacks[oom.block]) if oom.block >= 0 else [],
        **_stranded_json(history, held),
    }


def _phase(history: History, block: int, rank: RankReading | None) -> str | None:
    """The phase that allocates a block of a history; None where that is not known."""
    if rank is None or not rank.phases or history.requests.initial or block < 0:
        return None
    phase = Phases(rank.phases).name(block)
    return rank.oom.phase if rank.oom and phase == AFTER_PHASES else phase


def _stranded_json(history: History, held: Stranded) -> dict[str, Any]:
    return {
        "stranded_bytes": held.total,
        "largest_free_bytes": held.largest,
        "of_other_streams_and_pools_bytes": held.usable_elsewhere,
        "idle_private_pools_bytes": held.idle,
        "holders": _holders_json(history, held.holders, held.total, "stranded_bytes"),
        "asked_for_bytes": held.requested,
        "rounding_bytes": held.rounding,
        "rounders": _holders_json(history, held.rounders, held.rounding, "rounding_bytes"),
    }


def _holders_json(history: History, holders: Sequence[Holder], total: int, name: str) -> list[dict[str, Any]]:
    """Those that hold most of `total` bytes nobody uses; `name`: what these are called."""
    return [
        {
            "stack": history.frames(holder.stack),
            "blocks": holder.blocks,
            "size_bytes": holder.size,
            name: holder.stranded,
            "never_freed": holder.forever,
        }
        for holder in holders[:_MOST_HOLDERS]
        if holder.stranded * _LEAST_SHARE >= total
    ]
