"""`oombisect sql`: any question, in SQL, that cannot change anything."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.options import Database, Json
from oombisect.cli.query import Csv, Markdown, Seconds


def sql(
    statement: Annotated[str, typer.Argument(metavar="SQL", help="One statement; -: read it from standard input.")],
    limit: Annotated[int, typer.Option(metavar="N", help="Rows to read at most.")] = 1000,
    seconds: Seconds = 30.0,
    database: Database = None,
    json: Json = False,
    csv: Csv = False,
    markdown: Markdown = False,
) -> None:
    """Answer one SQL statement from the database (docs/database.md has its tables). Nothing can be changed by it.

    Exit codes: 0, 2 the statement is refused, 14 the database cannot be read, 70 a bug.
    """
    from oombisect.cli.query_of import run_sql
    from oombisect.history.location import default_database

    path = database or default_database()
    run_sql(path, statement, limit, seconds, as_json=json, as_csv=csv, as_markdown=markdown)
