"""`oombisect gc`: which files go, and that no number does."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from history_support import SESSION, Clock, probe_spec
from series_support import add_series, reading, sha
from tests.cli.conftest import Command, command

from oombisect.history.store import open_store
from oombisect.units import GIB

__all__ = ["command"]


@pytest.fixture
def filled(database: Path) -> Path:
    """Two finished sessions, the first with a step at commit 3; one that was interrupted and used a probe of theirs."""
    with open_store(database, clock=Clock()) as store:
        session = store.create_session(replace(SESSION, good=sha(0), bad=sha(5))).id
        for number in range(6):
            spec = probe_spec(session, f"s{number}", point=sha(number))
            told = reading(GIB * (number + 1))
            ranks = tuple(replace(rank, snapshot="snapshot-0.pickle.gz") for rank in told.ranks)
            store.finish_probe(store.begin_probe(spec), replace(told, ranks=ranks))
        step = {"point": sha(3), "parent": sha(2), "evidence": {}}
        store.finish_session(session, 0, {"verdict": {"kind": "culprit", "steps": [step], "crossing": sha(3)}})
        add_series(store, [GIB] * 3, first=10, recipe="other")
        open_ = store.create_session(SESSION).id
        store.finish_probe(store.begin_probe(probe_spec(open_, "x", point=sha(20))), reading(GIB))
        store.append_event(open_, "observation", {"probe": 2, "request": {"index": 1, "kind": "measure"}})
        store.interrupt_session(open_, 130)
        for probe in range(1, 11):
            folder = store.artifacts_dir(store.probe(probe).spec.session, probe)
            (folder / "snapshot-0.pickle.gz").write_bytes(b"x" * 100_000)
            (folder / "log-0.txt").write_bytes(b"x")
    return database


def probes_with_files(database: Path) -> list[int]:
    return sorted(int(file.parent.name) for file in database.with_suffix(".artifacts").glob("*/*/log-0.txt"))


def numbers(database: Path) -> str:
    db = sqlite3.connect(database)
    try:
        return "\n".join(db.iterdump())
    finally:
        db.close()


def test_ends_steps_and_what_the_unfinished_need_are_kept(filled: Path, command: Command) -> None:
    before = numbers(filled)
    said = command("gc", "--db", filled, "--older-than", "0", "--json")
    assert [one["probe"] for one in said.document["deleted"]] == [5, 7, 8, 9]
    assert said.document["kept_bytes"].keys() == {"unfinished", "end or step"}
    assert probes_with_files(filled) == [1, 2, 3, 4, 6, 10]
    assert numbers(filled) == before


def test_whoever_asks_for_it_loses_all_files_and_no_number(filled: Path, command: Command) -> None:
    before = numbers(filled)
    said = command("gc", "--db", filled, "--older-than", "0", "--ends", "--unfinished")
    assert said.code == 0 and "deleted the files of 10 probes" in said.out
    assert probes_with_files(filled) == [] and numbers(filled) == before
    assert command("gc", "--db", filled, "--older-than", "0").out.startswith("deleted the files of 0 probes")


def test_a_dry_run_deletes_nothing(filled: Path, command: Command) -> None:
    said = command("gc", "--db", filled, "--older-than", "0", "--dry-run")
    assert "would delete the files of 4 probes" in said.out
    assert len(probes_with_files(filled)) == 10


def test_new_files_are_kept(filled: Path, command: Command) -> None:
    assert command("gc", "--db", filled, "--json").document["deleted"] == []


def test_one_session(filled: Path, command: Command) -> None:
    said = command("gc", "--db", filled, "--session", "20261130-2", "--json")
    assert [one["probe"] for one in said.document["deleted"]] == [7, 8, 9]
    assert command("gc", "--db", filled, "--session", "2027").code == 2


def test_the_oldest_go_until_little_enough_is_left(filled: Path, command: Command) -> None:
    total = command("gc", "--db", filled, "--older-than", "0", "--dry-run", "--json").document["left_bytes"]
    said = command("gc", "--db", filled, "--keep", f"{total - 150_000}b", "--json")
    assert [one["probe"] for one in said.document["deleted"]] == [5, 7]
    assert said.document["left_bytes"] <= total - 150_000
    everything = command("gc", "--db", filled, "--keep", "0GiB", "--json")
    assert [one["probe"] for one in everything.document["deleted"]] == [8, 9]


def test_a_session_that_runs_keeps_its_files(filled: Path, command: Command) -> None:
    with open_store(filled, clock=Clock()) as store:
        store.resume_session("20261130-3")
        said = command("gc", "--db", filled, "--older-than", "0", "--ends", "--unfinished")
        assert "of a session that is running" in said.out
        assert probes_with_files(filled) == [10]


def test_a_link_is_never_followed(filled: Path, command: Command, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").write_text("x")
    folder = filled.with_suffix(".artifacts") / "20261130-2"
    (folder / "8" / "link").symlink_to(other)
    for file in (folder / "9").iterdir():
        file.unlink()
    (folder / "9").rmdir()
    (folder / "9").symlink_to(other)
    command("gc", "--db", filled, "--older-than", "0", "--ends", "--unfinished")
    assert (other / "precious").read_text() == "x" and (folder / "9").is_symlink()


def test_a_session_folder_that_is_a_link_is_never_followed(filled: Path, command: Command, tmp_path: Path) -> None:
    folder = filled.with_suffix(".artifacts") / "20261130-2"
    folder.rename(tmp_path / "other")
    folder.symlink_to(tmp_path / "other")
    said = command("gc", "--db", filled, "--older-than", "0", "--ends", "--unfinished", "--json")
    assert {one["session"] for one in said.document["deleted"]} == {"20261130-1", "20261130-3"}
    assert (tmp_path / "other" / "8" / "log-0.txt").exists() and folder.is_symlink()


def test_what_is_gone_is_said_to_be(filled: Path, command: Command) -> None:
    command("gc", "--db", filled, "--older-than", "0")
    command("replay", "5", "--db", filled).refused(2, "is gone", "oombisect gc", "Probe the point again")
    command("compare", "5", "1", "--db", filled).refused(2, "is gone", "oombisect gc")


@pytest.mark.parametrize("arguments", [("--older-than", "-1"), ("--keep", "much"), ("--older-than", "nan")])
def test_wrong_arguments(filled: Path, command: Command, arguments: tuple[str, ...]) -> None:
    assert command("gc", "--db", filled, *arguments).code == 2
    assert len(probes_with_files(filled)) == 10
