"""Bytes inside, GiB for people; the unit is always written."""

from __future__ import annotations

import re
from fractions import Fraction

from oombisect.errors import OombisectError

MAX_BYTES = (1 << 63) - 1
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
    """`79.6GiB`, `80 GB`, `81559MiB` or plain bytes (1 MiB or more of them) -> bytes.

    Raises:
        OombisectError: the text is no size, not a positive one, has no unit and is too small to be meant as bytes, or
            is larger than 2**63 - 1 bytes.
    """
    match = re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    factor = _FACTORS.get(match[2].lower()) if match else None
    size = round(Fraction(match[1]) * factor) if match and factor else 0
    if match is None or size <= 0:
        raise OombisectError(f"{text!r} is not a memory size", "Write it like 79.6GiB, 80GB or 81559MiB.")
    if not match[2] and size < MIB:
        raise OombisectError(f"{text!r} has no unit", f"Write {match[1]}GiB, or whichever unit is meant.")
    if size > MAX_BYTES:
        raise OombisectError(f"{text!r} is more memory than there is", "Write it like 79.6GiB, 80GB or 81559MiB.")
    return size
