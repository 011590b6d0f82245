"""Sizes as messages print them: rounded, so every one carries how far it may be off."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal

_BINARY = {"": 0, "b": 0, "byte": 0, "bytes": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
SIZE = r"\d{1,20}(?:\.\d{1,10})?(?:bytes|byte|B|[KMGTP]iB|[KMGTP]B)"
"""A printed size in text without blanks, e.g. `1.12GiB`; as a regular expression without groups."""
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,10})?)([A-Za-z]{0,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Size:
    """A size read from a message.

    Args:
        bytes: the printed number, in bytes.
        precision: bytes it may be off either way, because the message rounds; 0: exact.
    """

    bytes: int
    precision: int = 0

    @property
    def low(self) -> int:
        """The least it can be, bytes."""
        return max(0, self.bytes - self.precision)

    @property
    def high(self) -> int:
        """The most it can be, bytes."""
        return self.bytes + self.precision

    def __add__(self, other: Size) -> Size:
        return Size(self.bytes + other.bytes, self.precision + other.precision)

    def __sub__(self, other: Size) -> Size:
        """The difference, not below zero."""
        return Size(max(0, self.bytes - other.bytes), self.precision + other.precision)

    @classmethod
    def parse(cls, text: str) -> Size | None:
        """`1.12GiB` or `512` (bytes) -> a size; None if it is none.

        Kilo is 1024 whatever it is called: PyTorch's MPS allocator divides by 1024 and prints KB, MB, GB.
        """
        match = _SIZE.fullmatch(text.replace(",", "").replace(" ", ""))
        if match is None:
            return None
        number, unit = Decimal(match[1]), match[2].lower()
        power = _BINARY.get(unit if unit in _BINARY else unit.removesuffix("ib").removesuffix("b"))
        if power is None:
            return None
        factor = 1024**power
        decimals = -int(number.as_tuple().exponent)
        precision = 0 if power == 0 else math.ceil(factor / (2 * 10**decimals))
        return cls(round(number * factor), precision)
