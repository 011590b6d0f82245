"""What a user asked for: all that is needed to run a bisection, or to go on with one later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from oombisect.errors import OombisectError
from oombisect.probing.workload import MIN_ITERATIONS, Workload
from oombisect.units import MAX_BYTES, MIB, format_bytes

FINDS = ("regression", "improvement")
MAX_ITERATIONS = 1000  # each is recorded in full; memory repeats itself after the second
MAX_RANKS = 1 << 20
MAX_PROBES = 1_000_000
MIN_HOST_BYTES = 64 * MIB  # a Python process alone takes some tens


def _within(option: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise OombisectError(f"{option} {value} is out of range", f"Use {low} to {high}.")


def _size(option: str, value: int | None, low: int) -> None:
    if value is not None and not low <= value <= MAX_BYTES:
        raise OombisectError(f"{option} {format_bytes(value)} is out of range", f"Use {format_bytes(low)} or more.")


def _positive(option: str, value: float) -> None:
    if not math.isfinite(value) or value <= 0:
        raise OombisectError(f"{option} {value} is out of range", "Use a number above 0.")


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """How to probe: workload, device and environment. Sizes in bytes, times in seconds.

    `repo`, `megatron`, `python` and `gpu` None mean: the current directory or the cached clone; the repository's own
    submodule; oombisect's own interpreter; the real GPUs where there are any.
    """

    recipe: str
    repo: str | None = None
    megatron: str | None = None
    python: str | None = None
    gpu: str | None = None
    limit_bytes: int | None = None
    overrides: tuple[str, ...] = ()
    iterations: int = MIN_ITERATIONS
    seed: int = 1234
    ranks: tuple[int, ...] = ()
    world_size: int | None = None
    micro_batches: int | None = None
    moe_skew: float = 1.0
    env: Mapping[str, str] = field(default_factory=dict)
    time_limit: float = 900.0
    host_bytes: int = 16 << 30

    def __post_init__(self) -> None:
        if self.iterations < MIN_ITERATIONS:
            raise OombisectError(
                f"--iterations {self.iterations} is too few: optimizer state appears at the end of the first step",
                f"Use {MIN_ITERATIONS} or more.",
            )
        _within("--iterations", self.iterations, MIN_ITERATIONS, MAX_ITERATIONS)
        _within("--world-size", self.world_size, 1, MAX_RANKS)
        _within("--micro-batches", self.micro_batches, 1, MAX_RANKS)
        for rank in self.ranks:
            _within("--ranks", rank, 0, MAX_RANKS - 1)
        _positive("--time-limit", self.time_limit)
        _positive("--moe-skew", self.moe_skew)
        _size("--host-memory", self.host_bytes, MIN_HOST_BYTES)
        _size("--limit", self.limit_bytes, 1)
        if self.world_size is not None and any(rank >= self.world_size for rank in self.ranks):
            raise OombisectError(
                f"--ranks {','.join(map(str, self.ranks))} does not exist in a world of {self.world_size}",
                f"Ranks go from 0 to {self.world_size - 1}.",
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProbeRequest:
        return cls(**{**data, "overrides": tuple(data["overrides"]), "ranks": tuple(data["ranks"])})

    @property
    def workload(self) -> Workload:
        return Workload(
            recipe=self.recipe,
            overrides=self.overrides,
            iterations=self.iterations,
            seed=self.seed,
            ranks=self.ranks,
            world_size=self.world_size,
            micro_batches=self.micro_batches,
            moe_skew=self.moe_skew,
            env=self.env,
        )


@dataclass(frozen=True, slots=True)
class BisectRequest:
    """A whole `run`: which range, what to look for, when to stop, and how to probe."""

    range: str
    probe: ProbeRequest
    find: str = "regression"
    first_parent: bool = True
    paths: tuple[str, ...] = ()
    budget: int | None = None
    min_step_bytes: int | None = None
    exhaustive: bool = False
    grid: int = 0

    def __post_init__(self) -> None:
        if self.find not in FINDS:
            raise OombisectError(f"--find {self.find!r} is not known", f"Use {' or '.join(FINDS)}.")
        _within("--budget", self.budget, 0, MAX_PROBES)
        _within("--grid", self.grid, 0, MAX_PROBES)
        _size("--min-step", self.min_step_bytes, 1)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BisectRequest:
        probe = ProbeRequest.from_json(data["probe"])
        return cls(**{**data, "probe": probe, "paths": tuple(data["paths"])})
