"""`oombisect log`: what a session asked and was told, a line each."""

from __future__ import annotations

from oombisect.cli.options import Database, Json, Session


def log(
    session: Session = "last",
    database: Database = None,
    json: Json = False,
) -> None:
    """Print a session as a log: its request, then what was asked and answered, in order, a line each.

    `oombisect replay-log FILE` begins the same session again from it.

    Exit codes: 0, 2 usage, such as no such session, 14 the database cannot be read, 70 a bug.
    """
    from oombisect.cli.corrections import print_log

    print_log(session, database, as_json=json)
