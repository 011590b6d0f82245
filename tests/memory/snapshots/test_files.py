"""What kind of file it is, is told by its content; what cannot be read is named, with a way out."""

from __future__ import annotations

import gc
import gzip
import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from oombisect.memory.snapshots import SnapshotError, load, requests_of
from oombisect.memory.trace import Snapshot
from tests.memory.snapshots.test_safety import VALID, event

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "snapshots"


def json_of(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return load(written(tmp_path_factory.mktemp("expected") / "a.pickle", pickle.dumps(VALID)))


@pytest.mark.parametrize(
    "name", ["snapshot.pickle", "snapshot.pickle.gz", "snapshot.json", "snapshot.json.gz", "a.txt"]
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize(
    "data",
    [
        *(pickle.dumps(VALID, protocol) for protocol in (2, 3, 4, 5)),
        json_of(VALID),
        b"\xef\xbb\xbf\n " + json_of(VALID),
    ],
    ids=["protocol 2", "protocol 3", "protocol 4", "protocol 5", "json", "json with a mark"],
)
def test_the_content_tells_what_it_is(name: str, packed: bool, data: bytes, tmp_path: Path, expected: Snapshot) -> None:
    snapshot = load(written(tmp_path / name, gzip.compress(data) if packed else data))
    assert snapshot == expected
    assert [len(memory.trace) for memory in snapshot.devices] == [3, 0]
    assert snapshot.devices[0].segments[0].blocks[0].requested == 100


def test_several_parts_of_gzip_are_one_file(tmp_path: Path, expected: Snapshot) -> None:
    data = pickle.dumps(VALID)
    assert load(written(tmp_path / "a", gzip.compress(data[:50]) + gzip.compress(data[50:]))) == expected


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("archive/data.pkl", b"")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"\n  <html>", "web page"),
        (archive(), "zip archive"),
        (b"\x28\xb5\x2f\xfd" + bytes(20), "zstd"),
        (b"some text", "neither a binary pickle nor JSON"),
        (json_of({"traceEvents": [], "schemaVersion": 1}), "trace of the profiler"),
        (pickle.dumps({"traceEvents": []}), "trace of the profiler"),
        (pickle.dumps({"weights": [1, 2]}), "neither segments nor device_traces"),
        (pickle.dumps("text"), "it is a str"),
        (pickle.dumps(None), "it is a NoneType"),
        (b"\x80\x04}", "cut off"),
        (pickle.dumps(VALID)[:200], "cut off"),
        (json_of(VALID)[:200], "no JSON"),
        (gzip.compress(pickle.dumps(VALID), mtime=0)[:100], "cannot be unpacked"),
        (b"\x1f\x8b garbage", "cannot be unpacked"),
        (pickle.dumps(complex(1, 2)), "nothing of it was run"),
        (pickle.dumps(VALID, 0), "pickle of protocol 0 or 1"),
    ],
)
def test_what_is_no_snapshot_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=said):
        load(written(tmp_path / "a.pickle", data))
    if not data.startswith(b"\x1f\x8b"):
        with pytest.raises(SnapshotError, match=said):
            load(written(tmp_path / "a.pickle.gz", gzip.compress(data)))


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="No such file"):
        load(tmp_path / "nothing")
    with pytest.raises(SnapshotError, match="not a regular file"):
        load(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SnapshotError, match="not a regular file"):
        load(tmp_path / "pipe")


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_as_it_was(enabled: bool, tmp_path: Path) -> None:
    good, bad = written(tmp_path / "good", pickle.dumps(VALID)), written(tmp_path / "bad", pickle.dumps({}))
    try:
        (gc.enable if enabled else gc.disable)()
        load(good)
        assert gc.isenabled() is enabled
        with pytest.raises(SnapshotError):
            load(bad)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_equal_frames_of_json_become_one_stack(tmp_path: Path) -> None:
    events = [event("alloc", (1 << 40) + 512 * number) for number in range(50)]
    snapshot = load(written(tmp_path / "a", json_of({"segments": [], "device_traces": [events]})))
    assert len(snapshot.stacks) == 1
    assert set(snapshot.devices[0].trace.stacks) == {0}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public snapshots are not part of this repository")
@pytest.mark.parametrize(
    ("name", "events", "segments", "unmatched", "reserved_before"),
    [
        ("silmont_mem_snapshot.pickle", 97, 9, 0, 0),
        ("cs336_ctx512_fullstep.pickle", 19_936, 820, 0, 61_025_026_048),
        ("yiyi_oom_snapshot.pickle", 1, 176, 0, 11_844_714_496),
    ],
)
def test_public_snapshots(name: str, events: int, segments: int, unmatched: int, reserved_before: int) -> None:
    snapshot = load(SHARED / name)
    memory = snapshot.devices[0]
    assert (len(memory.trace), len(memory.segments)) == (events, segments)
    requests = requests_of(memory, snapshot)
    assert requests.unmatched_frees == unmatched
    assert sum(segment.size for segment in requests.initial) == reserved_before
