"""The final report on a terminal: one clear line, the table of steps with sizes, the proof, how to reproduce."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from oombisect.printable import printable
from oombisect.readings import Outcome, Reading
from oombisect.reports.config import config_lines, value_text
from oombisect.reports.descent import descent_lines
from oombisect.reports.packages import package_lines
from oombisect.reports.points import short
from oombisect.reports.stranded import stranded_lines
from oombisect.session.verdict import Report, StepVerdict, Verdict
from oombisect.units import format_apart, format_bytes, format_change, format_delta

_STYLE = {"capacity": "red", "fragmentation": "magenta", "external": "yellow", "mixed": "red", "unknown": "dim"}
_METRICS = {"allocated": "peak allocated", "reserved": "peak reserved", "external": "outside PyTorch"}
_FOLLOWED = {
    "memory": "memory of the device",
    "allocated": "peak allocated",
    "reserved": "peak reserved",
    "device": "memory of the device",
    "cached": "reserved minus allocated",
    "fragmentation": "needed capacity minus allocated",
}
METHODS = {"replay": "by replay", "probes": "by probes"}
_CONFIRMED = {
    "yes": "confirmed",
    "superseded": "confirmed, but superseded: reverting it on the bad end does not bring the memory back",
    "conflict": "re-probed; does not revert cleanly on the bad end",
    "refuted": "refuted by a fresh probe",
    "not-tried": "not confirmed",
}


def report_console() -> Console:
    """The console for results: a terminal's own width, and room for a table where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def simulated(reading: Reading) -> str:
    """The label that follows a number of `reading`."""
    return " (simulated)" if reading.simulated else ""


def headline(report: Report) -> str:
    """The answer in one sentence."""
    verdict = report.verdict
    label = simulated(report.bad)
    peak, most = format_apart(report.bad.peak_allocated, verdict.limit_bytes)
    limit = f"{most}{label}"
    died = Outcome.CENSORED in (report.good.outcome, report.bad.outcome)
    alone = _alone(report)
    size = verdict.growth.get("allocated", 0) if alone is None else verdict.change or 0
    growth = ("at least " if died else "") + format_delta(size)
    moved = f"{_FOLLOWED[alone] if alone else 'peak allocated'} moved by {growth}{label}"
    where = f"No change in {_FOLLOWED[alone] if alone else 'memory'} between the ends"
    if verdict.kind == "culprit":
        main = main_step(report)
        if main is None:
            return f"No single change can be named; {moved}."
        return _culprit(report, main, label, limit)
    texts = {
        "none": f"{where}: {peak} peak allocated{label}, limit {limit}.",
        "creep": f"Creep: no single change adds much; {moved} over {report.points} points.",
        "blurred": f"The change lies in a range that cannot be probed; {moved}.",
        "budget": _spent(report, f"{growth}{label}"),
        "infra": "The probes failed for reasons outside the code; nothing can be named.",
    }
    return texts[verdict.kind]


def _spent(report: Report, growth: str) -> str:
    """How far the probes went; a share of a growth that nobody measured, or none of it, is no news."""
    ends = (report.good.outcome, report.bad.outcome)
    if not all(outcome in (Outcome.EXACT, Outcome.CENSORED) for outcome in ends):
        return "The probe budget is spent, and nothing can be named: an end of the range was not measured."
    if not report.verdict.explained:
        return f"The probe budget is spent before any of {growth} could be explained."
    return f"The probe budget is spent; {report.verdict.explained:.0%} of {growth} is explained so far."


def _culprit(report: Report, main: StepVerdict, label: str, limit: str) -> str:
    """The sentence that names: the commit inside a roll or a merge where one did it, and then the roll or merge."""
    inside = main.main_inside
    named, who, roll = main, "", ""
    rest = len(report.verdict.steps) - 1
    if inside:
        named, who = inside, who_made(inside)
        how = "Bridge rolled it in with" if who else "It was merged with"
        roll = f' {how} {short(main.point)} "{main.subject}".'
        rest += len(main.inside) - 1
    others = f" {rest} more step{'s' if rest > 1 else ''} below." if rest else ""
    verdict, alone = report.verdict, _alone(report)
    over = f"and pushed the run over {limit}" if named.crosses_limit else f"against a limit of {limit}"
    if verdict.threshold_bytes is not None:
        threshold = f"{format_bytes(verdict.threshold_bytes)}{label} of {_FOLLOWED[verdict.metric]}"
        over = f"and took the run across {threshold}" if named.crosses_limit else f"beside a threshold of {threshold}"
    size = _size(named, label) if alone is None else _followed(named, alone, label)
    return f'{who}{short(named.point)} "{named.subject}": {size} {over}; {named.kind}.{roll}{others}'


def who_made(inside: StepVerdict) -> str:
    """What stands before a commit inside a step; nothing where it is of the same repository."""
    return "Megatron-LM " if inside.repo == "megatron-lm" else ""


def main_step(report: Report) -> StepVerdict | None:
    """The step the headline names: the one that crosses the limit, else the largest confirmed one."""
    named = [step for step in report.verdict.steps if step.named]
    crossing = next((step for step in named if step.crosses_limit), None)
    if _alone(report):
        return crossing or max(named, key=lambda step: abs(step.change or 0), default=None)
    return crossing or max(named, key=lambda step: abs(_largest(step)[1]), default=None)


def _alone(report: Report) -> str | None:
    """The quantity that was followed alone; None: memory as a whole."""
    return None if report.verdict.metric == "memory" else report.verdict.metric


def _followed(step: StepVerdict, metric: str, label: str) -> str:
    """What a step added of the one quantity that was followed."""
    bound = "at least " if step.evidence.get("censored") else ""
    return f"{bound}{format_delta(step.change or 0)}{label} {_FOLLOWED[metric]}"


def _largest(step: StepVerdict) -> tuple[str, int]:
    """The metric that moved most; allocated if it moved at all like the others."""
    allocated = step.delta.get("allocated", 0)
    name, size = max(step.delta.items(), key=lambda item: abs(item[1]), default=("allocated", 0))
    return ("allocated", allocated) if abs(allocated) * 2 >= abs(size) else (name, size)


def metric_words(step: StepVerdict) -> tuple[str, str]:
    """The metric that moved most, and what it is called."""
    name, _ = _largest(step)
    return name, _METRICS[name]


def _size(step: StepVerdict, label: str) -> str:
    stranded = step.evidence.get("fragmentation_bytes")
    if step.kind == "fragmentation" and stranded is not None:
        resolution = (step.evidence.get("needed_capacity") or {}).get("resolution_bytes")
        within = f" (± {format_bytes(resolution)})" if resolution else ""
        return f"{format_delta(stranded)}{within}{label} stranded by the allocator"
    name, size = _largest(step)
    bound = "at least " if step.evidence.get("censored") else ""
    return f"{bound}{format_delta(size)}{label} {_METRICS[name]}"


def render(report: Report, console: Console) -> None:
    """Print the whole report. Lines are never broken here: a terminal wraps them, and no number is cut."""
    label = simulated(report.bad)

    def line(text: str = "", style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    across = "limit" if report.verdict.threshold_bytes is None else "threshold"
    line()
    line(headline(report), "bold")
    table = steps_table(report.verdict.steps, label)
    if report.verdict.steps and has_room(table, console):
        console.print(table)
    for step in report.verdict.steps:
        line(f"\n{short(step.point)} {step.subject}", _STYLE.get(step.kind, ""))
        if alone := _alone(report):
            line(f"  followed: {_followed(step, alone, label)}")
        for text in evidence_lines(step, label, across):
            line(f"  {text}")
        for text in package_lines(step, *metric_words(step), label):
            line(f"  {text}")
        for text in descent_lines(step, *metric_words(step), label):
            line(f"  {text}")
        for inside in step.inside:
            line(f"\n  {who_made(inside)}{short(inside.point)} {inside.subject}", _STYLE.get(inside.kind, ""))
            for text in evidence_lines(inside, label, across):
                line(f"    {text}")
        for note in step.evidence.get("descent", {}).get("notes", ()):
            line(f"  note: {_labelled(note, label)}", "dim")
    line()
    if report.config is not None:
        for text in config_lines(report.config, label):
            line(f"  {text}")
        line()
    peaks = format_change(report.good.peak_allocated, report.bad.peak_allocated, report.verdict.limit_bytes)
    for name, reading, peak in (("good", report.good, peaks[0]), ("bad", report.bad, peaks[1])):
        line(f"  {name}: {end_text(reading, report.verdict.limit_bytes, peak)}")
        for text in rank_lines((report.rank_findings.get(name) or {}).get("sentences", ()), label):
            line(f"    {text}")
    line(
        f"  {report.probes} probes run in this session, {report.probes_cached} answers reused from earlier probes, "
        f"{report.points} points; session {report.session}",
        "dim",
    )
    for text in silent_lines(report.verdict):
        line(f"  {text}", "yellow")
    for note in report.verdict.notes:
        line(f"  note: {_labelled(note, label)}", "dim")
    line("\nReproduce:", "bold")
    for command in report.reproduce:
        line(f"  {command}")


def silent_lines(verdict: Verdict) -> list[str]:
    """The stretches of points that told nothing, a line each, and whether they could not or were not to be probed."""
    both = (("cannot be probed", verdict.unresolved), ("skipped", verdict.skipped))
    return [
        f"{why}: {short(first)}" + (f" .. {short(last)}" if last != first else "")
        for why, stretches in both
        for first, last in stretches
    ]


def steps_table(steps: Sequence[StepVerdict], label: str) -> Table:
    """Each step with its sizes; those of needed capacity where probes found it."""
    title = Text(f"sizes of the steps{label}, * crosses the limit", style="dim")
    table = Table(box=None, header_style="dim", show_edge=False, title=title, title_justify="left")
    change = "key" if any(step.repo == "config" for step in steps) else "commit"
    for name in (change, *_METRICS, "needed", "class"):
        table.add_column(name, justify="left" if name in (change, "class") else "right", no_wrap=True)
    for step, rolled in ((found, outer is not found) for outer in steps for found in (outer, *outer.inside)):
        needed = _needed_growth(step)
        table.add_row(
            Text(("  " + who_made(step) if rolled else "") + short(step.point) + (" *" if step.crosses_limit else "")),
            *(Text(format_delta(step.delta.get(name, 0))) for name in _METRICS),
            Text("" if needed is None else format_delta(needed)),
            Text(step.kind, style=_STYLE.get(step.kind, "")),
        )
    return table


def has_room(table: Table, console: Console) -> bool:
    """Whether the table's widest lines fit; where they do not, what it says is said in lines."""
    unbounded = console.options.update(width=10_000)
    return Measurement.get(console, unbounded, table).maximum <= console.width


def _needed_growth(step: StepVerdict) -> int | None:
    """How the needed capacity moved, bytes, signed like the step; None where it is not known."""
    needed = step.evidence.get("needed_capacity") or {}
    smaller, larger = needed.get("smaller_bytes"), needed.get("larger_bytes")
    if smaller is None or larger is None:
        return None
    return int(larger - smaller if _grew(step) else smaller - larger)


def _grew(step: StepVerdict) -> bool:
    """Whether the step added memory, as the device sees it."""
    return step.delta.get("reserved", 0) + step.delta.get("external", 0) >= 0


def _labelled(text: str, label: str) -> str:
    """A sentence with its label, if it has a size in it."""
    return text + label if re.search(r"\d ([KMGT]i)?B\b", text) else text


def evidence_lines(step: StepVerdict, label: str, across: str = "limit") -> list[str]:
    """The sizes of one step and their proof, a line each; `label` follows every size, `across` is what was crossed."""
    evidence = step.evidence
    sizes = ", ".join(f"{format_delta(step.delta.get(name, 0))} {words}" for name, words in _METRICS.items())
    at_least = "at least " if evidence.get("censored") else ""
    lines = [f"{step.kind}: {at_least}{sizes}{label}"]
    if step.crosses_limit:
        lines.append(f"takes the run across the {across}")
    if phases := evidence.get("phases"):
        moved = ", ".join(f"{phase} {format_delta(size)}" for phase, size in phases.items())
        lines.append(f"peak allocated by phase: {moved}{label}")
    lines.append(_CONFIRMED[step.confirmed])
    if step.blurred:
        lines.append(f"blurred: one of {', '.join(short(point) for point in step.blurred)}")
    needed = evidence.get("needed_capacity") or {}
    smaller, larger = needed.get("smaller_bytes"), needed.get("larger_bytes")
    limit = evidence.get("classification", {}).get("limit")
    if smaller is not None and larger is not None:
        before, after = (smaller, larger) if _grew(step) else (larger, smaller)
        within = f"{METHODS[needed.get('method', 'probes')]} within {format_bytes(needed['resolution_bytes'])}"
        before, after, *_ = format_change(before, after, *_known(needed.get("larger_expandable_bytes"), limit))
        sizes = f"{before} before, {after} with it"
        lines.append(f"needed capacity (rank {needed['rank']}, {within}): {sizes}{label}")
    if needed.get("larger_expandable_bytes") is not None:
        side = "it needs" if _grew(step) else "the code before it needs"
        size, *_ = format_apart(needed["larger_expandable_bytes"], *_known(smaller, larger, limit))
        lines.append(f"with expandable segments {side} {size}{label}")
    if enforced := evidence.get("limit_enforced"):
        lines.append(_enforced(enforced, label))
    if stranded := evidence.get("stranded"):
        lines.extend(stranded_lines(stranded, label))
    if step.kind == "unknown" and (reason := evidence.get("classification", {}).get("reason")):
        lines.append(f"not classified: {reason}")
    lines.extend(_labelled(note, label) for note in evidence.get("classification", {}).get("notes", ()))
    if "submodule" in evidence:
        moved = evidence["submodule"]
        lines.append(f"moves Megatron-LM {short(moved['before'] or 'none')} -> {short(moved['after'] or 'none')}")
    functions = evidence.get("recipe_function", {})
    if functions and functions["before"] != functions["after"]:
        lines.append(f"recipe: {functions['before']} -> {functions['after']}")
    changes: Sequence[Mapping[str, Any]] = evidence.get("config_changes", ())
    for change in changes[:12]:
        before, after = (value_text(change, side, "absent") for side in ("before", "after"))
        lines.append(f"config: {printable(change['path'])}: {before} -> {after}")
    if len(changes) > 12:
        lines.append(f"config: {len(changes) - 12} more changes (--json lists all)")
    if "config_changes" in evidence and not changes:
        lines.append("config: the resolved config is the same on both sides, so the code changed")
    return lines


def _known(*sizes: int | None) -> list[int]:
    """Those that are known."""
    return [size for size in sizes if size is not None]


def _enforced(enforced: Mapping[str, Any], label: str) -> str:
    """The A/B test, in words."""
    words = {True: "runs to the end", False: "runs out of memory", None: "tells nothing"}
    plain, expandable = enforced["survives"], enforced["survives_with_expandable_segments"]
    return (
        f"probed with {format_bytes(enforced['limit_bytes'])}{label} enforced: it {words[plain]},"
        f" with expandable segments it {words[expandable]}"
    )


def rank_lines(sentences: Iterable[str], label: str) -> list[str]:
    """What the ranks of a reading show beside each other, a line each; `label` follows every size."""
    return [_labelled(text, label) for text in sentences]


def end_text(reading: Reading, limit: int, peak: str) -> str:
    """One end of the range in a line; `peak`: its peak allocated, as it looks beside that of the other end."""
    if reading.outcome in (Outcome.UNRESOLVED, Outcome.INFRA):
        return f"{reading.outcome}: {reading.reason}"
    bound = ">= " if reading.outcome is Outcome.CENSORED else ""
    _, reserved, shown = format_apart(reading.peak_allocated, reading.peak_reserved, limit)
    sizes = (
        f"{bound}{peak} peak allocated, {bound}{reserved} peak reserved, "
        f"{format_bytes(reading.external)} outside PyTorch{simulated(reading)}"
    )
    fits = {True: "fits", False: "does not fit", None: "not known to fit"}[reading.fits]
    return f"{reading.outcome}, {sizes}; {fits} {shown}"
