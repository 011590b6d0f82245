"""What the user may ask of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from oombisect.search.metric import METRICS, Metric

Find = Literal["regression", "improvement", "any"]
FINDS: tuple[Find, ...] = get_args(Find)


@dataclass(frozen=True, slots=True)
class Options:
    """What to search for, and how far. Sizes are bytes; where the metric is `step-time`, all of them are microseconds.

    Args:
        find: growth, its mirror image, or movement either way.
        metric: whose growth is sought. `memory`: of allocated or of device, with reserved minus allocated and external
            followed besides. Else that of one quantity alone: peak `allocated`, peak `reserved`, `device` (reserved
            and external), `cached` (reserved minus allocated), `fragmentation` (`Metrics.needed` minus allocated),
            `step-time` (`Metrics.step_time`). A run that ran out of memory tells nothing of the last three.
        threshold_bytes: the crossing is that of this value of the metric (`memory`: of device), a value equal to it
            being still on the lower side; None: that of the limit, and none for `step-time`. A run that ran out of
            memory below it tells nothing, as it may have gone either way.
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
    metric: Metric = "memory"
    threshold_bytes: int | None = None
    noise_bytes: int | None = 0
    noise_allocations: int = 0
    explain: float = 0.9
    min_step_bytes: int | None = None
    budget: int | None = None
    exhaustive: bool = False
    grid: int = 0
    confirm: bool = True

    def __post_init__(self) -> None:
        for name, allowed in (("find", FINDS), ("metric", METRICS)):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        if not 0 < self.explain <= 1:
            raise ValueError(f"explain must be above 0 and at most 1, not {self.explain}")
        for name in ("noise_bytes", "noise_allocations", "threshold_bytes", "min_step_bytes", "budget", "grid"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative, and is {value}")

    def wanted(self, value: int) -> int:
        """The value seen from what is sought: positive is movement of the kind the user asked about."""
        if self.find == "any":
            return abs(value)
        return value if self.find == "regression" else -value
