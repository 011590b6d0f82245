"""Deleting files of old probes: allocation histories, logs, job and result files. No row of the database changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from oombisect.errors import ExitCode, OombisectError
from oombisect.history import locks
from oombisect.history.records import SessionState, StoredSession
from oombisect.history.rows import probe_folder, time_text
from oombisect.history.sqlite import Database


@dataclass(frozen=True, slots=True)
class ProbeFiles:
    """The folder of a probe's files: when it ended (or began), how many bytes it takes on disk.

    `kept` says why it is not deleted; empty: it may be.
    """

    session: str
    probe: int
    folder: Path
    ended: str
    bytes: int
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """What to delete.

    Args:
        before: only of probes that ended before this; None: however new.
        most_bytes: only until no more than this is left, oldest first; None: all.
        sessions: only of these; empty: of all.
        ends: also of the ends and steps of verdicts.
        unfinished: also of sessions that may be resumed (never of one that a process works on).
    """

    before: datetime | None = None
    most_bytes: int | None = None
    sessions: tuple[str, ...] = ()
    ends: bool = False
    unfinished: bool = False


def survey(db: Database, artifacts: Path, sessions: Sequence[StoredSession], rule: Rule) -> list[ProbeFiles]:
    """The probes that have files, oldest first, each with why it is kept, if it is.

    Args:
        sessions: all that the database has, as they are: a dead one is interrupted.
    """
    ends, needed = _ends(sessions), _needed(db, sessions)
    states = {session.id: session.state for session in sessions}
    before = None if rule.before is None else time_text(rule.before)
    query = """
        SELECT probes.id, session, coalesce(finished, started) AS ended, points.key
        FROM probes JOIN points ON points.id = probes.point ORDER BY ended, probes.id"""
    found = []
    for row in db.query(query):
        folder = artifacts / probe_folder(row["session"], row["id"])
        if not folder.is_dir() or folder.is_symlink() or folder.parent.is_symlink():  # what is elsewhere is not ours
            continue
        state = states[row["session"]]
        kept = ""
        if state is SessionState.RUNNING:
            kept = "running"
        elif not rule.unfinished and (state is not SessionState.FINISHED or row["id"] in needed):
            kept = "unfinished"
        elif not rule.ends and row["key"] in ends:
            kept = "end or step"
        elif rule.sessions and row["session"] not in rule.sessions:
            kept = "other session"
        elif before is not None and row["ended"] >= before:
            kept = "new"
        found.append(ProbeFiles(row["session"], row["id"], folder, row["ended"], size_of(folder), kept))
    return found


def chosen(found: Sequence[ProbeFiles], rule: Rule) -> list[ProbeFiles]:
    """Those that are deleted: all that may be, or the oldest of them until little enough is left."""
    free = [files for files in found if not files.kept]
    if rule.most_bytes is None:
        return free
    left, result = sum(files.bytes for files in found), []
    for files in free:
        if left <= rule.most_bytes:
            break
        left -= files.bytes
        result.append(files)
    return result


def delete(artifacts: Path, files: Sequence[ProbeFiles]) -> list[ProbeFiles]:
    """Delete them; those that were, for a session that has been taken up meanwhile keeps its own.

    Raises:
        OombisectError: something cannot be deleted.
    """
    gone = []
    for session in dict.fromkeys(one.session for one in files):
        try:
            lock = locks.SessionLock(artifacts / session)
        except OSError:  # a process works on it, or it cannot be written
            continue
        try:
            for one in (one for one in files if one.session == session):
                _remove(one.folder)
                gone.append(one)
        finally:
            lock.release()
    return gone


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise OombisectError(
            f"{folder} cannot be deleted: {error.strerror or error}",
            "Make it writable, then run the same line again.",
            ExitCode.INFRASTRUCTURE,
        ) from error


def size_of(folder: Path) -> int:
    """Bytes on disk; links are not followed."""
    return sum(Path(where, name).lstat().st_blocks * 512 for where, _, names in os.walk(folder) for name in names)


def _ends(sessions: Sequence[StoredSession]) -> set[str]:
    """The points that verdicts name: ends of ranges, steps, and what lies before these."""
    found: set[str] = set()
    for session in sessions:
        if session.spec.kind != "probe":
            found |= {session.spec.good, session.spec.bad}
            verdict = (session.verdict or {}).get("verdict") or {}
            found |= set(_points(verdict))
    return found


def _points(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (value[name] for name in ("point", "parent", "crossing") if isinstance(value.get(name), str))
        for one in value.values():
            yield from _points(one)
    elif isinstance(value, list):
        for one in value:
            yield from _points(one)


def _needed(db: Database, sessions: Sequence[StoredSession]) -> Collection[int]:
    """Probes, of any session, whose answers an unfinished one has used."""
    open_ = [session.id for session in sessions if session.state is not SessionState.FINISHED]
    query = """
        SELECT json_extract(payload, '$.probe') AS probe FROM events
        WHERE session IN (SELECT value FROM json_each(?)) AND probe IS NOT NULL"""
    return {row["probe"] for row in db.query(query, [json.dumps(open_)])}
