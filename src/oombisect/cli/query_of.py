"""`oombisect query` and `oombisect sql`: from the options to what is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oombisect.errors import OombisectError
from oombisect.history.connection import Connection
from oombisect.history.queries import Ask, found_in, queries, query_named
from oombisect.history.reader import Answer, Reader
from oombisect.history.rows import time_text
from oombisect.history.series import bring_up_to_date
from oombisect.printable import printable
from oombisect.virtual_gpu.profiles import PROFILES

GPUS = {name: PROFILES[name].total_bytes for name in sorted(PROFILES)}
"""Capacities in bytes, for the table `gpus`."""
_MOST_ROWS = 10_000_000
_REPOSITORIES = "SELECT repo FROM sessions UNION SELECT source FROM imports ORDER BY 1"


def now_text() -> str:
    """The time, as the database has it."""
    return time_text(datetime.now(UTC))


def open_reader(path: Path) -> Reader:
    """A reader of a database whose derived tables are up to date; where they cannot be, it is said.

    Raises:
        OombisectError: it cannot be read.
    """
    if why := bring_up_to_date(path, now_text, GPUS, say=_say):
        print(f"oombisect: series and steps are as of an earlier day: {printable(why)}", file=sys.stderr)
    return Reader(Connection(path, now_text, 30.0, readonly=True))


def _say(text: str) -> None:
    print(f"oombisect: {text}", file=sys.stderr, flush=True)


def one_format(*formats: bool) -> None:
    """Raises: OombisectError: several of --json, --csv and --md."""
    if sum(formats) > 1:
        raise OombisectError("--json, --csv and --md are formats of one output", "Ask for one of them.")


def list_queries(*, as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """Print the canned questions."""
    from oombisect.reports.answers import query_json, render_queries
    from oombisect.reports.tabular import csv_text, markdown_table
    from oombisect.reports.terminal import report_console

    one_format(as_json, as_csv, as_markdown)
    found = list(queries().values())
    rows = [[one.name, one.about, ", ".join(p.name for p in one.parameters)] for one in found]
    columns = ("name", "about", "parameters")
    if as_json:
        _print_json({"queries": [query_json(one) for one in found]})
    elif as_csv:
        sys.stdout.write(csv_text(columns, rows))
    elif as_markdown:
        sys.stdout.write(markdown_table(columns, rows))
    else:
        render_queries(found, report_console())


def run_query(
    path: Path,
    name: str,
    given: list[str],
    repo: Path | None,
    seconds: float,
    *,
    as_json: bool,
    as_csv: bool,
    as_markdown: bool,
) -> None:
    """Answer a canned question and print the answer."""
    one_format(as_json, as_csv, as_markdown)
    _check_seconds(seconds)
    query = query_named(name)
    values = query.values(given)
    with open_reader(path) as reader:

        def ask(sql: str, given: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
            return reader.ask(sql, given, rows=_MOST_ROWS).rows

        values = found_in(query, values, ask, lambda name: _commits(name, repo, ask))
        answer = reader.ask(query.sql, values, seconds=seconds, rows=_MOST_ROWS)
    _print(answer, {"query": name, "parameters": values}, as_json, as_csv, as_markdown)


def run_sql(
    path: Path, statement: str, limit: int, seconds: float, *, as_json: bool, as_csv: bool, as_markdown: bool
) -> None:
    """Answer one statement and print the answer."""
    one_format(as_json, as_csv, as_markdown)
    _check_seconds(seconds)
    if not 1 <= limit <= _MOST_ROWS:
        raise OombisectError(f"--limit {limit} is out of range", f"Use 1 to {_MOST_ROWS}.")
    if statement == "-":
        statement = sys.stdin.read()
    with open_reader(path) as reader:
        answer = reader.ask(statement, seconds=seconds, rows=limit)
    if answer.cut:
        print(f"oombisect: only the first {limit} rows; --limit N reads more", file=sys.stderr)
    _print(answer, {}, as_json, as_csv, as_markdown)


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds <= 86400:
        raise OombisectError(f"--seconds {seconds:g} is out of range", "Use more than 0, and at most 86400.")


def _commits(name: str, repo: Path | None, ask: Ask) -> Iterator[str]:
    """The commits of a name: in `repo`, else in the repository around, and in those that readings are from."""
    from oombisect.session.history_places import revision

    folders = [repo] if repo else [Path.cwd(), *(Path(row[0]) for row in ask(_REPOSITORIES, {}))]
    for folder in folders:
        if repo or folder.is_dir():
            commit = revision(folder, Path.cwd(), name)
            if commit is not None:
                yield commit


def _print(answer: Answer, about: dict[str, Any], as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    from oombisect.reports.answers import answer_csv, answer_json, answer_markdown, render_answer
    from oombisect.reports.terminal import report_console

    if as_json:
        _print_json({**about, **answer_json(answer)})
    elif as_csv:
        sys.stdout.write(answer_csv(answer))
    elif as_markdown:
        sys.stdout.write(answer_markdown(answer))
    else:
        render_answer(answer, report_console())


def _print_json(data: dict[str, Any]) -> None:
    json.dump({"schema": 1, **data}, sys.stdout, indent=1)
    print()
