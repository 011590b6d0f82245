"""Needed capacity: the smallest device on which a run survives, found by bisection.

Survival is what the caller observes at a capacity it enforces: a replay or a probe. Nothing is run here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_MOST_MISSES = 4


class CapacityError(ValueError):
    """The bounds are no bounds, or an observation contradicts an earlier one."""


@dataclass(frozen=True, slots=True)
class NeededCapacity:
    """A bisection over capacities; a value, each observation gives the next. All sizes are bytes.

    Args:
        too_small: no capacity up to this one survives.
        enough: the smallest capacity known to survive.
        resolution: how close the result must come.
        lower: where the search began: no allocator needs less.
        hint: a capacity worth trying next; none if it lies outside the bounds.
        guided: the last hint survived, so that a little less is worth a try.
        misses: how often in a row the run did not survive; hints that lead nowhere are no longer followed.
    """

    too_small: int
    enough: int
    resolution: int
    lower: int
    hint: int | None = None
    guided: bool = False
    misses: int = 0

    @classmethod
    def start(cls, lower_bound: int, upper_bound: int, resolution: int) -> NeededCapacity:
        """Begin.

        Args:
            lower_bound: what was asked for at the peak + external: no allocator survives on less.
            upper_bound: peak reserved + external of a run that ended well: known to be enough.
            resolution: the result is at most this much above the true value, at least 1.
        """
        if not 0 <= lower_bound <= upper_bound:
            raise CapacityError(f"{lower_bound}..{upper_bound} bytes is no range of capacities")
        if resolution < 1:
            raise CapacityError(f"the resolution must be at least 1 byte, and is {resolution}")
        return cls(lower_bound - 1, upper_bound, resolution, lower_bound)

    def next(self) -> int | None:
        """The capacity to try, None once the result is close enough.

        Most runs waste next to nothing, so the first try is just above the lower bound. A hint is followed; if the run
        survived on it, just below it is tried.
        """
        if self.enough - self.too_small <= self.resolution:
            return None
        if self.too_small < self.lower:
            return self.too_small + self.resolution
        if self.hint is not None and self.misses <= _MOST_MISSES and self.too_small < self.hint < self.enough:
            return self.hint
        if self.guided:
            return self.enough - self.resolution
        return (self.too_small + self.enough) // 2

    def observe(self, capacity: int, survived: bool, hint: int | None = None) -> NeededCapacity:
        """What a run at `capacity` did.

        Args:
            hint: of a run that did not survive, the capacity at which the request it failed on would have been served.

        Raises:
            CapacityError: it contradicts what is known, so that survival is not a matter of capacity alone.
        """
        if (survived and capacity <= self.too_small) or (not survived and capacity >= self.enough):
            verb = "survived" if survived else "did not survive"
            raise CapacityError(
                f"the run {verb} on {capacity} bytes, yet the smallest capacity known to be enough is {self.enough}"
                f" and {self.too_small} is known to be too small"
            )
        if survived:
            return replace(self, enough=capacity, hint=None, guided=capacity == self.hint, misses=0)
        return replace(self, too_small=capacity, hint=hint, guided=False, misses=self.misses + 1)

    @property
    def result(self) -> int:
        """The smallest capacity that survived."""
        return self.enough
