"""Sharing a change of memory out among the parts that were changed together.

A part's share depends on what was changed before it. The mean over every order in which the parts could have been
changed prefers none of them (it is the Shapley value), and the shares add up to the whole change, to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise, permutations

from oombisect.search.metric import Metric, value
from oombisect.search.observation import NOTHING, Delta, Metrics

Corner = frozenset[str]
"""The parts that are as they are after the change; the others are as before."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What each part added, bytes; `shares` add up to the whole change.

    Args:
        interaction: what the parts add together beyond what each adds alone; None: not all of them could be measured
            alone.
        orders: how many orders of change the mean is taken over.
        changes: what each part added of the metric, in its unit; of `memory` that is of the device.
    """

    shares: Mapping[str, Delta]
    interaction: Delta | None
    orders: int
    changes: Mapping[str, int]


def share_out(parts: Sequence[str], corners: Mapping[Corner, Metrics], metric: Metric = "memory") -> Shares | None:
    """Share the change from none of `parts` changed to all of them out among them.

    Args:
        parts: at least one.
        corners: the memory measured with some of the parts changed; those that could not be measured are left out.
            Orders that lead through them are left out of the mean.
        metric: what `changes` are of; all of `corners` must have it.

    Returns:
        None where every order leads through a corner that was not measured.
    """
    chains = [[frozenset(order[:n]) for n in range(len(order) + 1)] for order in permutations(parts)]
    known = [chain for chain in chains if all(corner in corners for corner in chain)]
    if not known:
        return None
    sums, changes = dict.fromkeys(parts, NOTHING), dict.fromkeys(parts, 0)
    for chain in known:
        for before, after in pairwise(chain):
            (part,) = after - before
            sums[part] += Delta.between(corners[before], corners[after])
            changes[part] += value(metric, corners[after]) - value(metric, corners[before])
    shared = dict(zip(parts, _whole(list(changes.values()), len(known)), strict=True))
    return Shares(_mean(sums, len(known)), _interaction(parts, corners), len(known), shared)


def _interaction(parts: Sequence[str], corners: Mapping[Corner, Metrics]) -> Delta | None:
    none = corners[frozenset()]
    total = Delta.between(none, corners[frozenset(parts)])
    for part in parts:
        alone = corners.get(frozenset({part}))
        if alone is None:
            return None
        total += -Delta.between(none, alone)
    return total


def _mean(sums: Mapping[str, Delta], count: int) -> dict[str, Delta]:
    """Each sum over `count` in whole bytes; what rounding leaves goes to the largest remainders, so nothing is lost."""
    columns = list(zip(*(astuple(delta) for delta in sums.values()), strict=True))
    rounded = zip(*(_whole(column, count) for column in columns), strict=True)
    return {part: Delta(*values) for part, values in zip(sums, rounded, strict=True)}


def _whole(values: Sequence[int], count: int) -> list[int]:
    """`values` (whose sum `count` divides) over `count`, rounded so that they keep their sum."""
    floors = [value // count for value in values]
    left = sum(values) // count - sum(floors)
    by_remainder = sorted(range(len(values)), key=lambda i: (-(values[i] % count), i))
    for i in by_remainder[:left]:
        floors[i] += 1
    return floors
