"""The `probe` command's work: one reading, printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from oombisect.cli.sessions_of import clock, print_json, stderr_watcher
from oombisect.history.location import cache_dir, default_database
from oombisect.history.store import open_store
from oombisect.reports.reading import render_reading
from oombisect.reports.terminal import report_console
from oombisect.session.request import ProbeRequest
from oombisect.session.single import probe_commit


def probe_once(
    revision: str,
    request: ProbeRequest,
    database: Path | None,
    *,
    fresh: bool,
    as_json: bool,
    megatron: str | None = None,
    config_of: str | None = None,
) -> NoReturn:
    """Probe, print, exit as `git bisect run` expects."""
    with open_store(database or default_database(), clock=clock) as store:
        watcher = stderr_watcher()
        try:
            probed = probe_commit(
                store,
                revision,
                request,
                watcher=watcher,
                cwd=Path.cwd(),
                cache=cache_dir(),
                command=tuple(sys.argv),
                fresh=fresh,
                megatron=megatron,
                config_of=config_of,
            )
        finally:
            watcher.close()
    if as_json:
        print_json(probed.to_json())
    else:
        render_reading(probed, report_console())
    sys.exit(probed.exit_code)
