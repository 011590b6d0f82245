"""Where to probe inside an interval: even shares of relevance, away from what is broken, near what is cached."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from oombisect.search.line import Line

# A cached point is preferred if it lies within this share of the interval from where a probe would go.
_CACHED_WITHIN = 1 / 7


def split(
    line: Line, low: int, high: int, broken: Sequence[int] = (), probes: int = 1, *, patient: bool = False
) -> list[int]:
    """Up to `probes` runs strictly between `low` and `high` that cut the interval into even shares of relevance.

    Args:
        broken: runs in between that were measured and told nothing, ascending. Those that are skipped are none of them.
        patient: try every run between broken ones, however many there are.

    Returns:
        Ascending runs; none if there is nothing left worth trying, so that the interval stays blurred.
    """
    gaps = [gap for gap in pairwise((low, *broken, high)) if line.between(*gap)]
    outer = [gap for gap in gaps if gap[0] == low or gap[1] == high]
    if outer:
        gaps = outer
    elif not patient and len(broken) >= patience(line.between(low, high)):
        return []
    chosen: list[int] = []
    for share in range(1, probes + 1):
        target = line.mileage[low] + line.distance(low, high) * share / (probes + 1)
        run = _cached(line, low, high, broken, chosen, target, line.distance(low, high) * 2 / (probes + 1))
        if run is None:
            run = _beside(line, low, high, gaps, chosen, target, cautious=len(broken) == 1)
        if run is None:
            break
        chosen.append(run)
    return sorted(chosen)


def patience(places: int) -> int:
    """How many broken runs of an interval are tried before what lies between them is given up."""
    return 2 * (places + 1).bit_length() + 4


def can_split(line: Line, low: int, high: int, broken: Sequence[int], *, patient: bool) -> bool:
    """Whether `split` would find anything."""
    places = line.between(low, high)
    if places == len(broken):
        return False
    outer = not broken or line.between(low, broken[0]) or line.between(broken[-1], high)
    return bool(outer) or patient or len(broken) < patience(places)


def _cached(
    line: Line, low: int, high: int, broken: Sequence[int], chosen: Sequence[int], target: float, width: float
) -> int | None:
    """The cached run nearest to the target, if one is near enough."""
    reach = width * _CACHED_WITHIN
    at = bisect_left(line.known, low + 1)
    best = None
    nearest = reach
    start = bisect_left(line.known, target - reach, at, key=lambda run: line.mileage[run])
    for run in line.known[start:]:
        away = abs(line.mileage[run] - target)
        if run >= high or (line.mileage[run] > target and away > nearest):
            break
        if away <= nearest and run not in broken and run not in chosen and (best is None or away < nearest):
            best, nearest = run, away
    return best


def _beside(
    line: Line,
    low: int,
    high: int,
    gaps: Sequence[tuple[int, int]],
    chosen: Sequence[int],
    target: float,
    *,
    cautious: bool,
) -> int | None:
    """The free run nearest to the target that keeps its distance from broken neighbours.

    A single broken run may stand alone, so a quarter of the gap is distance enough; more of them are a stretch,
    whose edges are found fastest by halving.
    """
    margin = 1 / 4 if cautious else 1 / 2
    best: tuple[float, int] | None = None
    for left, right in gaps:
        width = line.distance(left, right) * margin
        lowest = line.mileage[left] + (width if left != low else 0)
        highest = line.mileage[right] - (width if right != high else 0)
        run = _nearest(line, left, right, chosen, min(max(target, lowest), highest))
        if run is not None:
            best = min(best or (float("inf"), run), (abs(line.mileage[run] - target), run))
    return best and best[1]


def _nearest(line: Line, left: int, right: int, chosen: Sequence[int], target: float) -> int | None:
    """The run strictly between, not chosen yet, whose mileage is nearest to the target; the lower one on a tie."""
    above = bisect_left(line.mileage, target, left + 1, right)
    below = above - 1
    while above < right and (above in chosen or line.is_skipped(above)):
        above += 1
    while below > left and (below in chosen or line.is_skipped(below)):
        below -= 1
    if below <= left:
        return above if above < right else None
    if above >= right:
        return below
    return above if line.mileage[above] - target < target - line.mileage[below] else below
