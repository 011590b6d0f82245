"""A training command that is not ours, as it is run at one point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CommandCall:
    """`argv`, run unmodified in the folder of the point's sources.

    Attributes:
        name: what the command is called where a recipe function would be told.
        env: its own environment variables.
        prepare: names of the preparations it needs on a virtual GPU (`probes/probe_support/command`).
        config: what is compared between points where the command differs from one to the other; None: nothing.
    """

    argv: tuple[str, ...]
    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "argv": list(self.argv),
            "name": self.name,
            "env": dict(self.env),
            "prepare": list(self.prepare),
            "config": None if self.config is None else dict(self.config),
        }
