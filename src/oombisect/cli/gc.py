"""`oombisect gc`: free the disk of old files."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.options import Database, Json


def gc(
    older_than: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS",
            help="Only files of probes that ended so many days ago. Default: 30, without --keep and --session.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Delete the oldest until no more than this is left, e.g. 5GiB.", show_default=False
        ),
    ] = None,
    session: Annotated[
        list[str] | None, typer.Option(metavar="SESSION", help="Only files of this session. Repeatable.")
    ] = None,
    ends: Annotated[
        bool, typer.Option("--ends", help="Also of the ends and steps of verdicts, which compare and report show.")
    ] = False,
    unfinished: Annotated[
        bool,
        typer.Option("--unfinished", help="Also of sessions that can be resumed; they probe again what they need."),
    ] = False,
    environments: Annotated[
        bool, typer.Option("--environments", help="Also environments in the cache that nobody has used for so long.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    database: Database = None,
    json: Json = False,
) -> None:
    """Delete old files of probes: allocation histories, logs, results. Every number stays in the database.

    `compare`, `replay` and `report` need histories: kept are those of the ends and steps of verdicts, and of sessions
    that can be resumed.

    Exit codes: 0, 2 usage, 14 the database cannot be read or a file not be deleted, 70 a bug.
    """
    from oombisect.cli.gc_of import Asked, collect
    from oombisect.history.location import default_database

    asked = Asked(older_than, keep, tuple(session or ()), ends, unfinished, environments, dry_run)
    collect(database or default_database(), asked, as_json=json)
