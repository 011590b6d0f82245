"""What `oombisect demo` does: make the repository, then an ordinary `run` over it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from oombisect.cli.sessions_of import run_session, stderr_watcher
from oombisect.demo.repository import build_demo, find_megatron_core
from oombisect.history.location import cache_dir
from oombisect.session.request import BisectRequest, ProbeRequest


def run_demo(database: Path | None, *, as_json: bool) -> NoReturn:
    """Bisects the demo with the interpreter oombisect runs in, and exits as `run` does."""
    demo = build_demo(cache_dir() / "demo", find_megatron_core(Path(sys.executable)), stderr_watcher().say)
    sys.stderr.write(f"The demo's Megatron Bridge is in {demo.path}: an ordinary git repository, have a look.\n")
    probe = ProbeRequest(recipe=demo.recipe, repo=str(demo.path), gpu=demo.device)
    run_session(BisectRequest(range=f"{demo.good}..{demo.bad}", probe=probe), database, as_json=as_json, kind="demo")
