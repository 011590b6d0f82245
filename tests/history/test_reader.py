"""Whatever the SQL: the database is what it was before, and the answer comes or an error that says why."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from history_support import Clock
from series_support import add_series
from tests.cli.test_exits import signals_as_in_a_terminal

from oombisect.errors import OombisectError
from oombisect.history.connection import Connection
from oombisect.history.reader import Reader
from oombisect.history.store import open_store
from oombisect.units import GIB

NUMBERS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
ENDLESS = f"{NUMBERS} SELECT count(*) FROM n"


@pytest.fixture
def filled(database: Path) -> Path:
    with open_store(database, clock=Clock()) as store:
        add_series(store, [60 * GIB, 61 * GIB, 61 * GIB])
    return database


@pytest.fixture
def reader(filled: Path) -> Iterator[Reader]:
    with Reader(Connection(filled, lambda: "now", 5, readonly=True)) as opened:
        yield opened


def everything(database: Path) -> dict[str, str]:
    """Every file of the folder, but for what readers share (`-shm`)."""
    files = [path for path in database.parent.rglob("*") if path.is_file() and not path.name.endswith("-shm")]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


CHANGES = """
INSERT INTO points VALUES (99, 'r', 'k', 's', NULL)
UPDATE gpus SET capacity_bytes = 0
DELETE FROM workload_changes
REPLACE INTO gpus VALUES ('a', 1)
WITH one AS (SELECT 1) INSERT INTO gpus SELECT 'a', 1
INSERT INTO gpus VALUES ('a', 1) RETURNING name
DROP TABLE points
DROP VIEW readings
ALTER TABLE points ADD COLUMN x
CREATE TABLE t (x)
CREATE TEMP TABLE t (x)
CREATE INDEX i ON points (subject)
CREATE VIEW v AS SELECT 1
CREATE TRIGGER t BEFORE INSERT ON points BEGIN SELECT 1; END
CREATE VIRTUAL TABLE v USING fts5 (x)
ATTACH '{other}' AS other
ATTACH ':memory:' AS other
DETACH main
VACUUM
VACUUM INTO '{other}'
REINDEX
ANALYZE
BEGIN
COMMIT
ROLLBACK
SAVEPOINT s
PRAGMA query_only = OFF
PRAGMA query_only
PRAGMA writable_schema = 1
PRAGMA journal_mode = DELETE
PRAGMA user_version = 3
PRAGMA application_id = 3
PRAGMA wal_checkpoint
PRAGMA hard_heap_limit = 0
PRAGMA temp_store_directory = '/tmp'
PRAGMA trusted_schema = ON
SELECT * FROM pragma_user_version
SELECT load_extension('{other}')
SELECT writefile('{other}', 'x')
SELECT readfile('/etc/passwd')
SELECT edit('x')
SELECT fts3_tokenizer('simple')
SELECT 1; DELETE FROM gpus
""".strip().splitlines()


@pytest.mark.parametrize("statement", CHANGES)
def test_nothing_changes(reader: Reader, filled: Path, statement: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    before = everything(filled)
    with pytest.raises(OombisectError) as refused:
        reader.ask(statement.format(other=other))
    assert refused.value.cause and refused.value.way_out
    assert everything(filled) == before and not other.exists()
    assert reader.ask("SELECT count(*) FROM probes").rows == ((3,),)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT max(peak_allocated) FROM probes",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 5) SELECT sum(x) FROM n",
        "EXPLAIN QUERY PLAN SELECT * FROM readings",
        "SELECT json_extract(settings, '$.iterations') FROM workloads",
        "SELECT name FROM pragma_table_info('probes')",
        "PRAGMA table_info(probes)",
        "SELECT key FROM workloads, json_each(workloads.settings)",
        "SELECT name FROM sqlite_master",
        "VALUES (1), (2)",
        "SELECT rank() OVER (ORDER BY key) FROM points",
    ],
)
def test_reading_is_allowed(reader: Reader, statement: str) -> None:
    assert reader.ask(statement).rows


def test_a_writer_is_no_reader(filled: Path) -> None:
    connection = Connection(filled, lambda: "now", 5, readonly=False)
    with pytest.raises(ValueError):
        Reader(connection)
    connection.close()


def test_what_takes_too_long_ends(reader: Reader) -> None:
    begun = time.monotonic()
    with pytest.raises(OombisectError, match=r"longer than 0\.3 seconds"):
        reader.ask(ENDLESS, seconds=0.3)
    assert time.monotonic() - begun < 5
    assert reader.ask("SELECT 1").rows == ((1,),)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT hex(zeroblob(1000000000))",
        "SELECT length(replace(hex(zeroblob(30000000)), '0', 'aaaaaaaaaa'))",
        f"{NUMBERS} SELECT length(group_concat(x, 'aaaaaaaaaaaaaaaaaaaaaaaaaa')) FROM n",
        f"{NUMBERS} SELECT hex(randomblob(1000000)) AS r FROM n ORDER BY r",
    ],
)
def test_what_takes_too_much_memory_ends(reader: Reader, statement: str) -> None:
    with pytest.raises(OombisectError, match=r"more memory|longer than"):
        reader.ask(statement, seconds=5)
    assert reader.ask("SELECT 1").rows == ((1,),)


def test_rows_are_bounded(reader: Reader) -> None:
    answer = reader.ask(f"{NUMBERS} SELECT x FROM n", rows=10)
    assert (len(answer.rows), answer.cut) == (10, True)
    assert not reader.ask("SELECT 1", rows=1).cut


@pytest.mark.parametrize(
    "statement", ["", "SELEC 1", "SELECT x", "SELECT 1\0; DROP TABLE points", "-- nothing", "SELECT ?"]
)
def test_what_is_no_sql_is_an_error_or_nothing(reader: Reader, statement: str) -> None:
    try:
        assert reader.ask(statement).rows == ()
    except OombisectError as error:
        assert "refuses" in error.cause


def test_who_waits_can_interrupt(filled: Path) -> None:
    """Ctrl-C ends a statement that runs."""
    command = [sys.executable, "-m", "oombisect", "sql", ENDLESS, "--seconds", "60", "--db", str(filled)]
    code = (
        "import sys; from oombisect.cli.main import main; sys.argv[0] = 'oombisect'; "
        "print('ready', file=sys.stderr, flush=True); main()"
    )
    process = subprocess.Popen(
        [command[0], "-c", code, *command[3:]], stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ),
        preexec_fn=signals_as_in_a_terminal,
    )  # fmt: skip
    assert process.stderr is not None
    process.stderr.readline()
    time.sleep(4)  # it has begun, or is about to
    assert process.poll() is None
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b""), err
    assert time.monotonic() - begun < 10 and b"Traceback" not in err
