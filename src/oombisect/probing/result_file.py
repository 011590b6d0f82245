"""What a probe's `result-<rank>.json` may say. Nothing in it is trusted: it is checked field by field.

A field that is wrong makes the whole result void; no number is guessed in its place.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from oombisect.memory.oom_messages import OomRecord, parse_message
from oombisect.printable import printable
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading

SCHEMA = 1
MAX_SIZE = (1 << 63) - 1  # SQLite's largest integer, and far above any memory
MAX_RANKS = 1 << 20
_MEASURED = (Outcome.EXACT, Outcome.CENSORED)
_NEEDED = ("allocated_peak", "reserved_peak")
_OOM_SIZES = ("requested", "capacity", "free", "allocated", "reserved")


class ResultError(ValueError):
    """The result is broken; the message names the field."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A checked result of one rank. All text is printable and on one line, the resolved `config` excepted.

    Of a command: what `ended` its process, the out-of-memory error that it `caught`, its `process_group`.
    """

    outcome: Outcome
    reason: str = ""
    reading: RankReading | None = None
    world_size: int | None = None
    suggested_ranks: tuple[int, ...] = ()
    recipe_function: str = ""
    config: Mapping[str, Any] | None = None
    config_hash: str = ""
    attention_backend: str = ""
    allocator_settings: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    imported: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cold_compile: bool = False
    ended: str = ""
    caught: Oom | None = None
    process_group: str = ""


def parse_result(data: object, rank: int) -> ProbeResult:
    """The result that `data` (parsed JSON) is, of the rank that was asked.

    Raises:
        ResultError: a field is missing, of the wrong type or out of its range. Nothing else is raised.
    """
    raw = _mapping(data, "the result")
    if _integer(raw.get("schema"), "schema") != SCHEMA:
        raise ResultError(f"schema {raw['schema']} is not {SCHEMA}")
    if _integer(raw.get("rank"), "rank") != rank:
        raise ResultError(f"rank {raw['rank']} is not the {rank} that was asked")
    outcome = _outcome(raw.get("outcome"))
    world_size = _optional_integer(raw.get("world_size"), "world_size", 1, MAX_RANKS)
    for name, value in _mapping(raw.get("seconds", {}), "seconds").items():
        _number(value, f"seconds.{printable(name)}")
    config = _config(raw)
    return ProbeResult(
        outcome=outcome,
        reason=_reason(outcome, _text(raw, "reason")),
        reading=_reading(raw, rank, outcome),
        world_size=world_size,
        suggested_ranks=_suggested(raw, world_size or MAX_RANKS),
        recipe_function=_text(raw, "recipe_function"),
        config=config,
        config_hash=_text(raw, "config_hash"),
        attention_backend=_text(raw, "attention_backend"),
        allocator_settings=_text(raw, "allocator_settings"),
        versions=_versions(raw),
        imported=_texts(raw, "imported"),
        notes=_texts(raw, "notes"),
        cold_compile=_boolean(raw.get("cold_compile", False), "cold_compile"),
        ended=_text(raw, "ended"),
        caught=_oom(raw.get("caught")),
        process_group=_text(raw, "process_group"),
    )


def _reading(raw: Mapping[str, Any], rank: int, outcome: Outcome) -> RankReading | None:
    named = _mapping(raw.get("phases", {}), "phases")
    if not named and outcome in _MEASURED:
        raise ResultError(f"phases: none, although the outcome is {outcome}")
    phases = {_phase_name(name): _phase(value, f"phases.{name}") for name, value in named.items()}
    external = _integer(raw.get("external", 0), "external")
    oom, snapshot, trace = _oom(raw.get("oom")), _snapshot(raw), _trace(raw)
    if not phases:
        return None
    reading = RankReading(rank, phases, external, oom, snapshot, trace)
    for name, total in (
        ("reserved_peak and external", reading.peak_device),
        ("allocations", reading.allocations),
        ("alloc_retries", sum(phase.alloc_retries for phase in phases.values())),
        ("ooms", sum(phase.ooms for phase in phases.values())),
    ):
        if total > MAX_SIZE:
            raise ResultError(f"{name} add up to {total}")
    return reading


def _phase_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_]{1,64}", name):
        raise ResultError(f"phases: {_shown(name)} is no name of a phase")
    return name


def _phase(value: object, where: str) -> PhaseMetrics:
    raw = _mapping(value, where)
    _only(raw, [f.name for f in fields(PhaseMetrics)], where)
    for name in _NEEDED:
        if name not in raw:
            raise ResultError(f"{where}.{name} is missing")
    checked: dict[str, Any] = {}
    for name, item in raw.items():
        if name == "seconds":
            checked[name] = _number(item, f"{where}.{name}")
        elif name == "device_used":
            checked[name] = _optional_integer(item, f"{where}.{name}")
        else:
            checked[name] = _integer(item, f"{where}.{name}")
    return PhaseMetrics(**checked)


def _oom(value: object) -> Oom | None:
    if value is None:
        return None
    raw = _mapping(value, "oom")
    _only(raw, [f.name for f in fields(Oom)], "oom")
    exact = {name: _optional_integer(raw.get(name), f"oom.{name}") for name in _OOM_SIZES}
    phase, message = (_string(raw.get(name), f"oom.{name}") for name in ("phase", "message"))
    told = _sizes_of_message(message)
    sizes = {name: told.get(name) if size is None else size for name, size in exact.items()}
    return Oom(printable(phase), printable(message), **sizes)


def _sizes_of_message(message: str) -> dict[str, int]:
    """What the message says, rounded as it is: for what the allocator itself did not tell the probe."""
    found = parse_message(message)
    if not isinstance(found, OomRecord):
        return {}
    return {name: size.bytes for name, size in found.sizes() if size.bytes <= MAX_SIZE}


def _snapshot(raw: Mapping[str, Any]) -> str | None:
    name = raw.get("snapshot")
    if name is None:
        return None
    text = _string(name, "snapshot")
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}", text):
        raise ResultError(f"snapshot {_shown(name)} is no plain file name")
    return text


def _trace(raw: Mapping[str, Any]) -> str | None:
    trace = raw.get("trace_hash")
    if trace is None:
        return None
    text = _string(trace, "trace_hash")
    if not re.fullmatch(r"[0-9a-f]{1,128}", text):
        raise ResultError(f"trace_hash {_shown(trace)} is no hexadecimal hash")
    return text


def _config(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The resolved config, which must be the one its hash is of: the history finds it by that hash."""
    given = raw.get("config")
    config = None if given is None else _mapping(given, "config")
    try:
        text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ResultError(f"config is not plain JSON: {printable(str(error))}") from error
    expected = "" if config is None else hashlib.sha256(text).hexdigest()
    if _text(raw, "config_hash") != expected:
        raise ResultError("config_hash is not the hash of config")
    return config


def _suggested(raw: Mapping[str, Any], world_size: int) -> tuple[int, ...]:
    ranks = _list(raw, "suggested_ranks")
    return tuple(dict.fromkeys(_integer(rank, "suggested_ranks", 0, world_size - 1) for rank in ranks))


def _versions(raw: Mapping[str, Any]) -> dict[str, str]:
    versions = _mapping(raw.get("versions", {}), "versions")
    return {
        printable(name): printable(_string(value, f"versions.{printable(name)}")) for name, value in versions.items()
    }


def _outcome(value: object) -> Outcome:
    try:
        return Outcome(_string(value, "outcome"))
    except ValueError as error:
        raise ResultError(f"outcome {_shown(value)} is none of {', '.join(Outcome)}") from error


def _reason(outcome: Outcome, reason: str) -> str:
    return reason or ("" if outcome in _MEASURED else "the probe gave no reason")


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ResultError(f"{where} is {_shown(value)}, not an object")
    return value


def _only(raw: Mapping[str, Any], known: list[str], where: str) -> None:
    for name in raw:
        if name not in known:
            raise ResultError(f"{where} has an unknown field {_shown(name)}")


def _integer(value: object, where: str, low: int = 0, high: int = MAX_SIZE) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ResultError(f"{where} is {_shown(value)}, not a whole number")
    if not low <= value <= high:
        raise ResultError(f"{where} is {_shown(value)}, not in {low}..{high}")
    return value


def _optional_integer(value: object, where: str, low: int = 0, high: int = MAX_SIZE) -> int | None:
    return None if value is None else _integer(value, where, low, high)


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ResultError(f"{where} is {_shown(value)}, not a number")
    if (isinstance(value, float) and not math.isfinite(value)) or not 0 <= value <= MAX_SIZE:
        raise ResultError(f"{where} is {_shown(value)}, not a finite number, 0 or more")
    return float(value)


def _boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ResultError(f"{where} is {_shown(value)}, neither true nor false")
    return value


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ResultError(f"{where} is {_shown(value)}, not a string")
    return value


def _text(raw: Mapping[str, Any], name: str) -> str:
    """A text that may be null or left out: then it is empty."""
    value = raw.get(name)
    return "" if value is None else printable(_string(value, name))


def _list(raw: Mapping[str, Any], name: str) -> list[Any]:
    value = raw.get(name, [])
    if not isinstance(value, list):
        raise ResultError(f"{name} is {_shown(value)}, not a list")
    return value


def _texts(raw: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(printable(_string(item, f"{name}[{index}]")) for index, item in enumerate(_list(raw, name)))


def _shown(value: object) -> str:
    """A value for a message: short and printable."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) > 1 << 128:
        return "a huge number"
    text = printable(json.dumps(value) if value is None or isinstance(value, bool) else repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
