"""Series over commits as people see them: sparkline, readings, steps and creep; and as JSON, CSV and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oombisect.history.asking import ConfigChange, Series, WorkloadInfo, differences
from oombisect.history.fit import Creep, Step
from oombisect.history.measurements import PointReading
from oombisect.printable import printable
from oombisect.reports.points import short
from oombisect.reports.tabular import csv_text, markdown, markdown_table
from oombisect.units import counted, format_apart, format_bytes, format_delta

METRIC_NAMES = {
    "allocated": "peak allocated",
    "reserved": "peak reserved",
    "device": "peak memory of the device",
    "external": "memory outside PyTorch",
    "cached": "peak reserved minus peak allocated",
}
ORDER_NAMES = {
    "first-parent": "in the order of first parents",
    "source": "in the order of the source",
    "date": "by commit date, for no repository at hand tells their order (--repo)",
}
_BARS = "▁▂▃▄▅▆▇█"
_OUT, _UNRESOLVED = "x", "."
_SHOWN = 40
_WIDEST = 50
_KEYS = 4


@dataclass(frozen=True, slots=True)
class Shown:
    """A series and the part of it that is shown: readings `start` to `end` (outside)."""

    series: Series
    start: int
    end: int

    @property
    def readings(self) -> tuple[PointReading, ...]:
        return self.series.readings[self.start : self.end]

    def _has(self, point: str) -> bool:
        return any(reading.of.point == point for reading in self.readings)

    @property
    def steps(self) -> list[Step]:
        return [step for step in self.series.fit.steps if self._has(step.point)]

    @property
    def creeps(self) -> list[Creep]:
        points = [reading.of.point for reading in self.series.readings]
        return [
            creep
            for creep in self.series.fit.creeps
            if points.index(creep.last) > self.start and points.index(creep.first) < self.end - 1
        ]

    def is_alike(self, step: Step) -> bool:
        """Whether both sides of a step were measured under the same packages and by the same probe."""
        of = {reading.of.point: reading.of.conditions for reading in self.series.readings}
        return of[step.point] == of[step.previous]


def workload_json(workload: WorkloadInfo) -> dict[str, Any]:
    """One of `workloads`."""
    return {
        "workload": workload.id,
        "recipe": workload.recipe,
        "device": workload.device,
        "provenance": workload.provenance,
        "settings": dict(workload.settings),
        "measurements": workload.measurements,
    }


def series_json(shown: Shown) -> dict[str, Any]:
    """One of `series`."""
    series = shown.series
    return {
        **workload_json(series.workload),
        "repo": series.repo,
        "line": series.line,
        "ordered_by": series.ordered_by,
        "metric": series.metric,
        "rank": series.rank,
        "noise_bytes": series.fit.noise,
        "readings": [reading_json(reading) for reading in shown.readings],
        "steps": [
            step_json(step)
            | {
                "same_conditions": shown.is_alike(step),
                "config_changes": [asdict(change) for change in series.config_changes.get(step.point, ())],
            }
            for step in shown.steps
        ],
        "creep": [creep_json(creep) for creep in shown.creeps],
    }


def reading_json(reading: PointReading) -> dict[str, Any]:
    """One of `readings`."""
    of = reading.of
    return {
        "point": of.point,
        "subject": of.subject,
        "committed": of.committed,
        "outcome": reading.outcome,
        "bytes": reading.value,
        "reason": of.reason,
        "probe": of.probe,
        "imported_reading": of.imported,
        "repeats": reading.repeats,
        "spread_bytes": reading.spread,
    }


def step_json(step: Step) -> dict[str, Any]:
    """One of `steps`."""
    row = asdict(step)
    return row | {"before_bytes": row.pop("before"), "after_bytes": row.pop("after")}


def creep_json(creep: Creep) -> dict[str, Any]:
    """One of `creep`."""
    row = asdict(creep)
    return {"from": row.pop("first"), "to": row.pop("last"), **row}


_COLUMNS = (
    "workload", "recipe", "device", "provenance", "repo", "line", "metric", "rank", "point", "committed", "subject",
    "outcome", "bytes", "step_bytes", "step_state",
)  # fmt: skip


def history_csv(shown: Sequence[Shown]) -> str:
    """All readings, oldest first, a row each."""
    return csv_text(_COLUMNS, (row for one in shown for row in _csv_rows(one)))


def _csv_rows(shown: Shown) -> Iterator[list[Any]]:
    series = shown.series
    steps = {step.point: step for step in shown.steps}
    for reading in shown.readings:
        of, step = reading.of, steps.get(reading.of.point)
        yield [
            series.workload.id, series.workload.recipe, series.workload.device, series.provenance, series.repo,
            series.line, series.metric, series.rank, of.point, of.committed, of.subject, reading.outcome,
            reading.value, step.delta_bytes if step else None, step.state if step else None,
        ]  # fmt: skip


def history_markdown(shown: Sequence[Shown], notes: Sequence[str]) -> str:
    """For a comment on GitHub."""
    parts = []
    for one in shown:
        rows = [[mark.point, mark.date, mark.size, mark.told, mark.subject] for mark in _marks(one, whole=False)]
        parts += [
            f"**{markdown(_head(one.series))}**\n",
            f"{markdown(_about(one))}\n",
            f"`{sparkline(one.readings)}`\n",
        ]
        parts.append(markdown_table(("commit", "date", METRIC_NAMES[one.series.metric], "change", "subject"), rows))
        parts += [f"{markdown(line)}\n" for line in _creep_lines(one)]
    return "\n".join([*parts, *(f"{markdown(note)}\n" for note in notes)])


def render_history(shown: Sequence[Shown], notes: Sequence[str], console: Console, *, whole: bool) -> None:
    """Each series in turn; with `whole` every reading of it."""
    for one in shown:
        console.print(Text(_head(one.series), style="bold"), soft_wrap=True)
        console.print(Text(f"  {_about(one)}", style="dim"), soft_wrap=True)
        if settings := _settings(one.series.workload):
            console.print(Text(f"  {settings}", style="dim"), soft_wrap=True)
        exact = [reading.value for reading in one.readings if reading.outcome == "exact" and reading.value is not None]
        ends = f"  {' to '.join(dict.fromkeys(format_apart(min(exact), max(exact))))}" if exact else ""
        console.print(Text(f"  {sparkline(one.readings, max(console.width - 40, 20))}{ends}"), soft_wrap=True)
        console.print(_table(one, whole))
        for line in _creep_lines(one):
            console.print(Text(line, style="yellow"), soft_wrap=True)
        console.print()
    for note in notes:
        console.print(Text(printable(note), style="dim"), soft_wrap=True)


def render_workloads(found: Sequence[WorkloadInfo], console: Console) -> None:
    """Workloads to choose from."""
    console.print(Text(f"{counted(len(found), 'workload')} match:"), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for column in ("", "recipe", "device", "measurements", "apart by"):
        table.add_column(column, overflow="fold")
    for workload, apart in zip(found, differences(found), strict=True):
        name, device = printable(workload.recipe), f"{printable(workload.device)} ({workload.provenance})"
        table.add_row(
            Text(f"--workload {workload.id}"),
            Text(name),
            Text(device),
            str(workload.measurements),
            Text(printable(apart)),
        )
    console.print(table)
    narrow = "--workload N, --gpu, --provenance, --set KEY=VALUE or --where NAME=VALUE"
    console.print(Text(f"Choose with {narrow}; --all shows every one.", style="dim"), soft_wrap=True)


def _head(series: Series) -> str:
    workload = series.workload
    worst = "" if series.provenance == "imported" else " of the worst rank"
    of = worst if series.rank is None else f" of rank {series.rank}"
    line = f", on {series.line}" if series.line else ""
    what = f"{METRIC_NAMES[series.metric]}{of}"
    return printable(f"{workload.recipe} on {workload.device}: {what}{line} ({series.provenance})")


def _about(shown: Shown) -> str:
    series, readings = shown.series, shown.readings
    dates = sorted(reading.of.committed[:10] for reading in readings if reading.of.committed)
    between = f", {dates[0]} to {dates[-1]}" if dates else ""
    part = "" if len(readings) == len(series.readings) else f" of {len(series.readings)}"
    noise = "" if series.provenance == "simulated" else f"; noise {format_bytes(series.fit.noise)}"
    points = f"{len(readings):,}{part} {'point' if len(readings) == 1 and not part else 'points'}"
    about = (
        f"workload {series.workload.id}: {points} of {series.repo}{between}, {ORDER_NAMES[series.ordered_by]}{noise}"
    )
    return printable(about)


def _settings(workload: WorkloadInfo) -> str:
    """What was asked of the workload besides its recipe."""
    usual = {"iterations": 3, "seed": 1234, "moe_skew": 1.0}
    plain = {
        name: value
        for name, value in workload.settings.items()
        if name not in ("recipe", "imported") and value not in (None, [], {}, False) and usual.get(name) != value
    }
    return printable(" ".join(f"{name}={value}" for name, value in plain.items()))


def sparkline(readings: Sequence[PointReading], width: int = 60) -> str:
    """A bar for each reading, x where it ran out of memory, . where it is unresolved; of many the highest of a few."""
    values = [reading.value for reading in readings if reading.outcome == "exact" and reading.value is not None]
    low, high = min(values, default=0), max(values, default=0)
    size = max(1, -(-len(readings) // width))
    return "".join(_bar(readings[n : n + size], low, high) for n in range(0, len(readings), size))


def _bar(readings: Sequence[PointReading], low: int, high: int) -> str:
    if any(reading.outcome == "censored" for reading in readings):
        return _OUT
    values = [reading.value for reading in readings if reading.value is not None]
    if not values:
        return _UNRESOLVED
    return _BARS[(max(values) - low) * (len(_BARS) - 1) // (high - low)] if high > low else _BARS[3]


@dataclass(frozen=True, slots=True)
class _Mark:
    """A line of the table: a reading, or several that are left out."""

    point: str
    date: str
    size: str
    told: str
    subject: str
    style: str = ""


def _marks(shown: Shown, *, whole: bool) -> list[_Mark]:
    """The readings; of many the first and last, and those on either side of a step."""
    readings = shown.readings
    steps = {step.point: step for step in shown.steps}
    kept = {0, len(readings) - 1}
    for n, reading in enumerate(readings):
        if whole or len(readings) <= _SHOWN or reading.of.point in steps:
            kept |= {n - 1, n}
    sizes = [reading.value for n, reading in enumerate(readings) if n in kept and reading.value is not None]
    apart = dict(zip(sorted(set(sizes)), format_apart(*sorted(set(sizes))), strict=True)) if sizes else {}
    marks: list[_Mark] = []
    skipped: list[PointReading] = []
    for n, reading in enumerate(readings):
        if n not in kept:
            skipped.append(reading)
            continue
        if skipped:
            marks.append(_left_out(skipped))
            skipped = []
        marks.append(_mark(reading, apart, steps.get(reading.of.point), shown))
    return marks


def _left_out(readings: Sequence[PointReading]) -> _Mark:
    values = [reading.value for reading in readings if reading.outcome == "exact" and reading.value is not None]
    sizes = " to ".join(dict.fromkeys(format_apart(min(values), max(values)))) if values else ""
    return _Mark("...", "", sizes, f"{len(readings):,} more", "", "dim")


def _mark(reading: PointReading, apart: dict[int, str], step: Step | None, shown: Shown) -> _Mark:
    of = reading.of
    size = "unresolved" if reading.value is None else apart[reading.value]
    if reading.outcome == "censored":
        size = f"out of memory, at least {size}"
    told, style = "", "dim" if reading.value is None else ""
    if step:
        told = step_text(step) + ("" if shown.is_alike(step) else "; packages or probe changed, too")
        told += _config_text(shown.series.config_changes.get(step.point, ()))
        style = ("red" if _grows(step) else "green") if step.state != "fixed" else "dim"
    return _Mark(short(of.point), (of.committed or "")[:10], size, told, printable(of.subject), style)


def _config_text(changes: Sequence[ConfigChange]) -> str:
    """What of the config changed at a step: it is no change of the code alone."""
    if not changes:
        return ""
    keys = [
        f"{change.path} {'unset' if change.before is None else change.before} to "
        f"{'unset' if change.after is None else change.after}"
        for change in changes[:_KEYS]
    ]
    more = f" and {len(changes) - _KEYS} more" if len(changes) > _KEYS else ""
    return printable(f"; its config changed, too: {', '.join(keys)}{more}")


def _grows(step: Step) -> bool:
    return step.delta_bytes > 0 or (step.at_least and step.delta_bytes == 0)


def step_text(step: Step) -> str:
    """A step in a few words: its size, and whether it is still there."""
    size = format_delta(step.delta_bytes)
    if step.at_least:
        size = f"out of memory, at least {size}" if _grows(step) else f"fits again, at least {size}"
    state: str = step.state
    if step.state == "partly fixed":
        state = f"{format_delta(step.left_bytes)} of it left"
    if step.state == "fixed":
        state = f"{'fixed' if _grows(step) else 'undone'} by {short(step.taken_back_by or '')}"
    blurred = f", blurred over {counted(step.blurred, 'commit')}" if step.blurred else ""
    return f"{size}, {state}{blurred}"


def _creep_lines(shown: Shown) -> list[str]:
    lines = []
    for creep in shown.creeps:
        most = (
            f", none of {creep.changes} changes more than {format_bytes(abs(creep.largest_bytes))}"
            if creep.changes
            else ""
        )
        lines.append(
            f"Creep: {format_delta(creep.delta_bytes)} from {short(creep.first)} to {short(creep.last)}, "
            f"over {counted(creep.commits, 'commit')}{most}."
        )
    return lines


def _table(shown: Shown, whole: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("  commit", "date", METRIC_NAMES[shown.series.metric]):
        table.add_column(column, no_wrap=True)
    marks = _marks(shown, whole=whole)
    table.add_column("change", overflow="fold", min_width=min(max(len(mark.told) for mark in marks), _WIDEST))
    table.add_column("subject", overflow="ellipsis", no_wrap=True)
    for mark in marks:
        cells = (f"  {mark.point}", mark.date, mark.size, mark.told, mark.subject)
        table.add_row(*(Text(cell) for cell in cells), style=mark.style)
    return table
