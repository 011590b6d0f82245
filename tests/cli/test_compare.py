"""`oombisect compare` on the command line: exit codes, JSON, bad input."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.dumps import MIB, dump_devices, dump_without_allocations, plain
from tests.session.memories import write_snapshot

A, B = "a.pickle.gz", "b.pickle.gz"


@pytest.fixture(autouse=True)
def snapshots(tmp_path: Path) -> None:
    write_snapshot(tmp_path / A, [(512, [("/p/a.py", 1, "f")])])
    write_snapshot(tmp_path / B, [(512, [("/p/a.py", 1, "f")]), (1024, [("/p/a\x1b[31m.py", 2, "g")])])


def test_two_files(command: Command, tmp_path: Path) -> None:
    done = command("compare", A, B)
    assert done.code == 0, done.err
    assert "B - A: +1024 B peak allocated" in done.out and "\x1b" not in done.out
    told = command("compare", A, B, "--json").document
    assert (told["schema"], told["delta_bytes"], told["first"]["device"]) == (1, 1024, 0)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((A, "c.pickle.gz"), ("'c.pickle.gz'", "neither a snapshot file nor a probe")),
        ((A, "1"), ("no database to look probe 1 up in", "--db")),
        ((A, B, "--by", "colour"), ("colour", "stack, module, phase")),
        ((A, B, "--top", "0"), ("--top 0",)),
        ((A, B, "--ends"), ("--ends",)),
        ((A, B, "--step", "abc"), ("--step", "a session alone")),
        (("last", "--ends", "--step", "abc"), ("--step", "Leave out --ends")),
        ((A, B, "--rank", "3"), ("of no known rank", "--rank")),
        ((A, B, "--device", "3"), ("nothing of device 3", "It has 0")),
        ((A,), ("nothing to compare", "two snapshots")),
        ((A, "."), ("is a directory",)),
    ],
)
def test_what_cannot_be_compared_is_refused(
    command: Command, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    command("compare", *arguments).refused(2, *words)
    assert command("compare", *arguments, "--json").document["exit"] == 2


def test_a_session_without_a_database(command: Command) -> None:
    command("compare").refused(14, "There is no database", "--db")  # as `show` says it


def test_files_need_no_database(command: Command, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    os.mkfifo(tmp_path / "home" / "oombisect.db")
    assert command("compare", A, B).code == 0
    command("compare", A, "1").refused(2, "oombisect.db is a pipe")
    command("compare", A, B, "--db", tmp_path / "home" / "oombisect.db").refused(2, "oombisect.db is a pipe")


def test_several_devices(command: Command, tmp_path: Path) -> None:
    small = [("alloc", f"small{n}", 512) for n in range(60)]
    dump_devices(tmp_path / "2.gz", {0: small, 1: plain(900 * MIB)}, 3)
    dump_devices(tmp_path / "1.gz", {0: [*small, ("alloc", "more", 512)], 1: plain(700 * MIB)}, 3)
    done = command("compare", "1.gz", "2.gz")
    assert done.code == 0 and "B - A: -512 B" in done.out
    assert done.out.count("device 0 is compared; it also has 1 (--device chooses)") == 2
    told = command("compare", "1.gz", "2.gz", "--device", "1", "--json").document
    assert (told["delta_bytes"], told["second"]["device"]) == (200 * MIB, 1)


def test_nothing_allocated_is_no_answer(command: Command, tmp_path: Path) -> None:
    dump_without_allocations(tmp_path / "none.gz")
    for arguments in (("none.gz", A), (A, "none.gz"), ("none.gz", "none.gz")):
        command("compare", *arguments).refused(2, "none.gz holds no allocations")
