"""Bringing a database to the schema of this version.

Migrations are `db/migrations/NNN_name.sql`, applied in order, never edited once released. sqlite-utils has migrations
too, but two sessions may open a new database at once (so all happens under one write lock, looked at again once it is
held), and a database of a newer version must be able to name the oombisect that made it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oombisect import __version__
from oombisect.errors import ExitCode, OombisectError
from oombisect.history.sqlite import Database
from oombisect.resources import db_dir

APPLICATION_ID = int.from_bytes(b"OOMB", "big")
_BOOKKEEPING = """
CREATE TABLE IF NOT EXISTS schema_migrations (
  name TEXT PRIMARY KEY NOT NULL,
  oombisect_version TEXT NOT NULL, -- who applied it
  applied TEXT NOT NULL
) STRICT"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema: its file name without `.sql`, and the statements."""

    name: str
    sql: str


def shipped(folder: Path | None = None) -> list[Migration]:
    """The migrations of this version, in order."""
    files = sorted((folder or db_dir() / "migrations").glob("[0-9][0-9][0-9]_*.sql"))
    if not files:
        raise OombisectError(
            "The database schema is missing from this installation", "Reinstall oombisect.", ExitCode.INFRASTRUCTURE
        )
    return [Migration(file.stem, file.read_text(encoding="utf-8")) for file in files]


def applied(db: Database) -> dict[str, str]:
    """Names of the migrations that `db` has, each with the oombisect version that applied it."""
    if not db["schema_migrations"].exists():
        return {}
    rows = db.query("SELECT name, oombisect_version FROM schema_migrations ORDER BY name")
    return {row["name"]: row["oombisect_version"] for row in rows}


def check(db: Database, path: Path, known: list[Migration]) -> list[Migration]:
    """The migrations that `db` lacks.

    Raises:
        OombisectError: it is no database of oombisect's, or one of a newer version.
    """
    application = db.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID and (application or db.execute("SELECT 1 FROM sqlite_master").fetchone()):
        raise OombisectError(
            f"{path} is a database of another program", "Name another file with --db; a new one is created."
        )
    present = applied(db)
    if newer := sorted(present.keys() - {migration.name for migration in known}):
        maker = present[newer[-1]]
        raise OombisectError(
            f"{path} was written by oombisect {maker} (schema {newer[-1]}); this is oombisect {__version__}, "
            f"which knows the schema up to {known[-1].name}",
            f"Upgrade with `pip install 'oombisect>={maker}'`, or name another database with --db.",
        )
    return [migration for migration in known if migration.name not in present]


def migrate(db: Database, path: Path, now: Callable[[], str], known: list[Migration] | None = None) -> None:
    """Apply what `db` lacks, all of it or nothing.

    Args:
        now: gives the time to record.
        known: instead of the shipped migrations (tests).
    """
    known = shipped() if known is None else known
    if not check(db, path, known):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have migrated while this one waited for the lock.
        for migration in check(db, path, known):
            db.execute(_BOOKKEEPING)
            db.executescript(migration.sql)
            db.execute("INSERT INTO schema_migrations VALUES (?, ?, ?)", [migration.name, __version__, now()])
        db.commit()
    except BaseException:
        db.rollback()
        raise
