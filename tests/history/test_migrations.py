from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest
from freeze import CONFIG, EVENTS, READINGS, VERDICT, VERSIONS, replay
from history_support import SESSION, Clock, child, exit_codes, probe_spec
from sqlite_utils import Database

from oombisect import __version__
from oombisect.errors import OombisectError
from oombisect.history.migrations import APPLICATION_ID, Migration, applied, migrate, shipped
from oombisect.history.records import SessionState
from oombisect.history.store import open_store
from oombisect.readings import Outcome, Reading

# Users' databases were made by these very statements: a correction is a new migration.
RELEASED = {
    "001_initial": "a4f87be1e44f028cb2c6f3a3fd19e156842c5fc117cef94b28a2cd1968e2d285",
    "002_replays": "22f8081145d821bb5dae4676a6efc1665d08a2a231f31c9a2676818a29a168a5",
    "003_reopening": "84e2502b1f50070eb273b8f03e4d71040fdcddfe56619585591d87af0acb973f",
    "004_imports": "ec84e09c2e5776d0b250192cda606c0eebe254c7ffc382df1a1b07730ea915d1",
    "005_series": "5bae0a5f72329ef50af76f941f39332bff8bf59dfd45a175f3e4c76bbd591cab",
}


def test_released_migrations_are_never_edited() -> None:
    assert {m.name: hashlib.sha256(m.sql.encode()).hexdigest() for m in shipped()} == RELEASED


def test_migrations_are_numbered_without_gaps() -> None:
    assert [int(migration.name[:3]) for migration in shipped()] == list(range(1, len(shipped()) + 1))


def test_every_version_has_a_frozen_database() -> None:
    assert sorted(file.stem for file in VERSIONS.glob("*.sql")) == [migration.name for migration in shipped()]


@pytest.mark.parametrize("version", [migration.name for migration in shipped()])
def test_a_database_of_an_earlier_version_is_brought_up_to_date(database: Path, version: str) -> None:
    database.parent.mkdir()
    old = sqlite3.connect(database)
    old.executescript((VERSIONS / f"{version}.sql").read_text(encoding="utf-8"))
    old.close()

    with open_store(database, clock=Clock()) as store:
        finished, running = store.session("20261130-1"), store.session("last")
        assert (finished.spec, finished.state, finished.exit_code) == (SESSION, SessionState.FINISHED, 10)
        assert finished.verdict == VERDICT
        assert (running.id, running.state) == ("20261130-2", SessionState.INTERRUPTED)
        assert tuple(event.payload for event in store.events(finished.id)) == EVENTS
        *probes, unfinished = store.probes(finished.id)
        assert tuple(probe.reading for probe in probes) == READINGS
        assert [probe.spec for probe in probes] == [probe_spec(finished.id, f"signature {n}") for n in range(2)]
        assert {probe.allocator_settings for probe in probes} == {"expandable_segments:True"}
        assert unfinished.finished is None
        assert store.config(READINGS[0].config_hash) == CONFIG
        assert store.find_measurement("signature 1") == probes[1]
        for limit in (None, 4096):  # 001 knew of no replays
            found = store.find_replay("5f" * 32, "", "torch 2.14, 1", limit)
            assert found == (None if version == "001_initial" else replay(probes[0].id, limit))
            store.add_replay(replay(probes[0].id, limit))
            assert store.find_replay("5f" * 32, "", "torch 2.14, 1", limit) == replay(probes[0].id, limit)

        store.resume_session(running.id)
        new = store.finish_probe(store.begin_probe(probe_spec(running.id)), Reading(Outcome.EXACT))
        assert store.find_measurement("s") == new

    plain = sqlite3.connect(database)
    assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert plain.execute("PRAGMA foreign_key_check").fetchall() == []
    fresh = sqlite3.connect(":memory:")
    migrate(Database(fresh), Path("fresh"), lambda: "now")
    assert schema(plain) == schema(fresh)


def schema(db: sqlite3.Connection) -> dict[str, str]:
    rows = db.execute("SELECT type || ' ' || name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: " ".join(sql.split()) for name, sql in rows}


def test_who_migrated_is_recorded(database: Path) -> None:
    with open_store(database, clock=Clock()):
        pass
    db = sqlite3.connect(database)
    assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    rows = db.execute("SELECT * FROM schema_migrations").fetchall()
    times = [f"2026-11-30T12:00:0{n}.000000Z" for n in range(len(shipped()))]
    assert rows == [(migration.name, __version__, time) for migration, time in zip(shipped(), times, strict=True)]


# The machinery, on migrations made for it.

FIRST = Migration("001_first", f"PRAGMA application_id = {APPLICATION_ID}; CREATE TABLE a (x);")
SECOND = Migration(
    "002_second",
    "ALTER TABLE a ADD COLUMN y; CREATE TRIGGER t AFTER INSERT ON a BEGIN UPDATE a SET y = 1; UPDATE a SET y = 2; END;",
)


@pytest.fixture
def scratch(tmp_path: Path) -> Database:
    return Database(sqlite3.connect(tmp_path / "scratch.db", isolation_level=None))


def test_only_what_is_lacking_is_applied(scratch: Database) -> None:
    migrate(scratch, Path("scratch"), lambda: "t1", [FIRST])
    scratch["a"].insert({"x": 5})
    migrate(scratch, Path("scratch"), lambda: "t2", [FIRST, SECOND])
    migrate(scratch, Path("scratch"), lambda: "t3", [FIRST, SECOND])
    assert list(scratch["a"].rows) == [{"x": 5, "y": None}]
    assert [(row["name"], row["applied"]) for row in scratch["schema_migrations"].rows] == [
        ("001_first", "t1"),
        ("002_second", "t2"),
    ]
    scratch["a"].insert({"x": 6})
    assert {row["y"] for row in scratch["a"].rows} == {2}


def test_a_migration_that_fails_leaves_nothing(scratch: Database) -> None:
    migrate(scratch, Path("scratch"), lambda: "now", [FIRST])
    broken = Migration("003_broken", "CREATE TABLE b (x); INSERT INTO nowhere VALUES (1);")
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        migrate(scratch, Path("scratch"), lambda: "now", [FIRST, SECOND, broken])
    assert list(applied(scratch)) == ["001_first"]
    assert scratch.table_names() == ["schema_migrations", "a"]
    assert list(scratch["a"].columns_dict) == ["x"]


def test_a_newer_database_is_left_alone(scratch: Database) -> None:
    migrate(scratch, Path("scratch"), lambda: "now", [FIRST, SECOND])
    with pytest.raises(OombisectError, match=r"schema 002_second.*knows the schema up to 001_first"):
        migrate(scratch, Path("scratch"), lambda: "now", [FIRST])


def test_an_installation_without_its_schema_says_so(tmp_path: Path) -> None:
    with pytest.raises(OombisectError, match="schema is missing"):
        shipped(tmp_path)


def open_and_close(database: Path) -> None:
    with open_store(database, clock=Clock()):
        pass


@pytest.mark.parametrize("attempt", range(5))
def test_several_processes_create_the_database_at_once(database: Path, attempt: int) -> None:
    assert exit_codes([child(open_and_close, database) for _ in range(4)]) == [0] * 4
    db = sqlite3.connect(database)
    assert db.execute("SELECT count(*) FROM schema_migrations").fetchone() == (len(shipped()),)
