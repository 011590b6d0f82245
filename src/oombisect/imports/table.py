"""Plain CSV whose columns the user names: one run a row, or, with a column of iterations, one value of each metric."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oombisect.errors import OombisectError
from oombisect.imports.content import Content, Problem, RunMemory, Unreadable, peak
from oombisect.units import parse_bytes

SIZES = ("peak_allocated", "peak_reserved", "peak_device", "external", "allocated", "reserved")
_PEAKS = SIZES[:4]
_WHOLE = ("rank", "world_size", "iteration")
_TOLD = ("recipe", "device", "commit", "date")
FIELDS = (*SIZES, *_WHOLE, *_TOLD, "outcome")
_UNIT = re.compile(r"(?:[\s_(\[]+)(bytes|b|kib|mib|gib|tib|kb|mb|gb|tb)[)\]]?", re.ASCII | re.IGNORECASE)
_PLAIN = re.compile(r"[0-9]{1,30}(?:\.[0-9]{1,30})?(?:e\+?[0-9]{1,2})?", re.ASCII | re.IGNORECASE)
_CENSORED = "the source says that the run ran out of memory"
_SHOWN = 60


def columns_of(text: str | None) -> dict[str, tuple[str, str]]:
    """`peak_allocated=Max memory:GiB,rank=rank` as field -> (column, unit); the unit is "" where none is given.

    Raises:
        OombisectError: it is not that.
    """
    way_out = f"Write --columns FIELD=COLUMN[:UNIT],...; fields are {', '.join(FIELDS)}."
    found: dict[str, tuple[str, str]] = {}
    for item in text.split(",") if text else ():
        name, equals, column = item.partition("=")
        column, _, unit = column.partition(":")
        if not equals or name.strip() not in FIELDS or not column.strip():
            raise OombisectError(f"--columns: {item!r} names no field and column", way_out)
        found[name.strip()] = (column.strip(), unit.strip())
    return found


def parse_table(data: bytes, columns: Mapping[str, tuple[str, str]], unit: str = "") -> Content:
    """The runs in a table.

    Args:
        columns: as `columns_of`; a column whose name is a field's, perhaps with a unit after it, need not be there.
        unit: of sizes whose column and cell have none.

    Raises:
        Unreadable: it is no CSV, lacks a column, or a size has no unit.
    """
    reader = csv.reader(io.StringIO(data.decode("utf-8-sig", "replace"), newline=""), strict=True)
    problems: list[Problem] = []
    runs: list[RunMemory] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        places = _places(header, columns, unit)
        for cells in reader:
            where = f"line {reader.line_num}"
            if not cells:
                continue
            try:
                if len(cells) != len(header):
                    raise ValueError(f"it has {len(cells)} cells, the header {len(header)}")
                runs.append(_run(where, {name: (cells[at].strip(), u) for name, (at, u) in places.items()}))
            except ValueError as error:
                problems.append(Problem(where, str(error)))
    except csv.Error as error:
        raise Unreadable(f"line {reader.line_num}: {error}") from error
    return Content(tuple(_joined(runs) if "iteration" in places else runs), tuple(problems))


def _places(header: list[str], columns: Mapping[str, tuple[str, str]], unit: str) -> dict[str, tuple[int, str]]:
    """Of each field the index of its column and the unit of its cells."""
    named = dict(columns)
    for column in header:
        plain = _UNIT.sub("", column).strip().lower().replace(" ", "_")
        if plain in FIELDS and plain not in named:
            named[plain] = (column, "")
    places = {}
    for name, (column, told) in named.items():
        if header.count(column) != 1:
            raise Unreadable(f"it has {'no' if column not in header else 'more than one'} column {column!r}")
        in_name = _UNIT.search(column)
        own = told or (in_name[1] if in_name else "") or unit
        places[name] = (header.index(column), "B" if own.lower() == "bytes" else own)
    if not any(name in SIZES for name in places):
        raise Unreadable(f"it has no column of sizes ({', '.join(SIZES)}): name one with --columns")
    return places


def _run(where: str, cells: Mapping[str, tuple[str, str]]) -> RunMemory:
    """One row.

    Raises:
        ValueError: a cell is not what it should be.
    """
    told: dict[str, Any] = {}
    for name, (cell, unit) in cells.items():
        if not cell:
            continue
        if name in SIZES:
            told[name] = _size(name, cell, unit)
        elif name in _WHOLE:
            if not re.fullmatch(r"[0-9]{1,9}", cell, re.ASCII):
                raise ValueError(f"{name} is {cell[:_SHOWN]!r}, which is no number")
            told[name] = int(cell)
        elif name == "outcome" and cell not in ("exact", "censored"):
            raise ValueError(f"outcome is {cell[:_SHOWN]!r}, neither exact nor censored")
        else:
            told[name] = cell
    if not any(name in told for name in SIZES):
        raise ValueError("it tells no size")
    values = {}
    if "iteration" in cells:
        if "iteration" not in told:
            raise ValueError("it has no iteration")
        values = {name: {told["iteration"]: told[name]} for name in SIZES if name in told}
    return RunMemory(
        rank=told.get("rank"),
        world_size=told.get("world_size"),
        values=values,
        peak_allocated=told.get("peak_allocated"),
        peak_reserved=told.get("peak_reserved"),
        peak_device=told.get("peak_device"),
        external=told.get("external"),
        reason=_CENSORED if told.get("outcome") == "censored" else "",
        where=where,
        told={name: told[name] for name in _TOLD if name in told},
    )


def _size(name: str, cell: str, unit: str) -> int:
    text = cell if not _PLAIN.fullmatch(cell) else f"{cell}{unit}"
    if text == cell and _PLAIN.fullmatch(cell):
        raise ValueError(f"{name} is {cell[:_SHOWN]!r} without a unit")
    try:
        return parse_bytes(text, least=0)
    except OombisectError as error:
        raise ValueError(f"{name}: {error.cause}") from error


def _joined(rows: list[RunMemory]) -> list[RunMemory]:
    """The rows of each run put together."""
    found: dict[tuple[Any, ...], list[RunMemory]] = {}
    for row in rows:
        found.setdefault((row.rank, row.world_size, tuple(sorted(row.told.items()))), []).append(row)
    return [_whole_run(parts) for parts in found.values()]


def _whole_run(parts: list[RunMemory]) -> RunMemory:
    values: dict[str, dict[int, int]] = {}
    for part in parts:
        for metric, sizes in part.values.items():
            of_metric = values.setdefault(metric, {})
            for iteration, size in sizes.items():
                of_metric[iteration] = max(size, of_metric.get(iteration, 0))
    reason = next((part.reason for part in parts if part.reason), "")
    return replace(
        parts[0],
        values=values,
        peak_allocated=peak(values, "peak_allocated"),
        peak_reserved=peak(values, "peak_reserved"),
        peak_device=peak(values, "peak_device"),
        external=peak(values, "external"),
        reason=reason,
    )
