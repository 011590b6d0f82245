"""`oombisect compare`: which allocations make up the difference of two peaks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oombisect.cli.options import Database, Json, Megatron
from oombisect.errors import OombisectError


def compare(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A probe (its number, or SESSION/PROBE) or a snapshot file; a number is a probe, ./NUMBER a file. "
            "Alone: a session (or last), whose largest step is compared.",
        ),
    ] = "last",
    second: Annotated[
        str | None, typer.Argument(metavar="B", help="What A is compared with.", show_default=False)
    ] = None,
    by: Annotated[str, typer.Option(metavar="WHAT", help="Group by stack, module or phase.")] = "stack",
    top: Annotated[int, typer.Option(metavar="N", help="How many of the largest contributors to show.")] = 10,
    rank: Annotated[
        int | None,
        typer.Option(metavar="R", help="The rank to compare. Default: that with B's largest peak.", show_default=False),
    ] = None,
    device: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Of snapshots of several devices: which one, by its index. Default: the one with the longest history.",
            show_default=False,
        ),
    ] = None,
    ends: Annotated[
        bool, typer.Option("--ends", help="Of a session: compare its good and bad ends, not its largest step.")
    ] = False,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="COMMIT",
            help="Of a session: which named step to compare, by its commit. Default: the largest.",
            show_default=False,
        ),
    ] = None,
    repo: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Where the commits are. Default: the repository that was probed.", show_default=False
        ),
    ] = None,
    megatron: Megatron = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Show which allocations make up the difference of peak memory between two runs, across commits.

    Exit codes: 0 compared, 2 usage, 14 a file or the database cannot be read, 70 a bug, 130 interrupted.
    """
    from oombisect.cli.sessions_of import clock, print_json, stderr_watcher
    from oombisect.history.location import cache_dir, default_database
    from oombisect.reports.compare import GROUPINGS, comparison_json, render_comparison
    from oombisect.reports.terminal import report_console
    from oombisect.session.sides_of import compare_named

    if by not in GROUPINGS:
        raise OombisectError(f"--by {by!r} is not known", f"Use {', '.join(GROUPINGS)}.")
    if top < 1:
        raise OombisectError(f"--top {top} is out of range", "Use 1 or more.")
    if ends and second is not None:
        raise OombisectError("--ends is of a session, and two snapshots were named", "Leave out B, or --ends.")
    if step is not None and (ends or second is not None):
        raise OombisectError("--step is of a session alone", "Leave out --ends and B, or --step.")
    watcher = stderr_watcher()
    found = compare_named(
        first,
        second,
        database=database,
        default=default_database(),
        clock=clock,
        rank=rank,
        device=device,
        ends=ends,
        step=step,
        cache=cache_dir(),
        say=watcher.say,
        repo=repo,
        megatron=megatron,
    )
    if json:
        print_json(comparison_json(found))
    else:
        render_comparison(found, report_console(), by=by, top=top)
