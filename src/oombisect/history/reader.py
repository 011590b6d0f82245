"""Answers SQL without being able to change anything, whatever the SQL is.

Four bars, each enough: the file is opened read-only (`mode=ro`), `query_only` is on, an authorizer admits nothing but
reading, and all runs inside a transaction. Time, memory and the number of rows are bounded, and Ctrl-C ends a statement
that runs.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.connection import Connection
from oombisect.printable import printable, quoted

_TICK_SECONDS = 0.05
_HEAP_BYTES = 1 << 30
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 64 << 20,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1 << 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_FUNCTIONS_REFUSED = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "sqlite_log", "eval"}
# What tells of the schema, and has no effect whatever its argument is.
_PRAGMAS = {
    "table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list",
    "collation_list", "function_list", "compile_options", "database_list",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a statement; `cut` if there are more."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    cut: bool = False


def _authorize(action: int, one: str | None, two: str | None, *_: str | None) -> int:
    if action in _READING:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (two or "").lower() not in _FUNCTIONS_REFUSED:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA:
        name = (one or "").lower()
        if name in _PRAGMAS or (name == "schema_version" and two is None):
            return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def bar(db: sqlite3.Connection) -> None:
    """From now on nothing but reading is possible on this connection, in no more memory than `_HEAP_BYTES`."""
    if not db.in_transaction:  # temporary tables cannot move within one
        db.execute("PRAGMA temp_store = MEMORY")
    db.execute(f"PRAGMA hard_heap_limit = {_HEAP_BYTES}")  # of the process: SQLite has no other
    for limit, value in _LIMITS.items():
        db.setlimit(limit, value)
    # Table-valued functions declare themselves when first used, which an authorizer takes for a change.
    for function in ("json_each", "json_tree", *(f"pragma_{name}" for name in sorted(_PRAGMAS))):
        with suppress(sqlite3.OperationalError):  # one that this SQLite does not have
            db.execute(f"SELECT * FROM {function} LIMIT 0")  # noqa: S608  # names of ours
    db.execute("PRAGMA query_only = ON")
    db.set_authorizer(_authorize)


class Reader:
    """A connection on which only reading is possible. A context manager.

    Args:
        connection: read-only; it is this reader's from now on, and no use for anything else.
    """

    def __init__(self, connection: Connection) -> None:
        if not connection.readonly:
            raise ValueError("a connection that may write is no reader's")
        self._connection = connection
        self._db: sqlite3.Connection = connection.db.conn
        self._db.execute("BEGIN")
        bar(self._db)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.set_authorizer(None)
        self._connection.close()

    def ask(
        self,
        sql: str,
        values: Mapping[str, Any] | Sequence[Any] = (),
        *,
        seconds: float = 30.0,
        rows: int = 1000,
    ) -> Answer:
        """The answer to one statement.

        Args:
            seconds: it may take; more is an error.
            rows: how many are read at most.

        Raises:
            OombisectError: it is no SQL, would change something, or takes too long or too much memory.
        """
        box: list[Answer | BaseException] = []

        def work() -> None:
            try:
                cursor = self._db.execute(sql, values)
                found = cursor.fetchmany(rows + 1)
                columns = tuple(column[0] for column in cursor.description or ())
                box.append(Answer(columns, tuple(tuple(row) for row in found[:rows]), len(found) > rows))
                cursor.close()
            except BaseException as error:  # noqa: BLE001  # for the thread that waits
                box.append(error)

        # In a thread of its own: SQLite does not look for signals, and the one that waits can interrupt it.
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        end = time.monotonic() + seconds
        timed_out = False
        try:
            while thread.is_alive():
                thread.join(_TICK_SECONDS)
                if time.monotonic() > end:
                    timed_out = True
                    self._db.interrupt()
        except BaseException:
            self._db.interrupt()
            thread.join(1.0)
            raise
        result = box[0]
        if isinstance(result, BaseException):
            raise _explained(result, timed_out, seconds) from result
        return result


def _explained(error: BaseException, timed_out: bool, seconds: float) -> BaseException:
    if timed_out:
        return OombisectError(
            f"The statement took longer than {seconds:g} seconds", "Ask for less, or give it more with --seconds."
        )
    text = printable(str(error))
    if (
        isinstance(error, MemoryError)
        or "too big" in text
        or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOMEM
    ):
        return OombisectError("The statement takes more memory than it may", "Ask for less.")
    if isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", 0) in (
        sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM,
    ):  # fmt: skip
        return OombisectError(f"The statement does more than read: {text}", "Only reading is allowed here.")
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR):
        return OombisectError(f"The database cannot be read: {text}", "Check its disk.", ExitCode.INFRASTRUCTURE)
    if isinstance(error, sqlite3.Error | sqlite3.Warning | ValueError | OverflowError):
        return OombisectError(
            f"SQLite refuses the statement: {quoted(text, 300)[1:-1]}", "docs/database.md lists tables and columns."
        )
    return error
