"""`oombisect replay-log`: begin a logged session again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oombisect.cli.options import Database, Json


def replay_log(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `oombisect log` wrote; - is standard input.")],
    check: Annotated[bool, typer.Option("--check", help="Only read it and say what would be run.")] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Run what a log of another database asks for: its repository, Python, command."),
    ] = False,
    database: Database = None,
    json: Json = False,
) -> None:
    """Run a logged session again, as a new one: the same request, the same skips.

    Only what the database has no reading of is probed. Reading the log executes nothing; the session itself runs what
    its request names, so that one this database did not make needs --trust.

    Exit codes: those of `oombisect run`; with --check 0, 2 it is no log that can be replayed.
    """
    from oombisect.cli.corrections import replay_logged

    replay_logged(file, database, check=check, trust=trust, as_json=json)
