"""Sessions over a toy history, run as the command line runs them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oombisect.history.store import Store, open_store
from oombisect.session.measuring import Watcher
from oombisect.session.request import BisectRequest, ProbeRequest
from oombisect.session.running import bisect_range
from oombisect.session.verdict import Report

from . import toy
from .toy import MIB


class Quiet:
    def say(self, text: str) -> None: ...
    def progress(self, text: str) -> None: ...
    def tick(self, seconds: float) -> None: ...
    def probe_started(self, *_: Any) -> None: ...
    def probe_finished(self, *_: Any) -> None: ...


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repo = folder / "repo"
        self.repo.mkdir()
        self.python, self.calls = toy.interpreter(folder)
        self.shas: list[str] = []

    def store(self) -> Store:
        return open_store(self.folder / "db.sqlite", clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))

    def run(
        self, memories: list[Any], *, session: str | None = None, watcher: Watcher | None = None, **options: Any
    ) -> Report:
        if not self.shas:
            self.shas = toy.history(self.repo, memories)
        probe = {"limit_bytes": 10_000 * MIB, "recipe": toy.RECIPE, **options.pop("probe", {})}
        request = BisectRequest(
            range=options.pop("range", f"{self.shas[0]}..{self.shas[-1]}"),
            probe=ProbeRequest(repo=str(self.repo), python=str(self.python), **probe),
            **options,
        )
        with self.store() as store:
            if session:
                store.resume_session(session)
            return bisect_range(
                store, request, watcher=watcher or Quiet(), cwd=self.folder, cache=self.folder / "cache",
                command=("test",), session=session, on_session=lambda _: None,
            )  # fmt: skip

    def probes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.calls.read_text().splitlines()]
