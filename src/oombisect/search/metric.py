"""Which quantity a search follows, and what its change between two points is: bytes, or microseconds of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from oombisect.search.observation import Delta, Metrics

Metric = Literal["memory", "allocated", "reserved", "device", "cached", "fragmentation", "step-time"]
METRICS: tuple[Metric, ...] = get_args(Metric)

MIB = 1 << 20
_UNBOUNDED = ("cached", "fragmentation", "step-time")
_FINEST = {"step-time": 1_000}


class NotMeasured(ValueError):
    """Metrics lack what a search follows."""


@dataclass(frozen=True, slots=True)
class Movement:
    """The change between two points in what a search follows, signed. Movements add up exactly.

    Args:
        sought: its growth is what the search is for; where there are several, that of any of them.
        channels: followed each on its own, so that one does not hide under another.
        sums: what channels come to together.
    """

    sought: tuple[int, ...]
    channels: tuple[int, ...]
    sums: tuple[int, ...] = ()

    def __add__(self, other: Movement) -> Movement:
        return Movement(
            _add(self.sought, other.sought), _add(self.channels, other.channels), _add(self.sums, other.sums)
        )

    @property
    def size(self) -> int:
        """The largest movement in any channel or sum, unsigned."""
        return max(abs(value) for value in (*self.channels, *self.sums))


def moved(metric: Metric, before: Metrics, after: Metrics) -> Movement:
    """How what a metric follows changed."""
    if metric == "memory":
        delta = Delta.between(before, after)
        return Movement((delta.allocated, delta.device), delta.channels, (delta.reserved, delta.device))
    change = (value(metric, after) - value(metric, before),)
    return Movement(change, change)


def value(metric: Metric, metrics: Metrics) -> int:
    """What a threshold is compared with; that of `memory` is the device's.

    Raises:
        NotMeasured: the metrics lack it.
    """
    match metric:
        case "allocated":
            return metrics.allocated
        case "reserved":
            return metrics.reserved
        case "memory" | "device":
            return metrics.reserved + metrics.external
        case "cached":
            return metrics.reserved - metrics.allocated
        case "fragmentation":
            if metrics.needed is None:
                raise NotMeasured("the needed capacity was not measured")
            return metrics.needed - metrics.allocated
        case "step-time":
            if metrics.step_time is None:
                raise NotMeasured("the step time was not measured")
            return metrics.step_time


def sought(metric: Metric, metrics: Metrics) -> tuple[int, ...]:
    """The quantities whose growth is sought."""
    return (metrics.allocated, value(metric, metrics)) if metric == "memory" else (value(metric, metrics),)


def is_bounded(metric: Metric) -> bool:
    """Whether a run that ran out of memory tells a lower bound of the metric."""
    return metric not in _UNBOUNDED


def finest(metric: Metric) -> int:
    """The smallest difference that means anything, however small the noise: 2 MiB, or a millisecond."""
    return _FINEST.get(metric, 2 * MIB)


def unit(metric: Metric) -> Literal["bytes", "microseconds"]:
    """What its values count."""
    return "microseconds" if metric == "step-time" else "bytes"


def _add(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, two, strict=True))
