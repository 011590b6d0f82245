"""`oombisect releases PACKAGE GOOD..BAD`: which release of a package made memory grow."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.options import Database, Jobs, Json, job_count, with_probe_options
from oombisect.session.releases_request import ReleasesRequest
from oombisect.session.request import BisectRequest, ProbeRequest
from oombisect.units import parse_bytes


@with_probe_options
def releases(
    package: Annotated[str, typer.Argument(metavar="PACKAGE", help="The package, e.g. torch or megatron-core.")],
    range: Annotated[str, typer.Argument(metavar="GOOD..BAD", help="Its releases: a good one and a later, bad one.")],
    request: ProbeRequest,
    at: Annotated[
        str, typer.Option("--at", metavar="REV", help="The commit of Bridge all of them run under.")
    ] = "HEAD",
    find: Annotated[
        str, typer.Option(metavar="WHAT", help="regression (memory grew), improvement (it fell) or any (either way).")
    ] = "regression",
    budget: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most probes for search and confirmation, ends included.", show_default=False),
    ] = None,
    min_step: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Look for no smaller steps, e.g. 256MiB. Default: growth/8.", show_default=False
        ),
    ] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Find every step, whatever its size.")] = False,
    grid: Annotated[int, typer.Option(metavar="N", help="Probe this many evenly spread releases first.")] = 0,
    jobs: Jobs = "1",
    database: Database = None,
    json: Json = False,
) -> None:
    """Name the releases of a package that made peak GPU memory grow under one commit of Bridge.

    Each release is installed by uv over the environment of --python, which is not touched, with what the release
    needs. Releases come from the package index uv is set to; yanked ones and pre-releases are left out, unless named.
    megatron-core takes the place of the submodule that Bridge pins.

    Exit codes: 0 named, 10 no change, 11 blurred by releases that cannot be probed, 12 creep, 13 budget spent,
    14 infrastructure, 2 usage, 70 a bug, 130 interrupted (128 + n by signal n).
    """
    from oombisect.cli.sessions_of import run_releases

    search = BisectRequest(
        range=range,
        probe=request,
        find=find,
        budget=budget,
        min_step_bytes=None if min_step is None else parse_bytes(min_step),
        exhaustive=exhaustive,
        grid=grid,
        jobs=job_count(jobs),
    )
    run_releases(ReleasesRequest(package, search, at), database, as_json=json)
