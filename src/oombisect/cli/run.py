"""`oombisect run GOOD..BAD`: name the change in a range of commits."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.options import Database, Json, with_probe_options
from oombisect.session.request import BisectRequest, ProbeRequest
from oombisect.units import parse_bytes


@with_probe_options
def run(
    range: Annotated[str, typer.Argument(metavar="GOOD..BAD", help="The range: a good end and a bad one.")],
    request: ProbeRequest,
    find: Annotated[str, typer.Option(help="regression (memory grew) or improvement (memory fell).")] = "regression",
    first_parent: Annotated[
        bool, typer.Option("--first-parent/--no-first-parent", help="Take a merge as one change.")
    ] = True,
    path: Annotated[
        list[str] | None, typer.Option("--path", help="Only commits that touch this path. Repeatable.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="Most probes for search and confirmation, ends included.", show_default=False)
    ] = None,
    min_step: Annotated[
        str | None,
        typer.Option(help="Look for no smaller steps, e.g. 256MiB. Default: growth/8.", show_default=False),
    ] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Find every step, whatever its size.")] = False,
    grid: Annotated[int, typer.Option(help="Probe this many evenly spread points first.")] = 0,
    database: Database = None,
    json: Json = False,
) -> None:
    """Name the commits of a range that made peak GPU memory grow, how much each added, and why.

    Exit codes: 0 named, 10 no change, 11 blurred by points that cannot be probed, 12 creep, 13 budget spent,
    14 infrastructure, 2 usage, 130 interrupted (128 + n by signal n).
    """
    from oombisect.cli.sessions_of import run_session

    run_session(
        BisectRequest(
            range=range,
            probe=request,
            find=find,
            first_parent=first_parent,
            paths=tuple(path or ()),
            budget=budget,
            min_step_bytes=parse_bytes(min_step) if min_step else None,
            exhaustive=exhaustive,
            grid=grid,
        ),
        database,
        as_json=json,
    )
