"""`skip`, `undo`, `log` and `replay-log`: the terminal or JSON around `oombisect.session.editing` and `.log`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from oombisect import hints
from oombisect.cli.sessions_of import clock, named_session, print_json, run_again
from oombisect.errors import OombisectError
from oombisect.history.location import cache_dir, default_database
from oombisect.history.records import StoredSession
from oombisect.history.store import open_store
from oombisect.printable import printable
from oombisect.repo.bridge import open_repository
from oombisect.repo.whole import open_whole
from oombisect.reports.points import short
from oombisect.session import editing, log
from oombisect.session.editing import Edited
from oombisect.session.request import BisectRequest

_MANY = 10_000


def skip_points(words: Sequence[str], database: Path | None, *, as_json: bool) -> None:
    """`words`: points, after the session's id where it is given."""
    with open_store(_there(database), clock=clock) as store:
        ids = {"last", *(session.id for session in store.sessions(_MANY))}
        name, points = (words[0], words[1:]) if words[0] in ids else ("last", words)
        if not points:
            raise OombisectError(
                f"No point of session {name} is named", f"Name commits: {hints.command('skip', 'SESSION', 'POINT')}"
            )
        found = named_session(store, name)
        edited = editing.skip(store, found, points, lambda revision: _resolved(found, revision))
    _say(edited, f"skips {_named(edited.added)}", as_json)


def undo_answers(name: str, count: int, database: Path | None, *, as_json: bool) -> None:
    """Take back the last `count`."""
    with open_store(_there(database), clock=clock) as store:
        edited = editing.undo(store, named_session(store, name), count)
    taken = "; ".join(_UNDONE[one.request] + (_named(one.points) or "a point") for one in edited.undone)
    _say(edited, f"takes back {taken}", as_json)


def print_log(name: str, database: Path | None, *, as_json: bool) -> None:
    """The log, as text or as a document."""
    with open_store(database or default_database(), clock=clock, readonly=True) as store:
        found = named_session(store, name)
        entries = log.entries(store, found)
    if as_json:
        print_json({"schema": 1, "session": found.id, "log": entries})
    else:
        sys.stdout.write(log.to_text(entries))


def replay_logged(file: Path, database: Path | None, *, check: bool, trust: bool, as_json: bool) -> None:
    """Begin a logged session again, unless it is only to be checked."""
    logged = log.read(file)
    command = printable(shlex.join(logged.command))
    if check:
        if as_json:
            print_json({"schema": 1, "kind": logged.kind, "command": logged.command, "skipped": logged.skipped})
        else:
            print(f"Replaying it would run: {command}")
            print("\n".join(f"without {printable(key)}" for key in logged.skipped))
        return
    with open_store(database or default_database(), clock=clock) as store:
        ours = any(
            (session.spec.kind, session.spec.arguments) == (logged.kind, logged.arguments)
            for session in store.sessions(_MANY)
        )
        if not (ours or trust):
            raise OombisectError(
                f"No session of this database made this log, and replaying it runs what it names: {command}",
                "Read its `session` line; if you would run that, add --trust.",
            )
        run_again(store, logged.kind, logged.request.to_json(), database, as_json=as_json, skipped=logged.skipped)


def _there(database: Path | None) -> Path:
    """The database, which these commands only change: they make none."""
    path = database or default_database()
    open_store(path, clock=clock, readonly=True).close()
    return path


def _resolved(session: StoredSession, revision: str) -> str:
    """The commit that a revision names in the repository of the session; other points have no such names."""
    if session.spec.kind not in ("run", "demo"):
        return revision
    request = BisectRequest.from_json(session.spec.arguments).probe
    opened = open_whole if request.runs_command else open_repository
    return opened(Path(request.repo) if request.repo else None, Path.cwd(), cache_dir()).resolve(revision)


_UNDONE = {
    "measure": "the reading of ",
    "remeasure": "the fresh reading of ",
    "revert": "the bad end without ",
    None: "the skip of ",
}


def _named(points: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(printable(short(point)) for point in points))


def _say(edited: Edited, what: str, as_json: bool) -> None:
    resume = hints.command("resume", edited.session)
    if as_json:
        print_json(edited.to_json() | {"resume": resume})
        return
    again = " It was finished; its verdict is superseded." if edited.reopened else ""
    print(f"Session {edited.session} {what}.{again} To go on:")
    print(f"  {resume}")
