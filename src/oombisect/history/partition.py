"""Cutting a series of readings into stretches that are level or drift: the exact optimum, pure.

A stretch costs the squares of what its readings are off its level, or off its line and `slope` besides; every cut
costs `penalty`. The sum is least for what is returned. A cut lies only where two neighbouring readings differ, and a
drift has `LEAST_DRIFT` readings or more: fewer would always lie close to some line.

That is a Potts functional with lines, solved by dynamic programming with pruning (PELT: Killick, Fearnhead and Eckley,
2012). Sums are kept as integers, so that nothing is lost where bytes are squared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        sums = (
            accumulate(x, initial=0),
            accumulate((v * v for v in x), initial=0),
            accumulate(p, initial=0),
            accumulate((q * q for q in p), initial=0),
            accumulate((v * q for v, q in zip(x, p, strict=True)), initial=0),
        )
        self._sums = list(zip(*sums, strict=True))

    def off(self, starts: Iterable[int], end: int) -> list[tuple[float, float]]:
        """For each start, the squares of what the readings up to `end` (outside) are off their mean and their line."""
        sums = self._sums
        x1, xx1, p1, pp1, xp1 = sums[end]
        result = []
        for start in starts:
            x0, xx0, p0, pp0, xp0 = sums[start]
            count, x = end - start, x1 - x0
            level = count * (xx1 - xx0) - x * x
            if not level:
                result.append((0.0, 0.0))
                continue
            p = p1 - p0
            spread = count * (pp1 - pp0) - p * p
            together = count * (xp1 - xp0) - x * p
            line = (level * spread - together * together) / (count * spread) if spread else level / count
            result.append((level / count, line))
        return result


def partition(values: Sequence[int], places: Sequence[int], penalty: float, slope: float) -> list[Stretch]:
    """The cheapest stretches, in order; of equally cheap ones those with the earliest last cut.

    Args:
        values: bytes.
        places: where on the line of commits each was read, ascending.
        penalty: of a cut, bytes squared; `slope`: of a drift, besides.
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
        open_ = [start for start in open_ if until.get(start, cut) >= cut]
        costs = sums.off(open_, cut)
        for start, (level, line) in zip(open_, costs, strict=True):
            inclined = cut - start >= LEAST_DRIFT and line + slope < level
            cost = best[start] + penalty + (line + slope if inclined else level)
            if cost < cheapest:
                cheapest, source, drifts = cost, start, inclined
        best[cut], came[cut] = cheapest, (source, drifts)
        # Whoever starts there could as well start here, once what follows is long enough to drift by itself.
        for start, (_, line) in zip(open_, costs, strict=True):
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
