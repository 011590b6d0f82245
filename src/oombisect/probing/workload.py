"""What is asked of a probe: the workload, the same at every point, and the variation of one probe of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oombisect.probing.command_call import CommandCall

JOB_SCHEMA = 1
CONFIG_FILE = "config.json"
MIN_ITERATIONS = 3  # optimizer state appears at the end of the first step, so the second is the first full peak


@dataclass(frozen=True, slots=True)
class RecipeCall:
    """The recipe function of one commit, e.g. `megatron.bridge.recipes.qwen.qwen3:qwen3_8b_peft_config`."""

    requested: str
    module: str
    function: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "requested": self.requested,
            "module": self.module,
            "function": self.function,
            "kwargs": dict(self.kwargs),
        }


@dataclass(frozen=True, slots=True)
class ConfigCall:
    """A recipe's config, changed: `config` is laid over it (a config as probes describe it, or parts of one), then
    `overrides` are applied as Bridge writes them. `env` are variables of the process; they win over the config's own.
    With `complete` a commit that has no field for something in `config` is unresolved.
    """

    recipe: RecipeCall
    overrides: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    complete: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.to_json(),
            "overrides": list(self.overrides),
            "config": self.config,
            "env": dict(self.env),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConfigCall:
        recipe = RecipeCall(**data["recipe"])
        return cls(recipe, tuple(data["overrides"]), data["config"], dict(data["env"]))


Call = RecipeCall | ConfigCall | CommandCall
"""What a probe runs at a point."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One training run, described independently of the commit.

    `ranks` are the ranks probed; empty means the ranks the recipe's layout makes different (the probe names them).
    `world_size` None is the recipe's own. `moe_skew` scales the declared balanced routing of local experts.

    Where a command is run in the place of a recipe, `recipe` is what to call it; `command` is empty where each commit
    tells its own. `build` runs before it at each commit, `prepare` names what it needs on a virtual GPU, `until_exit`
    lets it run to its own end. `hotfixes` are hashes of the changes that are applied to each commit,
    `config_of` is the commit whose config each runs with.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    iterations: int = MIN_ITERATIONS
    seed: int = 1234
    ranks: tuple[int, ...] = ()
    world_size: int | None = None
    micro_batches: int | None = None
    moe_skew: float = 1.0
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    build: str | None = None
    prepare: tuple[str, ...] = ()
    until_exit: bool = False
    hotfixes: tuple[str, ...] = ()
    config_of: str | None = None

    def to_json(self) -> dict[str, Any]:
        """What is particular to commands, or alters commits, is told only where it was asked for."""
        return {
            "recipe": self.recipe,
            "overrides": list(self.overrides),
            "iterations": self.iterations,
            "seed": self.seed,
            "ranks": list(self.ranks),
            "world_size": self.world_size,
            "micro_batches": self.micro_batches,
            "moe_skew": self.moe_skew,
            "env": dict(self.env),
            **({"command": list(self.command)} if self.command else {}),
            **({"build": self.build} if self.build else {}),
            **({"prepare": list(self.prepare)} if self.prepare else {}),
            **({"until_exit": True} if self.until_exit else {}),
            **({"hotfixes": list(self.hotfixes)} if self.hotfixes else {}),
            **({"config_of": self.config_of} if self.config_of else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in data.items()}
        return cls(**values)


def as_given(recipe: str, workload: Mapping[str, Any]) -> str:
    """What runs, as the end of a command line gives it: a command where `workload`, in JSON, has one."""
    command = workload.get("command")
    return f"-- {shlex.join(command)}" if command else f"--recipe {recipe}"


@dataclass(frozen=True, slots=True)
class Variation:
    """How one probe differs from a plain one: a memory limit that is enforced (bytes), allocator settings, ranks."""

    limit_bytes: int | None = None
    alloc_conf: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"limit_bytes": self.limit_bytes, "alloc_conf": self.alloc_conf}


PLAIN = Variation()
EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the code of a point lies: folders for `sys.path`, in order, and the root of each repository by name."""

    paths: tuple[Path, ...]
    roots: Mapping[str, Path]


def job_json(
    workload: Workload,
    call: Call,
    sources: Sources,
    variation: Variation,
    *,
    rank: int,
    process_group: str,
    device: str,
    simulated: bool,
    model_configs: Path,
    out: Path,
    describe: bool = False,
) -> dict[str, Any]:
    """The job file of one probe process, schema 1 (docs/probe.md).

    A config that is laid over the recipe's is the file `CONFIG_FILE` in `out`; with `describe` nothing is trained.
    """
    assert not isinstance(call, CommandCall), "a command has a job of its own"
    changed = call if isinstance(call, ConfigCall) else ConfigCall(call)
    env = {**workload.env, **changed.env}
    if variation.alloc_conf is not None:
        env["PYTORCH_CUDA_ALLOC_CONF"] = env["PYTORCH_ALLOC_CONF"] = variation.alloc_conf
    return {
        "schema": JOB_SCHEMA,
        "kind": "bridge_train",
        "source_paths": [str(path) for path in sources.paths],
        "roots": {name: str(path) for name, path in sources.roots.items()},
        "recipe": changed.recipe.to_json(),
        # A complete config has the workload's overrides in it; a commit may have no field for some of them.
        "overrides": [*(() if changed.complete else workload.overrides), *changed.overrides],
        "iterations": workload.iterations,
        "seed": workload.seed,
        "rank": rank,
        "world_size": workload.world_size,
        "process_group": process_group,
        "simulated": simulated,
        "device": device,
        "limit_bytes": variation.limit_bytes,
        "micro_batches": workload.micro_batches,
        "moe_skew": workload.moe_skew,
        "env": env,
        "transformer_engine": None,
        "model_configs": str(model_configs),
        "record_history": True,
        "config_file": None if changed.config is None else str(out / CONFIG_FILE),
        "config_complete": changed.complete,
        "describe": describe,
        "out": str(out),
    }
