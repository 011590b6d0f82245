"""`oombisect replay` on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oombisect.printable import printable, quoted
from oombisect.reports.stranded import failure_lines
from oombisect.reports.terminal import has_room
from oombisect.session.replay_report import ReplayReport, Row
from oombisect.session.replaying import History
from oombisect.units import counted, format_apart, format_bytes

_COLUMNS = ("peak allocated", "peak reserved", "needed capacity", "fits")
_SO_FAR, _NONE = "so far", "none"


def render_replay(report: ReplayReport, console: Console) -> None:
    """Print the answers. Every size is computed by a model of the allocator from what was recorded."""
    label = " (simulated)" if report.simulated else ""
    history = report.history

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    rank = "" if report.rank is None else f", rank {report.rank}"
    device = f", device {history.device}" if history.several or history.device else ""
    events = counted(history.requests.trace_events, "event")
    line(f"{printable(report.label)}{rank}{device}: {events} replayed{label}", "bold")
    line(f"  {fidelity(history)}", "" if history.fidelity.exact else "yellow")
    line(f"  by the rules of {history.rules.name} ({printable(history.rules.reason)})")
    if history.fraction is not None:
        line(f"  with a memory fraction of {history.fraction:g}")
    if report.limit is not None:
        outside = format_bytes(report.external)
        needs = [need for row in (*report.rows, *report.devices) if (need := report.needs(row)) is not None]
        limit = max((format_apart(report.limit, need)[0] for need in (*needs, report.perfect)), key=len)
        line(f"  limit {limit}, of which {outside} are taken outside PyTorch{label}")
    line(f"  computed by replay{label}; needed capacity is the smallest device it survives on", "dim")
    named = [(_name(row), _cells(row, report)) for row in report.rows if not row.answer.refused]
    perfect = ("" if history.complete else "at least ") + _beside_limit(report.perfect, report)
    named.append(("a perfect allocator", ("", "", perfect, _fits(report.perfect_fits, report, history))))
    _sizes("settings", named, console)
    if any(_SO_FAR in cells for _, cells in named):
        line(f"  {_SO_FAR}: under these settings all that was recorded fits", "dim")
    if any(_NONE in cells for _, cells in named):
        line(f"  {_NONE}: the memory fraction forbids it on any device", "dim")
    for row in report.rows:
        if row.answer.refused:
            line(f"  {quoted(row.answer.alloc_conf)}: refused: {printable(row.answer.refused)}", "yellow")
    if report.failure is not None:
        for text in failure_lines(report.failure, label):
            line(f"  {text}")
    if len(report.devices) > 1:
        line(
            f"\nall {len(report.devices)} devices as recorded{label} (--device N: the table above of that one)", "bold"
        )
        _sizes("device", [(_device(row), _cells(row, report)) for row in report.devices], console)
    for note in report.notes:
        line(f"  note: {printable(note)}", "dim")


def fidelity(history: History) -> str:
    """Whether the model does what the recorded allocator did."""
    told = history.fidelity
    if told.exact:
        events = f"{counted(told.allocations, 'address', 'addresses')}, {counted(told.segment_events, 'segment event')}"
        return f"the model reproduces what was recorded: {events}"
    return f"the model does not reproduce what was recorded, take the sizes for estimates: {printable(told.mismatch)}"


def _name(row: Row) -> str:
    name = printable(row.answer.alloc_conf or "defaults")
    return name + (" (as recorded)" if row.recorded else " (approximate)" if row.approximate else "")


def _device(row: Row) -> str:
    wrong = "" if row.history.fidelity.exact else " (estimates: the model does not reproduce it)"
    return f"{row.history.device}{wrong}"


def _cells(row: Row, report: ReplayReport) -> tuple[str, ...]:
    shown, need = row.answer.unlimited, report.needs(row)
    assert shown is not None  # refused ones are no rows of the table
    bound = "at least " if row.is_lower_bound else ""
    peaks = (f"{bound}{format_bytes(size)}" for size in (shown.peak_allocated, shown.peak_reserved))
    needed = _NONE if need is None else f"{bound}{_beside_limit(need, report)}"
    return (*peaks, needed, _fits(row.fits, report, row.history))


def _beside_limit(size: int, report: ReplayReport) -> str:
    """A size that is compared with the limit: it looks like it only if it is the same."""
    return format_bytes(size) if report.limit is None else format_apart(size, report.limit)[0]


def _fits(fits: bool | None, report: ReplayReport, history: History) -> str:
    """Of a run that is not known to its ends nobody knows whether it would fit."""
    if fits is None:
        return "" if history.complete or report.limit is None else _SO_FAR
    return "yes" if fits else "no"


def _sizes(first: str, rows: list[tuple[str, tuple[str, ...]]], console: Console) -> None:
    """A table where there is room for one, else a few lines each: no size is ever cut."""
    table = Table(box=None, header_style="dim", show_edge=False)
    table.add_column(first, no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "fits" else "right", no_wrap=True)
    for name, cells in rows:
        table.add_row(Text(name), *(Text(cell, style="red" if cell == "no" else "") for cell in cells))
    if has_room(table, console):
        console.print(table)
        return
    for name, cells in rows:
        console.print(Text(f"{first} {name}"), soft_wrap=True)
        for column, cell in zip(_COLUMNS, cells):
            if cell:
                console.print(Text(f"  {column}: {cell}"), soft_wrap=True)
