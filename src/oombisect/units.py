"""Bytes inside, GiB for people; the unit is always written."""

from __future__ import annotations

import re
from fractions import Fraction

from oombisect.errors import OombisectError
from oombisect.printable import quoted

MAX_BYTES = (1 << 63) - 1
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_FACTORS = {
    "": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": TIB, "tib": TIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip

# Bounds: the exact value of 1e999999999 fills the memory.
_NUMBER = r"-?[0-9]{1,1000}(?:\.[0-9]{1,1000})?(?:e\+?[0-9]{1,3})?"
_SIZE = re.compile(rf"\s*(?P<number>{_NUMBER})\s*(?P<unit>[a-z]*)\s*", re.ASCII | re.IGNORECASE)
_WRITE = "Write it like 79.6GiB, 80GB or 81559MiB."


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


def format_change(before: int, after: int, *beside: int) -> tuple[str, ...]:
    """Sizes that stand with their difference, as `format_delta` writes it: before, after, then each of `beside`.

    As `format_apart`, and with as many digits as it takes for a reader who subtracts to get that difference.
    """
    change = _value(format_delta(after - before))
    for digits in range(2, 6):
        shown = tuple(_format(size, digits) for size in (before, after, *beside))
        first, last = _value(shown[0]), _value(shown[1])
        coarsest = max(step for _, step in (first, last, change))
        agree = abs(last[0] - first[0] - change[0]) * 2 <= coarsest
        if agree and len(set(shown)) == len({before, after, *beside}):
            return shown
    return tuple(f"{size:,} B" for size in (before, after, *beside))


def _value(shown: str) -> tuple[Fraction, Fraction]:
    """The bytes that a written size stands for, and those of one unit of its last digit."""
    number, unit = shown.split()
    factor = _FACTORS[unit.lower()]
    return Fraction(number) * factor, Fraction(factor, 10 ** len(number.partition(".")[2]))


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
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        raise OombisectError(f"{quoted(text)} is not a memory size", _WRITE)
    size = round(Fraction(match["number"]) * factor)
    if size < least:
        must = "more than 0" if least == 1 else f"{least} or more"
        raise OombisectError(f"{quoted(text)} is too little: a memory size here must be {must}", _WRITE)
    if size > MAX_BYTES:
        raise OombisectError(f"{quoted(text)} is too large: more memory than there is", _WRITE)
    if not match["unit"] and 0 < size < MIB:
        raise OombisectError(f"{quoted(text)} has no unit", f"Write {match['number']}GiB, or whichever unit is meant.")
    return size
