"""Frees paired with their allocations, and what no event tells: empty_cache, requests that failed, frees waited for."""

from __future__ import annotations

from typing import Any

import pytest

from oombisect.memory.allocator import Settings
from oombisect.memory.allocator.rules import TORCH_2_9
from oombisect.memory.replay import check, needed, replay
from oombisect.memory.requests import Op, Requests
from oombisect.memory.snapshots.formats import snapshot_of
from oombisect.memory.snapshots.pairing import requests_of
from oombisect.memory.trace import PoolId
from tests.memory.snapshots.make_snapshots import GIB, MIB, STREAMS, Recording

LIMIT = 10**9
SIZE = 30 * MIB


def requests(plain: Any, **options: bool) -> Requests:
    snapshot = snapshot_of(plain, LIMIT, LIMIT, LIMIT)
    return requests_of(snapshot.devices[0], snapshot, **options)


def ops(found: Requests) -> list[str]:
    return [f"{Op(op).name} {block}" if block >= 0 else Op(op).name for op, block in zip(found.ops, found.blocks)]


def trace(*events: tuple[str, int, str]) -> dict[str, Any]:
    """A snapshot of events, each an action, an address in blocks of `SIZE`, and the function whose stack it has."""
    return {
        "segments": [],
        "device_traces": [[
            {"action": action, "device_free" if action == "oom" else "addr": 1 + address * SIZE, "size": SIZE}
            | ({"frames": [{"filename": "f.py", "line": 1, "name": function}]} if function else {})
            for action, address, function in events
        ]],
    }  # fmt: skip


def notes(found: Requests) -> str:
    return "; ".join(found.notes)


# ---- pairs ----


def test_addresses_are_used_again() -> None:
    plain = trace(
        ("alloc", 1, ""), ("free_requested", 1, ""), ("free_completed", 1, ""),
        ("alloc", 1, ""), ("alloc", 2, ""), ("free_requested", 1, ""),
        ("free_requested", 2, ""), ("free_completed", 2, ""), ("free_completed", 1, ""),
    )  # fmt: skip
    found = requests(plain)
    assert ops(found) == ["ALLOC 0", "RELEASE 0", "ALLOC 1", "ALLOC 2", "FREE 1", "RELEASE 2", "COMPLETE 1"]
    assert list(found.events) == [0, 1, 3, 4, 5, 6, 8]
    assert found.trace_events == 9
    assert found.unmatched_frees == 0


def test_frees_of_unknown_memory_are_counted_once() -> None:
    plain = trace(
        ("free_completed", 1, ""),
        ("free_requested", 2, ""), ("free_completed", 2, ""),
        ("alloc", 3, ""), ("free_completed", 4, ""),
    )  # fmt: skip
    plain["device_traces"][0].insert(0, dict(plain["device_traces"][0][3]))  # contradicts: no state is found
    found = requests(plain)
    assert found.unmatched_frees == 3
    assert "left out: 3 frees of memory that was allocated before the trace" in notes(found)


@pytest.mark.parametrize("pending", [False, True])
def test_an_address_in_use_that_is_allocated_again_was_freed(pending: bool) -> None:
    events = [("alloc", 1, ""), *([("free_requested", 1, "")] if pending else []), ("alloc", 1, "")]
    found = requests(trace(*events))
    assert ops(found) == ["ALLOC 0", *(["FREE 0", "COMPLETE 0"] if pending else ["RELEASE 0"]), "ALLOC 1"]
    assert "1 allocations at addresses in use" in notes(found)
    assert replay(found, Settings(), TORCH_2_9, device_bytes=8 * GIB).peak_allocated == SIZE


def test_streams_and_pools_are_named() -> None:
    run = Recording()
    for stream, pool in ((2, 0), (0, 1), (2, 2), (1, 0)):
        run.alloc(SIZE, stream, pool)
    found = requests(run.snapshot())
    assert [found.stream_ids[stream] for stream in found.streams] == [STREAMS[2], STREAMS[0], STREAMS[2], STREAMS[1]]
    assert [found.pool_ids[pool] for pool in found.pools] == [(0, 0), (0, 1), (0, 2), (0, 0)]
    assert found.pool_ids[0] == PoolId()


def test_a_stream_that_has_cached_memory_only_is_named() -> None:
    run = Recording()
    cached = run.alloc(SIZE, 1, 1)
    run.alloc(SIZE)
    assert cached is not None
    run.free(cached)
    start = len(run.events)
    run.alloc(SIZE)
    found = requests(run.snapshot(start))
    told = [(found.stream_ids[segment.stream], found.pool_ids[segment.pool]) for segment in found.initial]
    assert sorted(told) == [(STREAMS[0], (0, 0)), (STREAMS[1], (0, 1))]
    assert check(found, Settings(), TORCH_2_9, device_bytes=8 * GIB).exact


def test_where_events_name_no_pools_the_segments_do() -> None:
    run = Recording()
    run.alloc(SIZE, 0, 2)
    run.alloc(SIZE)
    plain = run.snapshot()
    for event in plain["device_traces"][0]:
        del event["pool_id"]
    found = requests(plain)
    assert [found.pool_ids[pool] for pool in found.pools] == [(0, 2), (0, 0)]
    assert "does not name memory pools" in notes(found)


def test_settings_that_cannot_be_read_are_told() -> None:
    run = Recording()
    run.alloc(SIZE)
    found = requests(run.snapshot() | {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "nonsense"}})
    assert "its settings cannot be read" in notes(found)


# ---- blocks from before the trace ----


@pytest.mark.parametrize("of_its_own", [False, True])
def test_stacks_of_frees_are_not_taken_for_those_of_allocations(of_its_own: bool) -> None:
    run = Recording()
    before = [run.alloc(SIZE, function="before") for _ in range(2)]
    start = len(run.events)
    new = run.alloc(SIZE, function="new")
    for number in (new, before[0]):
        assert number is not None
        run.free(number)
    plain = run.snapshot(start)
    for event in plain["device_traces"][0]:
        if of_its_own and event["action"].startswith("free"):
            event["frames"] = run.stack("free")
    snapshot = snapshot_of(plain, LIMIT, LIMIT, LIMIT)
    found = requests_of(snapshot.devices[0], snapshot)
    (freed,) = [number for op, number in zip(found.ops, found.blocks) if op == Op.RELEASE and number < 2]
    if of_its_own:
        assert found.stacks[freed] == -1
        assert "frees have stacks of their own: not known is where" in notes(found)
    else:
        assert snapshot.stacks[found.stacks[freed]][0].function == "before"


# ---- releases of cached memory ----

RELEASE = ("alloc", 1, "a"), ("free_requested", 1, "a"), ("free_completed", 1, "a")


@pytest.mark.parametrize(
    ("events", "expected", "doubtful"),
    [
        pytest.param([("segment_free", 1, "empty_cache"), ("alloc", 2, "b")], "first", False, id="by name"),
        pytest.param(
            [("segment_free", 1, "emptyCache"), ("segment_alloc", 2, "emptyCache"), ("alloc", 2, "b")],
            "first", False, id="by name, whatever follows",
        ),
        pytest.param([("segment_free", 1, "a")], "first", False, id="at the end"),
        pytest.param([("segment_free", 1, "a"), ("alloc", 2, "a")], "first", False, id="nothing grows"),
        pytest.param(
            [("segment_free", 1, "a"), ("segment_alloc", 2, "b"), ("alloc", 2, "b")], "first", False,
            id="what grows has another stack",
        ),
        pytest.param(
            [("segment_free", 1, "b"), ("segment_free", 2, "a"), ("segment_alloc", 2, "b"), ("alloc", 2, "b")],
            "first", False, id="one of several has another stack",
        ),
        pytest.param([("segment_free", 1, ""), ("alloc", 2, "")], "first", False, id="no stacks, nothing grows"),
        pytest.param(
            [("segment_free", 1, "b"), ("segment_alloc", 2, "b"), ("alloc", 2, "b")], None, False, id="a request"
        ),
        pytest.param(
            [("segment_unmap", 1, "b"), ("segment_map", 2, "b"), ("alloc", 2, "b")], None, False,
            id="a request, expandable",
        ),
        pytest.param(
            [("segment_free", 1, ""), ("segment_alloc", 2, ""), ("alloc", 2, "")], None, True,
            id="no stacks, something grows",
        ),
        pytest.param([("segment_free", 1, "b"), ("oom", 0, "b")], None, False, id="a request in vain"),
        pytest.param([("segment_free", 1, "a"), ("oom", 0, "b")], "first", False, id="before a request in vain"),
    ],
)  # fmt: skip
def test_why_memory_was_released(events: list[tuple[str, int, str]], expected: str | None, doubtful: bool) -> None:
    found = requests(trace(*RELEASE, *events))
    emptied = [event for op, event in zip(found.ops, found.events) if op == Op.EMPTY_CACHE]
    assert emptied == ([] if expected is None else [len(RELEASE)])
    assert ("1 calls of empty_cache are inferred" in notes(found)) == (expected is not None)
    assert ("a request is assumed" in notes(found)) == doubtful


def test_empty_cache_and_then_a_request_that_releases() -> None:
    """Between the two a stream is done with a block."""
    plain = trace(
        ("alloc", 1, "a"), ("alloc", 2, "a"), ("alloc", 3, "a"),
        ("free_requested", 1, "a"), ("free_requested", 2, "a"), ("free_requested", 3, "a"),
        ("free_completed", 1, "a"),
        ("segment_free", 1, "empty_cache"),
        ("free_completed", 2, "a"),
        ("segment_free", 2, "b"), ("segment_alloc", 4, "b"), ("alloc", 4, "b"),
    )  # fmt: skip
    assert ops(requests(plain))[6:] == ["COMPLETE 0", "EMPTY_CACHE", "ALLOC 3", "COMPLETE 1"]


def test_of_several_releases_by_a_request_the_frees_between_were_waited_for() -> None:
    plain = trace(
        ("alloc", 1, "a"), ("alloc", 2, "a"),
        ("free_requested", 1, "a"), ("free_requested", 2, "a"),
        ("free_completed", 1, "a"),
        ("segment_free", 8, "b"),  # garbage collection
        ("free_completed", 2, "a"),
        ("segment_free", 9, "b"), ("segment_alloc", 4, "b"), ("alloc", 4, "b"),
    )  # fmt: skip
    assert ops(requests(plain))[4:] == ["COMPLETE 0", "ALLOC 2", "COMPLETE 1"]


def test_a_free_that_a_request_waited_for_does_not_serve_it() -> None:
    """The block that is completed would fit: but the request had searched before, and takes new memory."""
    run = Recording(capacity=200 * MIB)
    numbers = [run.alloc(60 * MIB) for _ in range(3)]
    for number in numbers[:2]:
        assert number is not None
        run.free(number, pending=True)
    assert run.alloc(50 * MIB) is not None
    found = requests(run.snapshot())
    assert ops(found) == ["ALLOC 0", "ALLOC 1", "ALLOC 2", "FREE 0", "FREE 1", "ALLOC 3", "COMPLETE 0", "COMPLETE 1"]
    assert check(found, Settings(), TORCH_2_9, device_bytes=8 * GIB).exact


# ---- requests that failed ----


def out_of_memory(*, goes_on: bool) -> Recording:
    run = Recording(capacity=200 * MIB)
    cached = run.alloc(40 * MIB)
    run.alloc(100 * MIB)
    assert cached is not None
    run.free(cached)
    assert run.alloc(150 * MIB, function="too much") is None
    if goes_on:
        run.alloc(20 * MIB)
    return run


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_request_that_failed_is_replayed(goes_on: bool) -> None:
    found = requests(out_of_memory(goes_on=goes_on).snapshot())
    assert ops(found) == ["ALLOC 0", "ALLOC 1", "RELEASE 0", "ALLOC 2", *(["RELEASE 2", "ALLOC 3"] if goes_on else [])]
    assert (found.addresses[2], found.sizes[2]) == (0, 150 * MIB)
    assert "1 request ran out of memory while it was recorded" in notes(found)
    assert check(found, Settings(), TORCH_2_9, device_bytes=8 * GIB).exact
    oom = replay(found, Settings(), TORCH_2_9, device_bytes=8 * GIB, limit=200 * MIB).first_oom
    assert oom is not None
    assert oom.block == 2
    assert needed(found, Settings(), TORCH_2_9, device_bytes=8 * GIB) == 250 * MIB


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_request_that_failed_is_left_out(goes_on: bool) -> None:
    found = requests(out_of_memory(goes_on=goes_on).snapshot(), failed=False)
    assert ops(found) == ["ALLOC 0", "ALLOC 1", "RELEASE 0", "EMPTY_CACHE", *(["ALLOC 2"] if goes_on else [])]
    assert "they are left out" in notes(found)
    assert "empty_cache" not in notes(found)
    assert check(found, Settings(), TORCH_2_9, device_bytes=8 * GIB).exact
