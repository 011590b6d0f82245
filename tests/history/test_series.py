"""The derived tables: what is fitted, when, in which order; and that they can be made again."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from history_support import Clock, child, exit_codes, probe_spec
from series_support import OUT, add_series, reading, sha

from oombisect.errors import OombisectError
from oombisect.history.asking import Series, Wanted, named, series, workloads
from oombisect.history.connection import Connection
from oombisect.history.imported import ImportedReading, ImportSpec
from oombisect.history.series import bring_up_to_date, forget
from oombisect.history.store import open_store
from oombisect.readings import Outcome, Reading
from oombisect.units import GIB

GPUS = {"h100-80gb": 80 * GIB}
A, B = 60 * GIB, 63 * GIB


def now() -> str:
    return "2026-11-30T12:00:00.000000Z"


def kept(database: Path) -> None:
    assert bring_up_to_date(database, now, GPUS) is None


def rows(database: Path, sql: str) -> list[Any]:
    db = sqlite3.connect(database)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


DERIVED = {
    "series": "SELECT * FROM series ORDER BY workload, provenance, line, metric",
    "steps": "SELECT * FROM steps ORDER BY series, position",
    "creeps": "SELECT * FROM creeps ORDER BY series, position",
    "gpus": "SELECT * FROM gpus ORDER BY name",
    "oom_sites": "SELECT * FROM oom_sites ORDER BY workload, phase",
}


def derived(database: Path) -> dict[str, list[Any]]:
    """All that is derived, without the numbers of rows that come and go."""
    ids = dict(rows(database, "SELECT id, workload || provenance || line || metric FROM series"))
    told = {name: rows(database, sql) for name, sql in DERIVED.items()}
    return {
        "series": [row[1:] for row in told["series"]],
        "steps": sorted((ids[row[0]], *row[1:]) for row in told["steps"]),
        "creeps": sorted((ids[row[0]], *row[1:]) for row in told["creeps"]),
        "gpus": told["gpus"],
        "oom_sites": told["oom_sites"],
    }


def asked(database: Path, metric: Any = "allocated", **wanted: Any) -> list[Series]:
    connection = Connection(database, now, 5, readonly=True)
    try:
        with connection.reading() as db:
            return [one for workload in workloads(db, Wanted(**wanted)) for one in series(db, workload, metric)]
    finally:
        connection.close()


@pytest.fixture
def filled(database: Path) -> Path:
    with open_store(database, clock=Clock()) as store:
        add_series(store, [A] * 5 + [B] * 3 + [(OUT, 79 * GIB), None, A])
        add_series(store, [A + n * GIB // 4 for n in range(12)], recipe="creeps", device="cuda", simulated=False)
    kept(database)
    return database


def test_all_metrics_of_all_workloads_are_fitted(filled: Path) -> None:
    found = rows(filled, "SELECT workload, metric, exact, censored, unresolved, latest_bytes FROM series ORDER BY 1, 2")
    assert found == [
        (1, "allocated", 9, 1, 1, A),
        (1, "device", 9, 1, 1, A + 3 * GIB),
        (1, "external", 9, 1, 1, GIB),
        (1, "reserved", 9, 1, 1, A + 2 * GIB),
        *(
            (2, m, 12, 0, 0, size)
            for m, size in (
                ("allocated", A + 11 * GIB // 4),
                ("device", A + 23 * GIB // 4),
                ("external", GIB),
                ("reserved", A + 19 * GIB // 4),
            )
        ),
    ]
    steps = """SELECT key, delta_bytes, at_least, state FROM steps JOIN points ON points.id = point
        WHERE metric = 'allocated' ORDER BY series, position"""
    assert rows(filled, steps) == [
        (sha(5), 3 * GIB, 0, "fixed"),
        (sha(8), 16 * GIB, 1, "fixed"),
        (sha(10), -19 * GIB, 1, "in force"),
    ]
    assert rows(filled, "SELECT count(*) FROM creeps WHERE metric = 'allocated'") == [(1,)]


def test_only_what_has_new_readings_is_fitted_again(filled: Path) -> None:
    ids = dict(rows(filled, "SELECT id, workload FROM series"))
    with open_store(filled, clock=Clock()) as store:
        add_series(store, {11: B}, recipe="creeps", device="cuda", simulated=False)
    kept(filled)
    again = dict(rows(filled, "SELECT id, workload FROM series"))
    assert {n for n, workload in ids.items() if workload == 1} <= again.keys()
    kept(filled)
    assert dict(rows(filled, "SELECT id, workload FROM series")) == again


def test_a_probe_that_ends_late_is_seen(filled: Path) -> None:
    """A row is begun before others that end first."""
    with open_store(filled, clock=Clock()) as store:
        session = store.create_session(store.session("last").spec).id
        spec = probe_spec(session, point=sha(11), recipe="qwen3_8b_lora", settings={"overrides": [], "iterations": 3})
        late = store.begin_probe(spec)
        add_series(store, {12: A}, recipe="other")
        kept(filled)
        store.finish_probe(late, reading(B))
    kept(filled)
    assert rows(filled, "SELECT exact FROM series WHERE workload = 1 AND metric = 'allocated'") == [(10,)]


def test_derived_tables_can_be_made_again(filled: Path) -> None:
    before = derived(filled)
    db = sqlite3.connect(filled)
    for table in ("steps", "creeps", "series", "gpus", "oom_sites"):
        db.execute(f"DELETE FROM {table}")
    db.execute("UPDATE workload_changes SET fitted = 0")
    db.commit()
    db.close()
    kept(filled)
    assert derived(filled) == before
    assert all(before.values())


def test_who_waits_long_is_told(database: Path) -> None:
    with open_store(database, clock=Clock()) as store:
        for n in range(101):
            add_series(store, [A], recipe=f"r{n}")
    told: list[str] = []
    assert bring_up_to_date(database, now, GPUS, say=told.append) is None
    assert bring_up_to_date(database, now, GPUS, say=told.append) is None
    assert told == ["fitting the series of 101 workloads, once; what is done is kept"]


def test_what_was_there_before_the_tables_is_fitted(database: Path) -> None:
    """A database of version 004 with readings in it."""
    versions = Path(__file__).parent / "versions"
    database.parent.mkdir()
    old = sqlite3.connect(database)
    old.executescript((versions / "004_imports.sql").read_text(encoding="utf-8"))
    old.close()
    kept(database)
    assert rows(database, "SELECT count(*) > 0 FROM series") == [(1,)]


def test_a_read_only_database_says_why_it_stays_behind(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(filled, clock=Clock()) as store:
        add_series(store, {11: B})
    real = Connection.__init__

    def refuse(self: Connection, path: Path, now: Any, busy_timeout: float, readonly: bool) -> None:
        if not readonly:
            raise OombisectError(f"The database {path} is read-only")
        real(self, path, now, busy_timeout, readonly)

    monkeypatch.setattr(Connection, "__init__", refuse)
    assert "is read-only" in (bring_up_to_date(filled, now, GPUS) or "")


def keep_up(database: Path) -> None:
    kept(database)


def test_several_may_fit_at_once(filled: Path) -> None:
    before = derived(filled)
    db = sqlite3.connect(filled)
    db.execute("UPDATE workload_changes SET changes = changes + 1")
    db.commit()
    db.close()
    assert exit_codes([child(keep_up, filled) for _ in range(4)]) == [0] * 4
    assert derived(filled) == before


def test_other_conditions_are_no_part_of_a_series(database: Path) -> None:
    with open_store(database, clock=Clock()) as store:
        add_series(store, [A, A, A])
        add_series(store, {1: B}, capacity=79 * GIB)
        add_series(store, {1: B}, request="revert")
        session = store.create_session(store.session("last").spec).id
        spec = probe_spec(session, point=sha(1), settings={"overrides": [], "iterations": 3})
        store.finish_probe(store.begin_probe(spec), Reading(Outcome.INFRA, "node lost", "virtual:h100-80gb", True))
    (one,) = asked(database)
    assert [(r.outcome, r.value) for r in one.readings] == [("exact", A)] * 3


def test_provenances_are_never_mixed(database: Path) -> None:
    with open_store(database, clock=Clock()) as store:
        add_series(store, [A, A], recipe="r")
        add_series(store, [B, B], recipe="r", device="cuda", simulated=False)
        imported = [ImportedReading("r", "h100", "bridge", sha(n), "line", peak_allocated=10 * GIB) for n in range(2)]
        store.add_import(ImportSpec("csv", "a"), imported)
    found = {one.provenance: [r.value for r in one.readings] for one in asked(database, recipe="r")}
    assert found == {"simulated": [A, A], "measured": [B, B], "imported": [10 * GIB] * 2}


def test_a_point_read_twice_counts_once(database: Path) -> None:
    with open_store(database, clock=Clock()) as store:
        add_series(store, [A, A + 30, A])
        for value in (A + 10, A + 20):
            add_series(store, {1: value}, request="remeasure")
        add_series(store, {2: None}, request="remeasure")
        add_series(store, {0: (OUT, GIB)}, request="remeasure")
    (one,) = asked(database)
    assert [(r.outcome, r.value, r.repeats, r.spread) for r in one.readings] == [
        ("exact", A, 1, 0),
        ("exact", A + 20, 3, 20),
        ("exact", A, 1, 0),
    ]


def test_newer_packages_replace_older_readings(database: Path) -> None:
    with open_store(database, clock=Clock()) as store:
        add_series(store, [A, A])
        session = store.create_session(store.session("last").spec).id
        spec = probe_spec(session, point=sha(1), settings={"overrides": [], "iterations": 3})
        from dataclasses import replace

        store.finish_probe(store.begin_probe(spec), replace(reading(B), versions={"torch": "2.15"}))
    (one,) = asked(database)
    assert [(r.value, r.repeats) for r in one.readings] == [(A, 1), (B, 1)]


def test_the_order_is_the_places_then_the_source_then_the_date(database: Path) -> None:
    with open_store(database, clock=Clock()) as store:
        add_series(store, [A, A, B, A])
        imported = [
            ImportedReading("i", "h100", "megatron-lm", sha(100 + n), "line", peak_allocated=n, position=position)
            for n, position in enumerate((3, 1, 2))
        ]
        store.add_import(ImportSpec("csv", "a"), imported)
    (one,) = asked(database, recipe="i")
    assert (one.ordered_by, [r.value for r in one.readings]) == ("source", [1, 2, 0])
    (one,) = asked(database, recipe="qwen3_8b_lora")
    assert (one.ordered_by, len(one.fit.steps)) == ("date", 2)
    db = sqlite3.connect(database)
    # The third commit is in truth the newest, though its date is not; the fourth lies on a release branch.
    db.executemany(
        "INSERT INTO places SELECT id, ?, ? FROM points WHERE key = ?",
        [("", 10, sha(0)), ("", 11, sha(1)), ("", 90, sha(2)), ("r1", 12, sha(3))],
    )
    db.commit()
    db.close()
    main, branch = asked(database, recipe="qwen3_8b_lora")
    assert (main.line, main.ordered_by, [r.value for r in main.readings]) == ("", "first-parent", [A, A, B])
    assert [(s.point, s.blurred, s.state) for s in main.fit.steps] == [(sha(2), 78, "in force")]
    assert (branch.line, [r.value for r in branch.readings]) == ("r1", [A])


def test_new_places_make_a_fit_stale(filled: Path) -> None:
    connection = Connection(filled, now, 5, readonly=False)
    with connection.transaction() as db:
        db.execute("INSERT INTO places SELECT id, '', id FROM points")
        forget(db, [1, 2])
    connection.close()
    kept(filled)
    assert {row[0] for row in rows(filled, "SELECT ordered_by FROM series")} == {"first-parent"}


def test_one_rank(database: Path) -> None:
    with open_store(database, clock=Clock()) as store:
        add_series(store, [A, (OUT, B), None])
    connection = Connection(database, now, 5, readonly=True)
    with connection.reading() as db:
        (workload,) = workloads(db, Wanted())
        (zero,) = series(db, workload, "allocated", 0)
        assert [(r.outcome, r.value) for r in zero.readings] == [("exact", A), ("censored", B), ("unresolved", None)]
        assert series(db, workload, "allocated", 7) == []
    connection.close()


@pytest.mark.parametrize(
    ("asked_for", "found"),
    [
        ("qwen3_8b_lora", ["qwen3_8b_lora"]),
        ("QWEN3-8B-LoRA", ["qwen3_8b_lora"]),
        ("qwen3_lora_8b", ["qwen3_8b_lora"]),
        ("llama3_8b", ["llama3_8b_lora", "llama3_8b_pretrain"]),
        ("tp1_pp2_dgx", ["bert/bert_tp1_pp2_dgx_a100"]),
    ],
)
def test_near_names_are_found(asked_for: str, found: list[str]) -> None:
    known = ["bert/bert_tp1_pp2_dgx_a100", "llama3_8b_lora", "llama3_8b_pretrain", "qwen3_8b_lora"]
    assert named(asked_for, known) == found


def test_other_names_are_not() -> None:
    with pytest.raises(OombisectError) as refused:
        named("qwen3_8b_dora", ["qwen3_8b_lora"])
    assert "Did you mean qwen3_8b_lora?" in refused.value.way_out
