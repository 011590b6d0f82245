"""What the search asks the caller to do. An index is a point's place on the axis: 0 is good, the last is bad."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure this point; a cached measurement is as good as a new one."""

    index: int


@dataclass(frozen=True, slots=True)
class Remeasure:
    """Measure this point with a fresh probe; a cached measurement will not do."""

    index: int


@dataclass(frozen=True, slots=True)
class Revert:
    """Measure the bad tip with the change that this point brought reverted."""

    index: int


Request = Measure | Remeasure | Revert
