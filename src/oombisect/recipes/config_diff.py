"""What differs between two resolved configs, leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class _Absent:
    def __repr__(self) -> str:
        return "absent"


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
