"""Keeps the derived tables: series over commits, their newest readings, steps and creep (db/migrations/005_series.sql).

A workload with readings that its series do not show yet is fitted again, the others are left alone. Several processes
may do so at once: a fit is written only over an older one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from oombisect.errors import OombisectError
from oombisect.history.connection import Connection
from oombisect.history.fit import Fit, fit
from oombisect.history.measurements import STORED_METRICS, Line, Metric, PointReading, lines, load
from oombisect.history.sqlite import Database

Row = dict[str, Any]
_MANY = 100
_STALE = "SELECT workload, changes FROM workload_changes WHERE fitted < changes ORDER BY workload"


def bring_up_to_date(
    path: Path,
    now: Callable[[], str],
    gpus: Mapping[str, int],
    *,
    busy_timeout: float = 30.0,
    say: Callable[[str], None] = lambda _: None,
) -> str | None:
    """Fit what is stale in the database `path`; why that cannot be done (it is read-only), or None.

    Args:
        gpus: capacities in bytes by name, for the table of that name.
        say: told, in a sentence, if it will take long.

    Raises:
        OombisectError: the database cannot be read, or is none of oombisect's.
    """
    looking = Connection(path, now, busy_timeout, readonly=True)
    try:
        with looking.reading() as db:
            stale = len(db.execute(_STALE).fetchall())
            if not stale and _gpus(db) == gpus:
                return None
    finally:
        looking.close()
    try:
        connection = Connection(path, now, busy_timeout, readonly=False)
    except OombisectError as error:
        return error.cause
    if stale > _MANY:
        say(f"fitting the series of {stale:,} workloads, once; what is done is kept")
    try:
        keep(connection, gpus)
    except OombisectError as error:
        return error.cause
    finally:
        connection.close()
    return None


def keep(connection: Connection, gpus: Mapping[str, int]) -> None:
    """Fit what is stale, one workload after the other: others may write in between."""
    with connection.reading() as db:
        stale = [(row["workload"], row["changes"]) for row in db.query(_STALE)]
        known = _gpus(db)
    if known != gpus:
        with connection.transaction() as db:
            db.execute("DELETE FROM gpus")
            db.conn.executemany("INSERT INTO gpus VALUES (?, ?)", gpus.items())
    for workload, _ in stale:
        with connection.reading() as db:
            changes = db.execute("SELECT changes FROM workload_changes WHERE workload = ?", [workload]).fetchone()[0]
            found = lines(load(db, workload))
        fitted = [one for line in found for metric in STORED_METRICS if (one := _fitted(line, metric))]
        with connection.transaction() as db:
            behind = "UPDATE workload_changes SET fitted = ? WHERE workload = ? AND fitted < ?"
            if db.execute(behind, [changes, workload, changes]).rowcount:
                _replace(db, workload, fitted)


def forget(db: Database, workloads: Iterable[int]) -> None:
    """Mark workloads as stale: what their series rest on, besides readings, has changed."""
    db.conn.executemany(
        "UPDATE workload_changes SET changes = changes + 1 WHERE workload = ?", [(workload,) for workload in workloads]
    )


def _gpus(db: Database) -> dict[str, int]:
    return dict(db.execute("SELECT name, capacity_bytes FROM gpus ORDER BY name").fetchall())


def _fitted(line: Line, metric: Metric) -> tuple[Line, Metric, list[PointReading], Fit] | None:
    readings = line.readings(metric)
    if not readings:
        return None
    return line, metric, readings, fit(line.samples(readings), exact=line.provenance == "simulated")


_OOM_SITES = """
INSERT INTO oom_sites
SELECT probes.workload, ooms.phase, count(*), count(DISTINCT probes.point), max(ooms.requested),
  max(ooms.reserved - ooms.allocated), max(probes.finished)
FROM probes JOIN ooms ON ooms.probe = probes.id
WHERE probes.workload = ? AND probes.outcome = 'censored' AND probes.capacity_bytes IS NULL
GROUP BY ooms.phase"""


def _replace(db: Database, workload: int, fitted: list[tuple[Line, Metric, list[PointReading], Fit]]) -> None:
    ours = "SELECT id FROM series WHERE workload = ?"
    for table in ("steps", "creeps"):
        db.execute(f"DELETE FROM {table} WHERE series IN ({ours})", [workload])  # noqa: S608  # names of ours
    db.execute("DELETE FROM series WHERE workload = ?", [workload])
    db.execute("DELETE FROM oom_sites WHERE workload = ?", [workload])
    db.execute(_OOM_SITES, [workload])
    for line, metric, readings, found in fitted:
        series = _insert(db, "series", _series_row(workload, line, metric, readings, found))
        ids = {reading.of.point: reading.of.point_id for reading in readings}
        for position, step in enumerate(found.steps):
            _insert(
                db,
                "steps",
                {
                    "series": series,
                    "position": position,
                    "point": ids[step.point],
                    "previous": ids[step.previous],
                    "metric": metric,
                    "delta_bytes": step.delta_bytes,
                    "before_bytes": step.before,
                    "after_bytes": step.after,
                    "at_least": int(step.at_least),
                    "state": step.state,
                    "left_bytes": step.left_bytes,
                    "taken_back_by": ids[step.taken_back_by] if step.taken_back_by else None,
                    "blurred": step.blurred,
                    "readings": step.readings,
                },
            )
        for position, creep in enumerate(found.creeps):
            _insert(
                db,
                "creeps",
                {
                    "series": series,
                    "position": position,
                    "first": ids[creep.first],
                    "last": ids[creep.last],
                    "metric": metric,
                    "delta_bytes": creep.delta_bytes,
                    "commits": creep.commits,
                    "changes": creep.changes,
                    "largest_bytes": creep.largest_bytes,
                },
            )


def _series_row(workload: int, line: Line, metric: Metric, readings: list[PointReading], found: Fit) -> Row:
    exact = [reading.value for reading in readings if reading.outcome == "exact" and reading.value is not None]
    latest = next((reading for reading in reversed(readings) if reading.value is not None), None)
    dates = [reading.of.committed for reading in readings if reading.of.committed]
    return {
        "workload": workload,
        "provenance": line.provenance,
        "repo": line.repo,
        "line": line.name,
        "metric": metric,
        "ordered_by": line.by,
        "exact": len(exact),
        "censored": sum(reading.outcome == "censored" for reading in readings),
        "unresolved": sum(reading.outcome == "unresolved" for reading in readings),
        "first_point": readings[0].of.point_id,
        "last_point": readings[-1].of.point_id,
        "last_committed": max(dates, default=None),
        "last_measured": max(m.taken for point in line.points for m in point),
        "lowest_bytes": min(exact, default=None),
        "highest_bytes": max(exact, default=None),
        "latest_bytes": latest.value if latest else None,
        "latest_outcome": latest.outcome if latest else None,
        "latest_point": latest.of.point_id if latest else None,
        "latest_probe": latest.of.probe if latest else None,
        "latest_imported_reading": latest.of.imported if latest else None,
        "noise_bytes": found.noise,
        "repeats": sum(reading.repeats > 1 for reading in readings),
        "repeat_spread_bytes": max((reading.spread for reading in readings), default=0),
    }


def _insert(db: Database, table: str, row: Row) -> int:
    columns = ", ".join(row)
    marks = ", ".join("?" * len(row))
    return db.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(row.values())).lastrowid or 0  # noqa: S608
