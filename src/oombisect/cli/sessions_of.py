"""Running and resuming sessions for the commands: the terminal or JSON around `oombisect.session`."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from oombisect import hints
from oombisect.errors import ExitCode, OombisectError
from oombisect.history.location import cache_dir, default_database
from oombisect.history.records import RUN_AGAIN, SessionState, StoredSession
from oombisect.history.store import Store, open_store
from oombisect.reports.terminal import render, report_console
from oombisect.reports.watch import ConsoleWatcher
from oombisect.session import editing
from oombisect.session.config_request import ConfigRequest
from oombisect.session.config_run import bisect_config
from oombisect.session.events import SKIP
from oombisect.session.releases_request import ReleasesRequest
from oombisect.session.releases_run import bisect_releases
from oombisect.session.request import BisectRequest
from oombisect.session.running import bisect_range
from oombisect.session.verdict import Report

_MANY = 10_000


def run_session(request: BisectRequest, database: Path | None, *, as_json: bool, kind: str = "run") -> NoReturn:
    """Start a session, run it to its verdict, print that, exit with its code."""
    with open_store(database or default_database(), clock=clock) as store:
        _run(partial(bisect_range, store, request, kind=kind), database, as_json)


def run_config(request: ConfigRequest, database: Path | None, *, as_json: bool) -> NoReturn:
    """As `run_session`, over a config diff."""
    with open_store(database or default_database(), clock=clock) as store:
        _run(partial(bisect_config, store, request), database, as_json)


def run_releases(request: ReleasesRequest, database: Path | None, *, as_json: bool) -> NoReturn:
    """As `run_session`, over the releases of a package."""
    with open_store(database or default_database(), clock=clock) as store:
        _run(partial(bisect_releases, store, request), database, as_json)


def resume_session(name: str, database: Path | None, *, as_json: bool, budget: int | None = None) -> NoReturn:
    """As `run_session`, from where a session stopped; with another `budget`, if one is given."""
    with open_store(database or default_database(), clock=clock) as store:
        found = named_session(store, name)
        if found.spec.kind in RUN_AGAIN:
            again = shlex.join(["oombisect", *found.spec.command[1:]])
            raise OombisectError(
                f"Session {found.id} is a single {found.spec.kind}, which has no search to go on with",
                f"Run it again: {again}",
            )
        if budget is None and found.exit_code == ExitCode.BUDGET and found.state is SessionState.FINISHED:
            raise OombisectError(
                f"Session {found.id} has spent its budget",
                f"Give it more: {hints.command('resume', found.id, '--budget', 'N')}",
            )
        search = _search_of(store, found.spec.kind, editing.arguments_of(store, found, budget), found.id)
        if budget is None:
            store.resume_session(found.id)
        else:
            editing.give_budget(store, found, budget)
        _run(search, database, as_json)


def run_again(
    store: Store,
    kind: str,
    arguments: Mapping[str, Any],
    database: Path | None,
    *,
    as_json: bool,
    skipped: Sequence[str] = (),
) -> NoReturn:
    """As `run_session`, by the stored arguments of another session of that kind, without the points `skipped`."""

    def skip(session: str) -> None:
        if skipped:
            store.append_event(session, SKIP, {"points": list(skipped)})

    _run(_search_of(store, kind, arguments, None), database, as_json, skip)


def _search_of(store: Store, kind: str, arguments: Mapping[str, Any], session: str | None) -> Callable[..., Report]:
    """The search of a session of that kind, to go on with it or (None) in a new one."""
    if kind == "config":
        return partial(bisect_config, store, ConfigRequest.from_json(arguments), session=session)
    if kind == "releases":
        return partial(bisect_releases, store, ReleasesRequest.from_json(arguments), session=session)
    return partial(bisect_range, store, BisectRequest.from_json(arguments), kind=kind, session=session)


def named_session(store: Store, name: str) -> StoredSession:
    """The session of that name; `last` is the newest bisection, or the newest of all where there is none."""
    if name == "last":
        newest = (session for session in store.sessions(_MANY) if session.spec.kind not in ("probe", "watch"))
        return next(newest, None) or store.session(name)
    return store.session(name)


def _run(
    run: Callable[..., Report],
    database: Path | None,
    as_json: bool,
    on_session: Callable[[str], None] = lambda _: None,
) -> NoReturn:
    begun: list[str] = []
    watcher = stderr_watcher()

    def begin(session: str) -> None:
        begun.append(session)
        on_session(session)

    try:
        report = run(
            watcher=watcher,
            cwd=Path.cwd(),
            cache=cache_dir(),
            command=tuple(sys.argv),
            on_session=begin,
        )
    except BaseException as error:
        watcher.close()
        curable = not (isinstance(error, OombisectError) and error.exit_code == ExitCode.USAGE)
        if begun and curable:
            with contextlib.suppress(OSError):
                print("\nStopped early; every finished probe is kept. To go on:", file=sys.stderr)
                print(f"  {hints.command('resume', begun[0])}", file=sys.stderr)
        raise
    if as_json:
        print_json(report.to_json())
    else:
        render(report, report_console())
    sys.exit(report.exit_code)


def print_json(data: Any) -> None:
    """The one JSON document on stdout."""
    json.dump(data, sys.stdout, indent=1)
    print()


def stderr_watcher() -> ConsoleWatcher:
    """What goes on, on stderr: stdout is the result's."""
    return ConsoleWatcher(Console(stderr=True, highlight=False))


def clock() -> datetime:
    """The time, for the store: an aware datetime."""
    return datetime.now(UTC)
