"""A comparison for people and as JSON (docs/json.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oombisect import hints
from oombisect.memory.difference import Part, Total
from oombisect.memory.line_map import Hunk
from oombisect.memory.stacks import PACKAGE, PROBE, PYTHON
from oombisect.printable import printable
from oombisect.reports.config import value_text
from oombisect.reports.points import short
from oombisect.session.comparing import Comparison, ShownEntry, ShownFrame, Side
from oombisect.units import counted, format_change, format_delta

SCHEMA = 1
GROUPINGS = ("stack", "module", "phase")
_FRAMES = 5  # of each stack: the innermost ones tell what was allocated and for whom
_HUNK_LINES = 24
_CONFIG_LINES = 12


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The contract of `compare --json`: everything, nothing cut."""
    hunks: dict[tuple[str, str, str], int] = {}
    stacks = [_entry_json(one, hunks) for one in comparison.entries]
    changes = comparison.config_changes
    return {
        "schema": SCHEMA,
        "simulated": comparison.simulated,
        "first": _side_json(comparison.first),
        "second": _side_json(comparison.second),
        "delta_bytes": comparison.delta,
        "stacks": stacks,
        "modules": [_total_json(total) for total in comparison.modules],
        "phases": [_total_json(total) for total in comparison.phases],
        "adjacent": comparison.adjacent,
        "step": comparison.step.to_json() if comparison.step else None,
        "hunks": [{"project": project, "file": file, "text": text} for project, file, text in hunks],
        "config_changes": None if changes is None else [change.to_json() for change in changes],
        "notes": list(comparison.notes),
    }


def _side_json(side: Side) -> dict[str, Any]:
    located = side.located
    return {
        "name": located.label,
        "snapshot": str(located.path),
        "probe": located.probe.id if located.probe else None,
        "session": located.probe.spec.session if located.probe else None,
        "point": located.point,
        "commits": {name: project.commit for name, project in side.projects.items()},
        "rank": located.rank,
        "device": side.device,
        "peak_allocated": side.live.peak,
        "peak_phase": side.peak_phase,
        "blocks": len(side.live.blocks),
        "censored": side.censored,
        "simulated": side.simulated,
    }


def _entry_json(one: ShownEntry, hunks: dict[tuple[str, str, str], int]) -> dict[str, Any]:
    entry = one.entry
    return {
        "delta_bytes": entry.delta,
        "module": one.module,
        "moved": entry.moved,
        "before_trace": entry.before,
        "first": _part_json(entry.first, one.first, hunks),
        "second": _part_json(entry.second, one.second, hunks),
    }


def _part_json(
    part: Part, frames: Sequence[ShownFrame], hunks: dict[tuple[str, str, str], int]
) -> dict[str, Any] | None:
    if not part.sizes:
        return None
    return {
        "bytes": part.size,
        "requested_bytes": part.requested,
        "blocks": part.count,
        "phases": dict(part.phases),
        "frames": [_frame_json(frame, hunks) for frame in frames],
    }


def _frame_json(frame: ShownFrame, hunks: dict[tuple[str, str, str], int]) -> dict[str, Any]:
    number = None
    if frame.hunk is not None:
        number = hunks.setdefault((frame.project, frame.file, frame.hunk.text), len(hunks))
    return {
        "project": frame.project,
        "file": frame.file,
        "line": frame.line,
        "function": frame.function,
        "source": frame.source,
        "hunk": number,
    }


def _total_json(total: Total) -> dict[str, Any]:
    return {
        "name": total.name,
        "delta_bytes": total.delta,
        "first_bytes": total.first,
        "second_bytes": total.second,
        "first_blocks": total.first_count,
        "second_blocks": total.second_count,
    }


def render_comparison(comparison: Comparison, console: Console, *, by: str, top: int) -> None:
    """Print the `top` contributors to the difference, grouped `by` one of `GROUPINGS`. No line is cut."""
    label = _label(comparison)

    def line(text: str = "", style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    peaks = format_change(comparison.first.live.peak, comparison.second.live.peak)
    for name, side, peak in zip("AB", (comparison.first, comparison.second), peaks):
        line(f"{name}: {_side_text(side, peak)}")
    for text in _step_lines(comparison):
        line(text)
    line(f"B - A: {format_delta(comparison.delta)}{label} peak allocated\n", "bold")
    if comparison.about_layout:
        for text in _layout_lines(comparison, label):
            line(text, "yellow")
        line()
    if by == "stack":
        _stacks(comparison, top, label, console)
    else:
        totals = comparison.modules if by == "module" else comparison.phases
        console.print(_table(totals, top, by, label))
    _config(comparison, console)
    for note in comparison.notes:
        line(f"note: {printable(note)}", "dim")


def _step_lines(comparison: Comparison) -> list[str]:
    """Which step of a session is compared, and how to name another."""
    step = comparison.step
    if step is None:
        return []
    why = f", {step.why}" if step.why else ""
    lines = [f"step {step.number} of {step.count} of session {step.session}: {short(step.point)} ({step.kind}){why}"]
    if step.others:
        others = ", ".join(short(p) + (" (crosses the limit)" if p == step.crossing else "") for p in step.others)
        lines.append(f"  others: {others}; to see one: {hints.command('compare', step.session, '--step', 'COMMIT')}")
    return lines


def _layout_lines(comparison: Comparison, label: str) -> list[str]:
    """What tells two runs apart whose live bytes may be the same: how the allocator lays them out."""
    sides = (comparison.first, comparison.second)
    counts = " -> ".join(f"{len(side.live.blocks):,}" for side in sides)
    start = "The peaks are equal, which" if comparison.delta == 0 else "What is live differs, but that"
    lines = [f"{start} does not tell how the allocator lays the blocks out. Live blocks at the peak: {counts}."]
    reserved = [side.located.rank_reading.peak_reserved for side in sides if side.located.rank_reading]
    if len(reserved) == 2:
        before, after = format_change(*reserved)
        lines.append(f"Peak reserved: {before} -> {after}{label}.")
    if comparison.step and comparison.step.needed_bytes:
        before, after = format_change(*comparison.step.needed_bytes)
        lines.append(f"The step is called {comparison.step.kind}; needed capacity: {before} -> {after}{label}.")
    ways = ", ".join(f"`{hints.command('replay', _replayed(side))}`" for side in sides)
    lines.append(
        "Fragmentation is about where blocks lie, not about which stacks hold how much. What each side needs, and what"
        f" it strands: {ways}."
    )
    return lines


def _replayed(side: Side) -> str:
    """What `replay` takes for a side."""
    probe = side.located.probe
    return f"{probe.spec.session}/{probe.id}" if probe else str(side.located.path)


def _label(comparison: Comparison) -> str:
    """Follows numbers that come from both sides."""
    simulated = [name for name, side in (("A", comparison.first), ("B", comparison.second)) if side.simulated]
    return f" ({simulated[0]} simulated)" if len(simulated) == 1 else " (simulated)" if simulated else ""


def _side_text(side: Side, peak: str) -> str:
    label = " (simulated)" if side.simulated else ""
    located = side.located
    where = f", {short(located.point)}" if located.point else ""
    subject = f' "{printable(located.probe.spec.subject)}"' if located.probe and located.probe.spec.subject else ""
    rank = f", rank {located.rank}" if located.rank is not None else ""
    rank += f", device {side.device}" if side.others or side.device else ""
    phase = f", reached in {side.peak_phase}" if side.peak_phase else ""
    bound = "at least " if side.censored else ""
    size = f"{bound}{peak}{label} peak allocated{phase}, {counted(len(side.live.blocks), 'block')}"
    return f"{located.label}{where}{subject}{rank}: {size}"


def _stacks(comparison: Comparison, top: int, label: str, console: Console) -> None:
    changed = [one for one in comparison.entries if one.entry.delta]
    shown = changed[:top]
    told: set[Hunk] = set()
    for one in shown:
        _entry(one, comparison, told, console)
    rest = changed[top:]
    if rest:
        size = format_delta(sum(one.entry.delta for one in rest))
        console.print(
            Text(f"{size}{label} in {counted(len(rest), 'more stack')} (--top shows more)", style="dim"), soft_wrap=True
        )
    same = len(comparison.entries) - len(changed)
    moved = sum(one.entry.moved and not one.entry.delta for one in comparison.entries)
    also = f", {moved} of them moved" if moved else ""
    hold = f"{same} stack holds" if same == 1 else f"{same} stacks hold" if changed else f"All {same} stacks hold"
    console.print(Text(f"{hold} the same on both sides{also}", style="dim"), soft_wrap=True)
    if changed and not any(one.touched for one in shown) and comparison.second.projects:
        console.print(Text("No line of the stacks above was touched between A and B.", style="dim"), soft_wrap=True)


def _entry(one: ShownEntry, comparison: Comparison, told: set[Hunk], console: Console) -> None:
    entry, label = one.entry, _label(comparison)
    sizes = format_change(entry.first.size, entry.second.size)
    before, after = (f"{size} x{p.count}" for size, p in zip(sizes, (entry.first, entry.second)))
    moved = "  (moved: the stacks differ, and were taken for one)" if entry.moved else ""
    head = Text()
    head.append(f"{format_delta(entry.delta)}{label}", style="red" if entry.delta > 0 else "green")
    head.append(f"  {before} -> {after}  ", style="dim")
    head.append(f"{printable(one.module)}{moved}", style="bold")
    console.print(head, soft_wrap=True)
    frames = [frame for frame in one.frames if frame.project not in (PROBE, PYTHON)] or list(one.frames)
    for index, frame in enumerate(frames):
        if index < _FRAMES or frame is one.touched:
            console.print(Text(f"    {_frame_text(frame)}"), soft_wrap=True)
    if len(frames) > _FRAMES:
        console.print(Text(f"    ... {len(frames) - _FRAMES} more (--json lists all)", style="dim"), soft_wrap=True)
    phases = dict.fromkeys([*entry.first.phases, *entry.second.phases])
    console.print(Text(f"    allocated in {', '.join(phases)}", style="dim"), soft_wrap=True)
    same = entry.first.requested == entry.second.requested and entry.first.count == entry.second.count
    if same:
        text = "the same was asked for: the allocator left the rest of the blocks uncut on one side"
        console.print(Text(f"    {text}", style="dim"), soft_wrap=True)
    touched = one.touched
    if touched is not None and touched.hunk is not None:
        _hunk(touched, touched.hunk, comparison, told, console)
    console.print()


def _frame_text(frame: ShownFrame) -> str:
    where = f"{frame.file}:{frame.line}" if frame.line else frame.file
    package = "" if frame.project != PACKAGE else " (package)"
    source = f"    {printable(frame.source)}" if frame.source else ""
    return printable(f"{where} {frame.function}{package}") + source


def _hunk(frame: ShownFrame, hunk: Hunk, comparison: Comparison, told: set[Hunk], console: Console) -> None:
    """The piece of the diff that touched a frame. Far apart, commits re-indent much that has nothing to do with it."""
    how = "re-indented" if frame.reindented else "changed"
    by = f"by {short(comparison.second.located.point or '')}" if comparison.adjacent else "between A and B"
    console.print(Text(f"    {how} {by}: {printable(frame.file)}:{frame.line}", style="yellow"), soft_wrap=True)
    if frame.reindented and not comparison.adjacent:
        return
    if hunk in told:
        console.print(Text(f"      {_plain(hunk.header)} (above)", style="dim"), soft_wrap=True)
        return
    told.add(hunk)
    lines = [hunk.header, *hunk.lines]
    first = _window(lines, frame)
    shown = lines[first : first + _HUNK_LINES]
    if first:
        console.print(Text(f"      ... {first} lines above", style="dim"))
    for text in shown:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(text[:1], "")
        console.print(Text(f"      {_plain(text)}", style=style), soft_wrap=True)
    if (below := len(lines) - first - len(shown)) > 0:
        console.print(Text(f"      ... {below} lines below (--json has them)", style="dim"))


def _window(lines: Sequence[str], frame: ShownFrame) -> int:
    """Where to begin showing a long hunk: so that the frame's own line is in the middle."""
    source = frame.source or ""
    at = next((i for i, text in enumerate(lines) if text[:1] in "+-" and text[1:].strip() == source), 0)
    return max(0, min(at - _HUNK_LINES // 2, len(lines) - _HUNK_LINES))


def _plain(text: str) -> str:
    """As `printable`, indentation kept."""
    expanded = text.expandtabs(4)
    return "".join(c if c.isprintable() else "?" for c in expanded)


def _table(totals: Sequence[Total], top: int, by: str, label: str) -> Table:
    title = Text(f"bytes at the peak{label}", style="dim")
    table = Table(box=None, header_style="dim", show_edge=False, title=title, title_justify="left")
    for name in ("delta", "A", "B", "blocks"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(by, overflow="fold")
    changed = [total for total in totals if total.delta or by == "phase"]
    rest = changed[top:]
    rows = changed[:top]
    if rest:
        sums = [sum(getattr(t, n) for t in rest) for n in ("first", "second", "first_count", "second_count")]
        rows = [*rows, Total(f"{len(rest)} more (--top shows more)", *sums)]
    for total in rows:
        counts = f"{total.first_count} -> {total.second_count}"
        sizes = (format_delta(total.delta), *format_change(total.first, total.second), counts)
        table.add_row(*(Text(text) for text in sizes), Text(printable(total.name)))
    return table


def _config(comparison: Comparison, console: Console) -> None:
    changes = comparison.config_changes
    if not changes:
        return
    console.print(
        Text(f"The resolved configs differ in {counted(len(changes), 'place')}:", style="yellow"), soft_wrap=True
    )
    for change in changes[:_CONFIG_LINES]:
        before, after = (value_text(change.to_json(), side, "absent") for side in ("before", "after"))
        console.print(Text(f"  {printable(change.path)}: {before} -> {after}"), soft_wrap=True)
    if len(changes) > _CONFIG_LINES:
        more = f"  {len(changes) - _CONFIG_LINES} more (--json lists all)"
        console.print(Text(more, style="dim"), soft_wrap=True)
