"""`oombisect history`: memory over commits."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from oombisect.cli.options import Database, Json, Overrides
from oombisect.cli.workload_options import OfGpu, OfProvenance, OfRecipe, OfWorkload, Where, wanted


class Metric(StrEnum):
    """What can be followed."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device"
    EXTERNAL = "external"
    CACHED = "cached"


def history(
    recipe: OfRecipe = None,
    gpu: OfGpu = None,
    metric: Annotated[Metric, typer.Option(help="What to follow.")] = Metric.ALLOCATED,
    rank: Annotated[
        int | None, typer.Option(metavar="N", help="Of this rank. Default: of the worst one.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="From this date (2026-01-31) or commit on.", show_default=False),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Up to this date or commit.", show_default=False)
    ] = None,
    provenance: OfProvenance = None,
    overrides: Overrides = None,
    where: Where = None,
    workload: OfWorkload = None,
    line: Annotated[
        str | None,
        typer.Option(metavar="BRANCH", help="Commits on this branch. Default: the main one.", show_default=False),
    ] = None,
    repo: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The repository that tells the order of the commits. Default: the current directory's, or the one "
            "they were probed in.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every workload that matches, and every reading.")
    ] = False,
    database: Database = None,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: a row for each reading, sizes in bytes.")] = False,
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown, for a comment on GitHub.")] = False,
) -> None:
    """Show a recipe's memory over commits, oldest first, with its steps and creep (docs/history.md).

    Exit codes: 0, 2 usage, such as no such recipe, 14 the database cannot be read, 70 a bug.
    """
    from oombisect.cli.history_of import Asked, show_history
    from oombisect.history.location import default_database

    meant = wanted(recipe, gpu, provenance, workload, overrides, where)
    asked = Asked(meant, metric.value, rank, since, until, line, repo, everything)
    show_history(database or default_database(), asked, as_json=json, as_csv=csv, as_markdown=markdown)
