"""`oombisect check` and `oombisect watch`, on a terminal and as Markdown for a comment or a job's summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oombisect import hints
from oombisect.printable import printable
from oombisect.readings import Outcome, Reading
from oombisect.reports.markdown_text import cell, code, escaped
from oombisect.reports.points import short
from oombisect.reports.terminal import end_text, headline, simulated
from oombisect.session.checking import Checked
from oombisect.session.gate import measured
from oombisect.session.verdict import Report, StepVerdict
from oombisect.session.watching import Landed, Seen, Watched
from oombisect.units import format_bytes, format_change, format_delta

_METRICS = {
    "peak allocated": "peak_allocated",
    "peak reserved": "peak_reserved",
    "outside PyTorch": "external",
    "memory of the device": "peak_device",
}
_MOST_ROWS = 50


def check_headline(checked: Checked) -> str:
    """The answer in one sentence."""
    report = checked.report
    label = simulated(report.bad)
    if checked.over_limit:
        return f"It no longer fits: {format_bytes(report.verdict.limit_bytes)}{label} are not enough with this change"
    if checked.grew is None:
        return "It could not be measured"
    least = format_bytes(checked.min_step)
    if checked.grew >= checked.min_step:
        kind = f", {checked.step.kind}" if checked.step else ""
        return f"Memory grows by {format_bytes(checked.grew)}{label}{kind}: {least} or more is too much"
    if checked.grew > 0:
        return f"Memory grows by {format_bytes(checked.grew)}{label}, which is less than {least}"
    return (
        f"Memory does not grow{label}"
        if not checked.grew
        else f"Memory shrinks by {format_bytes(-checked.grew)}{label}"
    )


def render_check(checked: Checked, console: Console) -> None:
    """Headline, sizes without and with the change, why, what was compared."""

    def line(text: str, style: str = "") -> None:
        console.print(Text(printable(text), style), soft_wrap=True)

    line(check_headline(checked), "bold")
    table = Table(box=None, pad_edge=False)
    for heading in ("", "without", "with", "change"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for row in _rows(checked.report):
        table.add_row(*row)
    console.print(table)
    report = checked.report
    limit = report.verdict.limit_bytes
    line(f"with it: {end_text(report.bad, limit, format_bytes(report.bad.peak_allocated))}")
    for note in checked.notes:
        line(note)
    line(f"session {report.session}: {hints.command('compare', report.session)} shows the allocations", "dim")


def _rows(report: Report) -> Iterator[tuple[str, str, str, str]]:
    good, bad = report.good, report.bad
    if not (measured(good) and measured(bad)):
        return
    low = tuple(">= " if reading.outcome is Outcome.CENSORED else "" for reading in (good, bad))
    for name, attribute in _METRICS.items():
        before, after = getattr(good, attribute), getattr(bad, attribute)
        shown = format_change(before, after)
        yield (
            name,
            f"{low[0]}{shown[0]}",
            f"{low[1]}{shown[1]}",
            format_delta(after - before) if after != before else "0",
        )


def check_markdown(checked: Checked) -> str:
    """A comment for a pull request."""
    report, device = checked.report, str(checked.report.workload.get("device", ""))
    lines = [
        f"### {escaped(check_headline(checked))}",
        "",
        "| | without | with | change |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {' | '.join(map(cell, row))} |" for row in _rows(report)),
        "",
        f"{escaped(report.workload.get('recipe', ''))} on {escaped(device + simulated(report.bad))}, "
        f"{code(short(checked.head))} onto {code(short(checked.base))}, "
        f"limit {escaped(format_bytes(report.verdict.limit_bytes))}: {escaped(_fit_text(report.bad))}.",
        *(f"\n{escaped(note)}" for note in checked.notes),
    ]
    return "\n".join(lines) + "\n"


def _fit_text(reading: Reading) -> str:
    return {True: "fits", False: "does not fit", None: "not known to fit"}[reading.fits]


def watch_headline(watched: Watched) -> str:
    """The answer in one sentence."""
    where = f"{watched.branch} up to {short(watched.end)}"
    if watched.landed:
        places = "place" if len(watched.landed) == 1 else "places"
        return f"Memory grew by {format_bytes(watched.min_step)} or more in {len(watched.landed)} {places}: {where}"
    if watched.session is None:
        return f"Nothing new: {where} was seen before"
    if not watched.told:
        return f"The newest commit could not be measured: {where}"
    return f"No growth of {format_bytes(watched.min_step)} or more: {where}"


def render_watch(watched: Watched, console: Console) -> None:
    """Headline, the commits that were probed, and what landed between them."""

    def line(text: str, style: str = "") -> None:
        console.print(Text(printable(text), style), soft_wrap=True)

    line(watch_headline(watched), "bold")
    for one in watched.seen:
        line(f"  {short(one.point)}  {_seen_text(one)}  {one.subject[:60]}")
    for landed in watched.landed:
        line(_landed_text(landed), "bold")
        line(f"  {headline(landed.report)}")
        for step in _steps(landed.report):
            line(f"  {short(step.point)}  {_size(step)}  {step.kind}  {step.subject[:60]}")
        line(f"  {hints.command('report', landed.report.session, '--html', 'FILE')} tells all of it", "dim")
    for note in watched.notes:
        line(note)


def watch_markdown(watched: Watched) -> str:
    """A summary for a job, or a comment."""
    lines = [f"### {escaped(watch_headline(watched))}", ""]
    for landed in watched.landed:
        lines += [f"**{escaped(_landed_text(landed))}**", "", f"{escaped(headline(landed.report))}", ""]
        rows = [(code(short(s.point)), cell(_size(s)), cell(s.kind), cell(s.subject)) for s in _steps(landed.report)]
        if rows:
            lines += ["| commit | change | class | subject |", "| --- | ---: | --- | --- |"]
            lines += [f"| {' | '.join(row)} |" for row in rows[:_MOST_ROWS]] + [""]
    if watched.seen:
        lines += ["| commit | memory | subject |", "| --- | --- | --- |"]
        lines += [
            f"| {code(short(s.point))} | {cell(_seen_text(s))} | {cell(s.subject)} |" for s in _newest(watched.seen)
        ]
        if len(watched.seen) > _MOST_ROWS:
            lines.append(f"\n{len(watched.seen) - _MOST_ROWS:,} older ones are left out.")
    lines += [
        "",
        f"{escaped(watched.recipe)} on {escaped(watched.device)}, limit {escaped(format_bytes(watched.limit))}.",
    ]
    lines += [f"\n{escaped(note)}" for note in watched.notes]
    return "\n".join(lines) + "\n"


def _newest(seen: Sequence[Seen]) -> Sequence[Seen]:
    return list(reversed(seen))[:_MOST_ROWS]


def _seen_text(one: Seen) -> str:
    reading = one.reading
    if not measured(reading):
        return f"{reading.outcome}: {reading.reason[:60]}"
    least = "at least " if reading.outcome is Outcome.CENSORED else ""
    sizes = f"{format_bytes(reading.peak_allocated)} allocated, {format_bytes(reading.peak_device)} of the device"
    return f"{least}{sizes}{simulated(reading)}, {_fit_text(reading)}"


def _landed_text(landed: Landed) -> str:
    ends = f"from {short(landed.before.point)} to {short(landed.after.point)}"
    return f"{format_delta(landed.grew)}{simulated(landed.after.reading)} {ends}"


def _steps(report: Report) -> list[StepVerdict]:
    """The steps, each roll followed by what was found inside it."""
    return [one for step in report.verdict.steps for one in (step, *step.inside)]


def _size(step: StepVerdict) -> str:
    device = step.delta["reserved"] + step.delta["external"]
    return format_delta(max(step.delta["allocated"], device, key=abs))
