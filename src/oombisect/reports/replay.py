"""`oombisect replay` on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oombisect.memory.whatif import WhatIf
from oombisect.printable import printable
from oombisect.reports.stranded import failure_lines
from oombisect.session.replay_report import ReplayReport, notes
from oombisect.units import format_bytes

_COLUMNS = ("settings", "peak allocated", "peak reserved", "needed capacity", "fits")


def render_replay(report: ReplayReport, console: Console) -> None:
    """Print the answers. Every size is computed by a model of the allocator from what was recorded."""
    label = " (simulated)" if report.simulated else ""

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    rank = "" if report.rank is None else f", rank {report.rank}"
    line(f"{printable(report.label)}{rank}: {report.history.requests.trace_events:,} events replayed{label}", "bold")
    line(f"  {fidelity(report)}", "" if report.fidelity.exact else "yellow")
    line(f"  by the rules of {report.history.rules.name} ({printable(report.history.rules.reason)})")
    if report.limit is not None:
        line(
            f"  limit {format_bytes(report.limit)}, of which {format_bytes(report.external)} lie outside PyTorch{label}"
        )
    line(f"  computed by replay{label}; needed capacity is the smallest device it survives on", "dim")
    console.print(_table(report))
    if report.failure is not None:
        for text in failure_lines(report.failure, label):
            line(f"  {text}")
    for note in notes(report):
        line(f"  note: {printable(note)}", "dim")


def fidelity(report: ReplayReport) -> str:
    """Whether the model does what the recorded allocator did."""
    told = report.fidelity
    if told.exact:
        events = f"{told.allocations:,} addresses, {told.segment_events:,} events of segments"
        return f"the model reproduces what was recorded: {events}"
    return f"the model does not reproduce what was recorded, take the sizes for estimates: {printable(told.mismatch)}"


def _table(report: ReplayReport) -> Table:
    table = Table(box=None, header_style="dim", show_edge=False)
    for name in _COLUMNS:
        table.add_column(
            name, justify="right" if name not in ("settings", "fits") else "left", no_wrap=name != "settings"
        )
    for number, row in enumerate(report.rows):
        table.add_row(*_cells(row, report, recorded=number == 0))
    perfect = report.perfect
    fits = "" if report.limit is None else "yes" if perfect <= report.limit else "no"
    table.add_row("a perfect allocator", "", "", format_bytes(perfect), fits)
    return table


def _cells(row: WhatIf, report: ReplayReport, *, recorded: bool) -> list[str | Text]:
    name = printable(row.alloc_conf or "defaults") + (" (as recorded)" if recorded else "")
    if row.unlimited is None or row.needed is None:
        return [name, "", "", "", Text(f"refused: {printable(row.refused)}", style="yellow")]
    fits = {None: "", True: "yes", False: "no"}[row.fits]
    return [
        name,
        format_bytes(row.unlimited.peak_allocated),
        format_bytes(row.unlimited.peak_reserved),
        format_bytes(row.needed + report.external),
        Text(fits, style="red" if row.fits is False else ""),
    ]
