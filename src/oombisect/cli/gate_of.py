"""The work of `check` and `watch`: open, ask, print, exit."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import NoReturn

import typer

from oombisect.cli.sessions_of import clock, print_json, stderr_watcher
from oombisect.errors import OombisectError
from oombisect.history.location import cache_dir, default_database
from oombisect.history.store import open_store
from oombisect.reports.gate import check_markdown, render_check, render_watch, watch_markdown
from oombisect.reports.terminal import report_console
from oombisect.session.checking import check_change
from oombisect.session.gate import CheckRequest, WatchRequest
from oombisect.session.watching import Watched, watch_once

_MAX_INTERVAL = 7 * 24 * 60.0


def run_check(request: CheckRequest, database: Path | None, *, as_json: bool, as_markdown: bool) -> NoReturn:
    """Probe without the change and with it, print what it does, exit with its code."""
    _one_format(as_json, as_markdown)
    with open_store(database or default_database(), clock=clock) as store:
        watcher = stderr_watcher()
        try:
            checked = check_change(
                store, request, watcher=watcher, cwd=Path.cwd(), cache=cache_dir(), command=tuple(sys.argv)
            )
        finally:
            watcher.close()
    if as_json:
        print_json(checked.to_json())
    elif as_markdown:
        typer.echo(check_markdown(checked), nl=False)
    else:
        render_check(checked, report_console())
    sys.exit(checked.exit_code)


def run_watch(
    request: WatchRequest, minutes: float | None, database: Path | None, *, as_json: bool, as_markdown: bool
) -> NoReturn:
    """Look at the branch once, or every so many minutes until something has landed; print that, exit with its code."""
    _one_format(as_json, as_markdown)
    if minutes is not None and not (math.isfinite(minutes) and 0 < minutes <= _MAX_INTERVAL):
        raise OombisectError(f"--interval {minutes} is out of range", f"Use minutes, up to {_MAX_INTERVAL:.0f}.")
    with open_store(database or default_database(), clock=clock) as store:
        while True:
            watcher = stderr_watcher()
            try:
                watched = watch_once(
                    store, request, watcher=watcher, cwd=Path.cwd(), cache=cache_dir(), command=tuple(sys.argv)
                )
            finally:
                watcher.close()
            if minutes is None or watched.landed:
                break
            time.sleep(minutes * 60)
    _print(watched, as_json=as_json, as_markdown=as_markdown)
    sys.exit(watched.exit_code)


def _print(watched: Watched, *, as_json: bool, as_markdown: bool) -> None:
    if as_json:
        print_json(watched.to_json())
    elif as_markdown:
        typer.echo(watch_markdown(watched), nl=False)
    else:
        render_watch(watched, report_console())


def _one_format(as_json: bool, as_markdown: bool) -> None:
    if as_json and as_markdown:
        raise OombisectError("--md and --json both print to stdout", "Leave one of them out.")
