"""What a probe that trains nothing says: the configuration a call makes, before and after the probe's own settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oombisect.printable import printable

_RESULT_LIMIT = 64 << 20


class NoDescription(Exception):
    """There is no configuration to describe; the message says why."""


@dataclass(frozen=True, slots=True)
class Description:
    """A configuration as plain values.

    `given` is what the call makes; `settled` is what a probe of it trains: with few steps, nothing saved, and a global
    batch of as few micro-batches as show the full peak. `function` is the recipe's, `notes` are for people.
    """

    given: Mapping[str, Any]
    settled: Mapping[str, Any]
    function: str
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "given": dict(self.given),
            "settled": dict(self.settled),
            "function": self.function,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Description:
        return cls(data["given"], data["settled"], data["function"], tuple(data["notes"]))


def read_description(out: Path, rank: int) -> Description | None:
    """The description in `out`; None where the probe left no result.

    Raises:
        NoDescription: the configuration was rejected, or the file is broken.
    """
    path = out / f"result-{rank}.json"
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _RESULT_LIMIT:
            raise ValueError("it is too large")
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["outcome"] != "described":
            raise NoDescription(printable(str(raw["reason"])))
        given, settled = raw["given"], raw["config"]
        if not isinstance(given, dict) or not isinstance(settled, dict):
            raise ValueError("it holds no configuration")
        notes = tuple(printable(str(note)) for note in raw["notes"])
        return Description(given, settled, printable(str(raw["recipe_function"])), notes)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoDescription(f"the probe wrote an unreadable {path.name}: {printable(str(error))}") from error
