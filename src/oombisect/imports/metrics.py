"""The names under which Megatron-LM and Bridge write memory, and what they mean here.

mem-max-allocated-bytes, memory/mem-max-allocated-gigabytes      scalars (TensorBoard, W&B) and goldens
allocated, max allocated, reserved, max cached, ...              lines of a log
"""

from __future__ import annotations

import math
import re

from oombisect.units import MAX_BYTES, MIB

_UNITS = {"bytes": 1, "gigabytes": 10**9}  # Bridge divides by 1e9 and keeps five digits
LOG_UNITS = {"MB": MIB, "GB": 10**9}  # Megatron-LM's MB are 1024 * 1024 bytes
_NAMES = {
    "allocated": "allocated",
    "max allocated": "peak_allocated",
    "peak allocated": "peak_allocated",
    "reserved": "reserved",
    "cached": "reserved",
    "max reserved": "peak_reserved",
    "peak reserved": "peak_reserved",
    "max cached": "peak_reserved",
    "active": "active",
    "max active": "peak_active",
    "inactive": "inactive_split",
    "max inactive": "peak_inactive_split",
    "total device memory used": "device",
}
_TAG = re.compile(r"(?:.*/)?mem(?:ory)?[-_ ](?P<name>[a-z_ -]{1,60}?)[-_ ](?P<unit>bytes|gigabytes)", re.ASCII)
_GPU = re.compile(r"system[./]gpu\.[0-9]{1,4}\.memoryAllocatedBytes", re.ASCII)
_LOOKS_LIKE = re.compile(r"(?:^|[-_/. ])mem(?:ory)?(?:[-_/. ]|$)|memoryAllocated", re.ASCII)
_NO_SIZES = re.compile(r"retires|retries|count|percent|memoryAllocated$|powerPercent|utilization|throughput", re.ASCII)


def metric_of(tag: str) -> tuple[str, int] | None:
    """The metric that a scalar is, and its unit in bytes; None: it is no size of device memory."""
    if _GPU.fullmatch(tag):
        return "device", 1
    match = _TAG.fullmatch(tag)
    if match is None:
        return None
    name = re.sub(r"[-_ ]+", " ", match["name"])
    return _NAMES.get(name, name.replace(" ", "_")), _UNITS[match["unit"]]


def is_unknown(tag: str) -> bool:
    """Whether a scalar looks like a size of device memory, and is none that is known."""
    return metric_of(tag) is None and bool(_LOOKS_LIKE.search(tag)) and not _NO_SIZES.search(tag)


def log_metric(name: str) -> str | None:
    """The metric of a value in a log's line; None: it is no size."""
    if name in _NAMES:
        return _NAMES[name]
    told = metric_of(name)
    return told[0] if told else None


def in_bytes(value: object, unit: int) -> int | None:
    """`value` units in bytes; None: it is no number that a size can be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    size = value * unit
    if not math.isfinite(size) or not 0 <= size <= MAX_BYTES:
        return None
    return round(size)
