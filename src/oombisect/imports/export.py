"""The memory in a run's history as Weights & Biases exports it: CSV of a chart, CSV, JSON or JSONL of `run.history()`.

The scalars have the names that Megatron-LM and Bridge gave them; a chart puts the run's name before each.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from oombisect.imports.content import Content, Problem, Unreadable, run_of
from oombisect.imports.metrics import in_bytes, is_unknown, metric_of

_STEPS = ("_step", "step", "global_step", "trainer/global_step", "iteration")
_RUN = " - "
_BOUNDS = ("__MIN", "__MAX")
_MOST_COLUMNS = 10_000
_SHOWN = 60


def parse_export(data: bytes) -> Content:
    """The memory of every run in an export.

    Raises:
        Unreadable: it is no table of one of the kinds that are known, or has no column of steps.
    """
    problems: list[Problem] = []
    text = data.decode("utf-8-sig", "replace")
    rows = _json(text, problems) if text.lstrip()[:1] in ("{", "[") else _csv(text, problems)
    values: dict[tuple[str, int | None, int | None], dict[str, dict[int, int]]] = {}
    unknown: dict[str, None] = {}
    date, any_row, step_name = None, False, ""
    for where, row in rows:
        any_row = True
        step_name = next((name for name in row if name.lower() in _STEPS), step_name)
        step = _whole(row.get(step_name))
        told = {column: value for column, value in row.items() if not _empty(value) and not column.endswith(_BOUNDS)}
        of_memory = {column: named for column in told if (named := metric_of(_tag(column)))}
        unknown.update(dict.fromkeys(column for column in told if is_unknown(_tag(column))))
        if date is None:
            date = _time(row.get("_timestamp"))
        if not of_memory:
            continue
        if step is None:
            problems.append(Problem(where, "it has no step"))
            continue
        rank, world_size = (_told_by(row, name) for name in ("rank", "world_size"))
        for column, (metric, unit) in of_memory.items():
            size = in_bytes(_number(told[column]), unit)
            if size is None:
                problems.append(
                    Problem(where, f"{column[:_SHOWN]!r} is {str(told[column])[:_SHOWN]!r}, which is no size")
                )
            else:
                values.setdefault((_run(column), rank, world_size), {}).setdefault(metric, {})[step] = size
    if any_row and not step_name:
        raise Unreadable(f"it has no column of steps ({', '.join(_STEPS)})")
    problems += [Problem("columns", f"{column[:_SHOWN]!r} is not known") for column in unknown]
    runs = tuple(
        run_of(of_run, run=name, where=name, rank=rank, world_size=world_size)
        for (name, rank, world_size), of_run in sorted(
            values.items(), key=lambda item: [(x is not None, x) for x in item[0]]
        )
    )
    return Content(runs, tuple(problems), date)


def _told_by(row: Mapping[str, Any], name: str) -> int | None:
    """A number that a row tells of its run: in a column of its own, or of the run's config."""
    told = (_whole(row.get(f"{before}{name}")) for before in ("", "config.", "config/"))
    return next((number for number in told if number is not None), None)


def _tag(column: str) -> str:
    return column.rpartition(_RUN)[2]


def _run(column: str) -> str:
    return column.rpartition(_RUN)[0]


def _csv(text: str, problems: list[Problem]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        if not header or len(header) > _MOST_COLUMNS:
            raise Unreadable("it has no header of a table")
        for row in reader:
            if len(row) == len(header):
                yield f"line {reader.line_num}", dict(zip(header, row))
            elif row:
                problems.append(
                    Problem(f"line {reader.line_num}", f"it has {len(row)} cells, the header {len(header)}")
                )
    except csv.Error as error:
        raise Unreadable(f"line {reader.line_num}: {error}") from error


def _json(text: str, problems: list[Problem]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Rows of a list of rows, of pandas's forms of a table, or of one JSON object a line."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        yield from _json_lines(text, problems)
        return
    if isinstance(told, dict) and isinstance(told.get("data"), list):
        columns = told.get("columns")
        told = [dict(zip(columns, row)) for row in told["data"]] if isinstance(columns, list) else told["data"]
    elif isinstance(told, dict) and told and all(isinstance(column, dict) for column in told.values()):
        indices = dict.fromkeys(index for column in told.values() for index in column)
        told = [{name: column.get(index) for name, column in told.items()} for index in indices]
    rows = told if isinstance(told, list) else [told]
    for number, row in enumerate(rows):
        if isinstance(row, dict):
            yield f"row {number}", row
        else:
            problems.append(Problem(f"row {number}", "it is no mapping of columns"))


def _json_lines(text: str, problems: list[Problem]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    good = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.append(Problem(f"line {number}", f"it is no JSON: {str(error)[:_SHOWN]}"))
            continue
        if isinstance(row, dict):
            good += 1
            yield f"line {number}", row
        else:
            problems.append(Problem(f"line {number}", "it is no mapping of columns"))
    if not good:
        raise Unreadable("it is neither JSON nor a JSON object a line")


def _empty(value: Any) -> bool:
    return value is None or value in ("", "NaN", "nan") or (isinstance(value, float) and math.isnan(value))


def _number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value


def _whole(value: Any) -> int | None:
    number = _number(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return int(number) if math.isfinite(number) and 0 <= number < 1 << 62 and number == int(number) else None


def _time(value: Any) -> datetime | None:
    number = _number(value)
    try:
        return None if number is None or isinstance(number, bool) else datetime.fromtimestamp(float(number), UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
