"""Readings that others took, as rows. They are no probes: whatever shows them says that they are imported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

from oombisect import __version__
from oombisect.history.rows import Row, text, time_text
from oombisect.history.signature import canonical_json, finite, json_hash
from oombisect.history.sqlite import Database, Table

ImportKind = Literal["goldens", "snapshot", "tensorboard", "log", "wandb", "csv"]
_KIND = "imported"
_SIZES = ("peak_allocated", "peak_reserved", "peak_device", "external")


@dataclass(frozen=True, slots=True)
class ImportSpec:
    """One act of importing.

    Args:
        source: the file, folder or clone, as named.
        sha256: of the file; None: it is none.
        options: what the user asked for, plain JSON.
    """

    kind: ImportKind
    source: str
    sha256: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedReading:
    """The memory of one rank of one run, as a source tells it; sizes in bytes, None where it does not tell.

    Args:
        recipe: the name of the test or run.
        device: the hardware, as the source names it.
        settings: all else that its series holds fixed.
        repo, point, subject, committed: where it was taken; `point` is a commit, or what else tells it from others.
        position: its order in the source's history, where dates do not tell that.
        origin: where in the source it stands.
        reason: why its sizes are lower bounds; empty: they are exact.
        config: what the source tells of the run's configuration.
        values: sizes by metric and iteration.
    """

    recipe: str
    device: str
    repo: str
    point: str
    origin: str
    subject: str = ""
    committed: datetime | None = None
    position: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    config: Mapping[str, Any] | None = None
    rank: int | None = None
    world_size: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    peak_device: int | None = None
    external: int | None = None
    values: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def sizes(self) -> dict[str, int | None]:
        """Its columns that are sizes."""
        return {name: getattr(self, name) for name in _SIZES}


def add_import(db: Database, spec: ImportSpec, readings: Sequence[ImportedReading], now: str) -> int:
    """Record the readings that are not there yet; how many those were. Where there are none, nothing is recorded.

    Two readings are the same where they tell the same sizes of the same run at the same point.
    """
    new = {_identity(spec.kind, reading): reading for reading in readings}
    there = "SELECT identity FROM imported_readings WHERE identity IN (SELECT value FROM json_each(?))"
    for row in list(db.query(there, [canonical_json(list(new))])):
        del new[row["identity"]]
    if not new:
        return 0
    about = {
        "kind": spec.kind,
        "source": text(spec.source),
        "sha256": spec.sha256,
        "options": canonical_json(finite(spec.options)),
        "oombisect_version": __version__,
        "imported": now,
    }
    import_ = _insert(db, "imports", about)
    once = _Once(db)
    for identity, reading in new.items():
        id_ = _insert(db, "imported_readings", _row(once, spec.kind, import_, identity, reading))
        db.conn.executemany("INSERT INTO imported_values VALUES (?, ?, ?, ?)", _values(id_, reading))
    return len(new)


def imported_from(db: Database, kind: ImportKind) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """By origin, the recipe, device and settings of the readings of that kind."""
    rows = db.query(
        "SELECT origin, recipe, device, settings FROM imports "
        "JOIN imported_readings ON imported_readings.import = imports.id "
        "JOIN workloads ON workloads.id = imported_readings.workload WHERE imports.kind = ?",
        [kind],
    )
    found = {}
    for row in rows:
        settings = json.loads(row["settings"])
        del settings[_KIND]
        found[row["origin"]] = (row["recipe"], row["device"], settings)
    return found


def _settings(kind: str, reading: ImportedReading) -> dict[str, Any]:
    """The settings of its workload: no probe's have the key."""
    return {**reading.settings, _KIND: kind}


def _identity(kind: str, reading: ImportedReading) -> str:
    series = [text(reading.recipe), reading.device, finite(_settings(kind, reading))]
    told = {**reading.sizes(), "reason": text(reading.reason), "world_size": reading.world_size}
    values = {text(name): sorted(sizes.items()) for name, sizes in reading.values.items()}
    return json_hash([series, reading.repo, text(reading.point), reading.rank, told, values])


class _Once:
    """The ids of values that are stored once each; each is looked up once."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: dict[tuple[str, str], int] = {}

    def id(self, table: str, value: Row, about: Row | None = None) -> int:
        """The id of `value`, which is stored with what there is to say `about` it if it is new."""
        key = table, canonical_json(value)
        if key not in self._known:
            self._known[key] = cast(int, _table(self._db, table).lookup(value, about))
        return self._known[key]


def _row(once: _Once, kind: str, import_: int, identity: str, reading: ImportedReading) -> Row:
    workload = {
        "recipe": text(reading.recipe),
        "device": text(reading.device),
        "simulated": 0,
        "settings": canonical_json(finite(_settings(kind, reading))),
    }
    point = {"repo": reading.repo, "key": text(reading.point)}
    about = {
        "subject": text(reading.subject),
        "committed": None if reading.committed is None else time_text(reading.committed),
    }
    config = None if reading.config is None else finite(reading.config)
    return {
        "import": import_,
        "workload": once.id("workloads", workload),
        "point": once.id("points", point, about),
        "position": reading.position,
        "origin": text(reading.origin),
        "identity": identity,
        "outcome": "censored" if reading.reason else "exact",
        "reason": text(reading.reason),
        "config": None
        if config is None
        else once.id("configs", {"hash": json_hash(config)}, {"config": canonical_json(config)}),
        "rank": reading.rank,
        "world_size": reading.world_size,
        **reading.sizes(),
    }


def _values(reading: int, imported: ImportedReading) -> list[tuple[int, str, int, int]]:
    """The values that differ from the one before, and the last of each metric."""
    rows = []
    for metric, sizes in imported.values.items():
        ordered = sorted(sizes.items())
        for index, (iteration, size) in enumerate(ordered):
            if index in (0, len(ordered) - 1) or size != ordered[index - 1][1]:
                rows.append((reading, text(metric), iteration, size))
    return rows


def _table(db: Database, name: str) -> Table:
    return cast(Table, db[name])


def _insert(db: Database, table: str, row: Row) -> int:
    """Insert a row; its integer primary key."""
    names = ", ".join(row)
    marks = ", ".join(f":{name}" for name in row)
    return cast(int, db.conn.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row).lastrowid)  # noqa: S608  # ours
