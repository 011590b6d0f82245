"""Text from elsewhere (probes, commits, other programs) made safe to show: a terminal obeys what it is sent."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` on one line, without control characters: ESC, C1, bidi overrides and undecodable bytes become `?`."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


def quoted(value: object, most: int = 60) -> str:
    """`value` as Python writes it, cut to `most` characters: what follows it in a message must not be lost."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
