"""Cutting a series of readings into stretches that are level or drift: the exact optimum, pure.

A stretch costs the squares of what its readings are off its level, or off its line and `penalty` besides; every cut
costs `penalty`. The sum is least for what is returned. A cut lies only where two neighbouring readings differ, and a
drift has `LEAST_DRIFT` readings or more: fewer would always lie close to some line.

That is a Potts functional with lines, solved by dynamic programming with pruning (PELT: Killick, Fearnhead and Eckley,
2012). Sums are kept as integers, so that nothing is lost where bytes are squared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

LEAST_DRIFT = 5


@dataclass(frozen=True, slots=True)
class Stretch:
    """The readings `first` to `last` (both inside) are level, or drift along a line."""

    first: int
    last: int
    drifts: bool


class Sums:
    """What any stretch of readings costs, in constant time. Values are bytes, costs are bytes squared."""

    def __init__(self, values: Sequence[int], places: Sequence[int]) -> None:
        origin, start = (values[0], places[0]) if values else (0, 0)
        x = [value - origin for value in values]
        p = [place - start for place in places]
        self._x = [0, *accumulate(x)]
        self._p = [0, *accumulate(p)]
        self._xx = [0, *accumulate(v * v for v in x)]
        self._pp = [0, *accumulate(q * q for q in p)]
        self._xp = [0, *accumulate(v * q for v, q in zip(x, p, strict=True))]

    def off(self, start: int, end: int) -> tuple[float, float]:
        """The squares of what readings `start` to `end` (outside) are off their mean, and off their line."""
        count = end - start
        x = self._x[end] - self._x[start]
        level = count * (self._xx[end] - self._xx[start]) - x * x
        if not level:
            return 0.0, 0.0
        p = self._p[end] - self._p[start]
        spread = count * (self._pp[end] - self._pp[start]) - p * p
        together = count * (self._xp[end] - self._xp[start]) - x * p
        line = (level * spread - together * together) / (count * spread) if spread else level / count
        return level / count, line


def partition(values: Sequence[int], places: Sequence[int], penalty: float) -> list[Stretch]:
    """The cheapest stretches, in order; of equally cheap ones those with the earliest last cut.

    Args:
        values: bytes.
        places: where on the line of commits each was read, ascending.
        penalty: of a cut and of a drift, bytes squared.
    """
    count = len(values)
    if not count:
        return []
    sums = Sums(values, places)
    cuts = [i for i in range(1, count) if values[i] != values[i - 1]] + [count]
    best = {0: -penalty}
    came: dict[int, tuple[int, bool]] = {}
    open_ = [0]
    until: dict[int, int] = {}
    for cut in cuts:
        cheapest, source, drifts = float("inf"), 0, False
        lines = []
        open_ = [start for start in open_ if until.get(start, cut) >= cut]
        for start in open_:
            level, line = sums.off(start, cut)
            lines.append(line)
            inclined = cut - start >= LEAST_DRIFT and line + penalty < level
            cost = best[start] + penalty + (line + penalty if inclined else level)
            if cost < cheapest:
                cheapest, source, drifts = cost, start, inclined
        best[cut], came[cut] = cheapest, (source, drifts)
        # Whoever starts there could as well start here, once what follows is long enough to drift by itself.
        for start, line in zip(open_, lines, strict=True):
            if best[start] + line >= cheapest:
                until.setdefault(start, cut + LEAST_DRIFT - 1)
        open_.append(cut)
    stretches = []
    end = count
    while end:
        start, drifts = came[end]
        stretches.append(Stretch(start, end - 1, drifts))
        end = start
    return stretches[::-1]
