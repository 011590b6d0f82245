"""One connection to the database, set up so that a committed row survives kill -9 and power loss."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.faults import explained, make_folder
from oombisect.history.migrations import check, migrate, shipped
from oombisect.history.sqlite import Database

_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_RETRY_SECONDS = 0.05


class Connection:
    """The database of one `Store`. May be used by several threads: one transaction at a time.

    Args:
        path: the database; with its folder it is created unless `readonly`.
        now: gives the time to record for a migration.
        busy_timeout: seconds to wait for another process's transaction.
        readonly: opened so that SQLite itself refuses to write.
    """

    def __init__(self, path: Path, now: Callable[[], str], busy_timeout: float, readonly: bool) -> None:
        self.path = path.absolute()
        self.readonly = readonly
        self._lock = threading.RLock()
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise OombisectError(
                f"This Python brings SQLite {sqlite3.sqlite_version}; oombisect needs 3.37 or newer",
                "Use another build of Python, for example the one `uv python install 3.12` brings.",
                ExitCode.UNEXPECTED,
            )
        if not readonly:
            make_folder(self.path.parent, self.path)
        with explained(self.path):
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode={'ro' if readonly else 'rwc'}",
                uri=True,
                timeout=busy_timeout,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                # Plug-ins of sqlite-utils stay out: a connection does what is written here, nothing else.
                self.db = Database(connection, execute_plugins=False)
                self._set_up(now, busy_timeout)
            except BaseException:
                connection.close()
                raise

    def _set_up(self, now: Callable[[], str], busy_timeout: float) -> None:
        self.db.execute("PRAGMA foreign_keys = ON")
        self.db.execute("PRAGMA trusted_schema = OFF")
        if self.readonly:
            if lacking := check(self.db, self.path, shipped()):
                raise OombisectError(
                    f"{self.path} is of an older version: it lacks {', '.join(m.name for m in lacking)}",
                    "Open it once for writing, for example with `oombisect sessions`.",
                )
            return
        check(self.db, self.path, shipped())  # before anything is changed in a file that is not ours
        self.db.execute("PRAGMA synchronous = FULL")
        self._use_wal(busy_timeout)
        migrate(self.db, self.path, now)

    def _use_wal(self, busy_timeout: float) -> None:
        """Turn on the write-ahead log: readers never wait. A file system that cannot have it keeps the old journal.

        Two processes that do this to a new database at once may be told it is busy without any waiting, hence the loop.
        """
        end = time.monotonic() + busy_timeout
        while True:
            try:
                self.db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
                time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        with self._lock:
            self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[Database]:
        """All or nothing; inside another transaction of this thread, part of it. Others wait from its start."""
        with self._lock, explained(self.path):
            if self.db.conn.in_transaction:
                yield self.db
                return
            self.db.conn.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
                self.db.commit()
            except BaseException:
                self.db.rollback()
                raise

    @contextmanager
    def reading(self) -> Iterator[Database]:
        """A consistent view: all queries inside see the same state of the database."""
        with self._lock, explained(self.path):
            if self.db.conn.in_transaction:
                yield self.db
                return
            self.db.conn.execute("BEGIN")
            try:
                yield self.db
            finally:
                self.db.rollback()
