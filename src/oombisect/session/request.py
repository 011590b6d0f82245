"""What a user asked for: all that is needed to run a bisection, or to go on with one later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from oombisect.errors import OombisectError
from oombisect.probing.workload import MIN_ITERATIONS, Workload

FINDS = ("regression", "improvement")


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
        if self.world_size is not None and self.world_size < 1:
            raise OombisectError(f"--world-size {self.world_size} is not a number of ranks", "Use 1 or more.")
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
        for name, value in (("--budget", self.budget), ("--grid", self.grid)):
            if value is not None and value < 0:
                raise OombisectError(f"{name} {value} is no number of probes", "Use 0 or more.")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BisectRequest:
        probe = ProbeRequest.from_json(data["probe"])
        return cls(**{**data, "probe": probe, "paths": tuple(data["paths"])})
