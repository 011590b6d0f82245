"""What the user may ask of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIB = 1 << 20
Find = Literal["regression", "improvement", "change"]


@dataclass(frozen=True, slots=True)
class Options:
    """How far to search. All sizes are bytes.

    Args:
        find: growth, its mirror image, or movement either way.
        noise_bytes: how far two readings of one point differ; None: measure both ends twice and learn it.
        noise_allocations: the same for the allocation count.
        explain: stop once this share of the growth is explained. An explicit `min_step_bytes` replaces this rule.
        min_step_bytes: smaller steps are neither looked for nor named; None: an eighth of the growth.
        budget: most probes to spend; points known from the start cost nothing. None: no limit.
        exhaustive: split until every interval's ends agree in all they measured, whatever the sizes.
        grid: points spread evenly that are measured first, to catch history that goes up and down.
        confirm: re-probe a culprit and its parent, and the bad tip without the culprit, before naming it.
    """

    find: Find = "regression"
    noise_bytes: int | None = 0
    noise_allocations: int = 0
    explain: float = 0.9
    min_step_bytes: int | None = None
    budget: int | None = None
    exhaustive: bool = False
    grid: int = 0
    confirm: bool = True

    def __post_init__(self) -> None:
        if self.find not in ("regression", "improvement", "change"):
            raise ValueError(f"find must be regression, improvement or change, not {self.find!r}")
        if not 0 < self.explain <= 1:
            raise ValueError(f"explain must be above 0 and at most 1, not {self.explain}")
        for name in ("noise_bytes", "noise_allocations", "min_step_bytes", "budget", "grid"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative, and is {value}")

    def wanted(self, value: int) -> int:
        """The value seen from what is sought: positive is movement of the kind the user asked about."""
        if self.find == "change":
            return abs(value)
        return value if self.find == "regression" else -value
