"""Bytes inside, GiB for people; the unit is always written."""

from __future__ import annotations

import re

from oombisect.errors import OombisectError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_FACTORS = {
    "": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": TIB, "tib": TIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip


def format_bytes(size: int) -> str:
    """`1288490188` -> `1.20 GiB`; sizes under 0.1 GiB in MiB, under 1 MiB in bytes."""
    magnitude = abs(size)
    if magnitude < MIB:
        return f"{size} B"
    if magnitude < GIB // 10:
        return f"{size / MIB:.1f} MiB"
    return f"{size / GIB:.2f} GiB"


def format_delta(size: int) -> str:
    """As `format_bytes`, with the sign always written."""
    return f"{'+' if size >= 0 else '-'}{format_bytes(abs(size))}"


def parse_bytes(text: str) -> int:
    """`79.6GiB`, `80 GB`, `81559MiB` or plain bytes -> bytes.

    Raises:
        OombisectError: the text is no size, or not a positive one.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None or float(match[1]) <= 0:
        raise OombisectError(f"{text!r} is not a memory size", "Write it like 79.6GiB, 80GB or 81559MiB.")
    return round(float(match[1]) * factor)
