"""The job file of a command: everything the hook is told. docs/command.md describes each key."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class CommandJob:
    """One probe of a command. Paths are absolute, sizes bytes."""

    out: str
    command: tuple[str, ...] = ()
    name: str = ""
    roots: dict[str, str] = field(default_factory=dict)
    iterations: int = 3
    until_exit: bool = False
    seed: int = 1234
    process_group: str = "fake"
    simulated: bool = True
    device: str = ""
    limit_bytes: int | None = None
    moe_skew: float = 1.0
    prepare: tuple[str, ...] = ()
    config: dict[str, Any] | None = None
    record_history: bool = True
    kind: str = "command"
    schema: int = SCHEMA

    @classmethod
    def load(cls, path: str | Path) -> CommandJob:
        """Raises `ValueError` for a job this hook does not understand: better no number than the wrong one."""
        data = json.loads(Path(path).read_text())
        unknown = sorted(set(data) - {f.name for f in fields(cls)})
        if unknown or data.get("schema") != SCHEMA or data.get("kind") != "command":
            raise ValueError(f"schema {data.get('schema')!r}, kind {data.get('kind')!r}, unknown keys: {unknown}")
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})
