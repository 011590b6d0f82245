"""`oombisect gc`: from the options to what is deleted."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.connection import Connection
from oombisect.history.location import cache_dir
from oombisect.history.pruning import ProbeFiles, Rule, chosen, delete, survey
from oombisect.history.rows import time_text
from oombisect.history.store import open_store
from oombisect.units import counted, format_bytes, parse_bytes

_DAYS = 30.0
_MOST_DAYS = 36500.0
_ALL = 1_000_000
_WHY = {
    "running": "of a session that is running",
    "unfinished": "of sessions that can be resumed (--unfinished)",
    "end or step": "of ends and steps of verdicts (--ends)",
    "other session": "of other sessions",
    "new": "too new (--older-than)",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `gc`."""

    older_than: float | None
    keep: str | None
    sessions: tuple[str, ...]
    ends: bool
    unfinished: bool
    environments: bool
    dry_run: bool


def collect(path: Path, asked: Asked, *, as_json: bool) -> None:
    """Delete what was asked for and say so.

    Raises:
        OombisectError: the database cannot be read, or a file not be deleted.
    """
    now = datetime.now(UTC)
    days = _days(asked)
    with open_store(path, clock=lambda: now, readonly=True) as store:
        sessions = store.sessions(_ALL)
        named = tuple(store.session(name).id for name in asked.sessions)
        artifacts = store.artifacts
    rule = Rule(
        before=None if days is None else now - timedelta(days=days),
        most_bytes=None if asked.keep is None else parse_bytes(asked.keep, least=0),
        sessions=named,
        ends=asked.ends,
        unfinished=asked.unfinished,
    )
    connection = Connection(path, lambda: time_text(now), 30.0, readonly=True)
    try:
        with connection.reading() as db:
            found = survey(db, artifacts, sessions, rule)
    finally:
        connection.close()
    gone = chosen(found, rule)
    if not asked.dry_run:
        gone = delete(artifacts, gone)
    environments = _environments(days, asked)
    _tell(found, gone, environments, asked, as_json)


def _days(asked: Asked) -> float | None:
    """How old files must be; None: of any age."""
    if asked.older_than is None:
        return None if asked.keep or asked.sessions else _DAYS
    if not 0 <= asked.older_than <= _MOST_DAYS:
        raise OombisectError(f"--older-than {asked.older_than:g} is out of range", f"Use 0 to {_MOST_DAYS:g} days.")
    return asked.older_than


def _environments(days: float | None, asked: Asked) -> int | None:
    """The bytes of environments that were deleted; None: none were asked for."""
    if not asked.environments:
        return None
    if asked.dry_run:
        raise OombisectError("--dry-run cannot tell of --environments", "Leave one of them out.")
    from oombisect.probing.environments import prune

    try:
        return sum(one.bytes for one in prune(cache_dir(), (_DAYS if days is None else days) * 86400))
    except OSError as error:
        raise OombisectError(
            f"An environment cannot be deleted: {error.strerror or error} ({error.filename or cache_dir()})",
            "Make the cache writable, then run the same line again.",
            ExitCode.INFRASTRUCTURE,
        ) from error


def _tell(
    found: Sequence[ProbeFiles], gone: Sequence[ProbeFiles], environments: int | None, asked: Asked, as_json: bool
) -> None:
    total, freed = sum(files.bytes for files in found), sum(files.bytes for files in gone)
    why: Counter[str] = Counter()
    for files in found:
        why[files.kept] += files.bytes
    if as_json:
        deleted = [{"session": f.session, "probe": f.probe, "ended": f.ended, "bytes": f.bytes} for f in gone]
        kept = {name: why[name] for name in _WHY if why[name]}
        document = {
            "schema": 1,
            "dry_run": asked.dry_run,
            "deleted": deleted,
            "deleted_bytes": freed,
            "left_bytes": total - (0 if asked.dry_run else freed),
            "kept_bytes": kept,
            "environments_bytes": environments,
        }
        json.dump(document, sys.stdout, indent=1)
        print()
        return
    verb = "would delete" if asked.dry_run else "deleted"
    for files in gone:
        print(f"  {files.session}/{files.probe}  {files.ended[:10]}  {format_bytes(files.bytes)}")
    print(f"{verb} the files of {counted(len(gone), 'probe')}: {format_bytes(freed)} of {format_bytes(total)}")
    for name, text in _WHY.items():
        if why[name]:
            print(f"  kept {format_bytes(why[name])} {text}")
    if environments is not None:
        print(f"deleted environments: {format_bytes(environments)}")
