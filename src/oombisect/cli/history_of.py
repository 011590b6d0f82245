"""`oombisect history`: from the options to what is printed."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from oombisect.errors import OombisectError
from oombisect.history.asking import Series, Wanted, WorkloadInfo, series, workloads
from oombisect.history.connection import Connection
from oombisect.history.location import cache_dir
from oombisect.history.measurements import METRICS, Metric
from oombisect.history.rows import time_text
from oombisect.printable import quoted
from oombisect.reports.history import (
    METRIC_NAMES,
    Shown,
    history_csv,
    history_markdown,
    render_history,
    render_workloads,
    series_json,
    workload_json,
)
from oombisect.session.history_places import revision, save_places, told_places

_FEW = 3
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `history`."""

    wanted: Wanted
    metric: Metric
    rank: int | None
    since: str | None
    until: str | None
    line: str | None
    repo: Path | None
    everything: bool


def now_text() -> str:
    """The time, as the database has it."""
    return time_text(datetime.now(UTC))


def show_history(path: Path, asked: Asked, *, as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """Print what was asked for.

    Raises:
        OombisectError: nothing matches, or the database cannot be read.
    """
    one_format(as_json, as_csv, as_markdown)
    connection = Connection(path, now_text, 30.0, readonly=True)
    try:
        with connection.reading() as db:
            found = workloads(db, asked.wanted)
            if len(found) > _FEW and not asked.everything:
                _list(found, as_json, as_csv, as_markdown)
                return
            repo = asked.repo.expanduser() if asked.repo else None
            places = told_places(db, [workload.id for workload in found], repo, Path.cwd(), cache_dir())
            told = [one for w in found for one in series(db, w, asked.metric, asked.rank, places)]
            others = [] if told else [m for m in METRICS if any(series(db, w, m, asked.rank, places) for w in found)]
    finally:
        connection.close()
    if places:
        save_places(path, now_text, places)
    if not told:
        of = "" if asked.rank is None else f" of rank {asked.rank}"
        raise OombisectError(
            f"{quoted(found[0].recipe)} has no reading of {METRIC_NAMES[asked.metric]}{of}",
            _otherwise(others, asked.rank),
        )
    kept, notes = _on_line(told, asked.line)
    shown = [_shown(one, asked) for one in kept]
    if as_json:
        _print_json({"workloads": [workload_json(w) for w in found], "series": [series_json(one) for one in shown]})
    elif as_csv:
        sys.stdout.write(history_csv(shown))
    elif as_markdown:
        sys.stdout.write(history_markdown(shown, notes))
    else:
        from oombisect.reports.terminal import report_console

        render_history(shown, notes, report_console(), whole=asked.everything)


def _otherwise(metrics: Sequence[Metric], rank: int | None) -> str:
    if metrics:
        return f"There is {', '.join(metrics)}: name it with --metric."
    return "There is none of another metric either." if rank is None else "Leave --rank out, or name another."


def one_format(*formats: bool) -> None:
    """Raises: OombisectError: several of --json, --csv and --md."""
    if sum(formats) > 1:
        raise OombisectError("--json, --csv and --md are formats of one output", "Ask for one of them.")


def _list(found: Sequence[WorkloadInfo], as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    if as_json:
        _print_json({"workloads": [workload_json(workload) for workload in found], "series": []})
        return
    if as_csv or as_markdown:
        raise OombisectError(
            f"{len(found)} workloads match", "Choose one with --workload N (without --csv and --md they are listed)."
        )
    from oombisect.reports.terminal import report_console

    render_workloads(found, report_console())


def _print_json(data: dict[str, Any]) -> None:
    json.dump({"schema": 1, **data}, sys.stdout, indent=1)
    print()


def _on_line(told: Sequence[Series], line: str | None) -> tuple[list[Series], list[str]]:
    """The series on the line that is meant, and what lies beside it.

    Raises:
        OombisectError: nothing lies on it.
    """
    lines = sorted({one.line for one in told})
    if line is None:
        line = lines[0]  # the main one is "", which sorts first
    kept = [one for one in told if one.line == line]
    if not kept:
        names = ", ".join(name or "the main one" for name in lines)
        raise OombisectError(f"No reading lies on a line {quoted(line)}", f"There are readings on {names}.")
    beside: Counter[str] = Counter()
    for one in told:
        if one.line != line:
            beside[one.line] += len(one.readings)
    if not beside:
        return kept, []
    names = ", ".join(f"{name or 'the main branch'} ({count})" for name, count in beside.most_common(5))
    more = f" and {len(beside) - 5} more" if len(beside) > 5 else ""
    return kept, [f"Other points lie on other branches: {names}{more}. --line BRANCH shows them."]


def _shown(one: Series, asked: Asked) -> Shown:
    start = 0 if asked.since is None else _bound(one, "--since", asked.since, asked.repo)
    end = len(one.readings)
    if asked.until is not None:
        end = _bound(one, "--until", asked.until, asked.repo, after=True)
    if start >= end:
        raise OombisectError(
            f"No reading of {quoted(one.workload.recipe)} lies between {asked.since or 'its first'} and "
            f"{asked.until or 'its last'}",
            "Widen --since and --until.",
        )
    return Shown(one, start, end)


def _bound(one: Series, option: str, text: str, repo: Path | None, *, after: bool = False) -> int:
    """The number of the first reading from a date or commit on, or (`after`) after it.

    Raises:
        OombisectError: it is neither a date nor a commit whose place is known.
    """
    readings = one.readings
    if _DATE.fullmatch(text):
        try:
            date.fromisoformat(text)
        except ValueError as error:
            raise OombisectError(f"{option} {text}: there is no such day", "Write it like 2026-01-31.") from error
        days = [(reading.of.committed or "")[:10] for reading in readings]
        inside = [n for n, day in enumerate(days) if day and (day <= text if after else day >= text)]
        if after:
            return max(inside, default=-1) + 1
        return min(inside, default=len(readings))
    at = [n for n, reading in enumerate(readings) if len(text) >= 4 and reading.of.point.startswith(text)]
    if len(at) == 1:
        return at[0] + after
    if not at and (place := _place(one, text, repo)) is not None:
        return sum((reading.of.place or 0) < place + after for reading in readings)
    cause = "begins several commits" if at else "is no date, and no commit whose place among the readings is known"
    raise OombisectError(
        f"{option} {quoted(text)} {cause}",
        "Write a date like 2026-01-31, a commit that was read, or, with --repo, any commit on its line.",
    )


def _place(one: Series, name: str, repo: Path | None) -> int | None:
    """The place of a commit that was not read, on the line of a series."""
    from oombisect.repo.lines import lines_of

    if one.ordered_by != "first-parent":
        return None
    sha = revision(repo, Path.cwd(), name)
    if sha is None:
        return None
    line, position = lines_of(repo or Path.cwd(), [sha]).get(sha, (None, 0))
    return position if line == one.line else None
