"""Where a run ran out of memory and who held what it could not get, as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oombisect.printable import printable
from oombisect.units import counted, format_bytes


def stranded_lines(told: Mapping[str, Any], label: str) -> list[str]:
    """`failure_lines` of a verdict's or a probe's evidence, with the limit that was replayed."""
    where = "" if told["enforced"] else ", just below what it needs"
    return [f"replayed with {format_bytes(told['limit_bytes'])}{label}{where}:", *failure_lines(told, label)]


def failure_lines(failure: Mapping[str, Any], label: str) -> list[str]:
    """The request that fails and what is stranded then; `failure` is `describe_stranded`'s, `label` follows sizes."""
    asked = format_bytes(failure["requested_bytes"])
    lines = [
        f"first out-of-memory error at event {failure['event']:,}{_phase(failure)}: {asked} asked for"
        f" (a segment of {format_bytes(failure['segment_bytes'])}) with {format_bytes(failure['allocated_bytes'])}"
        f" allocated of {format_bytes(failure['reserved_bytes'])} reserved{label}"
    ]
    lines += [f"    {printable(frame)}" for frame in failure["requested_by"][:3]]
    rounding = failure.get("rounding_bytes", 0)
    unused = format_bytes(failure["stranded_bytes"] + rounding)
    lines.append(
        f"  stranded: {unused}{label}, of which {format_bytes(failure['stranded_bytes'])} are free and cannot be given"
        f" back{label}; the largest free piece for it has {format_bytes(failure['largest_free_bytes'])}{label}"
    )
    for holder in failure["holders"]:
        lines += _holder(holder, f"{format_bytes(holder['stranded_bytes'])} held by", label)
    if rounding:
        lines.append(
            f"  {format_bytes(rounding)} lie unused inside blocks, larger than what was asked for"
            f" ({format_bytes(failure['asked_for_bytes'])}){label}:"
        )
        for holder in failure["rounders"]:
            lines += _holder(holder, f"{format_bytes(holder['rounding_bytes'])} inside", label)
    return lines


def _holder(holder: Mapping[str, Any], what: str, label: str) -> list[str]:
    """`what` names the bytes that the blocks of one place keep."""
    place = printable(holder["stack"][0]) if holder["stack"] else "an unknown place (no Python stack)"
    return [
        f"  {what} {counted(holder['blocks'], 'block')} of {format_bytes(holder['size_bytes'])} in all,"
        f" {holder['never_freed']:,} not freed while it was recorded{label}, allocated at {place}",
        *(f"    {printable(frame)}" for frame in holder["stack"][1:3]),
    ]


def _phase(failure: Mapping[str, Any]) -> str:
    return f" in {failure['phase']}" if failure.get("phase") else ""
