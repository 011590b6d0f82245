"""The rows that a query answers with: sizes in GiB for people, bytes in JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from oombisect.history.queries import Query
from oombisect.history.reader import Answer
from oombisect.history.signature import finite
from oombisect.printable import printable
from oombisect.reports.points import short
from oombisect.reports.tabular import csv_text, markdown_table
from oombisect.units import counted, format_bytes, format_delta

_SIGNED = ("delta_bytes", "left_bytes", "headroom_bytes", "largest_bytes")
_FLAGS = ("at_least",)
_LONGEST = 120
_WIDEST = 10_000


def answer_json(answer: Answer) -> dict[str, Any]:
    """Columns, rows (each a list, in their order), and whether there are more; a BLOB as hexadecimal.

    JSON has no infinity: it is text.
    """
    rows = [[cell.hex() if isinstance(cell, bytes) else finite(cell) for cell in row] for row in answer.rows]
    return {"columns": list(answer.columns), "rows": rows, "cut": answer.cut}


def answer_csv(answer: Answer) -> str:
    """As CSV, sizes in bytes; a BLOB as hexadecimal."""
    rows = [[cell.hex() if isinstance(cell, bytes) else cell for cell in row] for row in answer.rows]
    return csv_text(answer.columns, rows)


def answer_markdown(answer: Answer) -> str:
    """As a Markdown table, sizes in GiB."""
    return markdown_table(_heads(answer), ([_cell(*pair) for pair in _pairs(answer, row)] for row in answer.rows))


def render_answer(answer: Answer, console: Console) -> None:
    """As a table on a terminal, sizes in GiB."""
    if not answer.columns:
        console.print("No answer: the statement has no columns.")
        return
    rows = [[_cell(*pair) for pair in _pairs(answer, row)] for row in answer.rows]
    heads = [printable(head) for head in _heads(answer)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    needed = Measurement.get(console, console.options.update(width=_WIDEST), table).maximum
    if not console.is_terminal:  # a file has room for any line
        console = Console(file=console.file, width=max(needed, 1), highlight=False)
    if needed <= console.width:
        console.print(table)
    else:
        _render_apart(heads, rows, console)
    more = "; there are more" if answer.cut else ""
    console.print(Text(f"{counted(len(answer.rows), 'row')}{more}", style="dim"))


def _render_apart(heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """A line for each cell: the table is wider than the terminal."""
    wide = max(map(len, heads))
    for row in rows:
        for head, cell in zip(heads, row, strict=True):
            if cell:
                console.print(Text(f"{head:<{wide}}  ", style="dim") + Text(cell), soft_wrap=True)
        console.print()


def render_queries(queries: Sequence[Query], console: Console) -> None:
    """The canned questions, each with its parameters."""
    for query in queries:
        console.print(Text(query.name, style="bold"), Text(query.about), soft_wrap=True)
        for one in query.parameters:
            default = "needed" if one.default is None else f"default {one.default}"
            console.print(Text(f"  {one.name}  {one.meaning} ({one.type}, {default})", style="dim"), soft_wrap=True)


def query_json(query: Query) -> dict[str, Any]:
    """One of `query --list --json`."""
    parameters = [
        {"name": one.name, "type": one.type, "default": one.default, "meaning": one.meaning} for one in query.parameters
    ]
    return {"name": query.name, "about": query.about, "parameters": parameters, "sql": query.sql}


def _heads(answer: Answer) -> list[str]:
    return [name.removesuffix("_bytes").replace("_", " ") for name in answer.columns]


def _pairs(answer: Answer, row: Sequence[Any]) -> list[tuple[str, Any]]:
    return list(zip(answer.columns, row, strict=True))


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and column.endswith("_bytes"):
        return format_delta(value) if column in _SIGNED else format_bytes(value)
    if column in _FLAGS and value in (0, 1):
        return "yes" if value else ""
    if isinstance(value, bytes):
        value = value.hex()
    text = short(printable(str(value)))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
