"""`oombisect plot`: memory over a range or over commits, in the terminal."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oombisect import hints
from oombisect.cli import completion
from oombisect.cli.options import Database, Overrides
from oombisect.cli.workload_options import OfGpu, OfProvenance, OfRecipe, OfWorkload, Where, wanted
from oombisect.errors import OombisectError
from oombisect.printable import quoted

if TYPE_CHECKING:
    from oombisect.history.asking import Wanted
    from oombisect.reports.plot import Chart


class Metric(StrEnum):
    """What can be drawn."""

    DEVICE = "device"
    RESERVED = "reserved"
    ALLOCATED = "allocated"


_METRICS = tuple(Metric)


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
    recipe: OfRecipe = None,
    gpu: OfGpu = None,
    provenance: OfProvenance = None,
    overrides: Overrides = None,
    where: Where = None,
    workload: OfWorkload = None,
    metric: Annotated[
        Metric | None,
        typer.Option(
            help="What to draw; device is reserved memory and that outside PyTorch. Default: the first of them "
            "that was read.",
            show_default=False,
        ),
    ] = None,
    database: Database = None,
) -> None:
    """Draw memory over the range of a session, or of a workload over commits, as wide as the terminal.

    With --recipe or --workload all readings of the workloads that are meant, as in `history`.

    Exit codes: 0, 2 usage, such as no such session, 14 the database cannot be read, 70 a bug.
    """
    from oombisect.history.location import default_database
    from oombisect.reports.plot import draw
    from oombisect.reports.terminal import report_console

    meant = wanted(recipe, gpu, provenance, workload, overrides, where)
    over_commits = recipe is not None or workload is not None
    if session is not None and over_commits:
        raise OombisectError("SESSION and --recipe or --workload name two things to draw", "Leave one of them out.")
    if meant != wanted(None, None, None, None, None, None) and not over_commits:
        raise OombisectError(
            "What chooses a workload goes with --recipe or --workload", "Leave it out: a session has one workload."
        )
    path = database or default_database()
    charts = (
        _of_series(path, meant, metric) if over_commits else _of_session(path, session or "last", metric or _METRICS[0])
    )
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


def _of_series(path: Path, meant: Wanted, metric: Metric | None) -> list[Chart]:
    from oombisect.cli.history_of import now_text
    from oombisect.history.asking import series, workloads
    from oombisect.history.connection import Connection
    from oombisect.history.location import cache_dir
    from oombisect.reports.history import METRIC_NAMES
    from oombisect.reports.plot import chart_of_series
    from oombisect.session.history_places import told_places

    connection = Connection(path, now_text, 30.0, readonly=True)
    try:
        with connection.reading() as db:
            found = workloads(db, meant)
            if len(found) > 3:
                listing = hints.command("history", "--recipe", meant.recipe or found[0].recipe)
                raise OombisectError(
                    f"{len(found)} workloads match", f"Choose with --workload N; `{listing}` lists them."
                )
            places = told_places(db, [workload.id for workload in found], None, Path.cwd(), cache_dir())
            told = {
                one: [each for workload in found for each in series(db, workload, one.value, None, places)]
                for one in _METRICS
            }
    finally:
        connection.close()
    read = [one for one in _METRICS if told[one]]
    shown = metric or next(iter(read), _METRICS[0])
    if not told[shown]:
        raise OombisectError(
            f"There is no reading of {shown.value} of {quoted(found[0].recipe)}",
            f"There is {' and '.join(read)}: draw it with --metric."
            if read
            else "There is none of another metric either.",
        )
    main = min(one.line for one in told[shown])
    return [chart_of_series(one, METRIC_NAMES[one.metric]) for one in told[shown] if one.line == main]
