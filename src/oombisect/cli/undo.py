"""`oombisect undo`: take back the last answers of a session."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.options import Database, Json, Session


def undo(
    session: Session = "last",
    number: Annotated[int, typer.Argument(metavar="N", help="How many answers and skips.")] = 1,
    database: Database = None,
    json: Json = False,
) -> None:
    """Take back the last answers and skips of a session; where one is asked again, it is measured afresh.

    `oombisect resume` goes on from there; a session that is finished is taken up again, and its verdict superseded.
    Nothing is deleted: readings stay in the database.

    Exit codes: 0, 2 usage, such as fewer answers than N, 14 the database cannot be written, 70 a bug.
    """
    from oombisect.cli.corrections import undo_answers

    undo_answers(session, number, database, as_json=json)
