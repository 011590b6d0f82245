"""`oombisect history`: memory over commits."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from oombisect.cli import completion
from oombisect.cli.options import Database, Json, Overrides


class Metric(StrEnum):
    """What can be followed."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device"
    EXTERNAL = "external"
    CACHED = "cached"


class Provenance(StrEnum):
    """Whose numbers."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    IMPORTED = "imported"


def history(
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The recipe as it was probed, or the name of an imported test or run; a part of it, if that is clear.",
            show_default=False,
            autocompletion=completion.recipes,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="GPU", help="Only of this device, e.g. cuda or virtual:h100-80gb.", show_default=False),
    ] = None,
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
    provenance: Annotated[
        Provenance | None, typer.Option(help="Only what was obtained so.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the workload, e.g. world_size=8. Repeatable."),
    ] = None,
    workload: Annotated[
        int | None, typer.Option(metavar="N", help="The workload of this number.", show_default=False)
    ] = None,
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
    from oombisect.cli.options import assignments
    from oombisect.history.asking import Wanted
    from oombisect.history.location import default_database

    wanted = Wanted(
        recipe,
        gpu,
        provenance.value if provenance else None,
        workload,
        tuple(assignments("--set", overrides)),
        tuple(assignments("--where", where)),
    )
    asked = Asked(wanted, metric.value, rank, since, until, line, repo, everything)
    show_history(database or default_database(), asked, as_json=json, as_csv=csv, as_markdown=markdown)
