"""One reading on a terminal, with every phase, and why it does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oombisect.readings import Outcome, RankReading, Reading
from oombisect.reports.points import short
from oombisect.reports.stranded import stranded_lines
from oombisect.reports.terminal import METHODS, has_room, rank_lines, simulated
from oombisect.session.single import Probed
from oombisect.units import format_apart, format_bytes

_PHASE_COLUMNS = (
    "phase", "peak\nallocated", "peak\nreserved", "inactive\nsplit", "retries", "OOMs", "device", "time",
)  # fmt: skip
_CLASSES = {
    "capacity": "capacity: more is needed than the limit, no allocator could fit it",
    "fragmentation": "fragmentation: what is needed would fit, the allocator could not lay it out",
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
    used, most = format_apart(reading.peak_device, limit)
    return [
        f"peak device use {used}{simulated(reading)} is above the limit of {most}, but it is cache that the allocator"
        " gives back when it must"
    ]


def class_lines(found: Mapping[str, Any] | None, label: str) -> list[str]:
    """The class of a reading that does not fit and its evidence, a line each; `label` follows every size."""
    if found is None:
        return []
    needs, limit, *needed = format_apart(
        found["perfect_allocator_needs"],
        found["limit"],
        *(found[name] for name in ("needed_capacity", "needed_capacity_expandable") if found.get(name) is not None),
    )
    bound = "at least " if found["perfect_allocator_is_lower_bound"] else ""
    lines = [_CLASSES.get(found["class"]) or f"not classified: {found.get('reason', 'nothing shows what it needs')}"]
    what = "asked for at the peak" if found.get("requested_counted", True) else "allocated at the peak"
    if found.get("failed_request_counted"):
        what += f", with the {format_bytes(found['failed_request_bytes'])} of the request that failed{label},"
    lines.append(f"{what} and outside PyTorch (rank {found['rank']}): {bound}{needs}{label}, limit {limit}")
    if found.get("needed_capacity") is not None:
        text = f"needed capacity ({METHODS[found['needed_capacity_method']]}): {needed.pop(0)}"
        lines.append(text + (f", with expandable segments {needed.pop(0)}" if needed else "") + label)
    elif needed:
        method = METHODS[found["needed_capacity_method"]]
        lines.append(f"needed capacity with expandable segments ({method}): {needed.pop(0)}{label}")
    if (survives := found.get("fits_with_expandable_segments")) is not None:
        lines.append(_expandable(survives, (found.get("expandable_segments") or {}).get("fits_by")))
    if stranded := found.get("stranded"):
        lines.extend(stranded_lines(stranded, label))
    return lines


def _expandable(survives: bool, by: str | None) -> str:
    """What the second run showed, and how."""
    how = {
        "replay": ", its requests replayed with the limit",
        "probe": " and the limit enforced",
        "peak": ", without the limit: it took no more",
        "floor": ", without the limit: more is asked for",
        "run": ": it ran out of memory, too",
    }
    return f"run again with expandable segments{how.get(by or '', '')}: {'fits' if survives else 'does not fit either'}"
