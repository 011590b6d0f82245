"""The axis as the search sees it: points that are one measurement in a row form one *run*.

The search works on runs 0..n-1; points appear only in requests and conclusions. A change that matters lies
between two neighbouring runs: it is the change of the later run's first point.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

# A change thought irrelevant still gets this share of the mean relevance: what a probe imported is a guess, no proof.
_FLOOR = 1e-3


@dataclass(frozen=True, slots=True)
class Line:
    """Runs of points.

    Args:
        count: number of points.
        first: first point of each run, ascending.
        group: the measurement each run belongs to; runs that are no neighbours may share one.
        places: the runs of each group.
        mileage: summed relevance of the changes up to and including each run's own, ascending.
        known: runs whose measurement is cached, ascending.
        skipped: runs that are never probed, ascending.
    """

    count: int
    first: tuple[int, ...]
    group: tuple[int, ...]
    places: Mapping[int, tuple[int, ...]]
    mileage: tuple[float, ...]
    known: tuple[int, ...]
    skipped: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        count: int,
        weights: Sequence[float] | None,
        groups: Sequence[Hashable] | None,
        known: Collection[int],
        skip: Collection[int] = (),
    ) -> Line:
        """Build the line of `count` points. Arguments are those of `state.start`."""
        numbers: dict[Hashable, int] = {}
        labels = [numbers.setdefault(label, len(numbers)) for label in (groups if groups is not None else range(count))]
        first = tuple(i for i in range(count) if i == 0 or labels[i] != labels[i - 1])
        group = tuple(labels[i] for i in first)
        places: dict[int, list[int]] = {}
        for run, label in enumerate(group):
            places.setdefault(label, []).append(run)
        relevance = [1.0] * len(first) if weights is None else [float(weights[i]) for i in first]
        floor = _FLOOR * sum(relevance[1:]) / len(relevance) or 1.0
        mileage = tuple(accumulate(floor + r if r < floor else r for r in relevance))
        skipped = {labels[i] for i in skip}
        cached = {labels[i] for i in known} - skipped
        return cls(
            count,
            first,
            group,
            {label: tuple(runs) for label, runs in places.items()},
            mileage,
            tuple(run for run, label in enumerate(group) if label in cached),
            tuple(run for run, label in enumerate(group) if label in skipped),
        )

    @property
    def end(self) -> int:
        """The last run, the bad end; 0 if all points are one measurement."""
        return len(self.first) - 1

    def last(self, run: int) -> int:
        """The last point of a run."""
        return self.first[run + 1] - 1 if run < self.end else self.count - 1

    def run_of(self, index: int) -> int:
        return bisect_right(self.first, index) - 1

    def point_of(self, run: int) -> int:
        """The point to measure for a run: its first, or the bad tip itself."""
        return self.last(run) if run == self.end and run else self.first[run]

    def is_known(self, run: int) -> bool:
        """Whether the run's measurement was cached from the start."""
        return _holds(self.known, run)

    def is_skipped(self, run: int) -> bool:
        return _holds(self.skipped, run)

    def between(self, low: int, high: int) -> int:
        """How many runs strictly between two may be probed."""
        return high - low - 1 - (bisect_left(self.skipped, high) - bisect_right(self.skipped, low))

    def distance(self, low: int, high: int) -> float:
        """Summed relevance of the changes after run `low` up to run `high`."""
        return self.mileage[high] - self.mileage[low]


def _holds(runs: Sequence[int], run: int) -> bool:
    at = bisect_left(runs, run)
    return at < len(runs) and runs[at] == run
