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
    return _format(size, 2)


def _format(size: int, digits: int) -> str:
    """As `format_bytes`, with so many digits after the point of GiB, one less of MiB."""
    magnitude = abs(size)
    if magnitude < MIB:
        return f"{size} B"
    if magnitude < GIB // 10:
        return f"{size / MIB:.{digits - 1}f} MiB"
    return f"{size / GIB:.{digits}f} GiB"


def format_apart(*sizes: int) -> tuple[str, ...]:
    """As `format_bytes`, with as many digits as it takes for different sizes to look different: for comparisons."""
    for digits in range(2, 6):
        shown = tuple(_format(size, digits) for size in sizes)
        if len(set(shown)) == len(set(sizes)):
            return shown
    return tuple(f"{size:,} B" for size in sizes)


def format_delta(size: int) -> str:
    """As `format_bytes`, with the sign always written."""
    return f"{'+' if size >= 0 else '-'}{format_bytes(abs(size))}"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 event`, `2,000 events`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def parse_bytes(text: str, *, least: int = 1) -> int:
    """`79.6GiB`, `80 GB`, `81559MiB` or plain bytes (1 MiB or more of them) -> bytes.

    Args:
        least: 0 where no memory at all is an answer too.

    Raises:
        OombisectError: the text is no size, less than `least`, has no unit and is too small to be meant as bytes, or
            is larger than 2**63 - 1 bytes.
    """
    match = re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    factor = _FACTORS.get(match[2].lower()) if match else None
    size = round(Fraction(match[1]) * factor) if match and factor else -1
    if match is None or size < least:
        raise OombisectError(f"{text!r} is not a memory size", "Write it like 79.6GiB, 80GB or 81559MiB.")
    if not match[2] and 0 < size < MIB:
        raise OombisectError(f"{text!r} has no unit", f"Write {match[1]}GiB, or whichever unit is meant.")
    if size > MAX_BYTES:
        raise OombisectError(f"{text!r} is more memory than there is", "Write it like 79.6GiB, 80GB or 81559MiB.")
    return size
