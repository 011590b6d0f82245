"""What was found inside a roll of Megatron-LM or a merge, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oombisect.reports.points import short
from oombisect.session.verdict import StepVerdict
from oombisect.units import counted, format_bytes, format_delta

PARTS = {"megatron-lm": "Megatron-LM", "bridge": "Bridge's source", "dependencies": "dependencies"}
_MOVES = {"sideways": "sideways, ", "back": "back, "}


def descent_lines(step: StepVerdict, metric: str, words: str, label: str) -> list[str]:
    """How a roll was split and where it was walked, a line each.

    Args:
        metric: which sizes to tell, called `words`.
        label: follows every size.
    """
    descent: Mapping[str, Any] = step.evidence.get("descent", {})
    if not descent:
        return []
    lines = []
    if shares := descent.get("shares_bytes"):
        fixed = descent["environment"]["held_fixed"]
        told = [
            f"{name} {format_delta(shares[part][metric])}"
            for part, name in PARTS.items()
            if part != "dependencies" or not fixed
        ]
        together = (descent.get("interaction_bytes") or {}).get(metric, 0)
        more = f", of which {format_delta(together)} only together" if together else ""
        lines.append(f"shares of {words}: {', '.join(told)}{more}{label}")
    if changes := descent.get("shares_change"):
        told = [f"{name} {format_delta(changes[part])}" for part, name in PARTS.items() if changes[part]]
        lines.append(f"shares of what was followed: {', '.join(told) or 'none'}{label}")
    lines += [_corner(corner, label) for corner in descent.get("corners", ())]
    if branch := descent.get("branch"):
        lines.append(f"merges {counted(branch['commits'], 'commit')} of a branch, up to {short(branch['last'])}")
    if descent.get("base"):
        pins = descent["pins"]
        how = _MOVES.get(pins.get("move", ""), "")
        lines.append(
            f"Megatron-LM {short(pins['before'])}..{short(pins['after'])}: {how}{pins.get('commits', 0)} commits,"
            f" walked under Bridge {short(descent['base']['bridge'])}"
        )
    return lines


def _corner(corner: Mapping[str, Any], label: str) -> str:
    where = f"in the environment of {short(corner['environment'])} " if corner.get("environment") else ""
    name = f"Bridge {short(corner['bridge'])} {where}with Megatron-LM {short(corner['megatron-lm'])}"
    if corner["peak_allocated"] is None:
        return f"{name}: {corner['outcome']}: {corner['reason']}"
    fits = {True: "; fits", False: "; does not fit", None: ""}[corner["fits"]]
    bound = ">= " if corner["outcome"] == "censored" else ""
    return f"{name}: {bound}{format_bytes(corner['peak_allocated'])} peak allocated{label}{fits}"
