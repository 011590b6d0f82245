"""Whoever writes to the database, with whatever program: a finished number stays what it was."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from history_support import probe_spec

from oombisect.history.imported import ImportedReading, ImportSpec
from oombisect.history.records import ReplayRecord
from oombisect.history.store import Store
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading, Reading

FULL = Reading(
    Outcome.CENSORED,
    ranks=(RankReading(0, {"setup": PhaseMetrics(allocated_peak=5)}, 1, Oom("setup", "out of memory"), "snapshot"),),
    config_hash="h",
    versions={"torch": "2.9"},
    imported=("bridge:a.py",),
)
# Made again from the others (005_series.sql).
DERIVED = {"series", "steps", "creeps", "places", "gpus", "workload_changes", "oom_sites"}
# What may change at all: the end of a session, the end of a probe.
MUTABLE = {"sessions", "probes"}


@pytest.fixture
def tampering(store: Store, session: str, database: Path) -> sqlite3.Connection:
    """A plain connection, as of any other program, to a database with a row in each table."""
    probe = store.finish_probe(store.begin_probe(probe_spec(session)), FULL, {"a": 1})
    store.add_replay(ReplayRecord(probe.id, 0, "", "torch 2.14, 1", None, True, 5, 6, 5))
    imported = ImportedReading("r", "h100", "bridge", "a", "line 1", config={"b": 2}, values={"allocated": {1: 2}})
    store.add_import(ImportSpec("log", "a.log"), [imported])
    store.append_event(session, "plan", {})
    store.finish_session(session, 0, {})
    store.close()
    return sqlite3.connect(database, isolation_level=None)


def tables(db: sqlite3.Connection) -> list[str]:
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    assert set(names) > DERIVED
    return [name for name in names if name not in DERIVED | {"schema_migrations"}]


def test_no_row_is_changed_or_deleted(tampering: sqlite3.Connection) -> None:
    assert len(tables(tampering)) == 17
    for table in tables(tampering):
        before = tampering.execute(f"SELECT * FROM {table}").fetchall()
        assert before, f"nothing to tamper with in {table}"
        columns = [column[1] for column in tampering.execute(f"PRAGMA table_info({table})")]
        for statement in [f"DELETE FROM {table}", *(f"UPDATE {table} SET {c} = {c}" for c in columns)]:
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                tampering.execute(statement)
        assert tampering.execute(f"SELECT * FROM {table}").fetchall() == before


def test_nothing_is_added_to_a_finished_probe(tampering: sqlite3.Connection) -> None:
    for table in ("rank_readings", "phase_metrics", "ooms", "snapshots"):
        columns = [column[1] for column in tampering.execute(f"PRAGMA table_info({table})")]
        changed = ", ".join("rank + 1" if column == "rank" else column for column in columns)
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            tampering.execute(f"INSERT INTO {table} SELECT {changed} FROM {table}")


def test_what_was_begun_stays_as_it_was_begun(store: Store, session: str, database: Path) -> None:
    store.begin_probe(probe_spec(session))
    tampering = sqlite3.connect(database, isolation_level=None)
    for table, free in (
        ("sessions", {"state", "exit_code", "verdict", "changed"}),
        ("probes", set(re.findall(r"\w+", PROBE_RESULTS))),
    ):
        for column in [column[1] for column in tampering.execute(f"PRAGMA table_info({table})")]:
            if column in free:
                continue
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                tampering.execute(f"UPDATE {table} SET {column} = {column}")


PROBE_RESULTS = """finished outcome reusable reason recipe_function config environment import_set world_size
attention_backend allocator_settings notes worst_rank peak_allocated peak_reserved peak_device external"""


@pytest.mark.parametrize(
    "change",
    [
        "outcome = 'great', reusable = 1, finished = 'now'",
        "outcome = 'infra', reusable = 1, finished = 'now'",
        "outcome = 'exact', reusable = 2, finished = 'now'",
        "outcome = 'exact', reusable = 1",
        "outcome = 'exact', finished = 'now'",
        "finished = 'now'",
        "peak_allocated = 'much'",
    ],
)
def test_impossible_results_are_refused(store: Store, session: str, database: Path, change: str) -> None:
    probe = store.begin_probe(probe_spec(session))
    tampering = sqlite3.connect(database, isolation_level=None)
    with pytest.raises(sqlite3.IntegrityError):
        tampering.execute(f"UPDATE probes SET {change}")
    assert store.probe(probe).finished is None


def test_the_schema_is_plain_to_other_programs(tampering: sqlite3.Connection) -> None:
    """Datasette and the like follow declared foreign keys and want names that need no quoting."""
    references = {
        (table, key[3], key[2], key[4])
        for table in tables(tampering)
        for key in tampering.execute(f"PRAGMA foreign_key_list({table})")
    }
    assert references == {
        ("events", "session", "sessions", "id"),
        ("probes", "session", "sessions", "id"),
        ("probes", "workload", "workloads", "id"),
        ("probes", "point", "points", "id"),
        ("probes", "config", "configs", "id"),
        ("probes", "environment", "environments", "id"),
        ("probes", "import_set", "import_sets", "id"),
        ("jobs", "probe", "probes", "id"),
        ("rank_readings", "probe", "probes", "id"),
        *(
            (t, c, "rank_readings", c)
            for t in ("phase_metrics", "ooms", "snapshots", "replays")
            for c in ("probe", "rank")
        ),
        ("imported_readings", "import", "imports", "id"),
        ("imported_readings", "workload", "workloads", "id"),
        ("imported_readings", "point", "points", "id"),
        ("imported_readings", "config", "configs", "id"),
        ("imported_values", "reading", "imported_readings", "id"),
    }
    for table in [*tables(tampering), "readings", "measurements"]:
        columns = [column[1] for column in tampering.execute(f"PRAGMA table_info({table})")]
        tampering.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()  # unquoted
        assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in [table, *columns])
    assert tampering.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_lookups_use_an_index(tampering: sqlite3.Connection) -> None:
    for where in ("signature = 's'", "session = '20261130-1'", "workload = 1 AND point = 1", "point = 1"):
        plan = tampering.execute(f"EXPLAIN QUERY PLAN SELECT * FROM probes WHERE {where}").fetchall()
        assert "USING INDEX" in plan[0][3]


def test_a_commit_is_durable_when_it_returns(store: Store) -> None:
    with store._connection.reading() as db:
        assert db.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL: the log is on the disk before COMMIT returns
        assert db.execute("PRAGMA foreign_keys").fetchone()[0] == 1


def test_a_finished_session_is_reopened_only_with_its_verdict_kept(store: Store, session: str, database: Path) -> None:
    store.finish_session(session, 10, {"kind": "none"})
    tampering = sqlite3.connect(database, isolation_level=None)
    reopen = "UPDATE sessions SET state = 'running', exit_code = NULL, verdict = NULL"
    event = "INSERT INTO events SELECT id, {}, created, 'reopened', '{}' FROM sessions"
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        tampering.execute(reopen)
    tampering.execute(event.format(0, '{"exit_code":10,"verdict":{"kind":"culprit"}}'))
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        tampering.execute(reopen)
    store.reopen_session(session)
    (kept,) = [e.payload for e in store.events(session) if e.seq == 1]
    assert kept == {"exit_code": 10, "verdict": {"kind": "none"}}
    assert store.session(session).verdict is None
