"""Timelines: every peak is exact however much is left out, and phases lie at the same places."""

from __future__ import annotations

from array import array
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from oombisect.memory.live_sets import block_sizes
from oombisect.memory.snapshots import load, requests_of
from oombisect.memory.timeline import Timeline, aligned, shared_widths, timeline
from oombisect.memory.trace import EventKind
from oombisect.readings import PhaseMetrics
from tests.memory.test_live_sets import device
from tests.session.recording import record

MIB = 1 << 20
Program = list[tuple[str, str, int]]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    live: list[str] = []
    program: Program = []
    for number in range(draw(st.integers(1, 120))):
        if live and draw(st.booleans()):
            program.append(("free", live.pop(draw(st.integers(0, len(live) - 1))), 0))
        else:
            live.append(f"block{number}")
            program.append(("alloc", live[-1], draw(st.integers(1, 40 * MIB))))
    return program


def of(path: Path, most: int, phases: dict[str, PhaseMetrics] | None = None) -> Timeline:
    snapshot = load(path)
    memory = snapshot.devices[0]
    requests = requests_of(memory, snapshot)
    return timeline(memory.trace, requests, block_sizes(memory.trace, requests), phases=phases, most=most)


@settings(max_examples=40, deadline=None)
@given(programs(), st.integers(6, 60))
def test_the_peaks_are_those_that_the_allocator_counted(tmp_path_factory: object, program: Program, most: int) -> None:
    path = tmp_path_factory.mktemp("t") / "a.gz"  # type: ignore[attr-defined]
    recorded = record(path, program)
    found = of(path, most)
    assert (found.peak_allocated, found.peak_reserved) == (recorded.allocated, recorded.reserved)
    assert found.moments >= len(found.allocated) == len(found.reserved) == len(found.seconds)
    assert len(found.allocated) <= max(most + 6, 6)
    assert list(found.allocations) == sorted(found.allocations)


def test_what_is_left_out_hides_no_trough_and_no_end() -> None:
    events = [("segment_alloc", 512, 40 * MIB)]
    for number in range(500):
        events += [("alloc", 512, (1 + number % 7) * MIB), ("free_completed", 512, (1 + number % 7) * MIB)]
    memory, requests = device(events)
    sizes = block_sizes(memory.trace, requests)
    whole = timeline(memory.trace, requests, sizes, most=10_000)
    thin = timeline(memory.trace, requests, sizes, most=60)
    assert len(whole.allocated) == whole.moments > 1000 > 100 > len(thin.allocated)
    assert (max(thin.allocated), min(thin.allocated), thin.allocated[-1]) == (7 * MIB, 0, whole.allocated[-1])
    assert set(zip(thin.allocations, thin.allocated)) <= set(zip(whole.allocations, whole.allocated))


def test_memory_of_before_the_trace_counts_and_phases_are_then_not_told(tmp_path: Path) -> None:
    recorded = record(tmp_path / "a.gz", [("alloc", "a", 3 * MIB), ("alloc", "b", 5 * MIB)])
    phases = {"model": PhaseMetrics(allocations=1), "step_1": PhaseMetrics(allocations=1)}
    found = of(tmp_path / "a.gz", 100, phases)
    assert [(span.name, span.begin, span.count) for span in found.phases] == [("model", 0, 1), ("step_1", 1, 1)]
    snapshot = load(tmp_path / "a.gz")
    memory = snapshot.devices[0]
    cut = next(i for i, kind in enumerate(memory.trace.kinds) if kind == EventKind.ALLOC) + 1
    for name in ("kinds", "addresses", "sizes", "streams", "stacks", "pools", "times"):
        setattr(memory.trace, name, getattr(memory.trace, name)[cut:])
    requests = requests_of(memory, snapshot)
    late = timeline(memory.trace, requests, block_sizes(memory.trace, requests), phases=phases)
    assert late.phases == () and late.peak_allocated == recorded.allocated and late.allocated[0] == 3 * MIB


def run(*counts: int, extra: int = 0) -> Timeline:
    names = ("model", "step_1", "step_2")
    phases = {name: PhaseMetrics(allocations=count) for name, count in zip(names, counts)}
    total = sum(counts) + extra
    events = [("segment_alloc", 512, 1 << 30), *(("alloc", 512 + number * 512, 512) for number in range(total))]
    memory, requests = device(events)
    return timeline(memory.trace, requests, array("Q", [512] * total), phases=phases)


def test_phases_of_two_runs_lie_at_the_same_places() -> None:
    good, bad = run(10, 100, 100), run(10, 200, 100, extra=5)
    assert shared_widths([good, bad]) == {"model": 10, "step_1": 200, "step_2": 100}
    one, two = aligned([good, bad])
    at = dict(zip(good.allocations, one))
    assert (at[10], at[60], at[110], at[210]) == (10, 110, 210, 310)
    there = dict(zip(bad.allocations, two))
    assert (there[10], there[110], there[210], there[310], there[315]) == (10, 110, 210, 310, 315)


def test_runs_with_other_phases_are_told_by_their_allocations() -> None:
    good, bad = run(10, 100, 100), run(10, 100)
    assert shared_widths([good, bad]) is None
    assert aligned([good, bad])[1] == tuple(map(float, bad.allocations))
