"""One reading on a terminal, with every phase, and why it does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oombisect.readings import Outcome, RankReading, Reading
from oombisect.reports.stranded import stranded_lines
from oombisect.reports.terminal import has_room, rank_lines, short, simulated
from oombisect.session.single import Probed
from oombisect.units import format_bytes

_PHASE_COLUMNS = (
    "phase", "peak\nallocated", "peak\nreserved", "inactive\nsplit", "retries", "OOMs", "device", "time",
)  # fmt: skip
_CLASSES = {
    "capacity": "capacity: more is needed than the limit, no allocator could fit it",
    "fragmentation": "fragmentation: what is needed would fit, the allocator could not lay it out",
    "unknown": "not classified: it ran out of memory before its peak, and no run or replay shows what it needs",
}


def render_reading(probed: Probed, console: Console) -> None:
    """One reading, with every phase."""
    point, limit, reading = probed.point, probed.limit, probed.reading
    console.print(Text(f"{short(point)}  {reading.recipe_function}", style="bold"), soft_wrap=True)
    if reading.outcome in (Outcome.UNRESOLVED, Outcome.INFRA):
        console.print(Text(f"  {reading.outcome}: {reading.reason}", style="yellow"), soft_wrap=True)
        return
    label = simulated(reading)
    fits = "fits" if reading.fits else "does not fit"
    console.print(Text(f"  {fits} in {format_bytes(limit)} on {reading.device}{label}"), soft_wrap=True)
    for text in class_lines(probed.classification, label) or kept(reading, limit):
        console.print(Text(f"  {text}"), soft_wrap=True)
    for text in rank_lines(probed.ranks.sentences() if probed.ranks else (), label):
        console.print(Text(f"  {text}"), soft_wrap=True)
    for rank in reading.ranks:
        console.print(Text(f"rank {rank.rank} of {reading.world_size}{label}"))
        _phases(rank, label, console)
        if rank.oom:
            console.print(
                Text(f"  out of memory in {rank.oom.phase}: {rank.oom.message}{label}", style="red"), soft_wrap=True
            )
    if reading.attention_backend:
        console.print(Text(f"  attention: {reading.attention_backend}", style="dim"), soft_wrap=True)
    for note in reading.notes:
        console.print(Text(f"  note: {note}", style="dim"), soft_wrap=True)


def _phases(rank: RankReading, label: str, console: Console) -> None:
    table = Table(box=None, header_style="dim", show_edge=False)
    for name in _PHASE_COLUMNS:
        table.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    for name, phase in rank.phases.items():
        used = "" if phase.device_used is None else format_bytes(phase.device_used)
        sizes = (phase.allocated_peak, phase.reserved_peak, phase.inactive_split_peak)
        counts = (str(phase.alloc_retries), str(phase.ooms))
        table.add_row(name, *(format_bytes(size) for size in sizes), *counts, used, f"{phase.seconds:.2f} s")
    if has_room(table, console):
        console.print(table)
        return
    for name, phase in rank.phases.items():
        allocated, reserved = format_bytes(phase.allocated_peak), format_bytes(phase.reserved_peak)
        console.print(Text(f"  {name}: {allocated} allocated, {reserved} reserved{label}"), soft_wrap=True)


def kept(reading: Reading, limit: int) -> list[str]:
    """Why an exact reading fits although its peak device use is above the limit; nothing where it is not."""
    if not reading.fits or reading.peak_device <= limit:
        return []
    used = f"{format_bytes(reading.peak_device)}{simulated(reading)}"
    return [f"peak device use {used} is above the limit, but it is cache that the allocator gives back when it must"]


def class_lines(found: Mapping[str, Any] | None, label: str) -> list[str]:
    """The class of a reading that does not fit and its evidence, a line each; `label` follows every size."""
    if found is None:
        return []
    bound = "at least " if found["perfect_allocator_is_lower_bound"] else ""
    lines = [
        _CLASSES[found["class"]],
        f"peak allocated and memory outside PyTorch (rank {found['rank']}): {bound}"
        f"{format_bytes(found['perfect_allocator_needs'])}{label}, limit {format_bytes(found['limit'])}",
    ]
    if (needed := found.get("needed_capacity")) is not None:
        method = {"replay": "by replay", "probes": "by probes"}[found["needed_capacity_method"]]
        text = f"needed capacity ({method}): {format_bytes(needed)}"
        if (expandable := found.get("needed_capacity_expandable")) is not None:
            text += f", with expandable segments {format_bytes(expandable)}"
        lines.append(text + label)
    if (survives := found.get("fits_with_expandable_segments")) is not None:
        lines.append(f"probed again with expandable segments: {'fits' if survives else 'does not fit either'}")
    if stranded := found.get("stranded"):
        lines.extend(stranded_lines(stranded, label))
    return lines
