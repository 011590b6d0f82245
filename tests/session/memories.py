"""Snapshot files made by hand, and probes of a small Bridge history that have them."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oombisect.history.records import ProbeSpec, SessionSpec
from oombisect.history.store import Store
from oombisect.readings import Outcome, PhaseMetrics, RankReading, Reading

SEGMENT = 2 << 20
DEVICE = "virtual:toy"
IMPORTED = ("bridge:src/megatron/bridge/model.py", "megatron-lm:megatron/core/a.py")

FrameTuple = tuple[str, int, str]  # file, line, function
Allocation = tuple[int, Sequence[FrameTuple]]


def write_snapshot(path: Path, allocations: Iterable[Allocation], conf: str = "") -> Path:
    """A history of small allocations, none of them freed, in the format of torch.cuda.memory._snapshot."""
    events: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    base = at = 1 << 30
    plain = {"stream": 0, "time_us": 1}
    events.append({"action": "segment_alloc", "addr": base, "size": SEGMENT, "frames": [], **plain})
    for size, stack in allocations:
        frames = [{"filename": file, "line": line, "name": name} for file, line, name in stack]
        events.append({"action": "alloc", "addr": at, "size": size, "frames": frames, **plain})
        counted = max(512, -(-size // 512) * 512)
        sizes = {"address": at, "size": counted, "requested_size": size}
        blocks.append({**sizes, "state": "active_allocated", "frames": frames})
        at += counted
    assert at <= base + SEGMENT
    rest = {"address": at, "size": base + SEGMENT - at, "requested_size": 0}
    blocks.append({**rest, "state": "inactive", "frames": []})
    held = {f"{name}_size": at - base for name in ("allocated", "active", "requested")}
    kind = {"segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False, "stream": 0, "device": 0}
    whole = {"address": base, "total_size": SEGMENT, "frames": [], "blocks": blocks, **held, **kind}
    snapshot = {
        "segments": [whole],
        "device_traces": [events],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": conf},
        "external_annotations": [],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        pickle.dump(snapshot, file, protocol=4)
    return path


def session_spec(repo: Path, good: str, bad: str, **changes: Any) -> SessionSpec:
    spec = SessionSpec(
        kind="run",
        command=("oombisect", "run"),
        arguments={"probe": {"repo": str(repo), "megatron": None, "recipe": "toy"}},
        repo=str(repo),
        recipe="toy",
        device=DEVICE,
        good=good,
        bad=bad,
    )
    return replace(spec, **changes)


def probe_spec(session: str, point: str) -> ProbeSpec:
    return ProbeSpec(
        session=session, signature=point, repo="bridge", point=point, recipe="toy", device=DEVICE, simulated=True,
        probe_version="1", subject=f"at {point[:4]}",
    )  # fmt: skip


def add_probe(
    store: Store,
    session: str,
    point: str,
    allocations: Sequence[Allocation],
    *,
    rank: int = 0,
    phases: Sequence[tuple[str, int]] = (),
    config: dict[str, Any] | None = None,
    outcome: Outcome = Outcome.EXACT,
    world_size: int = 1,
    **spec: Any,
) -> int:
    """A finished probe with the snapshot of these allocations; its counters agree with them."""
    held = sum(max(512, -(-size // 512) * 512) for size, _ in allocations)
    told = phases or [("step_1", len(allocations))]
    probe = store.begin_probe(replace(probe_spec(session, point), **spec))
    name = f"snapshot-{rank}.pickle.gz"
    write_snapshot(store.artifacts_dir(session, probe) / name, allocations)
    metrics = {name: PhaseMetrics(allocated_peak=held, allocations=count) for name, count in told}
    measured = RankReading(rank=rank, phases=metrics, snapshot=name)
    reading = Reading(
        outcome, device=DEVICE, simulated=True, ranks=(measured,), world_size=world_size, imported=IMPORTED,
        config_hash=str(config) if config else "",
    )  # fmt: skip
    store.finish_probe(probe, reading, config=config)
    return probe
