"""Files that are broken, foreign, newer, locked, read-only, on a full disk: a cause and a way out, nothing lost."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from history_support import SESSION, Clock, child, exit_codes, probe_spec

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.store import Store, open_store
from oombisect.readings import Outcome, PhaseMetrics, RankReading, Reading

READING = Reading(
    Outcome.EXACT,
    ranks=tuple(RankReading(n, {f"step_{m}": PhaseMetrics(*[2**40] * 12, 0.5) for m in range(6)}) for n in range(8)),
    notes=("x" * 4000,),
)


def refusal(path: Path, **options: float) -> OombisectError:
    with pytest.raises(OombisectError) as caught:
        open_store(path, clock=Clock(), **options)  # type: ignore[arg-type]
    assert str(path) in caught.value.cause
    assert caught.value.way_out.endswith((".", "`"))
    return caught.value


def fill(store: Store, session: str) -> list[int]:
    """Store probes until one is refused; those that were stored. The refusal is left to the caller to see again."""
    stored = []
    for n in range(100_000):
        try:
            probe = store.begin_probe(probe_spec(session, str(n)))
            store.finish_probe(probe, READING)
        except OombisectError:
            return stored
        stored.append(probe)
    raise AssertionError("the disk never became full")


@pytest.mark.parametrize(
    "content", [b"not a database, but longer than a header" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_not_a_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "oombisect.db"
    path.write_bytes(content)
    error = refusal(path)
    assert "is not an SQLite database" in error.cause and "--db" in error.way_out
    assert path.read_bytes() == content


def test_a_database_of_another_program(tmp_path: Path) -> None:
    for n, statement in enumerate(["CREATE TABLE bookmarks (a)", "PRAGMA application_id = 7"]):
        path = tmp_path / f"{n}.db"
        other = sqlite3.connect(path)
        other.execute(statement)
        other.close()
        before = path.read_bytes()
        assert "is a database of another program" in refusal(path).cause
        assert path.read_bytes() == before


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "oombisect.db").touch()
    with open_store(tmp_path / "oombisect.db", clock=Clock()) as store:
        assert store.sessions() == []


def test_a_database_of_a_newer_version(store: Store, session: str, database: Path) -> None:
    store.close()
    newer = sqlite3.connect(database)
    newer.execute("INSERT INTO schema_migrations VALUES ('999_rewrite', '7.1.0', '2030-01-01T00:00:00Z')")
    newer.commit()
    newer.close()
    before = database.read_bytes()
    for readonly in (False, True):
        error = refusal(database, readonly=readonly)
        assert "written by oombisect 7.1.0 (schema 999_rewrite); this is oombisect 0.1.0" in error.cause
        assert "oombisect>=7.1.0" in error.way_out
        assert error.exit_code == ExitCode.USAGE
    assert database.read_bytes() == before


def test_a_damaged_database(store: Store, session: str, database: Path) -> None:
    for n in range(400):
        store.finish_probe(store.begin_probe(probe_spec(session, str(n))), READING)
    store.close()
    whole = database.read_bytes()
    size = 4096
    # The schema comes first and is whole, so it opens; what is damaged is told of when it is read.
    kept = len(whole) // size // 2 * size
    database.write_bytes(whole[:kept] + b"\xa5" * (len(whole) - kept))
    with open_store(database, clock=Clock()) as damaged, pytest.raises(OombisectError, match="is damaged") as caught:
        damaged.probes(session)
    assert ".recover" in caught.value.way_out

    for kept in (100, size - 1, 5 * size):
        database.write_bytes(whole[:kept])
        with (
            pytest.raises(OombisectError, match=r"is damaged|is not an SQLite database"),
            open_store(database, clock=Clock()) as cut,
        ):
            cut.probes(session)


def test_a_folder_in_place_of_the_database(tmp_path: Path) -> None:
    assert "is a directory, not a database" in refusal(tmp_path).cause


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert "Not a directory" in refusal(tmp_path / "data" / "x" / "oombisect.db").cause


def test_a_lock_that_stays(store: Store, session: str, database: Path) -> None:
    writer = sqlite3.connect(database, isolation_level=None)
    with open_store(database, clock=Clock(), busy_timeout=0.1) as waiting:
        writer.execute("BEGIN IMMEDIATE")
        assert waiting.session("last").id == session  # looking never waits
        with pytest.raises(OombisectError, match="stayed locked") as caught:
            waiting.create_session(SESSION)
        assert caught.value.exit_code == ExitCode.INFRASTRUCTURE
        writer.execute("ROLLBACK")
        assert waiting.create_session(SESSION).id == "20261130-2"


def test_a_new_database_that_is_locked(tmp_path: Path) -> None:
    path = tmp_path / "oombisect.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    assert "stayed locked" in refusal(path, busy_timeout=0.1).cause


# Disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    database = small_disk / "oombisect.db"
    with open_store(database, clock=Clock()) as store:
        session = store.create_session(SESSION).id
        stored = fill(store, session)
        with pytest.raises(OombisectError, match=r"is full|Reading or writing") as caught:
            fill_once(store, session)
        assert caught.value.exit_code == ExitCode.INFRASTRUCTURE
        assert str(database) in caught.value.cause and "Free some space" in caught.value.way_out
        finished(store, session, stored)  # the store is still of use
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    with open_store(database, clock=Clock()) as store:
        finished(store, session, stored)
        store.resume_session(session)
        stored.append(fill_once(store, session))
        finished(store, session, stored)


def test_no_space_even_for_a_new_database(small_disk: Path) -> None:
    with pytest.raises(OSError), (small_disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(b"x" * 4096)
    error = refusal(small_disk / "oombisect.db")
    assert "is full" in error.cause and error.exit_code == ExitCode.INFRASTRUCTURE


def test_a_read_only_disk(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    database = small_disk / "oombisect.db"
    with open_store(database, clock=Clock()) as store:
        fill_once(store, store.create_session(SESSION).id)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    error = refusal(database)
    assert "read-only" in error.cause or "cannot be opened" in error.cause
    assert "writable" in error.way_out or "write" in error.way_out
    assert "Read-only file system" in refusal(small_disk / "new" / "oombisect.db").cause


def fill_once(store: Store, session: str) -> int:
    probe = store.begin_probe(probe_spec(session))
    store.finish_probe(probe, READING)
    return probe


def finished(store: Store, session: str, expected: list[int]) -> None:
    probes = [probe for probe in store.probes(session) if probe.finished]
    assert [probe.id for probe in probes] == expected and expected
    assert all(probe.reading and probe.reading.ranks == READING.ranks for probe in probes)


def write_against_a_limit(database: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with open_store(database, clock=Clock()) as store:
        session = store.create_session(SESSION).id
        stored = fill(store, session)
        with pytest.raises(OombisectError, match=r"is full|Reading or writing"):
            fill_once(store, session)
        finished(store, session, stored)


def test_a_limit_on_the_size_of_files(database: Path) -> None:
    """As a full disk, for those who may not mount one."""
    assert exit_codes([child(write_against_a_limit, database)]) == [0]
    with open_store(database, clock=Clock()) as store:
        probes = [probe for probe in store.probes("20261130-1") if probe.finished]
        assert probes and all(probe.reading and probe.reading.ranks == READING.ranks for probe in probes)
