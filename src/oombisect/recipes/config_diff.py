"""What differs between two resolved configs, leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class _Absent:
    def __repr__(self) -> str:
        return "absent"


TYPE = "_type"
"""Where a plain config keeps the class of an object, as the probe writes it."""

ABSENT = _Absent()
"""Stands for a leaf that one of the two configs does not have (None is a value)."""


@dataclass(frozen=True, slots=True)
class Change:
    """One leaf: its dotted path, its value before and after (`ABSENT` where it is not there)."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {self.before!r} -> {self.after!r}"

    def to_json(self) -> dict[str, Any]:
        """`{"path", "before", "after"}`, an absent side left out."""
        sides = {"before": self.before, "after": self.after}
        return {"path": self.path, **{name: value for name, value in sides.items() if value is not ABSENT}}


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """The leaves that differ, by path. Keys have no order; list elements are leaves by index.

    `1` and `1.0` are equal, `1` and `true` are not.
    """
    old, new = dict(_leaves(before)), dict(_leaves(after))
    paths = sorted(old.keys() | new.keys())
    changes = (Change(path, old.get(path, ABSENT), new.get(path, ABSENT)) for path in paths)
    return tuple(c for c in changes if not _same(c.before, c.after))


Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """The smallest part of two configs that differs and can be set by itself: a scalar, a list, a whole object.

    `path` are the names that lead to it; `before` and `after` are its values (`ABSENT` where it is not there).
    """

    path: Path
    before: Any
    after: Any


def pieces(before: Mapping[str, Any], after: Mapping[str, Any], path: Path = ()) -> Iterator[Piece]:
    """The parts that differ, by path.

    A list is one piece: its elements mean nothing alone. So is an object that is of another class, or is there on one
    side only. Keys have no order, and values are compared as `diff` compares them.
    """
    for name in sorted(before.keys() | after.keys()):
        one, other = before.get(name, ABSENT), after.get(name, ABSENT)
        if not any(diff({name: one} if one is not ABSENT else {}, {name: other} if other is not ABSENT else {})):
            continue
        if _same_kind(one, other):
            yield from pieces(one, other, (*path, name))
        else:
            yield Piece((*path, name), one, other)


def _same_kind(one: Any, other: Any) -> bool:
    """Whether two values are objects of one class, so that each of their fields can be set by itself."""
    mappings = isinstance(one, Mapping) and isinstance(other, Mapping)
    return mappings and one.get(TYPE) == other.get(TYPE)


def value_at(config: Mapping[str, Any], path: Path) -> Any:
    """What lies at a path; `ABSENT` where nothing does."""
    value: Any = config
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return ABSENT
        value = value[name]
    return value


def with_value(config: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """`config` with another value at a path (`ABSENT`: with nothing there); what is not on the path is shared.

    Mappings on the way that are not there are made.
    """
    name, *rest = path
    changed = dict(config)
    if rest:
        inner = config.get(name)
        changed[name] = with_value(inner if isinstance(inner, Mapping) else {}, tuple(rest), value)
    elif value is ABSENT:
        changed.pop(name, None)
    else:
        changed[name] = value
    return changed


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, whatever they are; see `diff`."""
    if one is ABSENT or other is ABSENT:
        return one is other
    return not diff({"value": one}, {"value": other})


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Scalars by path; an empty dict or list is a leaf, so that it differs from an absent one."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    elif path:
        yield path, list(value) if isinstance(value, tuple) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    return bool(one == other) or (one != one and other != other)
