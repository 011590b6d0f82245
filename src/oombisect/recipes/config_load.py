"""A config that Bridge saved as YAML, read as data: what a `_target_` names is never looked up, let alone called.

The result has the notation of the configs that probes report: an object is a mapping with its class under `_type`, an
enum's member is `Class.NAME`, a function, class or dtype is its qualified name.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from oombisect.errors import OombisectError
from oombisect.files import irregular
from oombisect.recipes.config_diff import TYPE

MAX_FILE = 16 << 20  # Bridge writes some 60 kB
MAX_VALUES = 1_000_000  # a few nested aliases stand for more than any memory holds
MAX_DEPTH = 64

_TARGET, _CALL, _PARTIAL, _ARGUMENTS, _NAME = "_target_", "_call_", "_partial_", "_args_", "_name_"
_BITS = 64  # of a whole number: no field holds more, and few readers of JSON do
_LOADER: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_config(path: Path) -> dict[str, Any]:
    """The config in a YAML file: all of it, or the part that somebody wrote.

    Raises:
        OombisectError: it cannot be read, is no YAML of plain values, or is too large.
    """
    wanted = "Name a YAML file that Bridge saved (ConfigContainer.to_yaml, or run_config.yaml of a checkpoint)."
    try:
        if kind := irregular(path):
            raise OombisectError(f"{str(path)!r} is {kind}, not a file", wanted)
        if path.stat().st_size > MAX_FILE:
            raise OombisectError(f"{str(path)!r} is larger than {MAX_FILE >> 20} MiB, which no config is", wanted)
        text = path.read_text(encoding="utf-8")
        _require_single_keys(yaml.compose(text, _LOADER))
        config = plain_yaml(text)
    except OSError as error:
        raise OombisectError(f"{str(path)!r} cannot be read: {error.strerror}", wanted) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise OombisectError(f"{str(path)!r} is no config: {' '.join(str(error).split())[:300]}", wanted) from error
    if not isinstance(config, dict) or not config:
        raise OombisectError(f"{str(path)!r} is no config: it holds no mapping of sections", wanted)
    return config


def plain_yaml(text: str) -> Any:
    """The values of a YAML document, counted: a few aliases stand for more than any memory holds.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: it is no YAML of plain values, or stands for too many.
    """
    return _Reader().value(yaml.load(text, _LOADER))  # noqa: S506  # both are safe loaders


def _require_single_keys(root: yaml.Node | None) -> None:
    """A key that stands twice in one mapping has two values: YAML's readers drop one without a word, Bridge's refuses.

    Raises:
        ValueError: one does.
    """
    left, seen = [root], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:  # an alias is the same node
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
        if isinstance(node, yaml.MappingNode):
            left += [value for _, value in node.value]
            names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            if twice := next((name for name, times in names.items() if times > 1), None):
                raise ValueError(f"{twice!r} stands twice in the mapping at line {node.start_mark.line + 1}")


class _Reader:
    """Turns YAML values into plain ones, counting them."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def value(self, data: Any, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"it stands for more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
        if isinstance(data, dict):
            return self._mapping(data, depth)
        if isinstance(data, list | tuple):
            return [self.value(item, depth + 1) for item in data]
        if isinstance(data, set):
            return sorted((self.value(item, depth + 1) for item in data), key=str)
        if isinstance(data, datetime.date):  # a datetime is one
            return data.isoformat()
        if isinstance(data, float) and (data != data or data in (float("inf"), float("-inf"))):
            return str(data)  # as probes write them: JSON has no such numbers
        if isinstance(data, int) and data.bit_length() > _BITS:
            raise ValueError(f"a whole number of more than {_BITS} bits is in it")
        if isinstance(data, str) and "\0" in data:
            raise ValueError("a text with a NUL character is in it, which no variable or command line can hold")
        if data is None or isinstance(data, bool | int | float | str):
            return data
        raise ValueError(f"a value of type {type(data).__name__} is in it")

    def _mapping(self, data: Mapping[Any, Any], depth: int) -> Any:
        fields = {str(key): self.value(item, depth + 1) for key, item in data.items() if key not in _MARKS}
        target = data.get(_TARGET)
        if target is None:
            return fields
        target = str(target)
        if data.get(_PARTIAL):
            return {"_partial": target, "args": self.value(data.get(_ARGUMENTS) or [], depth + 1), "kwargs": fields}
        if _NAME in data:  # a member of an enum
            return f"{target.rpartition('.')[2]}.{data[_NAME]}"
        if _CALL in data and not fields:
            # A function, class or dtype; or an object that Bridge could not describe.
            arguments = self.value(data.get(_ARGUMENTS) or [], depth + 1)
            return target if not arguments else f"{target}({', '.join(map(str, arguments))})"
        inner = fields.get("config_dict")
        if target.endswith(".from_dict") and isinstance(inner, dict) and len(fields) == 1:  # one of Hugging Face's
            return {TYPE: target.removesuffix(".from_dict"), **inner}
        return {TYPE: target, **fields}


_MARKS = (_TARGET, _CALL, _PARTIAL, _ARGUMENTS, _NAME, "_builder_")
