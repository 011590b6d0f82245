"""What CI asks: did memory grow by more than is allowed, or past the limit? `check` asks it of a change, `watch` of a
branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from oombisect.errors import OombisectError
from oombisect.readings import Outcome, Reading
from oombisect.search.metric import moved
from oombisect.session.bisection import metrics_of
from oombisect.session.request import MAX_PROBES, ProbeRequest, _size, _within
from oombisect.units import MIB

MIN_STEP = 64 * MIB


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """A change to be judged: what `range` (BASE..HEAD) does to memory."""

    range: str
    probe: ProbeRequest
    min_step_bytes: int = MIN_STEP

    def __post_init__(self) -> None:
        _size("--min-step", self.min_step_bytes, 1)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """A branch to be watched: every so many commits of its first-parent line, from where the last watch ended.

    Args:
        since: where the first watch begins; None: `every` commits before the tip.
    """

    probe: ProbeRequest
    branch: str = "HEAD"
    every: int = 1
    since: str | None = None
    min_step_bytes: int = MIN_STEP
    jobs: int | None = 1

    def __post_init__(self) -> None:
        _size("--min-step", self.min_step_bytes, 1)
        _within("--every", self.every, 1, MAX_PROBES)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def watched(self) -> Mapping[str, Any]:
        """What tells this watch from others, plain JSON: equal, and it goes on where the other ended."""
        plain = self.to_json()
        return {"branch": plain["branch"], "probe": plain["probe"]}


def growth(before: Reading, after: Reading) -> int:
    """How much memory grew, bytes: peak allocated or all of the device, whichever grew more."""
    return max(moved("memory", metrics_of(before), metrics_of(after)).sought)


def measured(reading: Reading) -> bool:
    """Whether it tells sizes, if only lower bounds."""
    return reading.outcome in (Outcome.EXACT, Outcome.CENSORED)


def chosen(count: int, every: int) -> list[int]:
    """The points to probe of a line of `count`: the first, every so many after it, and the last."""
    return sorted({*range(0, count, every), count - 1})


def nothing_in_common(base: str, head: str) -> OombisectError:
    """What is said of two commits that have no history in common."""
    return OombisectError(f"{base} and {head} have no history in common", "Name a branch and the one it goes into.")
