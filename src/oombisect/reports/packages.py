"""What a step did to the Python packages, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oombisect.session.verdict import StepVerdict
from oombisect.units import format_delta

_MOST = 8


def package_lines(step: StepVerdict, metric: str, words: str, label: str) -> list[str]:
    """Which packages differ, what they brought and which of them did, a line each.

    Args:
        metric: which sizes to tell, called `words`.
        label: follows every size.
    """
    changes = step.evidence.get("dependencies", ())
    shown = ", ".join(f"{c['package']} {c['before'] or 'none'} -> {c['after'] or 'none'}" for c in changes[:_MOST])
    more = f" and {len(changes) - _MOST} more (--json lists all)" if len(changes) > _MOST else ""
    lines = [f"packages: {shown}{more}"] if changes else []
    told: Mapping[str, Any] | None = step.evidence.get("packages")
    if not told:
        return lines
    if told["same_code"]:
        lines.append("a dependency bump: what a probe sees of the code is the same on both sides")
    elif told["part_bytes"]:
        lines.append(f"of {words} the packages brought {format_delta(told['part_bytes'][metric])}{label}")
    if verdict := told["verdict"]:
        lines += [_found(found, metric, label) for found in verdict["steps"]]
        if not verdict["steps"]:
            lines.append(f"of the packages no single one is named: {verdict['kind']}")
    return lines + [f"note: {note}" for note in told["notes"]]


def _found(step: Mapping[str, Any], metric: str, label: str) -> str:
    size = f"{format_delta(step['delta_bytes'][metric])}{label}"
    if step["blurred"]:
        return f"one of {', '.join(step['blurred'])}: {size}"
    return f"{step['subject']}: {size}{'' if step['named'] else ' (not confirmed)'}"
