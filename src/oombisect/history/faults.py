"""What SQLite and the file system refuse, in words a user can act on."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oombisect import hints
from oombisect.errors import ExitCode, OombisectError

# Errors of the file and of the machine. The others (a broken constraint, a wrong type) are the program's own mistakes.
_FORESEEN = (sqlite3.DatabaseError, sqlite3.OperationalError)
_OTHER_DATABASE = "or name another database with --db."


def explain(error: sqlite3.Error | OSError, path: Path) -> OombisectError:
    """The foreseen failure behind `error`, which the database `path` or a file beside it met."""
    if isinstance(error, OSError):
        return OombisectError(
            f"Cannot use the database {path}: {error.strerror or error} ({error.filename or path})",
            f"Make the folder writable and free some space, {_OTHER_DATABASE}",
            ExitCode.INFRASTRUCTURE,
        )
    # The low byte is the kind of failure, the rest its detail (SQLITE_IOERR_WRITE, SQLITE_BUSY_SNAPSHOT, ...).
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            cause, way_out = (
                f"The disk that holds {path} is full",
                f"Free some space, then run `{hints.command('resume')}`",
            )
        case sqlite3.SQLITE_IOERR:
            cause = f"Reading or writing {path} failed ({error.sqlite_errorname})"
            way_out = f"Check that its disk has space and is in order, then run `{hints.command('resume')}`"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            cause = f"The database {path} stayed locked by another process"
            way_out = f"End the program that keeps it open for writing, then run `{hints.command('resume')}`"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            cause = f"The database {path} is read-only"
            way_out = "Make the file and its folder writable"
        case sqlite3.SQLITE_CANTOPEN:
            cause = f"The database {path} cannot be opened"
            way_out = "Check that it exists, is a file, and that you may read and write it and its folder"
        case sqlite3.SQLITE_NOTADB:
            cause = f"{path} is not an SQLite database"
            way_out = "Move the file away"
        case sqlite3.SQLITE_CORRUPT:
            cause = f"The database {path} is damaged ({error})"
            way_out = f"Save what is readable with `sqlite3 {path} .recover`, move the file away"
        case _:
            cause, way_out = f"The database {path} refused: {error}", "Check it with `PRAGMA integrity_check`"
    return OombisectError(cause, f"{way_out}, {_OTHER_DATABASE}", ExitCode.INFRASTRUCTURE)


def no_database(path: Path) -> OombisectError:
    """There is no file `path`; what to do about it depends on whether a run could make one there."""
    cause, way_out = f"There is no database {path}", "Name another with --db"
    there = next(folder for folder in path.parents if folder.is_dir())
    try:
        with tempfile.TemporaryFile(dir=there):  # nothing else tells for sure, to root least of all
            pass
    except OSError as error:
        why = "it is no place for files" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        return OombisectError(
            f"{cause}, and none can be made in {there}: {why}", f"{way_out}.", ExitCode.INFRASTRUCTURE
        )
    return OombisectError(
        cause, f"{way_out}, or start a session with `{hints.command('run')}`.", ExitCode.INFRASTRUCTURE
    )


def is_read_only(error: sqlite3.Error) -> bool:
    """Whether `error` says that a file may not be written, or none be made beside it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN,
    )  # fmt: skip


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite refuses inside into an `OombisectError`."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if type(error) not in _FORESEEN:
            raise
        raise explain(error, path) from error


def make_folder(folder: Path, database: Path) -> None:
    """Create `folder`, which the database is or keeps files in, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, database) from error
