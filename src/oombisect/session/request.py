"""What a user asked for: all that is needed to run a bisection, or to go on with one later."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from oombisect.errors import OombisectError
from oombisect.probing.workload import MIN_ITERATIONS, Workload
from oombisect.recipes import megatron_ci
from oombisect.repo.hotfix import Hotfix
from oombisect.search.metric import METRICS as ALL_METRICS
from oombisect.search.metric import unit
from oombisect.search.options import FINDS
from oombisect.units import MAX_BYTES, MIB, format_bytes

METRICS = tuple(metric for metric in ALL_METRICS if unit(metric) == "bytes")
MAX_ITERATIONS = 1000  # each is recorded in full; memory repeats itself after the second
MAX_RANKS = 1 << 20
MAX_PROBES = 1_000_000
ENDS_PROBED = 2  # a search begins with both
MAX_JOBS = 32
ENDS = ("good", "bad")
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
    submodule; oombisect's own interpreter; the real GPUs where there are any. `per_lock`: a Python environment for each
    `uv.lock`, over that of the interpreter.

    What runs is `recipe`, of Bridge or (`ci:TEST`) of Megatron-LM's CI, or else `command` with its `build`. `prepare`
    names what it needs on a virtual GPU, `until_exit` lets it run to its own end.

    `hotfixes` are applied to each commit before it is probed; `config_of` is the commit whose config all run with.
    """

    recipe: str = ""
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
    command: tuple[str, ...] = ()
    build: str | None = None
    prepare: tuple[str, ...] = ()
    until_exit: bool = False
    per_lock: bool = False
    hotfixes: tuple[Hotfix, ...] = ()
    config_of: str | None = None

    def __post_init__(self) -> None:
        self._check_what_runs()
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

    def _check_what_runs(self) -> None:
        if self.recipe and self.command:
            raise OombisectError("--recipe and a command were both given", "Give one of them: a probe runs one thing.")
        if self.runs_command:
            mine = (
                ("--set", self.overrides),
                ("--micro-batches", self.micro_batches),
                ("--env per-lock", self.per_lock),
                ("--freeze-config", self.config_of),
            )
            for option, value in mine:
                if value:
                    raise OombisectError(f"{option} is for recipes of Bridge", "Write it into the command's arguments.")
            megatron_ci.asked(self.recipe)
            unknown = sorted(set(self.prepare) - set(megatron_ci.PREPARATIONS))
            if unknown:
                raise OombisectError(
                    f"--prepare {unknown[0]} is not known", f"There are {', '.join(megatron_ci.PREPARATIONS)}."
                )
        elif self.build or self.prepare or self.until_exit:
            raise OombisectError(
                "--build, --prepare and --until-exit are for commands", "Give one: oombisect run GOOD..BAD -- COMMAND."
            )

    @property
    def runs_command(self) -> bool:
        """Whether a training command runs in the place of a recipe of Bridge."""
        return bool(self.command) or self.recipe.startswith(megatron_ci.PREFIX)

    @property
    def label(self) -> str:
        """What runs, for people: the recipe's name or the command line."""
        return self.recipe or shlex.join(self.command)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProbeRequest:
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in data.items()}
        return cls(**{**values, "hotfixes": tuple(Hotfix(**item) for item in data.get("hotfixes", ()))})

    @property
    def workload(self) -> Workload:
        """A test of Megatron-LM's CI runs on one node of 8, and what its last rank takes is what CI records."""
        world_size, ranks = self.world_size, self.ranks
        if self.recipe.startswith(megatron_ci.PREFIX):
            world_size = world_size or megatron_ci.WORLD_SIZE
            ranks = ranks or (world_size - 1,)
        return Workload(
            recipe=self.label,
            overrides=self.overrides,
            iterations=self.iterations,
            seed=self.seed,
            ranks=ranks,
            world_size=world_size,
            micro_batches=self.micro_batches,
            moe_skew=self.moe_skew,
            env=self.env,
            command=self.command,
            build=self.build,
            prepare=self.prepare,
            until_exit=self.until_exit,
            hotfixes=tuple(hotfix.digest for hotfix in self.hotfixes),
            config_of=self.config_of,
        )


@dataclass(frozen=True, slots=True)
class BisectRequest:
    """A whole `run`: which range, what to look for, when to stop, and how to probe.

    `metric`: whose movement is sought. `threshold_bytes`: the value of it whose crossing is looked for, instead of the
    limit's.
    `freeze_config`: the end, `good` or `bad`, whose config every commit runs with.
    `skip`: commits or ranges of them that are never probed.
    `descend`: go on into Megatron-LM where a named step moves the submodule.
    `jobs`: probes at once; None: as many as the machine can.
    """

    range: str
    probe: ProbeRequest
    find: str = "regression"
    metric: str = "memory"
    threshold_bytes: int | None = None
    first_parent: bool = True
    paths: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    freeze_config: str | None = None
    budget: int | None = None
    min_step_bytes: int | None = None
    exhaustive: bool = False
    grid: int = 0
    descend: bool = True
    jobs: int | None = 1

    def __post_init__(self) -> None:
        if self.find not in FINDS:
            raise OombisectError(f"--find {self.find!r} is not known", f"Use {', '.join(FINDS)}.")
        if self.metric not in METRICS:
            timed = "A probe's steps are few, and slowed by recording each allocation: they tell no speed. "
            time = timed if self.metric in ALL_METRICS else ""
            raise OombisectError(f"--metric {self.metric!r} is not known", f"{time}Use {', '.join(METRICS)}.")
        if self.freeze_config not in (None, *ENDS):
            raise OombisectError(f"--freeze-config {self.freeze_config!r} is no end", f"Use {' or '.join(ENDS)}.")
        if self.freeze_config and self.probe.runs_command:
            raise OombisectError("--freeze-config is for recipes of Bridge", "A command has no config; leave it out.")
        _size("--threshold", self.threshold_bytes, 1)
        _within("--budget", self.budget, ENDS_PROBED, MAX_PROBES)
        _within("--grid", self.grid, 0, MAX_PROBES)
        _within("--jobs", self.jobs, 1, MAX_JOBS)
        _size("--min-step", self.min_step_bytes, 1)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BisectRequest:
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in data.items()}
        return cls(**{**values, "probe": ProbeRequest.from_json(data["probe"])})
