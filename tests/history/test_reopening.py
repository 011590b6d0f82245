"""A finished session is taken up again, whatever version finished it, and its verdict is kept."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from freeze import EVENTS, VERDICT, VERSIONS
from history_support import Clock

from oombisect.history.records import SessionState
from oombisect.history.store import open_store


@pytest.mark.parametrize("version", ["001_initial", "002_replays", "003_reopening"])
def test_a_session_that_an_earlier_version_finished_is_reopened(database: Path, version: str) -> None:
    database.parent.mkdir()
    old = sqlite3.connect(database)
    old.executescript((VERSIONS / f"{version}.sql").read_text(encoding="utf-8"))
    old.close()
    with open_store(database, clock=Clock()) as store:
        before = store.session("20261130-1")
        assert (before.state, before.verdict) == (SessionState.FINISHED, VERDICT)
        with store.transaction():
            store.reopen_session(before.id)
            store.interrupt_session(before.id, 130)
        after = store.session(before.id)
        assert (after.state, after.exit_code, after.verdict) == (SessionState.INTERRUPTED, 130, None)
        *earlier, reopened = store.events(before.id)
        assert tuple(event.payload for event in earlier) == EVENTS
        assert reopened.payload == {"exit_code": before.exit_code, "verdict": VERDICT}
