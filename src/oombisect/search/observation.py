"""What the caller tells the search: one observation per request. All sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metrics:
    """The memory of one point, of the rank that decides.

    `allocated` and `reserved` are peaks of PyTorch's allocator, `external` lies outside it, `allocations` is a count,
    `phases` holds each phase's peak allocated by name. `needed` is the least the allocator must be given for the run to
    survive, `step_time` the microseconds of a step; None where nobody measured them.
    """

    allocated: int
    reserved: int
    external: int = 0
    allocations: int = 0
    phases: tuple[tuple[str, int], ...] = ()
    needed: int | None = None
    step_time: int | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """The difference between two points' metrics, bytes, signed. Deltas add up exactly."""

    allocated: int = 0
    reserved: int = 0
    external: int = 0

    @classmethod
    def between(cls, before: Metrics, after: Metrics) -> Delta:
        return cls(
            after.allocated - before.allocated, after.reserved - before.reserved, after.external - before.external
        )

    def __add__(self, other: Delta) -> Delta:
        return Delta(self.allocated + other.allocated, self.reserved + other.reserved, self.external + other.external)

    def __neg__(self) -> Delta:
        return Delta(-self.allocated, -self.reserved, -self.external)

    @property
    def cached(self) -> int:
        """Reserved minus allocated: what the caching allocator holds beyond the tensors."""
        return self.reserved - self.allocated

    @property
    def device(self) -> int:
        """All of it, as the device sees it."""
        return self.reserved + self.external

    @property
    def channels(self) -> tuple[int, int, int]:
        """The three quantities the search follows separately; they sum to `device`."""
        return self.allocated, self.cached, self.external

    @property
    def size(self) -> int:
        """The largest movement in any channel, or in what several of them come to together, unsigned."""
        return max(abs(value) for value in (*self.channels, self.reserved, self.device))


NOTHING = Delta()


@dataclass(frozen=True, slots=True)
class Exact:
    """It ran to the end; `fits` says whether it fits the limit."""

    metrics: Metrics
    fits: bool


@dataclass(frozen=True, slots=True)
class Censored:
    """It ran out of memory: it does not fit, and its peaks are at least these.

    What it asked for when it died belongs to the bounds. They may lie far below what other points reach.
    """

    bounds: Metrics


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The code does not build, import or accept the config here."""

    reason: str


@dataclass(frozen=True, slots=True)
class Infra:
    """The machine failed, not the code, and the caller has given up retrying. Never a verdict."""

    reason: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """The change could not be reverted on the bad tip. An answer to `Revert` only."""

    reason: str


Reading = Exact | Censored
Observation = Exact | Censored | Unresolved | Infra | Conflict


def metrics_of(reading: Reading) -> Metrics:
    """The metrics, or the lower bounds where it ran out of memory."""
    return reading.metrics if isinstance(reading, Exact) else reading.bounds


def fits(reading: Reading) -> bool:
    return isinstance(reading, Exact) and reading.fits
