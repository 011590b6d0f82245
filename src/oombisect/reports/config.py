"""What a config diff has to say besides its steps, in lines: what to take back, what interacts, what did nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oombisect.printable import printable
from oombisect.units import format_bytes, format_delta

_GOALS = {"fits": "it fits again", "growth-gone": "its growth is gone"}
_QUIET = {
    "moved": "keys that did nothing in their turn do something beside others",
    "rejected": "whether the other keys do anything on the bad side is not known: that state is rejected",
}
_METRICS = {"allocated": "peak allocated", "reserved": "peak reserved", "external": "outside PyTorch"}
_MANY = 12


def config_lines(config: Mapping[str, Any], label: str) -> list[str]:
    """The lines; `label` follows every size."""
    return [
        *_minimal(config["minimal_revert"], label),
        *_effects(config["effects"], label),
        *(_interaction(found, label) for found in config["interactions"]),
        *_keys(config),
    ]


def _minimal(found: Mapping[str, Any] | None, label: str) -> list[str]:
    if found is None:
        return []
    allocated, reserved = (format_bytes(found[name]) for name in ("peak_allocated", "peak_reserved"))
    sizes = f"{allocated} peak allocated, {reserved} peak reserved{label}"
    fits = "fits the limit" if found["fits"] else "does not fit the limit"
    which = "the fewest keys" if found["smallest"] else "keys (fewer may do)"
    head = f"take back {which} with which {_GOALS[found['goal']]} (probe {found['probe']}: {sizes}; {fits}):"
    return [head, *(f"  {key['path']} = {value_text(key, 'value', 'unset')}" for key in found["keys"])]


def value_text(told: Mapping[str, Any], name: str, missing: str) -> str:
    """The value `name` of a config as it is written in JSON and YAML, text without quotes; `missing` where there is
    none.
    """
    if name not in told:
        return missing
    value = told[name]
    return printable(value if isinstance(value, str) else json.dumps(value, sort_keys=True))


def _effects(effects: Sequence[Mapping[str, Any]], label: str) -> list[str]:
    """What the keys add to the bad config as it is, where that is something else than in the chain."""
    told = []
    for found in effects:
        if found["rejected"]:
            told.append(printable(f"{found['point']} cannot be taken back alone: {found['rejected']}"))
        elif found["interacts"]:
            own, turn = found["own_bytes"], found["chain_bytes"]
            name = max(_METRICS, key=lambda name: abs(own[name] - turn[name]))
            told.append(
                f"{found['point']} adds {format_delta(own[name])} {_METRICS[name]} to the bad config,"
                f" and added {format_delta(turn[name])} in its turn{label}"
            )
        if found.get("returned_with"):
            told.append(printable(f"{found['point']} was taken back with {', '.join(found['returned_with'])}"))
    return told


def _interaction(found: Mapping[str, Any], label: str) -> str:
    one, other = found["points"]
    name = max(_METRICS, key=lambda name: abs(found["bytes"][name]))
    size = found["bytes"][name]
    added = f"{format_bytes(abs(size))} {'more' if size > 0 else 'less'} {_METRICS[name]}"
    return f"{one} and {other} together add {added} than each adds without the other{label}"


def _keys(config: Mapping[str, Any]) -> list[str]:
    keys: Sequence[Mapping[str, Any]] = config["keys"]
    moved = {effect["point"] for effect in config["effects"]}
    told = [f"{len(keys)} keys differ at {config['revision'][:10]}"]
    for title, names in (
        ("nothing moved with", [k["path"] for k in keys if k["point"] not in moved and "not_alone" not in k]),
        ("set by the probe itself", _why(keys, "the probe sets it itself")),
        ("set by no assignment, so moved last", _why(keys, "no assignment makes it")),
    ):
        if names:
            more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
            told.append(printable(f"{title}: {', '.join(names[:_MANY])}{more}"))
    for together in config["moved_together"]:
        told.append(printable(f"moved together: {', '.join(together['keys'])} ({together['because']})"))
    for found in config["rejected"]:
        told.append(printable(f"rejected: {found['point']}: {found['reason']}")[:300])
    if config["quiet_keys"] in _QUIET:
        late = [effect["point"] for effect in config["effects"] if not any(effect["chain_bytes"].values())]
        told.append(printable(_QUIET[config["quiet_keys"]] + (f": {', '.join(late)}" if late else "")))
    return told


def _why(keys: Sequence[Mapping[str, Any]], reason: str) -> list[str]:
    return [key["path"] for key in keys if key.get("not_alone") == reason]
