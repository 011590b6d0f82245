"""The peaks in a snapshot of PyTorch's CUDA allocator: of the whole recorded run, or lower bounds where that is cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from oombisect.imports.content import Content, RunMemory, Unreadable
from oombisect.memory.allocator.model import round_up
from oombisect.memory.allocator.rules import guess_rules
from oombisect.memory.allocator.settings import Settings, SettingsError
from oombisect.memory.live_sets import NEVER, block_sizes, rounded
from oombisect.memory.requests import Op, Requests
from oombisect.memory.snapshots import SnapshotError, load, requests_of
from oombisect.memory.timeline import timeline
from oombisect.memory.trace import DeviceMemory, Snapshot

_RANK = re.compile(
    r"rank[-_.]?([0-9]{1,6})(?![0-9])|snapshot-([0-9]{1,6})\.|(?<![0-9])_([0-9]{1,6})\.(?:pickle|pkl|json)", re.I
)
_NO_HISTORY = "it holds no history: the sizes are those when it was dumped"
_LATE = "the recording begins when there is memory already"
_DIED = "the run died of an out-of-memory error"


def read_snapshot(path: Path) -> Content:
    """The peaks of every device that a snapshot knows memory of; the file is read by the restricted reader.

    Raises:
        Unreadable: it is no snapshot, or holds nothing of any device.
    """
    try:
        snapshot = load(path)
    except SnapshotError as error:
        raise Unreadable(str(error)) from error
    told = [memory for memory in snapshot.devices if len(memory.trace) or memory.segments]
    if not told:
        raise Unreadable("it holds neither a history nor memory")
    rank = rank_in(path.name) if len(told) == 1 else None  # one process, one device, as a rank has
    return Content(tuple(_device(memory, snapshot, rank) for memory in told), notes=snapshot.notes)


def rank_in(name: str) -> int | None:
    """The rank that a file's name tells: `snapshot-3.json.gz`, `mem_rank3.pickle`, Bridge's `snapshot_3.pickle`."""
    told = _RANK.search(name)
    return int(next(number for number in told.groups() if number)) if told else None


def _device(memory: DeviceMemory, snapshot: Snapshot, rank: int | None) -> RunMemory:
    requests = requests_of(memory, snapshot) if len(memory.trace) else Requests()
    if requests.sizes:
        line = timeline(memory.trace, requests, block_sizes(memory.trace, requests, *_sizing(snapshot)))
        allocated, reserved, reason = line.peak_allocated, line.peak_reserved, _reason(requests)
    else:
        blocks = [block for segment in memory.segments for block in segment.blocks]
        allocated = sum(block.size for block in blocks if block.state == "active_allocated")
        reserved, reason = sum(segment.size for segment in memory.segments), _NO_HISTORY
    return RunMemory(
        rank=rank,
        peak_allocated=allocated,
        peak_reserved=reserved,
        reason=reason,
        where=f"device {memory.device}",
    )


def _sizing(snapshot: Snapshot) -> tuple[Callable[[int], int], int]:
    """How the allocator made blocks of requests, as far as the snapshot tells its settings."""
    try:
        told = Settings.of_snapshot(snapshot.settings, guess_rules(snapshot.settings))
    except SettingsError:
        return rounded, NEVER
    return lambda size: round_up(size, told.roundup), told.max_split_size


def _reason(requests: Requests) -> str:
    if requests.initial or requests.unmatched_frees:
        return _LATE
    last = requests.ops.rfind(Op.ALLOC)
    return _DIED if last >= 0 and requests.addresses[requests.blocks[last]] == 0 else ""
