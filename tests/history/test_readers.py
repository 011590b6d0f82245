"""Whoever only reads: databases of earlier versions, in read-only places, empty ones, and paths that are no files."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from freeze import READINGS, VERSIONS, fill
from history_support import Clock, child, exit_codes

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.migrations import shipped
from oombisect.history.store import open_store

NAMES = [migration.name for migration in shipped()]


def earlier(path: Path, version: str = NAMES[0]) -> Path:
    """A database that an earlier version left: its journal is a write-ahead log, as in all of them."""
    path.parent.mkdir(exist_ok=True)
    with sqlite3.connect(path) as old:
        old.executescript((VERSIONS / f"{version}.sql").read_text(encoding="utf-8"))
        old.execute("PRAGMA journal_mode = WAL")
    old.close()
    return path


def refused(path: Path) -> OombisectError:
    with pytest.raises(OombisectError) as caught:
        open_store(path, clock=Clock(), readonly=True, busy_timeout=0.2)
    assert str(path) in caught.value.cause
    return caught.value


def migrations(path: Path) -> list[str]:
    # A reader that closed last left the log in place: what is in it counts.
    how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    db = sqlite3.connect(f"{path.as_uri()}?{how}", uri=True)
    try:
        return [name for (name,) in db.execute("SELECT name FROM schema_migrations ORDER BY name")]
    finally:
        db.close()


@pytest.mark.parametrize("version", NAMES)
def test_a_reader_brings_an_earlier_database_up_to_date(database: Path, version: str) -> None:
    earlier(database, version)
    with open_store(database, clock=Clock(), readonly=True) as store:
        assert [probe.reading for probe in store.probes("20261130-1")] == [*READINGS, None]
        assert store.find_replay("none", "", "", None) is None
        with pytest.raises(OombisectError, match="read-only"):  # it still only reads
            store.append_event(store.resume_session("20261130-2").id, "x", {})
    assert migrations(database) == NAMES


def read(database: Path) -> None:
    with open_store(database, clock=Clock(), readonly=True) as store:
        assert len(store.sessions()) == 2


def test_several_readers_at_once(database: Path) -> None:
    earlier(database)
    assert exit_codes([child(read, database) for _ in range(4)]) == [0] * 4
    assert migrations(database) == NAMES


def test_an_earlier_database_that_another_process_writes_to(database: Path) -> None:
    earlier(database)
    writer = sqlite3.connect(database, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    error = refused(database)
    assert "stayed locked" in error.cause and error.exit_code == ExitCode.INFRASTRUCTURE
    writer.execute("ROLLBACK")
    writer.close()
    read(database)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that `closed` makes read-only, for root too."""
    folder = tmp_path / "place"
    folder.mkdir()
    if os.geteuid() == 0:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True)
        if done.returncode:
            pytest.skip("root needs the right to mount a read-only disk")
    yield folder
    if os.geteuid() == 0:
        subprocess.run(["umount", "-l", folder], check=True)
    else:
        folder.chmod(0o755)


def closed(folder: Path) -> None:
    if os.geteuid() == 0:
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    else:
        folder.chmod(0o555)
        for file in folder.iterdir():
            file.chmod(0o444)


def test_a_read_only_place(place: Path) -> None:
    fill(place / "oombisect.db")
    assert sorted(file.name for file in place.iterdir() if file.is_file()) == ["oombisect.db"]
    closed(place)
    read(place / "oombisect.db")


def test_an_earlier_database_in_a_read_only_place(place: Path, tmp_path: Path) -> None:
    path = earlier(place / "oombisect.db")
    before = path.read_bytes()
    closed(place)
    error = refused(path)
    assert "earlier oombisect" in error.cause and error.exit_code == ExitCode.INFRASTRUCTURE
    assert path.read_bytes() == before
    (tmp_path / "FOLDER").mkdir()
    command = error.way_out.split("`")[1]  # the way out works
    subprocess.run(["bash", "-c", f"{command} && chmod u+w FOLDER/*"], cwd=tmp_path, check=True)
    read(tmp_path / "FOLDER" / "oombisect.db")


def test_what_is_in_the_log_is_not_passed_over(place: Path, tmp_path: Path) -> None:
    """A writer that was killed left a log; in a read-only place its content cannot be read, and is not left out."""
    fill(tmp_path / "oombisect.db")
    writer = sqlite3.connect(tmp_path / "oombisect.db", isolation_level=None)
    writer.execute("INSERT INTO events VALUES ('20261130-2', 0, '2026-11-30T12:00:00Z', 'x', '{}')")
    for name in ("oombisect.db", "oombisect.db-wal"):
        (place / name).write_bytes((tmp_path / name).read_bytes())
    writer.close()
    closed(place)
    error = refused(place / "oombisect.db")
    assert "in a read-only folder, and in use or not closed in order" in error.cause
    (tmp_path / "FOLDER").mkdir()
    subprocess.run(["bash", "-c", error.way_out.split("`")[1]], cwd=tmp_path, check=True)
    with open_store(tmp_path / "FOLDER" / "oombisect.db", clock=Clock(), readonly=True) as store:
        assert [event.kind for event in store.events("20261130-2")] == ["x"]


def test_an_empty_file_holds_no_session(database: Path) -> None:
    database.parent.mkdir()
    database.touch()
    assert "is empty: it holds no session yet" in refused(database).cause
    assert database.read_bytes() == b""


def test_no_file_at_all(database: Path) -> None:
    error = refused(database)
    assert "There is no database" in error.cause and "--db" in error.way_out
    assert not database.parent.exists()


def test_no_file_where_none_can_be_made(place: Path) -> None:
    """Nobody is told to start a session there."""
    closed(place)
    for path in (place / "none.db", place / "no folder" / "none.db", Path("/proc/none.db")):
        error = refused(path)
        assert "none can be made in" in error.cause and error.exit_code == ExitCode.INFRASTRUCTURE
        assert error.way_out == "Name another with --db."
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("readonly", [False, True])
def test_what_is_no_file_is_not_opened(tmp_path: Path, readonly: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path, kind in {
        tmp_path: "a directory",
        tmp_path / "pipe": "a pipe",
        tmp_path / "link": "a pipe",
        Path("/dev/zero"): "a device",
        Path("/dev/null"): "a device",
    }.items():
        with pytest.raises(OombisectError, match=f"is {kind}, not a database") as caught:
            open_store(path, clock=Clock(), readonly=readonly)
        assert caught.value.exit_code == ExitCode.USAGE
