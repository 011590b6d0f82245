"""The final report on a terminal: one clear line, the table of steps with sizes, the proof, how to reproduce."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oombisect.readings import Outcome, Reading
from oombisect.session.verdict import Report, StepVerdict
from oombisect.units import format_bytes, format_delta

_STYLE = {"capacity": "red", "fragmentation": "magenta", "external": "yellow", "mixed": "red", "unknown": "dim"}
_CONFIRMED = {
    "yes": "confirmed",
    "superseded": "confirmed, but superseded: reverting it on the bad end does not bring the memory back",
    "conflict": "re-probed; does not revert cleanly on the bad end",
    "refuted": "refuted by a fresh probe",
    "not-tried": "not confirmed",
}


def short(point: str) -> str:
    """Commit ids are shortened, also in the key of a reverted tip (`tip-culprit`); other keys are not."""
    parts = [part[:10] if re.fullmatch(r"[0-9a-f]{40}", part) else part for part in point.split("-")]
    reverted = len(parts) == 2 and all(len(part) == 10 for part in parts)
    return " without ".join(parts) if reverted else "-".join(parts)


def report_console() -> Console:
    """The console for results: a terminal's own width, and room for a table where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def headline(report: Report) -> str:
    """The answer in one sentence."""
    verdict = report.verdict
    simulated = " (simulated)" if report.bad.simulated else ""
    limit = f"{format_bytes(verdict.limit_bytes)}{simulated}"
    growth = format_delta(verdict.growth.get("allocated", 0))
    if verdict.kind == "culprit":
        main = main_step(report)
        if main is None:
            return f"No single change can be named; peak allocated moved by {growth}{simulated}."
        rest = len(verdict.steps) - 1
        others = f" {rest} more step{'s' if rest > 1 else ''} below." if rest else ""
        over = f"and pushed the run over {limit}" if main.crosses_limit else f"against a limit of {limit}"
        return f'{short(main.point)} "{main.subject}": {_size(main)} {over}; {main.kind}.{others}'
    texts = {
        "none": f"No change in memory between the ends: {format_bytes(report.bad.peak_allocated)} peak allocated"
        f"{simulated}, limit {limit}.",
        "creep": f"Creep: no single change adds much; peak allocated moved by {growth}{simulated} over "
        f"{report.points} points.",
        "blurred": f"The change lies in a range that cannot be probed; peak allocated moved by {growth}{simulated}.",
        "budget": f"The probe budget is spent; {verdict.explained:.0%} of {growth}{simulated} is explained so far.",
        "infra": "The probes failed for reasons outside the code; nothing can be named.",
    }
    return texts[verdict.kind]


def main_step(report: Report) -> StepVerdict | None:
    """The step the headline names: the one that crosses the limit, else the largest confirmed one."""
    named = [step for step in report.verdict.steps if step.named]
    crossing = next((step for step in named if step.crosses_limit), None)
    return crossing or max(named, key=lambda step: abs(_largest(step)[1]), default=None)


def _largest(step: StepVerdict) -> tuple[str, int]:
    """The metric that moved most; allocated if it moved at all like the others."""
    allocated = step.delta.get("allocated", 0)
    name, size = max(step.delta.items(), key=lambda item: abs(item[1]), default=("allocated", 0))
    return ("allocated", allocated) if abs(allocated) * 2 >= abs(size) else (name, size)


def _size(step: StepVerdict) -> str:
    stranded = step.evidence.get("fragmentation_bytes")
    if step.kind == "fragmentation" and stranded is not None:
        return f"{format_delta(stranded)} stranded by the allocator"
    name, size = _largest(step)
    return f"{format_delta(size)} peak {name}" if name != "external" else f"{format_delta(size)} outside PyTorch"


def render(report: Report, console: Console) -> None:
    """Print the whole report."""
    console.print()
    console.print(Text(headline(report), style="bold"))
    if report.verdict.steps:
        console.print(steps_table(report.verdict.steps))
    for step in report.verdict.steps:
        console.print(Text(f"\n{short(step.point)} {step.subject}"))
        for line in evidence_lines(step):
            console.print(Text(f"  {line}"))
    console.print()
    _ends(report, console)
    for first, last in report.verdict.unresolved:
        console.print(Text(f"  cannot be probed: {short(first)} .. {short(last)}", style="yellow"))
    for note in report.verdict.notes:
        console.print(Text(f"  note: {note}", style="dim"))
    console.print()
    console.print(Text("Reproduce:", style="bold"))
    for command in report.reproduce:
        console.print(Text(f"  {command}"), soft_wrap=True)


def steps_table(steps: Iterable[StepVerdict]) -> Table:
    """Each step with its sizes."""
    table = Table(box=None, pad_edge=True, header_style="dim", show_edge=False)
    for name in ("commit", "allocated", "reserved", "external", "class", "confirmed"):
        sizes = name in ("allocated", "reserved", "external")
        table.add_column(name, justify="right" if sizes else "left", no_wrap=True)
    for step in steps:
        table.add_row(
            Text(short(step.point) + (" *" if step.crosses_limit else "")),
            *(Text(format_delta(step.delta.get(name, 0))) for name in ("allocated", "reserved", "external")),
            Text(step.kind, style=_STYLE.get(step.kind, "")),
            Text(step.confirmed),
        )
    return table


def evidence_lines(step: StepVerdict) -> list[str]:
    """The proof of one step, a line each."""
    evidence = step.evidence
    lines = [_CONFIRMED[step.confirmed]]
    if step.blurred:
        lines.append(f"blurred: one of {', '.join(short(point) for point in step.blurred)}")
    needed = evidence.get("needed_capacity") or {}
    smaller, larger = needed.get("smaller_bytes"), needed.get("larger_bytes")
    if smaller is not None and larger is not None:
        lines.append(
            f"needed capacity (rank {needed['rank']}, within {format_bytes(needed['resolution_bytes'])}): "
            f"{format_bytes(smaller)} without, {format_bytes(larger)} with it"
        )
    if needed.get("larger_expandable_bytes") is not None:
        lines.append(f"with expandable segments it needs {format_bytes(needed['larger_expandable_bytes'])}")
    lines.extend(evidence.get("classification", {}).get("notes", ()))
    if "submodule" in evidence:
        moved = evidence["submodule"]
        lines.append(f"moves Megatron-LM {short(moved['before'] or 'none')} -> {short(moved['after'] or 'none')}")
    functions = evidence.get("recipe_function", {})
    if functions and functions["before"] != functions["after"]:
        lines.append(f"recipe: {functions['before']} -> {functions['after']}")
    changes: Sequence[Mapping[str, Any]] = evidence.get("config_changes", ())
    for change in changes[:12]:
        before, after = (change.get(side, "absent") for side in ("before", "after"))
        lines.append(f"config: {change['path']}: {before} -> {after}")
    if len(changes) > 12:
        lines.append(f"config: {len(changes) - 12} more changes (--json lists all)")
    if "config_changes" in evidence and not changes:
        lines.append("config: the resolved config is the same on both sides, so the code changed")
    return lines


def render_reading(point: str, limit: int, reading: Reading, console: Console) -> None:
    """One reading, with every phase."""
    console.print(Text(f"{short(point)}  {reading.recipe_function}", style="bold"))
    if reading.outcome in (Outcome.UNRESOLVED, Outcome.INFRA):
        console.print(Text(f"  {reading.outcome}: {reading.reason}", style="yellow"))
        return
    label = " (simulated)" if reading.simulated else ""
    fits = "fits" if reading.fits else "does not fit"
    console.print(Text(f"  {fits} in {format_bytes(limit)} on {reading.device}{label}"))
    for rank in reading.ranks:
        table = Table(box=None, header_style="dim", show_edge=False, title=f"rank {rank.rank} of {reading.world_size}")
        for name in ("phase", "peak allocated", "peak reserved", "inactive split", "retries", "OOMs", "device", "time"):
            table.add_column(name, justify="left" if name == "phase" else "right")
        for name, phase in rank.phases.items():
            used = "" if phase.device_used is None else format_bytes(phase.device_used)
            sizes = (phase.allocated_peak, phase.reserved_peak, phase.inactive_split_peak)
            counts = (str(phase.alloc_retries), str(phase.ooms))
            table.add_row(name, *(format_bytes(size) for size in sizes), *counts, used, f"{phase.seconds:.2f} s")
        console.print(table)
        if rank.oom:
            console.print(Text(f"  out of memory in {rank.oom.phase}: {rank.oom.message}", style="red"))
    if reading.attention_backend:
        console.print(Text(f"  attention: {reading.attention_backend}", style="dim"))
    for note in reading.notes:
        console.print(Text(f"  note: {note}", style="dim"))


def _ends(report: Report, console: Console) -> None:
    table = Table(box=None, header_style="dim", show_edge=False)
    for name in ("", "outcome", "peak allocated", "peak reserved", "external", f"fits {format_bytes(report.verdict.limit_bytes)}"):  # fmt: skip  # noqa: E501
        table.add_column(name)
    for name, reading in (("good", report.good), ("bad", report.bad)):
        table.add_row(name, *(Text(cell) for cell in reading_cells(reading)))
    console.print(table)
    console.print(
        Text(
            f"  {report.probes} probes run, {report.probes_cached} answered from the database, "
            f"{report.points} points; session {report.session}",
            style="dim",
        )
    )


def reading_cells(reading: Reading) -> tuple[str, ...]:
    """Outcome, peak allocated, peak reserved, external, fits."""
    if reading.outcome in (Outcome.UNRESOLVED, Outcome.INFRA):
        return (f"{reading.outcome}: {reading.reason}", "", "", "", "")
    bound = ">= " if reading.outcome is Outcome.CENSORED else ""
    simulated = " simulated" if reading.simulated else ""
    return (
        f"{reading.outcome}{simulated}",
        bound + format_bytes(reading.peak_allocated),
        bound + format_bytes(reading.peak_reserved),
        format_bytes(reading.external),
        {True: "yes", False: "no", None: "?"}[reading.fits],
    )
