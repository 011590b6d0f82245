"""What a shell is offered, by the protocol that it asks with."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from oombisect.history.store import open_store
from oombisect.virtual_gpu.profiles import PROFILES
from tests.session.memories import add_probe, session_spec

from .conftest import Command


@pytest.fixture
def known(tmp_path: Path) -> list[str]:
    """A database in the usual place: two sessions, the newer one last, and a recipe that was measured."""
    (tmp_path / "home").mkdir()
    with open_store(tmp_path / "home/oombisect.db", clock=lambda: datetime(2026, 11, 30, tzinfo=UTC)) as store:
        ids = [store.create_session(session_spec(tmp_path, "a" * 40, "b" * 40)).id for _ in range(2)]
        add_probe(store, ids[0], "a" * 40, [(512, ())])
    return ids


@pytest.fixture
def offered(command: Command, monkeypatch: pytest.MonkeyPatch) -> Offered:
    return Offered(command, monkeypatch)


class Offered:
    def __init__(self, command: Command, patch: pytest.MonkeyPatch) -> None:
        self.command, self.patch = command, patch

    def __call__(self, *words: str) -> list[str]:
        """What bash is offered for the last of `words`."""
        line = ["oombisect", *words]
        self.patch.setenv("_OOMBISECT_COMPLETE", "complete_bash")
        self.patch.setenv("COMP_WORDS", "\n".join(line))
        self.patch.setenv("COMP_CWORD", str(len(line) - 1))
        said = self.command()
        assert (said.code, said.err) == (0, ""), said.err
        return said.out.split()


def test_sessions_are_offered_newest_first_where_one_is_wanted(offered: Offered, known: list[str]) -> None:
    newest = ["last", known[1], known[0]]
    for command in ("show", "resume", "undo", "log", "report", "plot"):
        assert offered(command, "") == newest, command
    assert offered("show", known[1][:4]) == [known[1], known[0]]
    assert offered("show", "zz") == []


def test_recipes_gpus_and_questions_are_offered(offered: Offered, known: list[str]) -> None:
    for command in ("plot", "history", "run"):
        assert offered(command, "--recipe", "") == ["toy"], command
    assert offered("run", "--gpu", "virtual:h") == [f"virtual:{name}" for name in PROFILES if name.startswith("h")]
    assert offered("plot", "--gpu", "c") == ["cuda"]
    assert "largest-regressions" in offered("query", "l")


def test_another_database_is_looked_into_if_it_is_named(offered: Offered, known: list[str], tmp_path: Path) -> None:
    empty = tmp_path / "other.db"
    open_store(empty, clock=lambda: datetime(2026, 11, 30, tzinfo=UTC)).close()
    assert offered("show", "--db", str(empty), "") == ["last"]


def test_nothing_is_said_and_nothing_made_where_there_is_no_database(offered: Offered, tmp_path: Path) -> None:
    assert offered("show", "") == [] and offered("run", "--recipe", "") == []
    assert not (tmp_path / "home").exists()
    (tmp_path / "broken.db").write_text("no database")
    assert offered("show", "--db", str(tmp_path / "broken.db"), "") == []
