"""`oombisect resume`: go on with a session that was interrupted."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.options import Database, Json, Session


def resume(
    session: Session = "last",
    budget: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Most probes from now on, those that ran included: a session that spent a smaller one goes on.",
            show_default=False,
        ),
    ] = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Go on where a session stopped, interrupted or, with a larger --budget, its budget spent; no finished probe runs
    again.

    Exit codes: 0 named, 10 no change, 11 blurred by points that cannot be probed, 12 creep, 13 budget spent,
    14 infrastructure, 2 usage, 70 a bug, 130 interrupted (128 + n by signal n).
    """
    from oombisect.cli.sessions_of import resume_session

    resume_session(session, database, as_json=json, budget=budget)
