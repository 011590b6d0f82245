"""Whatever a file holds: a snapshot or a SnapshotError comes of it, soon, and nothing of it is run."""

from __future__ import annotations

import copyreg
import gzip
import io
import json
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oombisect.memory.snapshots import Limits, SnapshotError, load, requests_of
from oombisect.memory.snapshots.opcodes import check_opcodes
from oombisect.memory.snapshots.plain import _Plain, unpickle
from oombisect.memory.trace import Snapshot

EXTENSION = 0xF0
FRAMES = [{"filename": "model.py", "line": 7, "name": "forward"}]
BLOCK = {"address": 1 << 40, "size": 512, "requested_size": 100, "state": "active_allocated", "frames": FRAMES}
FREE = {"address": (1 << 40) + 512, "size": (2 << 20) - 512, "requested_size": 0, "state": "inactive", "frames": []}
SEGMENT = {
    "device": 0, "address": 1 << 40, "total_size": 2 << 20, "stream": 0, "segment_type": "small",
    "segment_pool_id": (0, 0), "is_expandable": False, "blocks": [BLOCK, FREE],
}  # fmt: skip


def event(action: str, address: int = 1 << 40, size: int = 100, **more: Any) -> dict[str, Any]:
    place = "device_free" if action == "oom" else "addr"
    common = {"action": action, place: address, "size": size, "stream": 0, "time_us": 5, "pool_id": (0, 0)}
    return common | {"frames": FRAMES} | more


VALID = {
    "segments": [SEGMENT],
    "device_traces": [[event("segment_alloc", size=2 << 20), event("alloc"), event("oom", 1 << 20, 1 << 30)], []],
    "allocator_settings": {"max_split_size": -1, "garbage_collection_threshold": 0.0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("snapshots")


def read(data: bytes, folder: Path, limits: Limits | None = None) -> Snapshot:
    path = folder / "snapshot"
    path.write_bytes(data)
    return load(path, limits or Limits())


def outcome(data: bytes, folder: Path) -> Snapshot | None:
    """The snapshot; None if it is refused, in words. Anything else that is raised fails the test."""
    try:
        snapshot = read(data, folder)
    except SnapshotError as error:
        assert str(error) and str(error).isprintable()
        return None
    for memory in snapshot.devices:
        requests_of(memory, snapshot)
    return snapshot


# ---- pickles that run something ----


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def programs(command: str) -> dict[str, bytes]:
    """Pickles that run `command` in a shell when they are read as pickles usually are."""
    argument = text(command)
    system = b"cposix\nsystem\n"
    return {
        "GLOBAL REDUCE": b"\x80\x02" + system + argument + b"\x85R.",
        "GLOBAL TUPLE REDUCE": b"\x80\x02" + system + b"(" + argument + b"tR.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x05posix\x8c\x06system\x93" + argument + b"\x85R.",
        "protocol 0": b"cposix\nsystem\n(V" + command.encode() + b"\ntR.",
        "INST": b"\x80\x02(" + argument + b"iposix\nsystem\n.",
        "OBJ": b"\x80\x02(" + system + argument + b"o.",
        "EXT1": b"\x80\x02\x82" + bytes([EXTENSION]) + argument + b"\x85R.",
        "EXT2": b"\x80\x02\x83" + struct.pack("<H", EXTENSION) + argument + b"\x85R.",
        "EXT4": b"\x80\x02\x84" + struct.pack("<i", EXTENSION) + argument + b"\x85R.",
        "eval": b"\x80\x02cbuiltins\neval\n" + text(f"__import__('os').system({command!r})") + b"\x85R.",
        "NEWOBJ": b"\x80\x02cfunctools\npartial\n" + system + argument + b"\x86\x81)R.",
        "BUILD": b"\x80\x02cfunctools\npartial\n" + system + b"\x85\x81(" + system + b"(" + argument + b"t}Ntb)R.",
        # It begins like a snapshot, and ends like one.
        "inside": pickle.dumps(VALID, 2)[:-1] + b"0" + system + argument + b"\x85R0}.",
    }


NAMES = sorted(programs("true"))


@pytest.fixture
def extension() -> Iterator[None]:
    """A program that registered an extension, and has used it before."""
    copyreg.add_extension("posix", "system", EXTENSION)
    pickle.loads(b"\x80\x02\x82" + bytes([EXTENSION]) + b".")
    yield
    copyreg.remove_extension("posix", "system", EXTENSION)


@pytest.mark.skipif(os.name != "posix", reason="the corpus calls posix.system")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_what_would_run_is_not_run(name: str, packed: bool, tmp_path: Path, extension: None) -> None:
    canary = tmp_path / "canary"
    data = programs(f"touch {canary}")[name]
    with pytest.raises(SnapshotError):
        read(gzip.compress(data) if packed else data, tmp_path)
    assert not canary.exists()
    with pytest.raises(SnapshotError):
        check_opcodes(data)
    pickle.loads(data)  # the proof that this corpus is one: unguarded, it does run
    assert canary.exists()


@pytest.mark.skipif(os.name != "posix", reason="the corpus calls posix.system")
@pytest.mark.parametrize("name", NAMES)
def test_the_unpickler_alone_runs_nothing_either(
    name: str, tmp_path: Path, extension: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oombisect.memory.snapshots.plain.check_opcodes", lambda data: None)
    canary = tmp_path / "canary"
    with pytest.raises(SnapshotError):
        unpickle(programs(f"touch {canary}")[name])
    assert not canary.exists()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x80\x02Psomebody\n.", id="PERSID"),
        pytest.param(b"\x80\x02" + text("somebody") + b"Q.", id="BINPERSID"),
        pytest.param(b"\x80\x05\x97.", id="NEXT_BUFFER"),
        pytest.param(b"\x80\x05C\x01a\x98.", id="READONLY_BUFFER"),
        pytest.param(b"\x80\x02}}b.", id="BUILD"),
        pytest.param(b"\x80\x04)}\x92.", id="NEWOBJ_EX"),
        pytest.param(b"\x80\x02))\x81.", id="NEWOBJ"),
        pytest.param(b"\x80\x02))R.", id="REDUCE"),
        pytest.param(b"\x80\x04\x8f.", id="EMPTY_SET"),
        pytest.param(b"\x80\x04(\x91.", id="FROZENSET"),
        pytest.param(b"\x80\x022.", id="DUP"),
        pytest.param(b"\x80\x06}.", id="a protocol of the future"),
        pytest.param(b"\x80\x00}.", id="protocol 0, told"),
    ],
)
def test_more_than_plain_values_is_refused(data: bytes, folder: Path) -> None:
    with pytest.raises(SnapshotError):
        check_opcodes(data)
    with pytest.raises(SnapshotError):
        read(data, folder)


def test_persistent_ids_are_refused_by_the_unpickler_too() -> None:
    for data in (b"\x80\x02Psomebody\n.", b"\x80\x02" + text("somebody") + b"Q."):
        with pytest.raises(SnapshotError, match="outside the file"):
            _Plain(io.BytesIO(data)).load()


# ---- pickles and JSON that take too much ----

HUGE = {
    "LONG_BINPUT": b"\x80\x02}r\xff\xff\xff\xff.",
    "LONG_BINPUT, 1 GB": b"\x80\x02}r\x00\x00\x00\x04.",
    "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 1 << 44) + b".",
    "BINBYTES8": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 44) + b".",
    "BINUNICODE8": b"\x80\x04\x8d" + struct.pack("<Q", (1 << 63) + 5) + b".",
    "BINUNICODE": b"\x80\x02X\xff\xff\xff\xff.",
    "LONG4": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "LONG1": b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".",
    "FRAME": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"}.",
    "a tuple of tuples as a key": b"\x80\x02}))\x86q\x00" + b"h\x00h\x00\x86q\x00" * 64 + b"Ns.",
    "a deep tuple as a key": b"\x80\x02})" + b"\x85" * 1_000_000 + b"Ns.",
    "deep lists": b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "deep lists, with room": b"\x80\x02" + b"](NNNNNN" * 200_000 + b"e" * 200_000 + b".",
    "empty dicts": b"\x80\x02](" + b"}" * 3_000_000 + b"e.",
    "deep JSON": b"[" * 1_000_000,
    "deep JSON objects": b'{"segments":' * 300_000,
    "a long JSON number": b'{"segments": [], "x": ' + b"9" * 1_000_000 + b"}",
    "JSON, NaN": b'{"segments": [], "device_traces": [[{"action": "alloc", "addr": NaN, "size": 1}]]}',
    "JSON, infinite": b'{"segments": [], "device_traces": [[{"action": "alloc", "addr": 1e999, "size": 1}]]}',
    "JSON, frames of lists": b'[{"filename": [], "line": [], "name": {}}]',
}
READ_IT = """
import re, sys
from pathlib import Path
from oombisect.memory.snapshots import SnapshotError, load

def peak():  # of this program alone: what getrusage tells counts the process that started it too
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

before = peak()
try:
    load(Path(sys.argv[1]))
except SnapshotError:
    print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a program's memory is read from /proc")
@pytest.mark.parametrize("name", sorted(HUGE))
def test_what_asks_for_too_much_is_refused_and_gets_little(name: str, tmp_path: Path) -> None:
    # In a process of its own: a crash of the interpreter, or a hang, would be one of the tests' process too.
    path = tmp_path / "snapshot"
    path.write_bytes(HUGE[name])
    done = subprocess.run([sys.executable, "-c", READ_IT, path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    grown = int(done.stdout) * 1024
    assert grown < 32 * len(HUGE[name]) + (64 << 20)


def test_packed_zeros_end_early(folder: Path) -> None:
    bomb = gzip.compress(b"\x80\x04]" + bytes(200 << 20), 9)
    with pytest.raises(SnapshotError, match="holds more than"):
        read(bomb, folder)


def test_packed_twice_is_said(folder: Path) -> None:
    with pytest.raises(SnapshotError, match="packed twice"):
        read(gzip.compress(gzip.compress(pickle.dumps(VALID))), folder)


def repeated() -> dict[str, Any]:
    """Few bytes, many values: each shares one list, over and over."""
    events = [event("alloc")] * 1000
    stack = [FRAMES[0]] * 1000
    laughs: list[Any] = [1]
    for _ in range(64):
        laughs = [laughs, laughs]
    loop: list[Any] = []
    loop.append(loop)
    return {
        "traces": {"segments": [], "device_traces": [events] * 1000},
        "an event": {"segments": [], "device_traces": [[event("alloc")] * 100_000]},
        "segments": {"segments": [SEGMENT] * 100_000, "device_traces": []},
        "empty segments": {"segments": [SEGMENT | {"blocks": []}] * 100_000, "device_traces": []},
        "blocks": {"segments": [SEGMENT | {"blocks": [BLOCK] * 100_000}], "device_traces": []},
        "devices": {"segments": [], "device_traces": [[]] * 100_000},
        "laughs for an address": {"segments": [SEGMENT | {"address": laughs}], "device_traces": []},
        "laughs for frames": {"segments": [], "device_traces": [[event("alloc", frames=laughs)]]},
        "laughs for an action": {"segments": [], "device_traces": [[event("alloc") | {"action": laughs}]]},
        "laughs for a pool": {"segments": [], "device_traces": [[event("alloc", pool_id=laughs)]]},
        "laughs for a setting": {"segments": [], "allocator_settings": {"max_split_size": laughs}},
        "laughs for all": laughs,
        "a list in itself": {"segments": loop, "device_traces": loop},
        "a list in itself for frames": {"segments": [], "device_traces": [[event("alloc", frames=loop)]]},
        "long stacks": {"segments": [], "device_traces": [[event("alloc", frames=stack * 1000)]]},
    }


@pytest.mark.parametrize("name", sorted(set(repeated()) - {"long stacks"}))
def test_repeated_values_are_refused_soon(name: str, folder: Path) -> None:
    data = pickle.dumps(repeated()[name])
    start = time.process_time()
    with pytest.raises(SnapshotError):
        read(data, folder)
    assert time.process_time() - start < 5


def test_a_stack_without_end_is_cut(folder: Path) -> None:
    snapshot = read(pickle.dumps(repeated()["long stacks"]), folder)
    assert [len(stack) for stack in snapshot.stacks] == [1000]


def test_limits_are_kept(folder: Path) -> None:
    data = pickle.dumps(VALID)
    read(data, folder)
    for limits in (
        Limits(file_bytes=len(data) - 1),
        Limits(memory_bytes=len(data)),
        Limits(events=2),
        Limits(blocks=1),
        Limits(stacks=0),
    ):
        with pytest.raises(SnapshotError):
            read(data, folder, limits)
    assert read(data, folder, Limits(file_bytes=len(data), events=3, blocks=3, stacks=1)).stacks


# ---- values that are none of a snapshot's ----

WRONG = [True, -1, 1 << 64, 1.5, float("nan"), "1", None, [], {}, b"1"]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("key", ["addr", "size", "stream", "time_us"])
def test_numbers_of_events_are_checked(key: str, wrong: Any, folder: Path) -> None:
    with pytest.raises(SnapshotError):
        read(pickle.dumps({"segments": [], "device_traces": [[event("alloc") | {key: wrong}]]}), folder)


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("key", ["address", "total_size", "stream", "device"])
def test_numbers_of_segments_are_checked(key: str, wrong: Any, folder: Path) -> None:
    with pytest.raises(SnapshotError):
        read(pickle.dumps({"segments": [SEGMENT | {key: wrong}], "device_traces": []}), folder)


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("key", ["address", "size", "requested_size"])
def test_numbers_of_blocks_are_checked(key: str, wrong: Any, folder: Path) -> None:
    segment = SEGMENT | {"blocks": [BLOCK | {key: wrong}, FREE]}
    with pytest.raises(SnapshotError):
        read(pickle.dumps({"segments": [segment], "device_traces": []}), folder)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_settings_are_finite(number: float, folder: Path) -> None:
    with pytest.raises(SnapshotError):
        read(pickle.dumps(VALID | {"allocator_settings": {"garbage_collection_threshold": number}}), folder)


def test_no_text_of_a_file_reaches_the_terminal_raw(folder: Path) -> None:
    nasty = "\x1b[2J\x07\udcff" * 50
    for key, value in (("action", nasty), ("frames", [{"filename": nasty, "line": 1, "name": nasty}])):
        snapshot = outcome(pickle.dumps({"segments": [], "device_traces": [[event("alloc") | {key: value}]]}), folder)
        if snapshot is not None:
            assert all(note.isprintable() for note in snapshot.notes)
            assert all(frame.file.isprintable() for stack in snapshot.stacks for frame in stack)
    segment = SEGMENT | {"segment_type": nasty, "blocks": [BLOCK | {"state": nasty}]}
    assert outcome(pickle.dumps({"segments": [segment], "device_traces": []}), folder) is None


# ---- anything at all ----

FUZZ = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
PICKLED = [pickle.dumps(VALID, protocol) for protocol in (2, 4, 5)] + [json.dumps(VALID).encode()]


@pytest.mark.parametrize("protocol", range(6))
def test_binary_protocols_are_read_and_others_named(protocol: int, folder: Path) -> None:
    data = pickle.dumps(VALID, protocol)
    if protocol < 2:
        with pytest.raises(SnapshotError, match="protocol 2 or later"):
            read(data, folder)
    else:
        assert len(read(data, folder).devices[0].trace) == 3


@given(st.data())
@FUZZ
def test_truncated(folder: Path, data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from(PICKLED))
    cut = data.draw(st.integers(0, len(whole) - 1))
    for packed in (False, True):
        whole = gzip.compress(whole) if packed else whole
        assert outcome(whole[: min(cut, len(whole) - 1)], folder) is None


@given(st.data())
@FUZZ
def test_mutated(folder: Path, data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from(PICKLED)))
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(whole)))
        whole[start : start + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    outcome(bytes(whole), folder)


OPCODES = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
ARGUMENTS = st.sampled_from([b"", b"\x00", b"\x01", b"\x02\x00\x00\x00", b"\x00" * 8, b"builtins\nexit\n", b"7\n"])


@given(st.lists(st.tuples(st.sampled_from(OPCODES), ARGUMENTS), max_size=60), st.sampled_from([b"", b"\x80\x04"]))
@FUZZ
def test_any_opcodes(folder: Path, program: list[tuple[bytes, bytes]], start: bytes) -> None:
    outcome(start + b"".join(code + argument for code, argument in program) + b".", folder)


HARMLESS = st.sampled_from([
    b"(", b"]", b"}", b"a", b"e", b"s", b"u", b"N", b"\x88", b"\x94", b")", b"h\x00", b"h\x01", b"q\x00", b"K\x05",
    b"K\x01K\x02\x86", b"\x8c\x04size", b"\x8c\x08segments", b"\x8c\x06blocks", b"G" + struct.pack(">d", 0.5),
])  # fmt: skip


@given(st.lists(HARMLESS, max_size=60))
@FUZZ
def test_any_harmless_opcodes(folder: Path, program: list[bytes]) -> None:
    outcome(b"\x80\x04" + b"".join(program) + b".", folder)


KEYS = st.sampled_from([
    "segments", "device_traces", "allocator_settings", "action", "addr", "size", "stream", "frames", "blocks", "state",
    "address", "total_size", "filename", "line", "name", "history", "pool_id", "segment_pool_id", "device",
])  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 1 << 65) | st.floats() | st.text(max_size=3)
    | st.sampled_from(["alloc", "free_requested", "segment_alloc", "oom", "active_allocated", "inactive", "small"])
)  # fmt: skip
PLAIN = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6))
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"action": st.sampled_from(["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"])},
        optional={
            "addr": st.sampled_from([0, 1 << 40, (1 << 40) + 512, 5, (1 << 64) - 1]) | PLAIN,
            "size": st.sampled_from([0, 100, 512, 2 << 20, (1 << 64) - 1]) | PLAIN,
            "stream": PLAIN, "frames": PLAIN, "pool_id": PLAIN, "time_us": PLAIN,
        },
    ),
    max_size=6,
)  # fmt: skip


@given(PLAIN | st.fixed_dictionaries({"segments": PLAIN}, optional={"device_traces": PLAIN | st.lists(EVENTS)}))
@example({"segments": [SEGMENT, SEGMENT], "device_traces": [[event("alloc")]]})
@example({"segments": [], "device_traces": [[event("free_completed"), event("segment_unmap", (1 << 64) - 1)]]})
@FUZZ
def test_any_plain_values(folder: Path, value: Any) -> None:
    outcome(pickle.dumps(value, 4), folder)
    outcome(json.dumps(value).encode(), folder)


@given(st.binary(max_size=80), st.sampled_from([b"", b"\x80\x02", b"\x80\x04", b"\x1f\x8b\x08", b"{", b"["]))
@FUZZ
def test_any_bytes(folder: Path, data: bytes, start: bytes) -> None:
    outcome(start + data, folder)


ALLOWED = {
    "PROTO", "FRAME", "STOP", "MARK", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "APPEND", "APPENDS", "SETITEM",
    "SETITEMS", "NONE", "NEWTRUE", "NEWFALSE", "MEMOIZE", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "BININT",
    "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "TUPLE2",
}  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(OPCODES) | HARMLESS, ARGUMENTS), max_size=30))
@FUZZ
def test_what_passes_has_harmless_opcodes_only(program: list[tuple[bytes, bytes]]) -> None:
    data = b"\x80\x04" + b"".join(code + argument for code, argument in program) + b"."
    try:
        check_opcodes(data)
    except SnapshotError:
        return
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= ALLOWED


@given(PLAIN, st.integers(2, 5))
@FUZZ
def test_what_pickle_writes_of_plain_values_passes(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    wide = any(
        opcode.name in ("LONG1", "LONG4") and not -(1 << 71) <= argument < 1 << 71
        for opcode, argument, _ in pickletools.genops(data)
    )
    if not wide:
        check_opcodes(data)
        unpickle(data)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_a_pickle_wants_to_call_is_what_is_told(protocol: int, folder: Path) -> None:
    data = pickle.dumps({"segments": [], "wanted": print}, protocol)
    with pytest.raises(SnapshotError, match=r"more than plain values \((STACK_)?GLOBAL at byte") as error:
        read(data, folder)
    assert "nothing of it was run" in str(error.value)
