"""What makes two measurements the same one.

A signature is the SHA-256 of the canonical JSON of everything a probe's numbers depend on: tree hashes of what it can
see, the configuration, the device, versions. Equal signatures: the same measurement, never run twice.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any


def canonical_json(value: Any) -> str:
    """`value` as JSON that is equal for equal values: sorted keys, no spaces, ASCII only.

    Raises:
        ValueError: it holds NaN or an infinity, which JSON does not have (see `finite`).
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def finite(value: Any) -> Any:
    """`value` with NaN and infinities written as the strings "NaN", "Infinity", "-Infinity", so that it is JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def json_hash(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def signature(parts: Mapping[str, Any]) -> str:
    """The signature of a measurement, 64 hexadecimal digits.

    Args:
        parts: named parts (strings, integers, lists or mappings of them). A part that is added, left out, renamed or
            changed gives another signature; the order in which parts are named gives the same.
    """
    if not parts:
        raise ValueError("a signature of nothing would make all measurements equal")
    return json_hash(dict(parts))
