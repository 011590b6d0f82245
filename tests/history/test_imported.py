"""What others measured lies beside what was probed, and is never taken for it."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from history_support import probe_spec

from oombisect.history.imported import ImportedReading, ImportSpec
from oombisect.history.measurements import lines, load
from oombisect.history.store import Store
from oombisect.readings import Outcome, PhaseMetrics, RankReading, Reading

SPEC = ImportSpec("log", "train.log", "ab" * 32)
READING = ImportedReading(
    "llama", "dgx_h100", "bridge", "a" * 40, "train.log", rank=3, settings={"tp": 2}, peak_allocated=7,
    values={"allocated": {1: 5, 2: 5, 3: 5, 4: 6, 5: 6, 6: 6}},
)  # fmt: skip
MEASURED = Reading(Outcome.EXACT, ranks=(RankReading(0, {"setup": PhaseMetrics(allocated_peak=9)}),))


def query(database: Path, sql: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(database) as db:
        return db.execute(sql).fetchall()


def test_the_same_reading_is_imported_once(store: Store, database: Path) -> None:
    assert store.add_import(SPEC, [READING, READING]) == 1
    assert store.add_import(replace(SPEC, source="copy.log"), [READING]) == 0
    assert len(query(database, "SELECT 1 FROM imports")) == 1
    others = [
        replace(READING, **change)  # type: ignore[arg-type]
        for change in (
            {"recipe": "qwen"}, {"device": "dgx_a100"}, {"point": "b" * 40}, {"rank": 4}, {"peak_allocated": 8},
            {"settings": {"tp": 4}}, {"reason": "out of memory"}, {"values": {"allocated": {1: 6}}},
        )
    ]  # fmt: skip
    assert store.add_import(SPEC, [READING, *others]) == len(others)


def test_an_import_that_fails_leaves_nothing(store: Store, database: Path) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        store.add_import(SPEC, [READING, replace(READING, rank="three")])  # type: ignore[arg-type]
    assert query(database, "SELECT 1 FROM imports UNION ALL SELECT 1 FROM imported_readings") == []
    assert query(database, "SELECT 1 FROM workloads") == []


def test_values_are_stored_where_they_change(store: Store, database: Path) -> None:
    store.add_import(SPEC, [READING])
    assert query(database, "SELECT iteration, bytes FROM imported_values") == [(1, 5), (4, 6), (6, 6)]


def test_no_workload_is_shared_with_a_probe(store: Store, session: str, database: Path) -> None:
    spec = probe_spec(session)
    store.finish_probe(store.begin_probe(spec), MEASURED)
    same = replace(READING, recipe=spec.recipe, device=spec.device, settings=spec.settings, point=spec.point)
    store.add_import(SPEC, [same])
    found = query(database, "SELECT provenance, workload, point, rank, peak_allocated FROM measurements")
    assert found == [("simulated", 1, spec.point, None, 9), ("imported", 2, spec.point, 3, 7)]
    assert query(database, "SELECT count(*) FROM points") == [(1,)]
    ((settings,),) = query(database, "SELECT settings FROM workloads WHERE id = 2")
    assert json.loads(str(settings)) == {**spec.settings, "imported": "log"}


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({}, True),
        ({"request": "remeasure"}, True),
        ({"request": "corner"}, True),
        ({"request": "revert", "point": f"{'c' * 40}-{'d' * 40}"}, False),
        ({"request": "expandable"}, False),
        ({"capacity_bytes": 1 << 30}, False),
        ({"point": f"{'c' * 40}+{'d' * 40}"}, False),
        ({"point": f"{'c' * 40}@model.seq_length #12345678", "repo": "config"}, False),
        ({"point": "25", "repo": "package"}, False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_only_plain_probes_of_commits_are_of_a_series(
    store: Store, session: str, database: Path, change: dict[str, object], shown: bool
) -> None:
    store.finish_probe(store.begin_probe(probe_spec(session, **change)), MEASURED)
    store.begin_probe(probe_spec(session))
    assert len(query(database, "SELECT 1 FROM measurements")) == shown


def test_machines_that_failed_are_of_no_series(store: Store, session: str, database: Path) -> None:
    for n, outcome in enumerate(Outcome):
        reading = replace(MEASURED, outcome=outcome, reason="" if outcome is Outcome.EXACT else "why")
        store.finish_probe(store.begin_probe(probe_spec(session, str(n))), reading)
    assert {row[0] for row in query(database, "SELECT outcome FROM measurements")} == {
        "exact", "censored", "unresolved",
    }  # fmt: skip


@pytest.mark.parametrize("where", ["workload = 1", "workload = 1 AND provenance = 'imported' AND committed > '2026'"])
def test_a_series_is_read_by_its_workload(store: Store, database: Path, where: str) -> None:
    plan = query(database, f"EXPLAIN QUERY PLAN SELECT * FROM measurements WHERE {where} ORDER BY position, committed")
    steps = [str(step[3]) for step in plan]
    for index in ("probes_by_workload_and_point", "imported_readings_by_workload_and_point"):
        assert any(f"USING INDEX {index}" in step for step in steps), steps
    assert not any(step.startswith("SCAN") and "measurements" not in step for step in steps), steps


def test_a_series_leaves_out_what_its_source_does_not_tell(store: Store) -> None:
    silent = replace(READING, point="b" * 40, peak_allocated=None, position=1)
    out = replace(READING, point="c" * 40, reason="out of memory", position=2)
    store.add_import(SPEC, [replace(READING, position=0), silent, out])
    with store._connection.reading() as db:
        (line,) = lines(load(db, 1))
    readings = line.readings("allocated")
    assert [(reading.outcome, reading.value) for reading in readings] == [("exact", 7), ("censored", 7)]
    assert [sample.point[0] for sample in line.samples(readings)] == ["a", "c"]
    assert line.readings("device") == []
