"""One connection to the database, set up so that a committed row survives kill -9 and power loss."""

from __future__ import annotations

import shlex
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from oombisect import hints
from oombisect.errors import ExitCode, OombisectError
from oombisect.files import irregular
from oombisect.history.faults import explain, explained, is_read_only, make_folder, no_database
from oombisect.history.migrations import Migration, applied, check, migrate, shipped
from oombisect.history.sqlite import Database

_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_RETRY_SECONDS = 0.05


class Connection:
    """The database of one `Store`. May be used by several threads: one transaction at a time.

    Args:
        path: the database; with its folder it is created unless `readonly`.
        now: gives the time to record for a migration.
        busy_timeout: seconds to wait for another process's transaction.
        readonly: opened so that SQLite itself refuses to write; one of an earlier version is brought up to date first.
    """

    def __init__(self, path: Path, now: Callable[[], str], busy_timeout: float, readonly: bool) -> None:
        self.path = path.absolute()
        self.readonly = readonly
        self.immutable = False  # opened as a file that nobody writes to
        self._lock = threading.RLock()
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise OombisectError(
                f"This Python brings SQLite {sqlite3.sqlite_version}; oombisect needs 3.37 or newer",
                "Use another build of Python, for example the one `uv python install 3.12` brings.",
                ExitCode.INFRASTRUCTURE,
            )
        _refuse_what_is_no_file(self.path, readonly)
        if not readonly:
            make_folder(self.path.parent, self.path)
        with explained(self.path):
            self.db = self._connect(busy_timeout)
            try:
                if readonly:
                    self._look(now, busy_timeout)
                else:
                    self._set_up(now, busy_timeout)
            except BaseException:
                self.db.close()
                raise

    def _connect(self, busy_timeout: float, *, immutable: bool = False) -> Database:
        mode = "rwc" if not self.readonly else "ro&immutable=1" if immutable else "ro"
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        # Plug-ins of sqlite-utils stay out: a connection does what is written here, nothing else.
        return Database(connection, execute_plugins=False)

    def _set_up(self, now: Callable[[], str], busy_timeout: float) -> None:
        check(self.db, self.path, shipped())  # before anything is changed in a file that is not ours
        self.db.execute("PRAGMA synchronous = FULL")
        self._use_wal(busy_timeout)
        migrate(self.db, self.path, now)

    def _look(self, now: Callable[[], str], busy_timeout: float) -> None:
        if not self._lacks(busy_timeout):
            return
        if not applied(self.db):
            raise OombisectError(
                f"{self.path} is empty: it holds no session yet", f"Start one: `{hints.command('run', 'GOOD..BAD')}`."
            )
        self.db.close()
        try:
            Connection(self.path, now, busy_timeout, readonly=False).close()
        except OombisectError as error:
            if not (isinstance(error.__cause__, sqlite3.Error) and is_read_only(error.__cause__)):
                raise
            raise self._locked_up(
                "was written by an earlier oombisect, and cannot be brought up to date: it is read-only"
            ) from error
        self.db = self._connect(busy_timeout)
        check(self.db, self.path, shipped())

    def _lacks(self, busy_timeout: float) -> list[Migration]:
        """The migrations it lacks. In a read-only folder SQLite cannot make the files beside it that readers need.

        Where there are none yet, nobody has it open, so that it can be read without.
        """
        try:
            return check(self.db, self.path, shipped())
        except sqlite3.OperationalError as error:
            if not is_read_only(error):
                raise
            if self.path.with_name(f"{self.path.name}-wal").exists():
                raise self._locked_up("is in a read-only folder, and in use or not closed in order") from error
        self.db.close()
        self.immutable = True
        self.db = self._connect(busy_timeout, immutable=True)
        return check(self.db, self.path, shipped())

    def _locked_up(self, why: str) -> OombisectError:
        everything = f"{shlex.quote(str(self.path.with_suffix('')))}.*"
        return OombisectError(
            f"{self.path} {why}",
            "Make the file and its folder writable, or copy it and name the copy with --db: "
            f"`cp -r {everything} FOLDER`.",
            ExitCode.INFRASTRUCTURE,
        )

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
        """Close it; what is not committed is gone."""
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


def _refuse_what_is_no_file(path: Path, readonly: bool) -> None:
    """SQLite waits for the other end of a pipe, where no signal reaches it, and takes a device for a database."""
    try:
        kind = irregular(path)
    except FileNotFoundError as error:
        if not readonly:
            return
        raise no_database(path) from error
    except OSError as error:
        raise explain(error, path) from error
    if kind:
        raise OombisectError(f"{path} is {kind}, not a database", "Name a file with --db.")
