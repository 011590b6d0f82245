"""Readings as rows and rows as readings: nothing is lost on the way, and the reading itself computes its summaries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from oombisect.history.records import Event, ProbeSpec, SessionSpec, SessionState, StoredProbe, StoredSession
from oombisect.history.signature import canonical_json
from oombisect.history.sqlite import Database
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading, Reading

Row = dict[str, Any]
_PHASE_COLUMNS = tuple(field.name for field in fields(PhaseMetrics))
_OOM_COLUMNS = tuple(field.name for field in fields(Oom))


def text(value: str) -> str:
    """`value` with what UTF-8 cannot hold (lone surrogates, from undecodable file names) written out as escapes."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def time_text(value: datetime) -> str:
    """UTC, ISO 8601, microseconds: such texts sort as the times do."""
    if value.tzinfo is None:
        raise ValueError("a time without a time zone cannot be stored")
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _time(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)


def summary(reading: Reading) -> Row:
    """The columns of `probes` that a reading fills in, but for those that refer to other tables."""
    worst = reading.worst
    return {
        "outcome": str(reading.outcome),
        "reason": text(reading.reason),
        "recipe_function": text(reading.recipe_function),
        "world_size": reading.world_size,
        "attention_backend": text(reading.attention_backend),
        "notes": canonical_json(list(reading.notes)),
        "worst_rank": worst.rank if worst else None,
        "peak_allocated": reading.peak_allocated if worst else None,
        "peak_reserved": reading.peak_reserved if worst else None,
        "peak_device": reading.peak_device if worst else None,
        "external": reading.external if worst else None,
    }


def rank_rows(probe: int, reading: Reading) -> list[Row]:
    """The rows of `rank_readings`."""
    return [
        {
            "probe": probe,
            "rank": rank.rank,
            "position": position,
            "peak_allocated": rank.peak_allocated,
            "peak_reserved": rank.peak_reserved,
            "peak_active": rank.peak("active"),
            "peak_requested": rank.peak("requested"),
            "peak_inactive_split": rank.peak("inactive_split"),
            "peak_device": rank.peak_device,
            "external": rank.external,
            "allocations": rank.allocations,
            "alloc_retries": sum(phase.alloc_retries for phase in rank.phases.values()),
            "ooms": sum(phase.ooms for phase in rank.phases.values()),
            "trace": rank.trace,
        }
        for position, rank in enumerate(reading.ranks)
    ]


def phase_rows(probe: int, reading: Reading) -> list[Row]:
    """The rows of `phase_metrics`."""
    return [
        {"probe": probe, "rank": rank.rank, "position": position, "phase": text(name), **asdict(phase)}
        for rank in reading.ranks
        for position, (name, phase) in enumerate(rank.phases.items())
    ]


def oom_rows(probe: int, reading: Reading) -> list[Row]:
    """The rows of `ooms`."""
    rows = []
    for rank in reading.ranks:
        if rank.oom:
            row = {"probe": probe, "rank": rank.rank, **asdict(rank.oom)}
            rows.append(row | {"phase": text(rank.oom.phase), "message": text(rank.oom.message)})
    return rows


def snapshot_rows(probe: int, reading: Reading, root: Path, folder: str) -> list[Row]:
    """The rows of `snapshots`; sizes and hashes are read from the files.

    Args:
        root: the artifacts folder.
        folder: the probe's folder in it; the reading names its snapshots relative to this.
    """
    rows = []
    for rank in reading.ranks:
        if rank.snapshot is None:
            continue
        name = PurePosixPath(rank.snapshot)
        if name.is_absolute() or ".." in name.parts:
            raise ValueError(f"snapshot {rank.snapshot!r} is not inside its probe's folder")
        path = f"{folder}/{text(rank.snapshot)}"
        row: Row = {"probe": probe, "rank": rank.rank, "path": path, "size_bytes": None, "sha256": None}
        if (root / path).is_file():
            with (root / path).open("rb") as file:
                row["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
                row["size_bytes"] = file.tell()
        rows.append(row)
    return rows


def _ranks(db: Database, probe: int, folder: str) -> tuple[RankReading, ...]:
    phases: dict[int, dict[str, PhaseMetrics]] = {}
    for row in db["phase_metrics"].rows_where("probe = ?", [probe], order_by="rank, position"):
        metrics = PhaseMetrics(**{name: row[name] for name in _PHASE_COLUMNS})
        phases.setdefault(row["rank"], {})[row["phase"]] = metrics
    ooms = {
        row["rank"]: Oom(**{name: row[name] for name in _OOM_COLUMNS})
        for row in db["ooms"].rows_where("probe = ?", [probe])
    }
    snapshots = {
        row["rank"]: row["path"].removeprefix(f"{folder}/") for row in db["snapshots"].rows_where("probe = ?", [probe])
    }
    return tuple(
        RankReading(
            rank=row["rank"],
            phases=phases.get(row["rank"], {}),
            external=row["external"],
            oom=ooms.get(row["rank"]),
            snapshot=snapshots.get(row["rank"]),
            trace=row["trace"],
        )
        for row in db["rank_readings"].rows_where("probe = ?", [probe], order_by="position")
    )


_PROBES = """
SELECT probes.*, workloads.recipe, workloads.device, workloads.simulated, workloads.settings,
  points.repo, points.key, points.subject, points.committed, jobs.job,
  configs.hash AS config_hash, environments.versions, import_sets.files
FROM probes
JOIN workloads ON workloads.id = probes.workload
JOIN points ON points.id = probes.point
JOIN jobs ON jobs.probe = probes.id
LEFT JOIN configs ON configs.id = probes.config
LEFT JOIN environments ON environments.id = probes.environment
LEFT JOIN import_sets ON import_sets.id = probes.import_set
"""


def load_probes(db: Database, where: str, values: Mapping[str, Any]) -> list[StoredProbe]:
    """The probes that `where` (written by us, `:name` for values) selects, with their readings."""
    return [_probe(db, row) for row in list(db.query(f"{_PROBES} WHERE {where}", dict(values)))]


def probe_folder(session: str, probe: int) -> str:
    """A probe's folder in the artifacts folder."""
    return f"{session}/{probe}"


def _probe(db: Database, row: Row) -> StoredProbe:
    spec = ProbeSpec(
        session=row["session"],
        signature=row["signature"],
        repo=row["repo"],
        point=row["key"],
        recipe=row["recipe"],
        device=row["device"],
        simulated=bool(row["simulated"]),
        probe_version=row["probe_version"],
        subject=row["subject"],
        settings=json.loads(row["settings"]),
        job=json.loads(row["job"]),
        request=row["request"],
        capacity_bytes=row["capacity_bytes"],
        committed=_time(row["committed"]),
    )
    started = datetime.fromisoformat(row["started"])
    if row["finished"] is None:
        return StoredProbe(row["id"], spec, started)
    reading = Reading(
        outcome=Outcome(row["outcome"]),
        reason=row["reason"],
        device=spec.device,
        simulated=spec.simulated,
        ranks=_ranks(db, row["id"], probe_folder(row["session"], row["id"])),
        recipe_function=row["recipe_function"],
        config_hash=row["config_hash"] or "",
        versions=json.loads(row["versions"]) if row["versions"] else {},
        world_size=row["world_size"],
        attention_backend=row["attention_backend"],
        imported=tuple(json.loads(row["files"])) if row["files"] else (),
        notes=tuple(json.loads(row["notes"])),
    )
    return StoredProbe(
        row["id"], spec, started, _time(row["finished"]), reading, bool(row["reusable"]), row["allocator_settings"]
    )


def session_of(row: Row) -> StoredSession:
    """A row of `sessions`."""
    return StoredSession(
        id=row["id"],
        spec=SessionSpec(
            kind=row["kind"],
            command=tuple(json.loads(row["command"])),
            arguments=json.loads(row["arguments"]),
            repo=row["repo"],
            recipe=row["recipe"],
            device=row["device"],
            good=row["good"],
            bad=row["bad"],
            limit_bytes=row["limit_bytes"],
        ),
        state=SessionState(row["state"]),
        created=datetime.fromisoformat(row["created"]),
        changed=datetime.fromisoformat(row["changed"]),
        oombisect_version=row["oombisect_version"],
        exit_code=row["exit_code"],
        verdict=None if row["verdict"] is None else json.loads(row["verdict"]),
    )


def event_of(row: Row) -> Event:
    """A row of `events`."""
    return Event(
        row["session"], row["seq"], row["kind"], json.loads(row["payload"]), datetime.fromisoformat(row["recorded"])
    )
