"""`oombisect plot`: memory over a range or over commits, in the terminal."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oombisect import hints
from oombisect.cli import completion
from oombisect.cli.options import Database
from oombisect.errors import OombisectError

if TYPE_CHECKING:
    from oombisect.reports.plot import Chart


class Metric(StrEnum):
    """What can be drawn."""

    DEVICE = "device"
    RESERVED = "reserved"
    ALLOCATED = "allocated"


def plot(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION",
            help="The session, a unique prefix of it, or last: the newest bisection. Default: last.",
            show_default=False,
            autocompletion=completion.sessions,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Not one session: all readings of this recipe over commits.",
            show_default=False,
            autocompletion=completion.recipes,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="GPU",
            help="With --recipe: only of this device.",
            show_default=False,
            autocompletion=completion.gpus,
        ),
    ] = None,
    metric: Annotated[
        Metric, typer.Option(help="What to draw; device is reserved memory and that outside PyTorch.")
    ] = Metric.DEVICE,
    database: Database = None,
) -> None:
    """Draw memory over the range of a session, or of a recipe over commits, as wide as the terminal.

    Exit codes: 0, 2 usage, such as no such session, 14 the database cannot be read, 70 a bug.
    """
    from oombisect.history.location import default_database
    from oombisect.reports.plot import draw
    from oombisect.reports.terminal import report_console

    if session is not None and recipe is not None:
        raise OombisectError("SESSION and --recipe name two things to draw", "Leave one of them out.")
    if gpu is not None and recipe is None:
        raise OombisectError("--gpu goes with --recipe", "Leave it out: a session has one device.")
    path = database or default_database()
    charts = _of_series(path, recipe, gpu, metric) if recipe else _of_session(path, session or "last", metric)
    console = report_console()
    colour = console.is_terminal and console.color_system is not None and not console.no_color
    ascii_only = console.options.ascii_only
    height = min(26, max(14, console.height - 8))
    for number, chart in enumerate(charts):
        gap = "\n" if number else ""
        typer.echo(
            gap + draw(chart, width=console.width, height=height, colour=colour, ascii_only=ascii_only), nl=False
        )


def _of_session(path: Path, name: str, metric: str) -> list[Chart]:
    from oombisect.cli.sessions_of import clock, named_session
    from oombisect.history.store import open_store
    from oombisect.reports.plot import chart_of_range
    from oombisect.reports.report_gathering import ranges_of

    with open_store(path, clock=clock, readonly=True) as store:
        session = named_session(store, name)
        ranges = [one for one in ranges_of(session, store) if one.marks]
    if not ranges:
        raise OombisectError(
            f"Session {session.id} has no range to draw",
            "A single probe has none: name a bisection, or draw a recipe with --recipe.",
        )
    return [
        chart_of_range(one, metric, session.spec.limit_bytes, " (simulated)" if one.simulated else "") for one in ranges
    ]


def _of_series(path: Path, recipe: str, gpu: str | None, metric: str) -> list[Chart]:
    from oombisect.cli.history_of import now_text
    from oombisect.history.asking import Wanted, series, workloads
    from oombisect.history.connection import Connection
    from oombisect.history.location import cache_dir
    from oombisect.reports.history import METRIC_NAMES
    from oombisect.reports.plot import chart_of_series
    from oombisect.session.history_places import told_places

    connection = Connection(path, now_text, 30.0, readonly=True)
    try:
        with connection.reading() as db:
            found = workloads(db, Wanted(recipe, gpu))
            if len(found) > 3:
                raise OombisectError(
                    f"{len(found)} workloads match",
                    f"Choose with --gpu; `{hints.command('history', '--recipe', recipe)}` lists them.",
                )
            places = told_places(db, [workload.id for workload in found], None, Path.cwd(), cache_dir())
            told = [one for workload in found for one in series(db, workload, metric, None, places)]  # type: ignore[arg-type]
    finally:
        connection.close()
    main = min((one.line for one in told), default="")
    shown = [one for one in told if one.line == main]
    if not shown:
        raise OombisectError(f"There is no reading of {metric} of {recipe!r}", "Draw another --metric.")
    return [chart_of_series(one, METRIC_NAMES[one.metric]) for one in shown]
