"""Bytes of a log -> lines of text, without colours and prefixes, each with the stream it belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LONGEST = 8192
_ENDS = re.compile(rb"[\r\n]")
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-9;:?<=>]{0,64}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,2048}(?:\x07|\x1b\\)|[@-Z\\-_])|\x9b[0-9;?]{0,64}[@-~]"
)
_CONTROLS = dict.fromkeys([*range(9), *range(14, 32), *range(127, 160), 65279])
_SOURCE_COLUMN = re.compile(r"(?<=\S) {2,60}[\w./-]{1,120}\.py:\d{1,6} *$")

# What launchers and loggers put before a line. `rank` is a rank, `pid` tells processes apart.
_PREFIXES = re.compile(
    r"\s{0,16}(?:"
    r"\[rank ?(?P<rank>\d{1,6})\]:? ?"  # PyTorch
    r"|\[[A-Za-z_]{1,32}(?P<local>\d{1,6})\]:"  # torchrun, role and local rank
    r"|\[\d{1,9},(?P<mpi>\d{1,6})\](?:<std(?:out|err)>)?: ?"  # mpirun --tag-output
    r"|\((?:\w[\w.:-]{0,79} )?(?:rank=(?P<ray>\d{1,6}),? )?pid=(?P<pid>\d{1,10})(?:, ip=[\w.:]{1,64})?\) ?"  # Ray, vLLM
    r"|(?P<srun>\d{1,5}): "  # srun --label
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?(?: std(?:out|err) [FP])? ?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]? "
    r")"
)
_DEEPEST = 6


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or a piece of one that is longer than `LONGEST`.

    Args:
        number: from 1.
        stream: the prefix's ranks and processes: lines of one stream belong together.
        text: the rest.
    """

    number: int
    text: str
    stream: str = ""
    rank: int | None = None


def read_lines(chunks: Iterable[bytes]) -> Iterator[Line]:
    """The lines of a log; holds one chunk and one line at a time. A carriage return ends a line as well."""
    number = 1
    rest = b""
    for chunk in chunks:
        start = 0
        for end in _ENDS.finditer(chunk):
            yield from _pieces(rest + chunk[start : end.start()], number)
            rest = b""
            start = end.end()
            number += end[0] == b"\n"
        rest += chunk[start:]
        if len(rest) >= LONGEST:
            whole = len(rest) // LONGEST * LONGEST
            yield from _pieces(rest[:whole], number)
            rest = rest[whole:]
    yield from _pieces(rest, number)


def _pieces(line: bytes, number: int) -> Iterator[Line]:
    for start in range(0, len(line), LONGEST):
        yield clean_line(line[start : start + LONGEST].decode(errors="replace"), number)


def clean_line(text: str, number: int = 1) -> Line:
    """A line without colours, control characters, the launcher's prefix and rich's column of source lines."""
    text = _ESCAPES.sub("", text) if "\x1b" in text or "\x9b" in text else text
    text = text if text.isprintable() else text.translate(_CONTROLS)
    position = 0
    rank: int | None = None
    stream = ""
    for _ in range(_DEEPEST):
        match = _PREFIXES.match(text, position)
        if match is None:
            break
        position = match.end()
        kind = match.lastgroup
        if kind is not None:
            stream += f"{kind}{match[kind]} "
            if kind == "pid":
                rank = int(match["ray"]) if match["ray"] else rank
            elif kind == "rank" or rank is None:
                rank = int(match[kind])
    text = text[position:]
    if ".py:" in text:
        text = _SOURCE_COLUMN.sub("", text)
    return Line(number, text, stream, rank)
