"""What a source tells, and what of it could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


class Unreadable(Exception):
    """A source is not what it should be; the message says why."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of a source that was left out: where it is, and what is wrong with it."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class RunMemory:
    """The memory of one rank of one run; sizes in bytes, None where the source does not tell.

    Args:
        values: sizes by metric and iteration.
        reason: why its sizes are lower bounds; empty: they are exact.
        where: the part of the source it comes from.
        run: the run's name, if the source tells several apart.
        told: what the source itself says of where the run belongs: `recipe`, `device`, `commit`, `date`.
    """

    rank: int | None = None
    world_size: int | None = None
    values: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    peak_device: int | None = None
    external: int | None = None
    reason: str = ""
    where: str = ""
    run: str = ""
    config: Mapping[str, Any] | None = None
    told: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Content:
    """All that a source tells; `date`: when its run was, as far as it says."""

    runs: tuple[RunMemory, ...]
    problems: tuple[Problem, ...] = ()
    date: datetime | None = None
    notes: tuple[str, ...] = ()


def peak(values: Mapping[str, Mapping[int, int]], metric: str) -> int | None:
    """The largest value of a metric; None: there is none."""
    return max(values.get(metric, {}).values(), default=None)


def run_of(values: Mapping[str, Mapping[int, int]], **about: Any) -> RunMemory:
    """A run whose peaks are those its values tell: only a metric that is a peak itself tells one."""
    return RunMemory(
        values=values,
        peak_allocated=peak(values, "peak_allocated"),
        peak_reserved=peak(values, "peak_reserved"),
        peak_device=peak(values, "device"),
        **about,
    )
