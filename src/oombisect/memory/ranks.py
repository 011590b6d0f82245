"""The ranks of one run against a limit: which do not fit, what the others have to spare, and why they differ. Pure.

Ranks run on devices of the same size, so the one that needs most decides. Why one does not fit where another does is
the question `classify` answers of two points, asked of two ranks: the smallest set of {peak requested, stranded memory,
memory outside PyTorch} whose change to the other rank's value makes it fit. Too much asked for is **imbalance** here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from oombisect.memory.classify import PointMemory, classify
from oombisect.readings import RankReading
from oombisect.units import format_apart, format_bytes, format_delta

Cause = Literal["imbalance", "fragmentation", "external", "mixed", "unknown"]

_CAUSES: dict[str, Cause] = {
    "capacity": "imbalance",
    "fragmentation": "fragmentation",
    "external": "external",
    "mixed": "mixed",
}
_WORTH_SAYING = 0.1  # of the largest peak
_USUAL_CAUSES = (
    "usual causes: the first and the last pipeline stage hold the embedding and the output layer besides their layers,"
    " early stages hold more micro-batches in flight, experts get unequal shares of the tokens"
)
_WORDS: dict[Cause, str] = {
    "imbalance": "imbalance",
    "fragmentation": "fragmentation",
    "external": "memory outside PyTorch",
    "mixed": "no one of these explains it alone",
    "unknown": "which of these decides is not known",
}


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One rank against the limit; bytes.

    Args:
        peak_allocated: with what it asked for in vain, if it ran out of memory.
        peak_requested: what its tensors asked for and held at the peak, with what it asked for in vain if its history
            tells that. None: not counted.
        needed_capacity: the smallest device it survives on, external memory included; None: not known.
        fits: None: not known.
        headroom: limit minus what it needs: exact where the needed capacity is known, else at least that; below zero,
            what it lacks. None: not known.
        died: it ran out of memory, so that its peaks are lower bounds.
    """

    rank: int
    peak_allocated: int
    peak_reserved: int
    external: int
    needed_capacity: int | None
    fits: bool | None
    headroom: int | None
    died: bool
    peak_requested: int | None = None

    @property
    def point(self) -> PointMemory:
        """What `classify` takes."""
        return PointMemory(
            self.peak_allocated,
            self.peak_reserved,
            self.external,
            self.needed_capacity,
            fits=self.fits is True,
            peak_requested=self.peak_requested,
        )

    @property
    def needs(self) -> int:
        """What it is known to need: what was asked for at the peak and external memory at least."""
        return max(self.needed_capacity or 0, (self.peak_requested or 0) + self.external)


@dataclass(frozen=True, slots=True)
class Excess:
    """Why a rank does not fit where `other` does; bytes more than there.

    `stranded` None: not measured on both. `requested` None: not counted on both. With external they sum to what it
    needs more.
    """

    rank: int
    other: int
    cause: Cause
    allocated: int
    requested: int | None
    external: int
    stranded: int | None


@dataclass(frozen=True, slots=True)
class RankFindings:
    """What the ranks of a run show beside each other.

    Args:
        excesses: one for each rank that does not fit, where another does.
    """

    limit: int
    ranks: tuple[RankMemory, ...]
    excesses: tuple[Excess, ...]

    @property
    def over(self) -> tuple[RankMemory, ...]:
        """Those that do not fit, the one that needs most first."""
        return tuple(sorted((r for r in self.ranks if r.fits is False), key=lambda r: (-r.needs, r.rank)))

    @property
    def least_headroom(self) -> RankMemory | None:
        """Of those that fit, the one with the least to spare."""
        return min((r for r in self.ranks if r.fits), key=lambda r: (r.headroom or 0, r.rank), default=None)

    @property
    def largest(self) -> RankMemory:
        """The rank with the largest peak allocated (ties: the lowest rank)."""
        return max(self.ranks, key=lambda r: (r.peak_allocated, -r.rank))

    @property
    def smallest(self) -> RankMemory:
        """The rank with the smallest peak allocated (ties: the lowest rank)."""
        return min(self.ranks, key=lambda r: (r.peak_allocated, r.rank))

    @property
    def imbalance(self) -> float:
        """The largest peak allocated over the mean; 1 is even."""
        mean = fmean(r.peak_allocated for r in self.ranks)
        return self.largest.peak_allocated / mean if mean else 1.0

    def sentences(self) -> tuple[str, ...]:
        """For people: which ranks do not fit and why, and how uneven they are; none where there is nothing to tell."""
        told = []
        fitting = self.least_headroom
        if self.over and fitting:
            told.append(self._who(fitting))
            told.append(self._why(self.excesses[0]))
            told += [_USUAL_CAUSES] if self.excesses[0].cause == "imbalance" else []
        elif self.over and len(self.over) == len(self.ranks):
            told.append(f"none of the {len(self.ranks)} ranks measured fits")
        uneven = self.largest.peak_allocated - self.smallest.peak_allocated
        if uneven >= _WORTH_SAYING * self.largest.peak_allocated:
            told.append(self._uneven())
        return tuple(told)

    def to_json(self) -> dict[str, Any]:
        """Plain values; the contract in docs/json.md."""
        return {
            "limit_bytes": self.limit,
            "ranks": [
                {
                    "rank": r.rank,
                    "peak_allocated": r.peak_allocated,
                    "peak_requested": r.peak_requested,
                    "external": r.external,
                    "needed_capacity": r.needed_capacity,
                    "fits": r.fits,
                    "headroom_bytes": r.headroom,
                    "is_lower_bound": r.died,
                }
                for r in self.ranks
            ],
            "do_not_fit": [r.rank for r in self.over],
            "least_headroom_rank": self.least_headroom.rank if self.least_headroom else None,
            "largest_rank": self.largest.rank,
            "smallest_rank": self.smallest.rank,
            "imbalance": round(self.imbalance, 4),
            "excesses": [
                {
                    "rank": e.rank,
                    "compared_with": e.other,
                    "cause": e.cause,
                    "allocated_bytes": e.allocated,
                    "requested_bytes": e.requested,
                    "external_bytes": e.external,
                    "stranded_bytes": e.stranded,
                }
                for e in self.excesses
            ],
            "sentences": list(self.sentences()),
        }

    def _who(self, fitting: RankMemory) -> str:
        worst = self.over[0]
        if len(self.over) == 1:
            alone = "" if any(r.fits is None for r in self.ranks) else " alone"
            who = f"rank {worst.rank}{alone} does not fit: it"
        else:
            names = ", ".join(str(r.rank) for r in sorted(self.over, key=lambda r: r.rank))
            who = f"ranks {names} do not fit: rank {worst.rank}"
        fit = sum(r.fits is True for r in self.ranks)
        rest = f"rank {fitting.rank} has" if fit == 1 else f"the {fit} that fit have"
        return f"{who} {self._need(worst)}, {rest} at least {format_bytes(fitting.headroom or 0)} to spare"

    def _need(self, rank: RankMemory) -> str:
        needs, limit = format_apart(rank.needs, self.limit)
        if rank.needs <= self.limit:
            what = "what it asked for and memory outside PyTorch are"
            return f"runs out of memory within {limit}, although {what} {'at least ' if rank.died else ''}{needs}"
        bound = "at least " if rank.died or rank.needed_capacity is None else ""
        return f"needs {bound}{needs} of {limit}"

    @staticmethod
    def _why(excess: Excess) -> str:
        held = "stranded not measured" if excess.stranded is None else f"{format_delta(excess.stranded)} stranded"
        tensors = f"{format_delta(excess.allocated)} peak allocated"
        if excess.requested is not None:
            tensors = f"{format_delta(excess.requested)} asked for at the peak"
        return (
            f"rank {excess.rank} against rank {excess.other}: {tensors}, {held},"
            f" {format_delta(excess.external)} outside PyTorch: {_WORDS[excess.cause]}"
        )

    def _uneven(self) -> str:
        largest, smallest = self.largest, self.smallest
        bound = "at least " if largest.died else ""
        most, least = format_apart(largest.peak_allocated, smallest.peak_allocated)
        return f"peak allocated is uneven: {bound}{most} on rank {largest.rank}, {least} on rank {smallest.rank}"


def compare_ranks(
    ranks: Sequence[RankReading],
    limit: int,
    needed: Mapping[int, int] | None = None,
    *,
    requested: Mapping[int, int] | None = None,
    fits: bool | None = None,
) -> RankFindings | None:
    """What the measured ranks of one run show beside each other; None for fewer than two.

    Args:
        limit: device memory each must fit in, bytes.
        needed: needed capacities by rank, bytes, external memory included, where they are known.
        requested: the most that ranks which ran out of memory had asked for, that request included, bytes, where known.
        fits: whether the run as a whole fits, if known: it tells of a rank in doubt where only one is.
    """
    if len(ranks) < 2:
        return None
    found = [
        _memory(rank, limit, (needed or {}).get(rank.rank), (requested or {}).get(rank.rank, rank.peak_requested))
        for rank in ranks
    ]
    doubtful = [r for r in found if r.fits is None]
    if fits is False and len(doubtful) == 1 and all(r.fits for r in found if r is not doubtful[0]):
        found[found.index(doubtful[0])] = _with_fits(doubtful[0], limit, False)
    elif fits is True:
        found = [_with_fits(r, limit, True) if r.fits is None else r for r in found]
    findings = RankFindings(limit, tuple(sorted(found, key=lambda r: r.rank)), ())
    return replace(findings, excesses=tuple(_excesses(findings)))


def asked(rank: RankReading) -> int:
    """The most a rank had allocated, with what it asked for when it ran out of memory; bytes."""
    if rank.oom is None:
        return rank.peak_allocated
    return max(rank.peak_allocated, (rank.oom.allocated or 0) + (rank.oom.requested or 0))


def _memory(rank: RankReading, limit: int, needed: int | None, requested: int | None) -> RankMemory:
    died = rank.oom is not None
    known = RankMemory(rank.rank, asked(rank), rank.peak_reserved, rank.external, needed, None, None, died, requested)
    if died or known.needs > limit:
        return _with_fits(known, limit, False)
    if needed is not None or rank.peak_device <= limit:
        return _with_fits(known, limit, True)
    return known


def _with_fits(known: RankMemory, limit: int, fits: bool) -> RankMemory:
    headroom: int | None = limit - known.needs
    if not fits and known.needs <= limit:
        headroom = None
    elif fits and known.needed_capacity is None:
        headroom = max(0, limit - known.peak_reserved - known.external)
    return replace(known, fits=fits, headroom=headroom)


def _excesses(findings: RankFindings) -> list[Excess]:
    """Each rank that does not fit against the one that fits and needs most: the nearest it would have to come to."""
    others = [r for r in findings.ranks if r.fits]
    if not others:
        return []
    other = max(others, key=lambda r: (r.needs, -r.rank))
    told = []
    for rank in findings.over:
        stranded = requested = None
        if rank.peak_requested is not None and other.peak_requested is not None:
            requested = rank.peak_requested - other.peak_requested
        if rank.needed_capacity is not None and other.needed_capacity is not None:
            stranded = rank.point.stranded()[0] - other.point.stranded()[0]
        told.append(
            Excess(
                rank.rank,
                other.rank,
                _cause(rank, other, findings.limit),
                rank.peak_allocated - other.peak_allocated,
                requested,
                rank.external - other.external,
                stranded,
            )
        )
    return told


def _cause(rank: RankMemory, other: RankMemory, limit: int) -> Cause:
    if rank.died and rank.needs <= limit:
        return "unknown"  # what else it would have needed was not seen
    return _CAUSES.get(classify(other.point, rank.point, limit).kind, "unknown")
