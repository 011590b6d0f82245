"""What single keys do on the bad side: their own effects, what they do together, and which to take back. Pure.

The chain of a config diff tells what each key added *when it was its turn*. The bad config with one key returned to its
good value tells what the key adds *there*; where the two differ, keys interact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from oombisect.search.observation import Delta, Exact, Observation

Names = frozenset[str]
NONE: Names = frozenset()

MAX_SETS = 12  # sets of several keys that are probed for the smallest one
MAX_PAIRS = 6  # pairs that are probed for how they interact
_GONE = 0.1  # growth is gone if at most this share of it is left


@dataclass(frozen=True, slots=True)
class Smallest:
    """The fewest groups to return. `by_size`: so many smaller sets were ruled out by what their members add alone, and
    not by a probe; `proven`: none smaller was left out for its cost."""

    names: Names
    by_size: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Effects:
    """What is known of the bad side.

    Args:
        names: the groups that moved memory, largest first.
        forward: what each added in the chain; nothing, for one that adds something on the bad side only.
        without: the bad config with these groups at good's values; of no group, the bad end itself.
        good: the good end.
        epsilon: the smallest difference that means anything, bytes.
        limit: the memory it must fit in, bytes.
    """

    names: tuple[str, ...]
    forward: Mapping[str, Delta]
    without: Mapping[Names, Observation]
    good: Observation
    epsilon: int
    limit: int

    def own(self, name: str) -> Delta | None:
        """What a group adds to the bad config as it is; None: not known."""
        return self._between(frozenset({name}), NONE)

    def discrepancy(self, name: str) -> Delta | None:
        """Its own effect on the bad side minus that in the chain; None: not known."""
        own = self.own(name)
        return None if own is None else own + -self.forward[name]

    def interacts(self, name: str) -> bool:
        found = self.discrepancy(name)
        return found is not None and found.size > self.epsilon

    def interaction(self, one: str, other: str) -> Delta | None:
        """How much more `one` adds because `other` is at its bad value (and the other way round); None: not known."""
        pair = frozenset({one, other})
        with_other, alone = self._between(frozenset({one}), NONE), self._between(pair, frozenset({other}))
        return None if with_other is None or alone is None else with_other + -alone

    def _between(self, first: Names, second: Names) -> Delta | None:
        before, after = self.without.get(first), self.without.get(second)
        if not isinstance(before, Exact) or not isinstance(after, Exact):
            return None
        return Delta.between(before.metrics, after.metrics)

    @property
    def wants_fit(self) -> bool:
        """Whether what is sought is that it fits again, and not that its growth is gone."""
        return isinstance(self.good, Exact) and self.good.fits and not self.meets_limit(NONE)

    def meets_limit(self, names: Names) -> bool:
        seen = self.without.get(names)
        return isinstance(seen, Exact) and seen.fits

    def meets(self, names: Names) -> bool:
        """Whether the bad side without these groups is as it should be."""
        if self.wants_fit:
            return self.meets_limit(names)
        seen, bad = self.without.get(names), self.without.get(NONE)
        if not (isinstance(seen, Exact) and isinstance(bad, Exact) and isinstance(self.good, Exact)):
            return False
        left = Delta.between(self.good.metrics, seen.metrics)
        return max(left.allocated, left.device) <= self.growth_left

    @property
    def growth(self) -> int:
        """Bad minus good: the more of allocated and device memory; 0 if unknown."""
        bad = self.without.get(NONE)
        if not isinstance(bad, Exact) or not isinstance(self.good, Exact):
            return 0
        delta = Delta.between(self.good.metrics, bad.metrics)
        return max(0, delta.allocated, delta.device)

    @property
    def growth_left(self) -> int:
        return max(self.epsilon, round(_GONE * self.growth))

    def next_probe(self) -> Names | None:
        """The next set of groups to return: each alone, then for the smallest set, then pairs that interact."""
        for name in self.names:
            if frozenset({name}) not in self.without:
                return frozenset({name})
        found = self._search()
        if isinstance(found, frozenset):
            return found
        return next((pair for pair in self.pairs() if pair not in self.without), None)

    def smallest(self) -> Smallest | None:
        """The smallest set that makes the bad side as it should be; None: there is none, or it is not known yet."""
        found = self._search()
        return found if isinstance(found, Smallest) else None

    def _search(self) -> Names | Smallest | None:
        """The set to probe next, the smallest one, or None where no set will do."""
        bad = self.without.get(NONE)
        if (
            self.meets(NONE)
            or not self.names
            or (not self.wants_fit and (self.growth == 0 or not isinstance(bad, Exact)))
        ):
            return None
        by_size, tried = 0, 0
        for size in range(1, len(self.names) + 1):
            sets = [frozenset(some) for some in combinations(self.names, size)]
            sets.sort(key=self._saving, reverse=True)
            fitting = [some for some in sets if self.meets(some)]
            if fitting:
                return Smallest(fitting[0], by_size, proven=True)
            for some in sets:
                if some in self.without:
                    tried += size > 1
                elif size < len(self.names) and self._too_small(some):
                    by_size += 1
                elif tried < MAX_SETS:
                    return some
                else:
                    return self._all_of_them(by_size)
        return None

    def _all_of_them(self, by_size: int) -> Names | Smallest | None:
        everything = frozenset(self.names)
        if everything not in self.without:
            return everything
        return Smallest(everything, by_size, proven=False) if self.meets(everything) else None

    def _saving(self, names: Names) -> int:
        """What returning these saves, if each saves what it saves alone, bytes."""
        own = [self.own(name) for name in names]
        return sum(max(delta.allocated, delta.device) for delta in own if delta is not None)

    def _too_small(self, names: Names) -> bool:
        """Whether their own effects, and all that they were seen to do together, come to less than is needed."""
        found = [self.discrepancy(name) for name in names]
        if any(delta is None for delta in found):
            return False
        together = sum(delta.size for delta in found if delta is not None)
        return self._saving(names) + together + self.epsilon < self._needed()

    def _needed(self) -> int:
        bad = self.without.get(NONE)
        if not isinstance(bad, Exact):
            return 0
        if not self.wants_fit:
            return self.growth - self.growth_left
        return max(0, bad.metrics.allocated + bad.metrics.external - self.limit)

    def pairs(self) -> list[Names]:
        """Pairs to try for interactions: one of them adds something else on the bad side than in the chain."""
        sizes = {name: 0 if (found := self.discrepancy(name)) is None else found.size for name in self.names}
        pairs = [pair for pair in combinations(self.names, 2) if max(map(sizes.__getitem__, pair)) > self.epsilon]
        pairs.sort(key=lambda pair: -sum(map(sizes.__getitem__, pair)))
        return [frozenset(pair) for pair in pairs[:MAX_PAIRS]]
