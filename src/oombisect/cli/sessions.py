"""`oombisect sessions`: what was run."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.options import Database, Json
from oombisect.errors import OombisectError


def sessions(
    number: Annotated[int, typer.Option("-n", "--number", metavar="N", help="How many to list.")] = 20,
    database: Database = None,
    json: Json = False,
) -> None:
    """List sessions, newest first.

    Exit codes: 0 also where there are none yet, 2 usage, 14 the database cannot be read, 70 a bug.
    """
    from oombisect.cli.sessions_of import clock, print_json
    from oombisect.history.location import default_database
    from oombisect.history.records import StoredSession
    from oombisect.history.store import open_store
    from oombisect.reports.sessions import render_sessions, session_json
    from oombisect.reports.terminal import report_console

    if number < 1:
        raise OombisectError(f"--number {number} is out of range", "Use 1 or more.")
    found: list[StoredSession] = []
    if database or default_database().exists():
        with open_store(database or default_database(), clock=clock, readonly=True) as store:
            found = store.sessions(number)
    if json:
        print_json({"schema": 1, "sessions": [session_json(session) for session in found]})
    else:
        render_sessions(found, report_console())
