"""The formats of all PyTorch releases come to the same values."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from oombisect.memory.allocator import Settings, rules_for
from oombisect.memory.replay import ReplayError, check, needed, replay
from oombisect.memory.snapshots import SnapshotError, load, requests_of
from oombisect.memory.snapshots.formats import snapshot_of
from oombisect.memory.trace import Block, EventKind, Frame, PoolId, Snapshot

BASE = 1 << 40
MIB = 1 << 20
INNER = {"filename": "model.py", "line": 7, "name": "forward"}
OUTER = {"filename": "??", "line": 0, "name": "at::empty(c10::SymInt)"}
STACK = (Frame("model.py", 7, "forward"), Frame("??", 0, "at::empty(c10::SymInt)"))


def opened(value: Any, folder: Path) -> Snapshot:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value))
    return load(path)


def segment(blocks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"address": BASE, "total_size": 2 * MIB, "segment_type": "small", "blocks": blocks} | more


def event(action: str, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": BASE, "size": 100} | more


def test_todays_format(tmp_path: Path) -> None:
    blocks = [
        {"address": BASE, "size": 512, "requested_size": 4, "state": "active_allocated", "frames": [INNER, OUTER]},
        {"address": BASE + 512, "size": 512, "requested_size": 9, "state": "active_pending_free", "frames": []},
        {"address": BASE + 1024, "size": 2 * MIB - 1024, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    more = {"device": 1, "stream": 3, "segment_pool_id": (0, 2), "is_expandable": True, "allocated_size": 512}
    told = event("alloc", stream=3, time_us=5, pool_id=(0, 2), frames=[INNER, OUTER], compile_context="N/A")
    value = {
        "segments": [segment(blocks, **more)],
        "device_traces": [[], [told]],
        "allocator_settings": {"expandable_segments": True, "roundup_power2_divisions": {"1": 4}},
        "external_annotations": [{"stage": "START", "name": "step", "device": 1, "time_us": 5}],
        "host_segments": [],
        "host_traces": [],
    }
    snapshot = opened(value, tmp_path)
    assert snapshot.stacks == (STACK,)
    assert snapshot.pools == (PoolId(0, 0), PoolId(0, 2))
    assert snapshot.settings == value["allocator_settings"]
    assert snapshot.notes == ()
    nothing, memory = snapshot.devices
    assert (nothing.device, nothing.segments, len(nothing.trace)) == (0, (), 0)
    read = memory.segments[0]
    assert (read.stream, read.small, read.expandable, read.pool) == (3, True, True, PoolId(0, 2))
    assert read.blocks == (
        Block(BASE, 512, 4, "active_allocated", 0),
        Block(BASE + 512, 512, 9, "active_pending_free"),
        Block(BASE + 1024, 2 * MIB - 1024, 0, "inactive"),
    )
    trace = memory.trace
    columns = (trace.addresses, trace.sizes, trace.streams, trace.stacks, trace.pools, trace.times)
    assert [list(column) for column in columns] == [[BASE], [100], [3], [0], [1], [5]]


def test_blocks_with_a_history_get_addresses(tmp_path: Path) -> None:
    history = [{"addr": BASE, "real_size": 400, "frames": [INNER, OUTER]}]
    blocks = [
        {"size": 1024, "state": "active_allocated", "history": history},
        {"size": 512, "state": "active_awaiting_free"},
        {"size": 2 * MIB - 1536, "state": "inactive", "history": []},
    ]
    read = opened({"segments": [segment(blocks)], "device_traces": []}, tmp_path)
    assert read.devices[0].segments[0].blocks == (
        Block(BASE, 1024, 400, "active_allocated", 0),
        Block(BASE + 1024, 512, 512, "active_pending_free"),
        Block(BASE + 1536, 2 * MIB - 1536, 2 * MIB - 1536, "inactive"),
    )
    assert read.stacks == (STACK,)


def test_a_bare_list_of_segments(tmp_path: Path) -> None:
    read = opened([segment([{"size": 2 * MIB, "state": "inactive"}])], tmp_path)
    assert len(read.devices[0].segments) == 1
    assert any("without a trace" in note for note in read.notes)


def test_every_kind_of_event(tmp_path: Path) -> None:
    events = [event(kind.name.lower()) for kind in EventKind if kind is not EventKind.OOM]
    out = {"action": "oom", "device_free": 77, "size": 5}
    trace = opened({"segments": [], "device_traces": [[*events, out]]}, tmp_path).devices[0].trace
    assert list(trace.kinds) == list(range(len(EventKind)))
    assert (trace.addresses[-1], trace.sizes[-1]) == (77, 5)
    assert set(trace.pools) == {-1} and set(trace.stacks) == {-1}


def test_unknown_events_are_left_out_and_counted(tmp_path: Path) -> None:
    events = [event("alloc"), event("teleport"), event("teleport"), event("free_requested")]
    read = opened({"segments": [], "device_traces": [events]}, tmp_path)
    assert len(read.devices[0].trace) == 2
    assert any(note.startswith("2 events of an unknown kind") and "teleport" in note for note in read.notes)


def test_equal_stacks_are_one_however_they_are_shared(tmp_path: Path) -> None:
    shared = [INNER, OUTER]
    lists = [shared, shared, [INNER, OUTER], [dict(INNER), dict(OUTER)], [OUTER, INNER], [INNER], []]
    read = opened({"segments": [], "device_traces": [[event("alloc", frames=each) for each in lists]]}, tmp_path)
    assert list(read.devices[0].trace.stacks) == [0, 0, 0, 0, 1, 2, -1]


def test_stacks_that_differ_in_the_middle_only_stay_apart(tmp_path: Path) -> None:
    frames = [{"filename": "a.py", "line": at, "name": "f"} for at in range(40)]
    lists = [[frames[0]] * 4 + [frames[at]] + [frames[0]] * 8 for at in (1, 2, 1, 3, 2)]
    read = opened({"segments": [], "device_traces": [[event("alloc", frames=each) for each in lists]]}, tmp_path)
    assert list(read.devices[0].trace.stacks) == [0, 1, 0, 2, 1]
    assert [stack[4].line for stack in read.stacks] == [1, 2, 3]


def test_segments_are_in_order_of_address(tmp_path: Path) -> None:
    block = [{"size": 2 * MIB, "state": "inactive"}]
    value = [segment(block, address=BASE + at * 4 * MIB) for at in (2, 0, 1)]
    addresses = [read.address for read in opened(value, tmp_path).devices[0].segments]
    assert addresses == sorted(addresses)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"segments": [{}]}, "segment 0"),
        ({"segments": [segment([{"size": 1, "state": "lost"}])]}, "lost"),
        ({"segments": [segment([], segment_type="huge")]}, "neither small nor large"),
        ({"segments": {}}, "segments is a dict"),
        ({"segments": [], "device_traces": [[{"size": 1}]]}, "action"),
        ({"segments": [], "device_traces": [[event("alloc", frames=[{"filename": 1}])]]}, "stack of device 0"),
        ({"segments": [], "allocator_settings": {"a": [1]}}, "allocator_settings"),
    ],
)
def test_what_is_wrong_and_where(value: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=said):
        opened(value, tmp_path)


@pytest.mark.parametrize("size", [1 << 50, 1 << 62, (1 << 64) - 1])
@pytest.mark.parametrize("action", ["alloc", "segment_alloc", "segment_map", "free_requested"])
def test_sizes_that_no_device_has_are_refused(size: int, action: str) -> None:
    event = {"action": action, "addr": 1 << 40, "size": size, "stream": 0}
    with pytest.raises(SnapshotError, match="more than any device has"):
        snapshot_of({"segments": [], "device_traces": [[event]]}, 10, 10, 10)
    block = {"address": 1 << 40, "size": size, "state": "inactive", "frames": []}
    with pytest.raises(SnapshotError):
        snapshot_of({"segments": [{"address": 1 << 40, "total_size": size, "blocks": [block]}]}, 10, 10, 10)


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("size", [1 << 50, (1 << 60) - 1])
def test_an_absurd_request_that_failed_is_replayed(size: int, expandable: bool) -> None:
    events = [{"action": "oom", "device_free": 0, "size": size, "stream": 0}]
    settings = {"expandable_segments": expandable}
    snapshot = snapshot_of({"segments": [], "device_traces": [events], "allocator_settings": settings}, 10, 10, 10)
    requests = requests_of(snapshot.devices[0], snapshot)
    rules = rules_for("2.14.1")
    told = Settings.of_snapshot(snapshot.settings, rules)
    assert check(requests, told, rules, device_bytes=80 << 30).exact
    assert replay(requests, told, rules, device_bytes=80 << 30).survived is not expandable
    assert not replay(requests, told, rules, device_bytes=80 << 30, limit=70 << 30).survived
    if expandable:  # it has more addresses than the device memory, and no more
        with pytest.raises(ReplayError, match="no room"):
            needed(requests, told, rules, device_bytes=80 << 30)


@pytest.mark.parametrize("value", [{"segments": []}, {"segments": [1], "device_traces": []}, {}, [], [{"address": 1}]])
@pytest.mark.parametrize("protocol", [0, 1])
def test_old_protocols_are_told_with_the_way_out(value: Any, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    with pytest.raises(SnapshotError, match=r"a pickle of protocol 0 or 1, .* protocol 2 or later") as error:
        load(path)
    assert "torch.cuda.memory._dump_snapshot" in str(error.value)


@pytest.mark.parametrize("protocol", [2, 4, None])
@pytest.mark.parametrize("number", [10**30, 2**2040, -(2**100)])
def test_a_number_too_large_is_called_that(number: int, protocol: int | None, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    value = {"segments": [{"address": number}]}
    path.write_bytes(json.dumps(value).encode() if protocol is None else pickle.dumps(value, protocol))
    with pytest.raises(SnapshotError) as error:
        load(path)
    told = str(error.value)
    assert "too large" in told or "must be from 0 to" in told
    assert "plain values" not in told and "Error" not in told and len(told) < 300


def test_digits_without_end_are_a_number_too_large(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text('{"segments": [{"address": ' + "9" * 5000 + "}]}")
    with pytest.raises(SnapshotError, match="a number that is too large"):
        load(path)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (7, "it is an int"),
        (None, "it is a NoneType"),
        ({"segments": {}}, "segments is a dict, not a list"),
        ({"segments": [segment([], total_size=1 << 50)]},
         "segment 0 is not what it should be: it is 1,125,899,906,842,624, and must be from 0 to 281,474,976,710,656"),
        ({"segments": [segment([], stream=-5)]}, "it is -5, and must be from 0 to"),
        ({"segments": [segment([], total_size="2")]}, "it is a str, not a whole number"),
        ({"device_traces": [[event("alloc", size=-1)]]},
         "a size of device 0 is not what it should be: it is -1, and must be from 0 to"),
        ({"device_traces": [[event("alloc", time_us=1 << 63)]]}, "it is 9,223,372,036,854,775,808, and must be"),
        ({"device_traces": [[event("alloc", stream=True)]]}, "it is a bool, not a whole number"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_value_is_said(value: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError) as error:
        opened(value, tmp_path)
    assert told in str(error.value)
    assert "Error" not in str(error.value)
