"""Where the commits of series lie, told by the repositories at hand: nothing is fetched for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from oombisect.errors import OombisectError
from oombisect.history.connection import Connection
from oombisect.history.series import forget
from oombisect.history.sqlite import Database
from oombisect.repo.git import Git, GitError, Kind
from oombisect.repo.lines import MAIN, lines_of

Place = tuple[str, int]

_POINTS = """
WITH meant AS (SELECT value AS workload FROM json_each(:workloads))
SELECT points.id, points.key, places.line, places.position FROM points LEFT JOIN places ON places.point = points.id
WHERE points.repo NOT IN ('config', 'package') AND length(points.key) = 40 AND (
  points.id IN (SELECT point FROM probes WHERE workload IN meant)
  OR points.id IN (SELECT point FROM imported_readings WHERE workload IN meant))"""
_REPOSITORIES = """
WITH meant AS (SELECT value AS workload FROM json_each(:workloads))
SELECT repo FROM sessions WHERE id IN (SELECT session FROM probes WHERE workload IN meant)
UNION
SELECT source FROM imports WHERE id IN (SELECT import FROM imported_readings WHERE workload IN meant)
ORDER BY 1"""


def told_places(
    db: Database, workloads: Sequence[int], repository: Path | None, cwd: Path, cache: Path
) -> dict[int, Place]:
    """The places that a repository at hand tells otherwise than the database, or that this lacks, by point.

    Asked is `repository`, or where that is None the one around `cwd`, those that the readings were taken in, and the
    clone in the cache, as long as a place is missing.

    Raises:
        OombisectError: `repository` is none.
    """
    given = {"workloads": json.dumps(list(workloads))}
    rows = list(db.query(_POINTS, given))
    # A branch may have become part of the main line since.
    open_ = {row["key"]: row for row in rows if repository or row["line"] != MAIN}
    found: dict[int, Place] = {}
    if repository is not None:
        _ask(_top(repository), open_, found)
        return found
    if not any(row["line"] is None for row in open_.values()):
        return {}
    for path in _at_hand(db, given, cwd, cache):
        try:
            _ask(_top(path), open_, found)
        except OombisectError:
            continue
        if not any(row["line"] is None and row["id"] not in found for row in open_.values()):
            break
    return found


def _ask(repository: Path, open_: dict[str, dict[str, object]], found: dict[int, Place]) -> None:
    for key, place in lines_of(repository, [key for key, row in open_.items() if row["id"] not in found]).items():
        row = open_[key]
        if (row["line"], row["position"]) != place:
            found[int(str(row["id"]))] = place


def _at_hand(db: Database, given: dict[str, str], cwd: Path, cache: Path) -> Iterator[Path]:
    yield cwd
    for (name,) in db.execute(_REPOSITORIES, given).fetchall():
        if Path(name).is_dir():
            yield Path(name)
    yield from sorted((cache / "git").glob("*.git"))


def _top(path: Path) -> Path:
    """Any folder of a repository that git reads.

    Raises:
        OombisectError: it is in none.
    """
    if not path.is_dir():
        raise OombisectError(f"{path} is no folder", "Name a git repository with --repo PATH.")
    try:
        Git(path, Kind.FOREIGN).run("rev-parse", "--git-dir")
    except GitError as error:
        raise OombisectError(
            f"{path} is no git repository that git will read: {error.reason}",
            "Name a git repository with --repo PATH.",
        ) from error
    return path


def revision(repository: Path | None, cwd: Path, name: str) -> str | None:
    """The commit that a name has in the repository (or in the one around `cwd`); None: it is no name there."""
    if not name or name.startswith("-") or not name.isprintable():
        return None
    try:
        git = Git(_top(repository or cwd), Kind.FOREIGN)
        code, told = git.call("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", ok=(0, 1, 128))
    except OombisectError:
        return None
    return told.decode().strip() if code == 0 else None


def save_places(path: Path, now: Callable[[], str], places: dict[int, Place]) -> None:
    """Keep the places in the database, for those who have no repository at hand; not where it cannot be written."""
    try:
        connection = Connection(path, now, 5.0, readonly=False)
    except OombisectError:
        return
    try:
        with connection.transaction() as db:
            rows = [(point, line, position) for point, (line, position) in places.items()]
            db.conn.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?)", rows)
            told = json.dumps(list(places))
            affected = db.execute(
                """SELECT workload FROM probes WHERE point IN (SELECT value FROM json_each(:points))
                UNION SELECT workload FROM imported_readings WHERE point IN (SELECT value FROM json_each(:points))""",
                {"points": told},
            ).fetchall()
            forget(db, [workload for (workload,) in affected])
    except OombisectError:
        return
    finally:
        connection.close()
