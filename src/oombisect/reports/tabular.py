"""Rows as CSV and as a Markdown table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from oombisect.printable import printable

_ESCAPED = {ord(mark): f"&#{ord(mark)};" for mark in "\\`*_[]|~#@<>&"}
_FORMULA = ("=", "+", "-", "@")


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """RFC 4180, with a head; None is an empty field, sizes stay bytes.

    Text is on one line, without control characters, and what a spreadsheet would take for a formula begins with `'`.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_field, columns))
    writer.writerows(map(_field, row) for row in rows)
    return out.getvalue()


def _field(cell: Any) -> Any:
    if not isinstance(cell, str):
        return "" if cell is None else cell
    text = printable(cell)
    return f"'{text}" if text.startswith(_FORMULA) else text


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as GitHub shows it; whatever the cells hold is shown, never obeyed."""
    lines = [columns, ["---"] * len(columns), *([markdown(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown(text: str) -> str:
    """`text` for Markdown, on one line: no markup in it works."""
    return printable(text).translate(_ESCAPED)
