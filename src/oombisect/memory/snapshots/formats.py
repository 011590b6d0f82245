"""From the plain values of a snapshot, of any PyTorch release, to a `Snapshot`.

Today it is a dict of `segments` and `device_traces`. Before 2.1 a block had a `history` in place of `frames` and no
address; the first snapshots were a bare list of segments. The walk follows the known shape and nothing else, counts
what it walks, and looks at shared lists once: values that refer to themselves end it with an error.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

from oombisect.memory.snapshots.errors import SnapshotError, kind_of, named, shown
from oombisect.memory.trace import (
    DEFAULT_POOL,
    Block,
    DeviceMemory,
    EventKind,
    Frame,
    PoolId,
    Segment,
    Snapshot,
    Stack,
    Trace,
)

_KINDS = {kind.name.lower(): int(kind) for kind in EventKind}
_STATES = ("active_allocated", "active_pending_free", "active_awaiting_free", "inactive")
_MOST_DEVICES = 1024
_MOST_TEXT = 4096
_MOST_FRAMES = 1000
_MOST_UNKNOWN = 100
_MOST_SETTINGS = 256
_MOST_LINES = 1 << 31
_HIGHEST = (1 << 64) - 1
_MOST_MEMORY = 1 << 48  # more than any device has
_MOST_REQUESTED = 1 << 60  # PyTorch refuses larger requests before it looks for memory
_MOST_ADDRESS = 1 << 60
_MOST_SHOWN = 10**30  # larger numbers are told by their size
_SCALARS = frozenset({str, int, float, bool, type(None)})
_UNNAMED = "it does not look like torch.cuda.memory._snapshot()"


class _Misfit(Exception):
    """A value that is not what it should be; the message says what it is, and what should be."""


def snapshot_of(plain: Any, most_events: int, most_blocks: int, most_stacks: int) -> Snapshot:
    """The snapshot in `plain`.

    Raises:
        SnapshotError: it is none.
    """
    reader = _Reader(most_events, most_blocks, most_stacks)
    try:
        return reader.snapshot(plain)
    except SnapshotError:
        raise
    except _Misfit as misfit:
        raise SnapshotError(f"{_UNNAMED}: {reader.place} is not what it should be: {misfit}") from None
    except (TypeError, KeyError, AttributeError, OverflowError, IndexError, ValueError) as error:
        raise SnapshotError(f"{_UNNAMED}: {reader.place} is not what it should be ({named(error)})") from None


class _Reader:
    """One walk; `place` says where it is, for errors."""

    def __init__(self, most_events: int, most_blocks: int, most_stacks: int) -> None:
        self.events_left, self.blocks_left, self.most_stacks = most_events, most_blocks, most_stacks
        self.place = "the whole"
        self.notes: list[str] = []
        self.stacks: list[Stack] = []
        self.pools = [DEFAULT_POOL]
        self._pool_of = {DEFAULT_POOL: 0}
        self._latest: dict[tuple[int, ...], tuple[list[Any], int]] = {}
        self._stack_by_frames: dict[tuple[int, ...], int] = {}
        self._stack_of: dict[Stack, int] = {}
        self._frame_at: dict[int, Frame] = {}
        self._names: dict[str, str] = {}
        self._unknown: dict[str, int] = {}

    def snapshot(self, plain: Any) -> Snapshot:
        if isinstance(plain, list):
            plain = {"segments": plain}
            self.notes.append("the oldest format: segments only, without a trace")
        if not isinstance(plain, dict):
            raise SnapshotError(f"{_UNNAMED}: it is {kind_of(plain)}")
        if "traceEvents" in plain:
            raise SnapshotError(
                "it is a trace of the profiler, not a memory snapshot (torch.cuda.memory._dump_snapshot)"
            )
        if "segments" not in plain and "device_traces" not in plain:
            raise SnapshotError(f"{_UNNAMED}: it has neither segments nor device_traces")
        segments: dict[int, list[Segment]] = {}
        for number, raw in enumerate(_list(plain.get("segments", []), "segments")):
            self.place = f"segment {number}"
            self._count_block()  # segments without blocks are not for free
            device = _whole(raw.get("device", 0), _MOST_DEVICES)
            segments.setdefault(device, []).append(self._segment(raw))
        traces = []
        for number, raw in enumerate(_list(plain.get("device_traces", []), "device_traces")[: _MOST_DEVICES + 1]):
            self.place = f"the trace of device {number}"
            traces.append(self._trace(_list(raw, self.place), number))
        count = max([*segments, len(traces) - 1], default=-1) + 1
        if count > _MOST_DEVICES:
            raise SnapshotError(f"it has more than {_MOST_DEVICES} devices")
        for action, times in sorted(self._unknown.items()):
            self.notes.append(f"{times} events of an unknown kind are left out: {action}")
        return Snapshot(
            tuple(
                DeviceMemory(
                    device,
                    tuple(sorted(segments.get(device, []), key=lambda segment: segment.address)),
                    traces[device] if device < len(traces) else Trace(),
                )
                for device in range(count)
            ),
            tuple(self.stacks),
            tuple(self.pools),
            self._settings(plain.get("allocator_settings")),
            tuple(self.notes),
        )

    def _settings(self, raw: Any) -> Mapping[str, object]:
        self.place = "allocator_settings"
        if raw is None:
            return {}
        kept: dict[str, object] = {}
        if len(raw) > _MOST_SETTINGS:
            raise SnapshotError(f"it has more than {_MOST_SETTINGS} settings")
        for name, value in raw.items():
            if isinstance(value, dict):
                kept[_text(name)] = {_text(key): _scalar(item) for key, item in list(value.items())[:64]}
            else:
                kept[_text(name)] = _scalar(value)
        return kept

    def _segment(self, raw: Any) -> Segment:
        address = _whole(raw["address"], _MOST_ADDRESS)
        blocks = []
        following = address
        for block in _list(raw["blocks"], "its blocks"):
            self._count_block()
            blocks.append(self._block(block, following))
            following = blocks[-1].address + blocks[-1].size
        pool = self._pool(raw.get("segment_pool_id"))
        kind = raw.get("segment_type", "large")
        if kind not in ("small", "large"):
            raise SnapshotError(f"{self.place} is neither small nor large")
        return Segment(
            address,
            _whole(raw["total_size"], _MOST_MEMORY),
            _whole(raw.get("stream", 0)),
            kind == "small",
            tuple(blocks),
            bool(raw.get("is_expandable", False)),
            DEFAULT_POOL if pool < 0 else self.pools[pool],
        )

    def _count_block(self) -> None:
        self.blocks_left -= 1
        if self.blocks_left < 0:
            raise SnapshotError("it has more segments and blocks than a snapshot of its size may have")

    def _block(self, raw: Any, address: int) -> Block:
        size, state = _whole(raw["size"], _MOST_MEMORY), raw["state"]
        if state not in _STATES:
            raise SnapshotError(f"{self.place} has a block that is {shown(_text(state))}")
        history = raw.get("history") or [{}]  # formats before 2.1
        requested = raw.get("requested_size", history[0].get("real_size", size))
        frames = raw.get("frames", history[0].get("frames"))
        state = "active_pending_free" if state == "active_awaiting_free" else str(state)
        address = _whole(raw.get("address", address), _MOST_ADDRESS)
        return Block(address, size, _whole(requested, _MOST_MEMORY), state, self._stack(frames))

    def _trace(self, events: list[Any], device: int) -> Trace:
        self.events_left -= len(events)
        if self.events_left < 0:
            raise SnapshotError("it has more events than a snapshot may have")
        self.place = f"an action of device {device}"
        known = [event for event in events if event["action"] in _KINDS]
        if len(known) < len(events):
            self._count_unknown(events)
        trace = Trace(kinds=bytearray([_KINDS[event["action"]] for event in known]))
        # One column at a time: most of the time that reading takes is spent here.
        self.place = f"an address of device {device}"
        # PyTorch tells what is free on the device in place of an address.
        trace.addresses = _column(
            "Q", [event["addr"] if event["action"] != "oom" else event.get("device_free", 0) for event in known]
        )
        self.place = f"a size of device {device}"
        trace.sizes = _column("Q", [event["size"] for event in known])
        _check_sizes(trace, self.place)
        self.place = f"a stream of device {device}"
        trace.streams = _column("Q", [event.get("stream", 0) for event in known])
        self.place = f"a time of device {device}"
        trace.times = _column("q", [event.get("time_us", 0) for event in known])
        self.place = f"a stack of device {device}"
        stack = self._stack
        trace.stacks = array("i", [stack(event.get("frames")) for event in known])
        self.place = f"a pool_id of device {device}"
        pool, ordinary = self._pool, (0, 0)
        trace.pools = array("i", [0 if (told := event.get("pool_id")) == ordinary else pool(told) for event in known])
        return trace

    def _count_unknown(self, events: list[Any]) -> None:
        unknown = self._unknown
        for event in events:
            if event["action"] not in _KINDS:
                name = shown(_string(event["action"]))
                unknown[name] = unknown.get(name, 0) + 1
                if len(unknown) > _MOST_UNKNOWN:
                    raise SnapshotError(f"{_UNNAMED}: its events are of too many unknown kinds")

    def _pool(self, raw: Any) -> int:
        if raw is None:
            return -1
        if not isinstance(raw, (tuple, list)):
            raise _Misfit(f"it is {kind_of(raw)}, not a pair")
        first, second = raw
        pool = PoolId(_whole(first), _whole(second))
        number = self._pool_of.setdefault(pool, len(self.pools))
        if number == len(self.pools):
            self.pools.append(pool)
        return number

    def _stack(self, frames: Any) -> int:
        """The number of a stack.

        A snapshot has a list of its own for each event, but shares the frames in it: so they are known by identity. All
        of them live as long as this reader does.
        """
        if not frames:
            return -1
        count = len(_list(frames, "a stack"))
        if count > _MOST_FRAMES:
            frames = frames[:_MOST_FRAMES]
            count = _MOST_FRAMES
        # Most stacks were seen before. To compare two lists of the same frames is much faster than to hash one.
        few = (count, id(frames[0]), id(frames[count // 3]), id(frames[count // 2]), id(frames[-1]))
        latest = self._latest.get(few)
        if latest is not None and latest[0] == frames:
            return latest[1]
        key = tuple(map(id, frames))
        number = self._stack_by_frames.get(key, -1)
        if number < 0:
            number = self._stack_by_frames[key] = self._new_stack(tuple(map(self._frame, frames)))
        self._latest[few] = (frames, number)
        return number

    def _new_stack(self, stack: Stack) -> int:
        number = self._stack_of.setdefault(stack, len(self.stacks))
        if number == len(self.stacks):
            if number >= self.most_stacks:
                raise SnapshotError("it has more call stacks than a snapshot may have")
            self.stacks.append(stack)
        return number

    def _frame(self, raw: Any) -> Frame:
        frame = self._frame_at.get(id(raw))
        if frame is None:
            if not _SCALARS.issuperset(map(type, raw.values())):  # whatever it is compared to, that ends soon
                raise _Misfit("a frame is of texts and numbers")
            line = raw.get("line", 0)
            line = line if type(line) is int and 0 <= line < _MOST_LINES else 0
            frame = Frame(self._name(raw["filename"]), line, self._name(raw["name"]))
            self._frame_at[id(raw)] = frame
        return frame

    def _name(self, value: Any) -> str:
        """A text, cut and fit for a terminal: the same one for all frames that have it."""
        text = self._names.get(_string(value))
        if text is None:
            text = self._names[value] = shown(value, _MOST_TEXT)
        return text


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise SnapshotError(f"{_UNNAMED}: {what} is {kind_of(value)}, not a list")
    return value


def _column(code: str, values: list[Any]) -> array[int]:
    """Whole numbers, none below zero. (An array would take True for 1.)"""
    most = _HIGHEST if code == "Q" else _HIGHEST >> 1
    if set(map(type, values)) - {int} or (values and (min(values) < 0 or max(values) > most)):
        for value in values:
            _whole(value, most)
    return array(code, values)


def _check_sizes(trace: Trace, place: str) -> None:
    """See that sizes and addresses are those of memory: only a request that failed may be for more than there is."""
    failed = int(EventKind.OOM)
    for kind, address, size in zip(trace.kinds, trace.addresses, trace.sizes, strict=True):
        if size > _MOST_MEMORY and (kind != failed or size > _MOST_REQUESTED):
            raise SnapshotError(f"{_UNNAMED}: {place} is {size} bytes, more than any device has")
        if address > _MOST_ADDRESS and kind != failed:
            raise SnapshotError(f"{_UNNAMED}: an address is {address:#x}, beyond any device's")


def _whole(value: Any, most: int = _HIGHEST) -> int:
    if type(value) is not int:
        raise _Misfit(f"it is {kind_of(value)}, not a whole number")
    if not 0 <= value <= most:
        told = f"{value:,}" if abs(value) < _MOST_SHOWN else f"{'-' * (value < 0)}2**{value.bit_length() - 1} or more"
        raise _Misfit(f"it is {told}, and must be from 0 to {most:,}")
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _Misfit(f"it is {kind_of(value)}, not a text")
    return value


def _text(value: Any) -> str:
    return _string(value)[:_MOST_TEXT]


def _scalar(value: Any) -> object:
    if isinstance(value, str):
        return shown(value, _MOST_TEXT)
    if value is None or (isinstance(value, (bool, int, float)) and math.isfinite(value)):
        return value
    raise _Misfit(f"it is {kind_of(value)} that is no setting")
