"""The measurements of a workload as rows, and the rows of a point as the one sample that a series shows. Pure but for
`load`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Literal

from oombisect.history.fit import Sample
from oombisect.history.sqlite import Database

Metric = Literal["allocated", "reserved", "device", "external", "cached"]
Order = Literal["first-parent", "source", "date"]
STORED_METRICS: tuple[Metric, ...] = ("allocated", "reserved", "device", "external")
METRICS: tuple[Metric, ...] = (*STORED_METRICS, "cached")


@dataclass(frozen=True, slots=True)
class Measurement:
    """A row of the view `measurements`, and where and when it was taken. Sizes are bytes, None where not told.

    Args:
        point_id: the row of `points`.
        line, place: as in the table `places`; None: not known.
        rank: None: the worst of all ranks.
        conditions: equal where nothing but chance can make two readings of a point differ.
        config: the row of `configs`; None: not told.
    """

    provenance: str
    repo: str
    point_id: int
    point: str
    subject: str
    committed: str | None
    position: int | None
    line: str | None
    place: int | None
    rank: int | None
    outcome: str
    reason: str
    allocated: int | None
    reserved: int | None
    device: int | None
    external: int | None
    probe: int | None
    imported: int | None
    taken: str
    conditions: tuple[Any, ...] = ()
    config: int | None = None

    def size(self, metric: Metric) -> int | None:
        """Its size, bytes."""
        if metric == "cached":
            return None if self.reserved is None or self.allocated is None else self.reserved - self.allocated
        size: int | None = getattr(self, metric)
        return size


@dataclass(frozen=True, slots=True)
class PointReading:
    """What a series shows at a point.

    Args:
        value: bytes; a lower bound if `outcome` is `censored`; None: unresolved.
        of: the measurement it is, the newest of equal ones.
        repeats: how often it was measured under the same conditions; `spread`: how far those were apart, bytes.
    """

    outcome: str
    value: int | None
    of: Measurement
    repeats: int = 1
    spread: int = 0


_ROWS = """
SELECT m.provenance, m.repo, points.id AS point_id, m.point, m.subject, m.committed, m.position,
  places.line, places.position AS place, m.rank, m.outcome, m.reason,
  m.peak_allocated AS allocated, m.peak_reserved AS reserved, m.peak_device AS device, m.external,
  m.probe, m.imported_reading AS imported,
  coalesce(probes.finished, imports.imported) AS taken, probes.environment, probes.probe_version,
  m.config
FROM measurements AS m
JOIN points ON points.repo = m.repo AND points.key = m.point
LEFT JOIN places ON places.point = points.id
LEFT JOIN probes ON probes.id = m.probe
LEFT JOIN imported_readings ON imported_readings.id = m.imported_reading
LEFT JOIN imports ON imports.id = imported_readings.import
WHERE m.workload = ?"""
_RANKS = """
SELECT rank_readings.probe, rank_readings.peak_allocated AS allocated, rank_readings.peak_reserved AS reserved,
  rank_readings.peak_device AS device, rank_readings.external
FROM probes JOIN rank_readings ON rank_readings.probe = probes.id
WHERE probes.workload = ? AND rank_readings.rank = ?"""


def load(db: Database, workload: int, rank: int | None = None) -> list[Measurement]:
    """The measurements of a workload, in no order.

    Args:
        rank: of this rank alone; None: the worst of all ranks that were read.
    """
    rows = list(db.query(_ROWS, [workload]))
    if rank is not None:
        sizes = {row.pop("probe"): row for row in list(db.query(_RANKS, [workload, rank]))}
        own = [row for row in rows if row["probe"] in sizes or row["rank"] == rank or row["outcome"] == "unresolved"]
        rows = [row | sizes.get(row["probe"], {}) | {"rank": rank} for row in own]
    return [_measurement(row) for row in rows]


def _measurement(row: dict[str, Any]) -> Measurement:
    conditions = row.pop("environment"), row.pop("probe_version")
    return Measurement(**row, conditions=conditions)


def reading_at(measurements: Sequence[Measurement], metric: Metric) -> PointReading:
    """What those of one point come to.

    Exact ones count before censored ones, these before unresolved ones: what once came to its end can be measured.
    Of the newest conditions the middle reading counts; of several ranks the one that takes most.
    """
    newest_last = sorted(measurements, key=lambda m: (m.taken, m.probe or m.imported or 0))
    exact = [(m, size) for m in newest_last if m.outcome == "exact" and (size := m.size(metric)) is not None]
    out = [m for m in newest_last if m.outcome == "censored"]
    if not exact and not out:
        return PointReading("unresolved", None, newest_last[-1])
    if not exact:
        most = max(out, key=lambda m: m.size(metric) or 0)
        return PointReading("censored", most.size(metric) or 0, most)
    ranks: dict[int | None, list[tuple[Measurement, int]]] = defaultdict(list)
    for m, size in exact:
        if m.conditions == exact[-1][0].conditions:
            ranks[m.rank].append((m, size))
    return max((_middle(alike) for alike in ranks.values()), key=lambda reading: reading.value or 0)


def _is_untold(measurements: Sequence[Measurement], metric: Metric) -> bool:
    """Whether a point was measured, but not in this metric, as only an import can be."""
    resolved = [m for m in measurements if m.outcome != "unresolved"]
    return bool(resolved) and all(m.size(metric) is None for m in resolved)


def _middle(alike: Sequence[tuple[Measurement, int]]) -> PointReading:
    sizes = [size for _, size in alike]
    middle = median_low(sizes)
    of = next(m for m, size in reversed(alike) if size == middle)
    return PointReading("exact", middle, of, len(alike), max(sizes) - min(sizes))


@dataclass(frozen=True, slots=True)
class Line:
    """The readings of one workload along one line of commits, in order, one for each point.

    Args:
        name: "" is the main line, or (not `by` first-parent) whatever there is.
        by: what the order is: first parents of a repository that was at hand, the source's, or commit dates.
    """

    provenance: str
    repo: str
    name: str
    by: Order
    points: tuple[tuple[Measurement, ...], ...]

    def readings(self, metric: Metric) -> list[PointReading]:
        """What the series of that metric shows, point by point, without those whose source does not tell of it; where
        no point does, nothing."""
        if not any(m.outcome != "unresolved" and m.size(metric) is not None for point in self.points for m in point):
            return []
        return [reading_at(point, metric) for point in self.points if not _is_untold(point, metric)]

    def samples(self, readings: Iterable[PointReading]) -> list[Sample]:
        """The readings as the fit takes them. Without a repository a place is just the order."""
        return [
            Sample(
                reading.of.point,
                reading.of.place if self.by == "first-parent" and reading.of.place is not None else number,
                reading.value,
                reading.outcome == "censored",
            )
            for number, reading in enumerate(readings)
        ]


def lines(measurements: Iterable[Measurement]) -> list[Line]:
    """The measurements of a workload, taken apart by provenance, repository and line: no series mixes two of them."""
    apart: dict[tuple[str, str, str], dict[int, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for m in measurements:
        apart[m.provenance, m.repo, m.line or ""][m.point_id].append(m)
    found = []
    for (provenance, repo, name), points in sorted(apart.items()):
        by, key = _order([m for point in points.values() for m in point])
        ordered = sorted((tuple(point) for point in points.values()), key=lambda point: key(point[0]))
        found.append(Line(provenance, repo, name, by, tuple(ordered)))
    return found


def _order(measurements: Sequence[Measurement]) -> tuple[Order, Callable[[Measurement], tuple[Any, ...]]]:
    if all(m.place is not None for m in measurements):
        return "first-parent", lambda m: (m.place, m.point)
    if all(m.position is not None for m in measurements):
        return "source", lambda m: (m.position, m.committed or "", m.point)
    return "date", lambda m: (m.committed or "", m.position or 0, m.point_id)
