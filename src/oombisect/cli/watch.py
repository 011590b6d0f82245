"""`oombisect watch`: a branch's memory, commit by commit."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.command_options import with_recipe_or_command
from oombisect.cli.options import Database, Jobs, Json, Markdown, MinStep, job_count
from oombisect.session.request import ProbeRequest


@with_recipe_or_command
def watch(
    request: ProbeRequest,
    branch: Annotated[
        str, typer.Option(metavar="REV", help="The branch: its first-parent commits are watched.")
    ] = "HEAD",
    every: Annotated[
        int, typer.Option(metavar="N", help="Probe every Nth new commit, and the newest; search where memory grew.")
    ] = 1,
    since: Annotated[
        str | None,
        typer.Option(metavar="REV", help="Where the first watch begins. Default: N commits back.", show_default=False),
    ] = None,
    min_step: MinStep = "64MiB",
    once: Annotated[bool, typer.Option("--once", help="Look once and end, as CI does.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="MINUTES", help="Without --once: how long to wait between looks.")
    ] = 10.0,
    jobs: Jobs = "1",
    markdown: Markdown = False,
    database: Database = None,
    json: Json = False,
) -> None:
    """Probe what is new on a branch since the last watch, and name the commit where memory grew.

    The database remembers how far it came; after a stop it goes on there. A repository of yours is looked at as it is:
    fetch before; the cached clone is updated. Without --once it looks again and again, until a step has landed.

    Exit codes: 0 nothing grew by --min-step or more, 15 it did, or no longer fits, 11 the newest commit could not be
    measured, 14 infrastructure, 2 usage, 70 a bug, 130 interrupted (128 + n by signal n).
    """
    from oombisect.cli.gate_of import run_watch
    from oombisect.session.gate import WatchRequest
    from oombisect.units import parse_bytes

    asked = WatchRequest(request, branch, every, since, parse_bytes(min_step), job_count(jobs))
    run_watch(asked, None if once else interval, database, as_json=json, as_markdown=markdown)
