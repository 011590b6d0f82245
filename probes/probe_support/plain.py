"""A configuration as plain JSON that is equal for equal configurations: no addresses, no order of sets."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

_DEEPEST = 24


def qualified_name(value: Any) -> str:
    """`module.qualname` of a class or callable, without any address."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{module}.{name}" if module and name else qualified_name(type(value))


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON types. Dataclasses and objects become dictionaries with their class under `_type`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth > _DEEPEST:
        return qualified_name(type(value))
    if isinstance(value, Mapping):
        return {str(plain(key, depth + 1)): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, depth + 1) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, functools.partial):
        arguments = [plain(item, depth + 1) for item in value.args]
        keywords = plain(value.keywords, depth + 1)
        return {"_partial": plain(value.func, depth + 1), "args": arguments, "kwargs": keywords}
    return _plain_object(value, depth)


def _plain_object(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device", "Size"):
        return str(value)
    if isinstance(value, type):
        return qualified_name(value)
    if dataclasses.is_dataclass(value):
        body = {f.name: plain(getattr(value, f.name, None), depth + 1) for f in dataclasses.fields(value)}
        return {"_type": qualified_name(kind), **body}
    if callable(getattr(value, "to_dict", None)):  # a Hugging Face configuration
        try:
            return {"_type": qualified_name(kind), **plain(value.to_dict(), depth + 1)}
        except Exception:
            return qualified_name(kind)
    if callable(value) and hasattr(value, "__qualname__"):
        return qualified_name(value)
    return qualified_name(kind)


def canonical(config: Any) -> str:
    """The one text of a plain configuration: sorted keys, no spaces."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def config_hash(config: Any) -> str:
    """SHA-256 of the canonical text of a plain configuration."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()
