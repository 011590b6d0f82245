"""Snapshot files as users dump them: of one device or of several, of runs that ended and of one that died."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.session.recording import event, record

MIB = 1 << 20
Program = Sequence[tuple[str, str, int]]


def plain(size: int = 900 * MIB) -> Program:
    """Two blocks of that size, one after the other in the same memory."""
    return [("alloc", "a", size), ("free", "a", 0), ("alloc", "b", size)]


def pinned() -> Program:
    """Three segments of 1100 MiB, each held by a block of 100 MiB; 3300 MiB allocated at most, 5400 MiB reserved."""
    program: list[tuple[str, str, int]] = []
    for n in range(3):
        program += [("alloc", f"whole{n}", 1100 * MIB), ("free", f"whole{n}", 0)]
        program += [("alloc", f"part{n}", 1000 * MIB), ("alloc", f"keep{n}", 100 * MIB)]
    program += [("free", f"part{n}", 0) for n in range(3)]
    return [*program, *(("alloc", f"again{n}", 1050 * MIB) for n in range(2))]


def dump(path: Path, program: Program, conf: str = "") -> Path:
    """What a run of `program` on one device leaves."""
    record(path, program, conf)
    return path


def edit(path: Path, **changes: Any) -> Path:
    """Change the top level of a snapshot file."""
    _write(path, {**_read(path), **changes})
    return path


def dump_devices(path: Path, programs: Mapping[int, Program], count: int) -> Path:
    """A snapshot of `count` devices, some of which ran a program."""
    traces: list[list[Any]] = [[] for _ in range(count)]
    segments: list[dict[str, Any]] = []
    settings: Any = {}
    for device, program in programs.items():
        record(path, program)
        told = _read(path)
        (traces[device],) = told["device_traces"]
        segments += [{**segment, "device": device} for segment in told["segments"]]
        settings = told["allocator_settings"]
    _write(path, {"segments": segments, "device_traces": traces, "allocator_settings": settings})
    return path


def dump_of_a_death(path: Path, program: Program, asked: int) -> Path:
    """A run that asked for so many bytes after `program`, in vain: the trace ends with PyTorch's `oom` event."""
    record(path, program)
    told = _read(path)
    (trace,) = told["device_traces"]
    failed = {**event("oom", 0, asked, "last"), "device_free": 0}
    return edit(path, device_traces=[[*trace, failed]])


def dump_of_the_end(path: Path, program: Program, events: int) -> Path:
    """The last events of a run alone, as a full ring buffer keeps them."""
    record(path, program)
    (trace,) = _read(path)["device_traces"]
    return edit(path, device_traces=[trace[-events:]])


def dump_without_allocations(path: Path) -> Path:
    """Recording was on, and nothing was allocated."""
    record(path, plain())
    return edit(path, segments=[], device_traces=[[event("snapshot", 0, 0)]])


def _read(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        told: dict[str, Any] = pickle.load(file)
    return told


def _write(path: Path, told: Mapping[str, Any]) -> None:
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        pickle.dump(dict(told), file, protocol=4)
