"""A line of environments under one commit: what is measured is a package, not the code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oombisect.session.bisection import CannotRevert
from oombisect.session.measuring import Target


@dataclass(frozen=True)
class EnvironmentLine:
    """One commit in one environment after another, ready for a search.

    `without`: the last environment with the change of one point taken back; None where that has no meaning.
    """

    targets: Sequence[Target]
    weights: Sequence[float]
    without: Callable[[int], Target] | None = None

    def lump(self, index: int) -> tuple[str, ...]:
        """Every point is a change of its own."""
        return ()

    def reverted(self, index: int) -> Target:
        """See `Line.reverted`."""
        if self.without is None:
            raise CannotRevert("a release cannot be taken out of a later one")
        return self.without(index)
