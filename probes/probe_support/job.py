"""The job file: everything a probe is told. docs/probe.md describes each key."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .outcome import Unresolved

SCHEMA = 1


@dataclass(frozen=True)
class Recipe:
    """The function that builds the configuration: `module`:`function`(**`kwargs`); `requested`: a user's name of it."""

    module: str
    function: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    requested: str = ""

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in sorted(self.kwargs.items()))
        return f"{self.module}:{self.function}({arguments})"


@dataclass(frozen=True)
class Job:
    """One probe of one rank. Paths are absolute, sizes bytes."""

    recipe: Recipe
    out: str
    source_paths: tuple[str, ...] = ()
    roots: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    iterations: int = 3
    seed: int = 1234
    rank: int = 0
    world_size: int | None = None
    process_group: str = "fake"
    simulated: bool = True
    device: str = ""
    limit_bytes: int | None = None
    micro_batches: int | None = None
    moe_skew: float = 1.0
    env: dict[str, str] = field(default_factory=dict)
    transformer_engine: str | None = None
    model_configs: str | None = None
    record_history: bool = True
    config_file: str | None = None
    config_complete: bool = False
    describe: bool = False
    kind: str = "bridge_train"
    schema: int = SCHEMA

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        """Raises `Unresolved` for a job this probe does not understand: better no number than the wrong one."""
        unknown = sorted(set(data) - {f.name for f in fields(cls)})
        if unknown:
            raise Unresolved(f"the job has keys this probe does not know: {', '.join(unknown)}")
        if data.get("schema") != SCHEMA or data.get("kind") != "bridge_train":
            raise Unresolved(f"the job is of schema {data.get('schema')!r}, kind {data.get('kind')!r}")
        if data.get("process_group", "fake") not in ("fake", "nccl"):
            raise Unresolved(f"process_group {data['process_group']!r} is neither 'fake' nor 'nccl'")
        if data.get("iterations", 3) < 2:
            raise Unresolved("iterations must be 2 or more: optimizer state appears at the end of the first step")
        recipe = {key: value for key, value in data["recipe"].items() if value is not None}
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        values["recipe"] = Recipe(**recipe)
        values["env"] = {name: str(value) for name, value in (data.get("env") or {}).items()}
        return cls(**values)

    @classmethod
    def load(cls, path: str | Path) -> Job:
        return cls.from_json(json.loads(Path(path).read_text()))
