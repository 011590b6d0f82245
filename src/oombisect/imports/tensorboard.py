"""The memory in TensorBoard's event files, as Megatron-LM and Bridge write them.

An event file is a row of records: length, checksum of the length, an Event, checksum of that. Their framework's reader
ends silently at the first damaged one; here it is named.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from oombisect.errors import OombisectError
from oombisect.imports.content import Content, Problem, run_of
from oombisect.imports.metrics import in_bytes, is_unknown, metric_of

_HEADER, _FOOTER = 12, 4
_MAX_RECORD = 256 << 20
_OF_RUN = {"rank/text_summary": "rank", "world_size/text_summary": "world_size"}  # as Megatron-LM writes its arguments
_WANTED = (b"mem", *(tag.encode() for tag in _OF_RUN))


def parse_events(data: bytes, name: str) -> Content:
    """The memory in one event file. A scalar has 24 bits: a size is known to within 6e-8 of it.

    Args:
        name: of the file, for problems.

    Raises:
        OombisectError: the extra `tensorboard` is not installed.
    """
    event_of, checksum = _tensorboard()
    values: dict[str, dict[int, int]] = {}
    problems: list[Problem] = []
    unknown: dict[str, int] = {}
    of_run: dict[str, int] = {}
    date = None
    for at, record, crc in _records(data, checksum, name, problems):
        # Most records are of no interest, and telling that is much faster than reading them.
        if date is not None and not any(word in record for word in _WANTED):
            continue
        try:
            if checksum(record) != crc:
                raise ValueError("it does not match its checksum")
            event = event_of(record)
        except ValueError as error:
            problems.append(Problem(f"{name}, byte {at}", f"a damaged record: {error}"))
            continue
        date = _time(event.wall_time) if date is None else date
        for value in event.summary.value:
            if value.tag in _OF_RUN:
                of_run |= _whole(_OF_RUN[value.tag], value)
                continue
            told = metric_of(value.tag)
            if told is None:
                if is_unknown(value.tag):
                    unknown[value.tag] = unknown.get(value.tag, 0) + 1
                continue
            size = in_bytes(_number(value), told[1])
            if size is None or not 0 <= event.step < 1 << 62:
                problems.append(Problem(f"{name}, byte {at}", f"{value.tag[:60]!r} is no size at step {event.step}"))
            else:
                values.setdefault(told[0], {})[event.step] = size
    problems += [Problem(name, f"scalar {tag[:60]!r}, {n} times, is not known") for tag, n in unknown.items()]
    return Content((run_of(values, **of_run),) if values else (), tuple(problems), date)


def _records(data: bytes, checksum: Any, name: str, problems: list[Problem]) -> Iterator[tuple[int, bytes, int]]:
    """Where each record begins, what it holds, and the checksum that this should have."""
    at = 0
    while at < len(data):
        header = data[at : at + _HEADER]
        if len(header) < _HEADER:
            problems.append(Problem(f"{name}, byte {at}", "the file ends within a record"))
            return
        length, crc = struct.unpack("<QI", header)
        if checksum(header[:8]) != crc or length > _MAX_RECORD:
            problems.append(Problem(f"{name}, byte {at}", "no record begins here: the rest of the file is not read"))
            return
        begin = at + _HEADER
        if begin + length + _FOOTER > len(data):
            problems.append(Problem(f"{name}, byte {at}", "the file ends within a record"))
            return
        yield at, data[begin : begin + length], struct.unpack_from("<I", data, begin + length)[0]
        at = begin + length + _FOOTER


def _time(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _whole(name: str, value: Any) -> dict[str, int]:
    """The number that a text is, by what it is of; none where it is no number."""
    texts = [text.decode("ascii", "replace") for text in value.tensor.string_val]
    return {name: int(texts[0])} if len(texts) == 1 and re.fullmatch(r"[0-9]{1,9}", texts[0], re.ASCII) else {}


def _number(value: Any) -> float | None:
    """The number of a scalar: plain, or a tensor of one number, as newer writers have it."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    tensor = value.tensor
    for numbers in (tensor.float_val, tensor.double_val, tensor.int64_val, tensor.int_val):
        if len(numbers) == 1:
            return float(numbers[0])
    layouts = {1: "<f", 2: "<d", 9: "<q", 3: "<i"}  # DT_FLOAT, DT_DOUBLE, DT_INT64, DT_INT32
    layout = layouts.get(tensor.dtype)
    if layout and len(tensor.tensor_content) == struct.calcsize(layout):
        return float(struct.unpack(layout, tensor.tensor_content)[0])
    return None


def _tensorboard() -> tuple[Any, Any]:
    """How a record is read, and its checksum. Either raises a ValueError for what is none."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto import event_pb2
        from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
    except ImportError as error:
        raise OombisectError(
            "Event files are read with the package tensorboard, which is not installed",
            "Install it: pip install 'oombisect[tensorboard]'.",
        ) from error

    def event_of(record: bytes) -> Any:
        try:
            return event_pb2.Event.FromString(record)
        except DecodeError as error:
            raise ValueError("it is no event") from error

    return event_of, pywrap_tensorflow.masked_crc32c
