"""`oombisect query NAME`: a canned question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oombisect.cli import completion
from oombisect.cli.options import Database, Json

Csv = Annotated[bool, typer.Option("--csv", help="Print CSV, sizes in bytes.")]
Markdown = Annotated[bool, typer.Option("--md", help="Print a Markdown table.")]
Seconds = Annotated[float, typer.Option(metavar="SECONDS", help="How long it may take.")]


def query(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The question.", show_default=False, autocompletion=completion.queries),
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--param", metavar="NAME=VALUE", help="A parameter of it, e.g. limit=5. Repeatable."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the questions with their parameters.")] = False,
    repo: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The repository whose tags and branches may be named. Default: the current directory's.",
            show_default=False,
        ),
    ] = None,
    seconds: Seconds = 30.0,
    database: Database = None,
    json: Json = False,
    csv: Csv = False,
    markdown: Markdown = False,
) -> None:
    """Answer a canned question about everything that was measured; without a name, list them (docs/queries.md).

    Exit codes: 0, 2 usage, such as no such question, 14 the database cannot be read, 70 a bug.
    """
    from oombisect.cli.query_of import list_queries, run_query
    from oombisect.history.location import default_database

    if listed or name is None:
        list_queries(as_json=json, as_csv=csv, as_markdown=markdown)
    else:
        path = database or default_database()
        run_query(path, name, parameters or [], repo, seconds, as_json=json, as_csv=csv, as_markdown=markdown)
