"""What all axes have in common: a line of points, any of which can be laid out for a probe."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from oombisect.repo.bridge import Materialised
from oombisect.repo.slots import Slot
from oombisect.repo.trees import RelevantTrees


@dataclass(frozen=True, slots=True)
class Point:
    """One point of an axis.

    Attributes:
        key: unique on the axis; the full commit id on an axis of commits.
        short: the key for people.
        subject: one line.
        author_date: ISO 8601; "" where a point has none.
        repo: "bridge", "megatron-lm", "config", "package", or "repo": of any other repository.
        parent: the key of what the point is a change against; "" for none. On an axis that leaves commits out (path
            filters, `--no-first-parent`) this need not be the previous point.
        author: who wrote it; "" where unknown.
    """

    key: str
    short: str
    subject: str
    author_date: str = ""
    repo: str = "bridge"
    parent: str = ""
    author: str = ""


class Axis(Protocol):
    """An ordered line of points, good first, bad last."""

    @property
    def points(self) -> Sequence[Point]: ...

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know about the line, one sentence each."""

    def groups(self) -> list[int]:
        """A number per point, never falling; neighbours with equal numbers look alike to a probe."""

    def weights(self, imported: Set[str] | None = None) -> list[float]:
        """How much each point's change counts when an interval is split."""

    def signature(self, index: int) -> dict[str, str]:
        """Object ids of what a probe can see at a point, for the signature of a measurement."""

    def materialise(self, index: int, slot: Slot) -> Materialised:
        """Lay a point out on disk."""


def run_numbers(trees: Sequence[RelevantTrees], per_lock: bool = False) -> list[int]:
    """A number per point, never falling; neighbours whose probe-visible trees are equal share it.

    `per_lock`: probes see the environment of each point's own lock too.
    """
    numbers = [0]
    for before, after in pairwise(trees):
        differ = before.key != after.key or (per_lock and before.env_lock != after.env_lock)
        numbers.append(numbers[-1] + differ)
    return numbers


def only_fresh(weights: Sequence[float], groups: Sequence[int]) -> list[float]:
    """The weights, 0 for the first point and for those that look like the one before."""
    return [0.0, *(weight if a != b else 0.0 for weight, (a, b) in zip(weights[1:], pairwise(groups), strict=True))]
