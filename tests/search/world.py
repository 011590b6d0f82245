"""A history whose truth is known, which answers the search's requests as a driver would."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import accumulate

from oombisect.search import (
    Censored,
    Conclusion,
    Conflict,
    Exact,
    Infra,
    Measure,
    Metrics,
    Observation,
    Options,
    Request,
    Revert,
    State,
    Unresolved,
    conclude,
    observe,
    plan,
    start,
)

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Change:
    """What one point's change adds: bytes, and microseconds of a step.

    `stranded` is reserved on top of allocated, `needed` what the allocator needs on top of it.
    """

    allocated: int = 0
    stranded: int = 0
    external: int = 0
    phase: int = 0
    allocations: int = 0
    needed: int = 0
    step_time: int = 0

    def __neg__(self) -> Change:
        return Change(*(-part for part in self._parts))

    def __add__(self, other: Change) -> Change:
        return Change(*map(sum, zip(self._parts, other._parts, strict=True)))

    @property
    def _parts(self) -> tuple[int, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass
class World:
    """Points 0..count-1; `changes` by the point that brings them.

    `reverted` maps a point to the later point that takes its change back; `broken` points do not build, `lost` ones
    meet a failing machine; above `card` bytes a run dies (None: it is measured all the same), with
    `death` bytes allocated (None: when the card is full); `noise` is the most a reading is off, bytes, `time_noise`
    the most its step time is, microseconds.
    """

    count: int
    changes: Mapping[int, Change] = field(default_factory=dict)
    limit: int = 80 * GIB
    card: int | None = None
    death: int | None = None
    broken: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    conflicts: frozenset[int] = frozenset()
    reverted: Mapping[int, int] = field(default_factory=dict)
    noise: int = 0
    time_noise: int = 0
    seed: int = 0
    base: int = 40 * GIB
    asked: list[Request] = field(default_factory=list)

    def answer(self, request: Request) -> Observation:
        """What the driver would report."""
        self.asked.append(request)
        index = request.index
        if isinstance(request, Revert):
            if index in self.conflicts or index in self.reverted:
                return Conflict("does not revert cleanly")
            return self._reading(self._so_far[-1] + -self._all.get(index, Change()), f"revert {index}")
        if index in self.lost:
            return Infra("node lost")
        if index in self.broken:
            return Unresolved("does not import")
        return self._reading(self._so_far[index], repr(request))

    def metrics(self, index: int) -> Metrics:
        """The truth about a point."""
        return self._metrics(self._so_far[index])

    @cached_property
    def _all(self) -> dict[int, Change]:
        return {**self.changes, **{later: -self.changes[point] for point, later in self.reverted.items()}}

    @cached_property
    def _so_far(self) -> list[Change]:
        """All changes up to and including each point's."""
        return list(accumulate(self._all.get(i, Change()) for i in range(self.count)))

    def _metrics(self, change: Change, noise: int = 0, late: int = 0) -> Metrics:
        allocated = self.base + change.allocated + noise
        return Metrics(
            allocated=allocated,
            reserved=allocated + GIB + change.stranded,
            external=GIB // 2 + change.external,
            allocations=1000 + change.allocations,
            phases=(("model", 10 * GIB + change.phase), ("step_1", allocated)),
            needed=allocated + change.needed,
            step_time=1_000_000 + change.step_time + late,
        )

    def _reading(self, change: Change, salt: str) -> Observation:
        rng = random.Random(f"{self.seed} {salt}")
        noise, late = (rng.randint(-most, most) if most else 0 for most in (self.noise, self.time_noise))
        metrics = self._metrics(change, noise, late)
        used = metrics.reserved + metrics.external
        if self.card is not None and used > self.card:
            over = used - self.card if self.death is None else metrics.allocated - self.death
            return Censored(Metrics(metrics.allocated - over, metrics.reserved - over, metrics.external))
        return Exact(metrics, used <= self.limit)

    def search(self, options: Options | None = None, parallel: int = 1, **axis: object) -> tuple[State, Conclusion]:
        """Run a search to its end."""
        state = start(self.count, options, **axis)  # type: ignore[arg-type]
        for _ in range(50 * self.count + 100):
            requests = plan(state, parallel)
            assert len(requests) <= parallel and len(set(requests)) == len(requests)
            if not requests:
                return state, conclude(state)
            for request in requests:
                state = observe(state, request, self.answer(request))
        raise AssertionError("the search does not end")


def probes(state: State) -> int:
    """Points measured for the first time."""
    return sum(isinstance(request, Measure) for request, _ in state.log)
