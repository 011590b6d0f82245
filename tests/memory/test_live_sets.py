"""The live set at the peak: sizes as the allocator counts them, ties, what was there before, phases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oombisect.memory.live_sets import AFTER_PHASES, BEFORE_TRACE, LiveSet, Phases, block_sizes, live_at_peak, rounded
from oombisect.memory.requests import InitialBlock, InitialSegment, Op, Requests
from oombisect.memory.snapshots import load, requests_of
from oombisect.memory.trace import Block, DeviceMemory, EventKind, Segment, Trace
from oombisect.readings import PhaseMetrics

MIB = 1 << 20
SHARED = Path(__file__).parents[2] / "../shared/data/snapshots"

Event = tuple[str, int, int]  # kind, address, size


def device(events: Iterable[Event], segments: tuple[Segment, ...] = ()) -> tuple[DeviceMemory, Requests]:
    """A device whose trace is these events, and the requests in it."""
    trace, requests = Trace(), Requests()
    live: dict[int, int] = {}
    for index, (name, address, size) in enumerate(events):
        kind = EventKind[name.upper()]
        trace.kinds.append(kind)
        for column, value in ((trace.addresses, address), (trace.sizes, size), (trace.streams, 0), (trace.times, 0)):
            column.append(value)
        trace.stacks.append(-1)
        trace.pools.append(0)
        if kind is EventKind.ALLOC:
            live[address] = len(requests.sizes)
            requests.sizes.append(size)
            requests.addresses.append(address)
            requests.stacks.append(index)
            ask(requests, Op.ALLOC, live[address], index)
        elif kind is EventKind.FREE_COMPLETED:
            ask(requests, Op.RELEASE, live.pop(address), index)
    return DeviceMemory(0, segments, trace), requests


def ask(requests: Requests, op: Op, block: int, event: int) -> None:
    requests.ops.append(op)
    requests.blocks.append(block)
    requests.events.append(event)


def live(events: Iterable[Event], segments: tuple[Segment, ...] = ()) -> LiveSet:
    return live_at_peak(*device(events, segments))


def test_sizes_are_rounded_to_512_bytes() -> None:
    assert [rounded(size) for size in (0, 1, 512, 513)] == [512, 512, 512, 1024]


@pytest.mark.parametrize(
    ("request_size", "counted"),
    [
        (19 * MIB, 20 * MIB),  # exactly 1 MiB is left over: it is not cut off
        (19 * MIB - 1, 20 * MIB),  # rounded up it is the same
        (19 * MIB - 512, 19 * MIB - 512),  # 512 B more than that is left: it is
        (20 * MIB, 20 * MIB),
    ],
)
def test_a_large_block_keeps_a_rest_of_up_to_a_mebibyte(request_size: int, counted: int) -> None:
    found = live([("segment_alloc", 0, 20 * MIB), ("alloc", 0, request_size)])
    assert (found.peak, found.blocks[0].requested) == (counted, request_size)


def test_the_rest_ends_at_the_next_block_in_use() -> None:
    events = [
        ("segment_alloc", 0, 20 * MIB),
        ("alloc", 0, 8 * MIB),
        ("alloc", 8 * MIB, 8 * MIB),
        ("free_completed", 0, 8 * MIB),
        ("alloc", 0, 7 * MIB + 512),
    ]
    found = live(events)
    assert [block.size for block in found.blocks] == [8 * MIB, 8 * MIB]  # the newest reaches to the second


def test_a_small_block_is_always_cut() -> None:
    assert live([("segment_alloc", 0, 2 * MIB), ("alloc", 0, MIB - 1024)]).peak == MIB - 1024


def test_a_block_of_a_growing_segment_is_always_cut() -> None:
    assert live([("segment_map", 0, 20 * MIB), ("alloc", 0, 19 * MIB + 512)]).peak == 19 * MIB + 512


def test_a_block_above_the_split_limit_is_never_cut() -> None:
    memory, requests = device([("segment_alloc", 0, 64 * MIB), ("alloc", 0, 50 * MIB)])
    assert live_at_peak(memory, requests).peak == 50 * MIB
    sizes = block_sizes(memory.trace, requests, max_split_size=32 * MIB)
    assert live_at_peak(memory, requests, sizes).peak == 64 * MIB


def test_an_address_means_the_segment_that_is_there_now() -> None:
    events = [
        ("segment_alloc", 0, 20 * MIB),
        ("alloc", 0, 19 * MIB),
        ("free_completed", 0, 19 * MIB),
        ("segment_free", 0, 20 * MIB),
        ("segment_alloc", 0, 40 * MIB),
        ("alloc", 0, 19 * MIB),
    ]
    memory, requests = device(events)
    assert list(block_sizes(memory.trace, requests)) == [20 * MIB, 19 * MIB]


def test_of_equal_peaks_the_first_counts() -> None:
    events = [("alloc", 0, 512), ("free_completed", 0, 512), ("alloc", 4096, 512)]
    found = live(events)
    assert (found.peak, found.allocation, found.allocations) == (512, 0, 2)
    assert [block.allocation for block in found.blocks] == [0]


def test_what_was_there_before_is_told_apart_and_pending_frees_are_no_memory() -> None:
    memory, requests = device([])
    requests.sizes.extend([700, 5000, 100])
    requests.addresses.extend([0, 1024, 8192])
    requests.stacks.extend([-1, -1, 7])
    pieces = (InitialBlock(0, 1024, 0), InitialBlock(1024, 5120, 1, pending=True))
    requests.initial = (InitialSegment(0, 2 * MIB, 0, True, pieces),)
    ask(requests, Op.COMPLETE, 1, 0)
    ask(requests, Op.ALLOC, 2, 1)
    found = live_at_peak(memory, requests)
    assert found.peak == 1024 + 512
    assert [(b.size, b.requested, b.allocation, b.stack) for b in found.blocks] == [
        (1024, 700, None, -1),
        (512, 100, 0, 7),
    ]


def test_what_the_segments_hold_and_the_trace_does_not_explain_is_missing() -> None:
    blocks = (Block(0, 1024, 1000, "active_allocated"), Block(1024, 512, 512, "active_allocated"))
    segment = Segment(0, 2 * MIB, 0, True, blocks)
    assert live([("alloc", 0, 1000), ("alloc", 1024, 512)], (segment,)).missing == 0
    assert live([("alloc", 0, 1000)], (segment,)).missing == 512


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5000)), max_size=60))
def test_the_blocks_sum_to_the_peak(steps: list[tuple[int, int]]) -> None:
    events: list[Event] = []
    used: dict[int, int] = {}
    sums = [0]
    for slot, size in steps:
        address = slot * 8192
        if address in used:
            events.append(("free_completed", address, 0))
            sums.append(sums[-1] - used.pop(address))
        else:
            events.append(("alloc", address, size))
            used[address] = -(-size // 512) * 512
            sums.append(sums[-1] + used[address])
    found = live(events)
    assert found.peak == max(sums) == sum(block.size for block in found.blocks)
    if found.allocation is not None:
        allocations = [index for index, event in enumerate(events, 1) if event[0] == "alloc"]
        assert allocations[found.allocation] == sums.index(max(sums))


def test_phases_are_told_by_counting_allocations() -> None:
    found = live([("alloc", n * 4096, 512) for n in range(6)])
    phases = Phases.of(
        {"setup": PhaseMetrics(), "model": PhaseMetrics(allocations=2), "step_1": PhaseMetrics(allocations=3)}, found
    )
    assert phases is not None
    assert [phases.name(n) for n in range(6)] == ["model", "model", "step_1", "step_1", "step_1", AFTER_PHASES]
    assert phases.name(None) == BEFORE_TRACE


def test_phases_of_a_trace_that_begins_later_are_not_known() -> None:
    found = live([("alloc", 0, 512)])
    assert Phases.of({"model": PhaseMetrics(allocations=2)}, found) is None
    assert Phases.of({}, found) is None


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared snapshots")
@pytest.mark.parametrize("name", ["silmont_mem_snapshot", "cs336_ctx512_fullstep", "yiyi_oom_snapshot"])
def test_real_histories_are_explained_to_the_byte(name: str) -> None:
    snapshot = load(SHARED / f"{name}.pickle")
    (memory,) = snapshot.devices
    found = live_at_peak(memory, requests_of(memory, snapshot))
    assert found.missing == 0
    assert found.peak == sum(block.size for block in found.blocks) > 0
    held = sum(b.size for s in memory.segments for b in s.blocks if b.state == "active_allocated")
    assert found.peak >= held
