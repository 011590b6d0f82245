"""Memory over a range or over commits, drawn with characters.

Every class of reading has a letter of its own, so that nothing depends on colour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oombisect.history.asking import Series
from oombisect.printable import printable
from oombisect.reports.points import short
from oombisect.reports.report_document import Mark, Range
from oombisect.reports.report_figures import within_sight
from oombisect.units import GIB, format_bytes, format_delta

METRICS = {"device": "device memory", "reserved": "peak reserved", "allocated": "peak allocated"}
_LEAST_WIDTH = 40
_ASCII = str.maketrans("─│┌┐└┘├┤┬┴┼═╞╡╪╤╧┊┆╎", "-|+++++++++=+++++|||")


@dataclass(frozen=True, slots=True)
class Letter:
    """How a class of readings is drawn."""

    sign: str
    words: str
    colour: str


FITS = Letter("o", "fits", "blue")
OVER = Letter("X", "does not fit", "red")
BOUND = Letter("^", "out of memory: at least", "magenta")
READ = Letter("*", "measured", "cyan")
UNRESOLVED = Letter("?", "could not be measured", "gray")


@dataclass(frozen=True, slots=True)
class Dot:
    """A reading at a place; `size` in bytes, None: there is none."""

    place: int
    letter: Letter
    size: int | None


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn: readings over `count` places, with the names of some.

    Args:
        title: above it; `unit` is what the sizes are, with their provenance.
        limit: bytes; None: there is none.
        lines: places of steps, each with what is said of it below.
    """

    title: str
    unit: str
    count: int
    dots: tuple[Dot, ...]
    names: tuple[tuple[int, str], ...]
    limit: int | None = None
    steps: tuple[tuple[int, str], ...] = ()


def chart_of_range(one: Range, metric: str, limit: int | None, label: str) -> Chart:
    """The chart of an axis of a session. Probes under other settings are no readings of a point, and left out."""
    dots = [
        Dot(mark.index, _letter(mark), getattr(mark, metric))
        for mark in one.marks
        if not mark.varied and mark.request != "revert" and mark.probe is not None
    ]
    names = dict.fromkeys([0, one.count - 1, *(step.index for step in one.steps)])
    points = {mark.index: mark.point for mark in one.marks if mark.request != "revert"}
    points |= dict(enumerate(one.points))
    steps = []
    for step in one.steps:
        name, size = max(step.delta.items(), key=lambda item: abs(item[1]), default=("", 0))
        words = {"external": "outside PyTorch"}.get(name, name)
        steps.append(
            (step.index, f"{short(step.point)} {step.subject}: {format_delta(size)}{label} {words}, {step.kind}")
        )
    return Chart(
        title=f"{one.title}, good to bad ({one.count:,} points)",
        unit=f"{METRICS[metric]}, GiB{label}",
        count=one.count,
        dots=tuple(dots),
        names=tuple((index, short(points.get(index, ""))) for index in names),
        limit=limit,
        steps=tuple(steps),
    )


def _letter(mark: Mark) -> Letter:
    if mark.allocated is None:
        return UNRESOLVED
    if mark.is_lower_bound:
        return BOUND
    return {True: FITS, False: OVER, None: READ}[mark.fits]


def chart_of_series(series: Series, words: str) -> Chart:
    """The chart of a workload over commits; `words` are what the metric is called."""
    readings = series.readings
    places = {reading.of.point: place for place, reading in enumerate(readings)}
    letters = {"exact": READ, "censored": BOUND}
    workload = series.workload
    return Chart(
        title=f"{workload.recipe} on {workload.device}, {len(readings):,} points, oldest first",
        unit=f"{words}, GiB ({series.provenance})",
        count=len(readings),
        dots=tuple(
            Dot(place, letters.get(reading.outcome, UNRESOLVED), reading.value)
            for place, reading in enumerate(readings)
        ),
        names=tuple((place, short(readings[place].of.point)) for place in dict.fromkeys([0, len(readings) - 1])),
        steps=tuple(
            (places[step.point], f"{short(step.point)}: {format_delta(step.delta_bytes)}, {step.state}")
            for step in series.fit.steps
        ),
    )


def draw(chart: Chart, *, width: int, height: int, colour: bool, ascii_only: bool) -> str:
    """The chart as text of at most `width` columns, its legend and its steps below."""
    import plotext

    width = max(_LEAST_WIDTH, width)
    low, high = within_sight([dot.size for dot in chart.dots if dot.size is not None], chart.limit)
    room = max(0.12 * (high - low), 0.005 * high, 1e-6)
    bottom, top = max(0.0, low - room), high + room
    limit = None if chart.limit is None else chart.limit / GIB
    far = "" if limit is None else ", above" if limit > top else ", below" if limit < bottom else ""
    figure: Any = plotext.figure
    figure.clear()
    plotext.terminal.limit(False, False)  # the caller knows how much room there is
    figure.plot_size(width, max(10, height))
    figure.theme("colorless")
    figure.canvas("default")
    figure.legend(False)
    for place, _ in chart.steps:
        figure.line(place, "vertical", style="dotted", pixel=plotext.pixel("orange", "default"))
    if limit is not None and not far:
        figure.line(limit, "horizontal", style="double", pixel=plotext.pixel("red", "default"))
    used = [letter for letter in (READ, FITS, OVER, BOUND, UNRESOLVED) if any(d.letter is letter for d in chart.dots)]
    for letter in used:
        dots = [dot for dot in chart.dots if dot.letter is letter]
        heights = [bottom if dot.size is None else dot.size / GIB for dot in dots]
        marker = plotext.marker(letter.sign, letter.colour)
        figure.draw(figure.signal([dot.place for dot in dots], heights, marker=marker))
    ruler = figure.ruler("x")
    ruler.lim(-0.5, max(0.5, chart.count - 0.5))
    names = _names(chart, width)
    ruler.ticks([place for place, _ in names], [name for _, name in names])
    ticks = [bottom + (top - bottom) * step / 4 for step in range(5)]
    figure.ruler("y").lim(bottom, top)
    figure.ruler("y").ticks(ticks, [f"{tick:.2f}" for tick in ticks])
    drawn = figure.build().string(colorless=not colour)
    figure.clear()
    lines = [printable(chart.title), printable(chart.unit), *(line.rstrip() for line in drawn.splitlines())]
    lines.append("  ".join(f"{letter.sign} {letter.words}" for letter in used))
    if chart.limit is not None:
        lines[-1] += f"  {'=' if ascii_only else '═'} limit {format_bytes(chart.limit)}{far}"
    lines += [f"step {printable(text)}" for _, text in chart.steps]
    text = "\n".join(lines) + "\n"
    if ascii_only:
        text = text.translate(_ASCII).encode("ascii", "replace").decode()
    return text


def _names(chart: Chart, width: int) -> list[tuple[int, str]]:
    """Those that do not run into each other, the ends first."""
    chosen: list[tuple[int, str]] = []
    per_place = (width - 10) / max(1, chart.count)
    for place, name in chart.names:
        name = printable(name)[:14]
        near = any(abs(place - other) * per_place < (len(name) + len(text)) / 2 + 1 for other, text in chosen)
        if name and not near:
            chosen.append((place, name))
    return sorted(chosen)
