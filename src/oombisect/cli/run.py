"""`oombisect run GOOD..BAD`: name the change in a range of commits."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.command_options import with_recipe_or_command
from oombisect.cli.options import Database, Jobs, Json, job_count
from oombisect.session.request import BisectRequest, ProbeRequest
from oombisect.units import parse_bytes


@with_recipe_or_command
def run(
    range: Annotated[
        str,
        typer.Argument(
            metavar="GOOD..BAD", help="The range: a good end and a bad one. A...B: from where they parted to B."
        ),
    ],
    request: ProbeRequest,
    find: Annotated[
        str, typer.Option(metavar="WHAT", help="regression (it grew), improvement (it fell) or any (either way).")
    ] = "regression",
    metric: Annotated[
        str,
        typer.Option(
            metavar="METRIC",
            help="What to follow: memory (allocated, or all of the device), or one quantity alone: allocated, "
            "reserved, device, cached (reserved minus allocated), fragmentation (needed capacity minus allocated).",
        ),
    ] = "memory",
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Look for where the metric passes SIZE (memory: all of the device), not for where the run no longer "
            "fits the limit.",
            show_default=False,
        ),
    ] = None,
    first_parent: Annotated[
        bool, typer.Option("--first-parent/--no-first-parent", help="Take a merge as one change, to be gone into.")
    ] = True,
    path: Annotated[
        list[str] | None, typer.Option("--path", metavar="PATH", help="Only commits that touch this path. Repeatable.")
    ] = None,
    freeze_config: Annotated[
        str | None,
        typer.Option(
            metavar="END",
            help="good or bad: every commit runs with the resolved config of that end, so that what code added is told "
            "from what a recipe changed.",
            show_default=False,
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REV", help="Never probe this commit, or (A..B) those that B has and A lacks. Repeatable."
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Most probes for search and confirmation, both ends included.", show_default=False
        ),
    ] = None,
    min_step: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Look for no smaller steps, e.g. 256MiB. Default: growth/8.", show_default=False
        ),
    ] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Find every step, whatever its size.")] = False,
    grid: Annotated[int, typer.Option(metavar="N", help="Probe this many evenly spread points first.")] = 0,
    descend: Annotated[
        bool,
        typer.Option(
            "--descend/--no-descend",
            help="Where a named commit moves the Megatron-LM submodule, go on to the commit of Megatron-LM; where it "
            "is a merge, to the commit of the merged branch.",
        ),
    ] = True,
    jobs: Jobs = "1",
    database: Database = None,
    json: Json = False,
) -> None:
    """Name the commits of a range that made peak GPU memory grow, how much each added, and why.

    What runs at each commit is a recipe of Bridge (--recipe), or any training command, in any git repository:
    oombisect run v1..main --build 'make' -- torchrun --nproc-per-node 8 train.py --config big.yaml

    A commit that moves 3rdparty/Megatron-LM is split: what Bridge's own source added, and which commit of
    Megatron-LM brought the rest.

    Exit codes: 0 named, 10 no change, 11 blurred by points that cannot be probed, 12 creep, 13 budget spent,
    14 infrastructure, 2 usage, 70 a bug, 130 interrupted (128 + n by signal n).
    """
    from oombisect.cli.sessions_of import run_session

    run_session(
        BisectRequest(
            range=range,
            probe=request,
            find=find,
            metric=metric,
            threshold_bytes=None if threshold is None else parse_bytes(threshold),
            first_parent=first_parent,
            paths=tuple(path or ()),
            skip=tuple(skip or ()),
            freeze_config=freeze_config,
            budget=budget,
            min_step_bytes=None if min_step is None else parse_bytes(min_step),
            exhaustive=exhaustive,
            grid=grid,
            descend=descend,
            jobs=job_count(jobs),
        ),
        database,
        as_json=json,
    )
