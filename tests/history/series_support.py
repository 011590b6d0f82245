"""Databases with series of known truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from history_support import SESSION, probe_spec

from oombisect.history.store import Store
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading, Reading
from oombisect.units import GIB

OUT = "out of memory"
Value = int | None | tuple[str, int]


def sha(number: int) -> str:
    """The commit of that number."""
    return f"{number:040x}"


def reading(value: Value, *, device: str = "virtual:h100-80gb", simulated: bool = True) -> Reading:
    """Peak allocated in bytes (2 GiB more are reserved, 1 GiB is external); `(OUT, n)`: died at n; None: unresolved."""
    if value is None:
        return Reading(Outcome.UNRESOLVED, "ImportError: no module named x", device, simulated)
    size = value[1] if isinstance(value, tuple) else value
    phase = PhaseMetrics(allocated_peak=size, reserved_peak=size + 2 * GIB, inactive_split_peak=GIB // 2)
    oom = (
        Oom("step_1", "CUDA out of memory.", GIB, 80 * GIB, 0, size, size + 2 * GIB)
        if isinstance(value, tuple)
        else None
    )
    rank = RankReading(0, {"step_1": phase}, GIB, oom)
    told = {"reason": "out of memory in step_1"} if oom else {}
    return Reading(
        Outcome.CENSORED if oom else Outcome.EXACT, device=device, simulated=simulated, ranks=(rank,), **told
    )


def add_series(
    store: Store,
    values: Sequence[Value] | Mapping[int, Value],
    *,
    recipe: str = "qwen3_8b_lora",
    device: str = "virtual:h100-80gb",
    simulated: bool = True,
    settings: Mapping[str, object] | None = None,
    first: int = 0,
    request: str = "measure",
    capacity: int | None = None,
) -> str:
    """A session with a probe at each commit, one a day; its id."""
    session = store.create_session(replace(SESSION, recipe=recipe, device=device)).id
    items = values.items() if isinstance(values, Mapping) else enumerate(values, first)
    for number, value in items:
        spec = probe_spec(
            session,
            f"{recipe} {device} {settings} {number}",
            point=sha(number),
            subject=f"change {number}",
            recipe=recipe,
            device=device,
            simulated=simulated,
            settings=settings or {"overrides": [], "iterations": 3},
            committed=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number),
            request=request,
            capacity_bytes=capacity,
        )
        store.finish_probe(store.begin_probe(spec), reading(value, device=device, simulated=simulated))
    store.finish_session(session, 0, {})
    return session
