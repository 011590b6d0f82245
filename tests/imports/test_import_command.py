"""`oombisect import`: from files to rows, through the command line."""

from __future__ import annotations

import gzip
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, command
from tests.cli.dumps import dump, dump_of_a_death, pinned, plain
from tests.cli.test_documents import keys, named, section
from tests.imports import golden_repo
from tests.imports.test_sources import MEGATRON, OOM, event, events
from tests.session.toy import git

__all__ = ["command"]
FOLDER = Path("home")


def rows(sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(FOLDER / "oombisect.db") as db:
        return db.execute(sql).fetchall()


READINGS = """
SELECT provenance, recipe, device, point, rank, outcome, peak_allocated FROM measurements
JOIN workloads ON workloads.id = workload ORDER BY imported_reading"""
MIB = 1 << 20


def test_logs_by_rank_at_a_commit(command: Command, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    (repo / "src/megatron/bridge").mkdir(parents=True)
    (repo / "src/megatron/bridge/x.py").write_text("")
    git(repo, "init", "-q", "-b", "main")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "One")
    sha = git(repo, "rev-parse", "HEAD")
    Path("a.log").write_text(f"{MEGATRON}\n{MEGATRON.replace('Rank 0', 'Rank 1')}\n{OOM}\n")
    said = command(
        "import", "log", "a.log", "--commit", "main", "--repo", repo, "--recipe", "llama", "--device", "dgx_h100",
        "--set", "tp=2",
    )  # fmt: skip
    assert said.code == 0 and "a.log: 2 readings imported" in said.out
    ranks = rows(READINGS)
    assert [row[:6] for row in ranks] == [("imported", "llama", "dgx_h100", sha, n, "censored") for n in (0, 1)]
    assert rows("SELECT repo, subject FROM points") == [("bridge", "One")]
    assert rows("SELECT settings FROM workloads") == [('{"imported":"log","tp":"2"}',)]
    assert rows("SELECT kind, source, length(sha256) FROM imports") == [("log", "a.log", 64)]


def test_a_file_of_which_nothing_finds_its_place_is_not_imported(command: Command) -> None:
    Path("a.csv").write_text("peak_allocated,date\n1GiB,2026-02-30\n2GiB,soon\n")
    Path("b.csv").write_text("peak_allocated,date\n1GiB,2026-02-28\n2GiB,soon\n")
    said = command("import", "csv", "a.csv", "b.csv", "--json")
    none, one = said.document["sources"]
    assert said.code == 2 and "in its place" in none["not_imported"] and len(none["problems"]) == 2
    assert (one["added"], one["not_imported"], len(one["problems"])) == (1, None, 1)


def test_a_file_of_no_known_date_is_known_again_wherever_it_lies(command: Command) -> None:
    Path("a.log").write_text(MEGATRON)
    assert command("import", "log", "a.log", "--json").document["added"] == 1
    Path("b").mkdir()
    Path("b/a.log.gz").write_bytes(gzip.compress(MEGATRON.encode(), mtime=1))
    Path("b/a.log").write_text(MEGATRON)
    again = command("import", "log", "a.log", "b/a.log")
    assert again.code == 0 and again.out.count("nothing new; 1 reading known before") == 2
    assert command("import", "log", "b/a.log.gz", "--date", "2026-08-01", "--json").document["added"] == 1
    assert command("import", "log", "b/a.log.gz", "--date", "2026-08-01", "--json").document["added"] == 0
    assert rows("SELECT key, committed FROM points WHERE key LIKE '2026%'") == [
        ("2026-08-01T00:00:00+00:00", "2026-08-01T00:00:00.000000Z")
    ]


def test_each_file_is_imported_on_its_own(command: Command) -> None:
    Path("good.log").write_text(MEGATRON)
    Path("empty.log").write_text("nothing of interest\n")
    said = command("import", "log", "empty.log", "nope.log", "good.log", "--json")
    assert said.code == said.document["exit"] == 2
    assert [source["added"] for source in said.document["sources"]] == [0, 0, 1]
    assert [bool(source["not_imported"]) for source in said.document["sources"]] == [True, True, False]
    assert said.document["provenance"] == "imported"


def test_strict_takes_a_file_whole_or_not_at_all(command: Command) -> None:
    Path("a.log").write_text(f"{MEGATRON}\n{MEGATRON[:-30]}\n".replace("Rank 0] (after 2", "Rank 0] (after 3", 1))
    assert command("import", "log", "a.log", "--strict").code == 2
    assert rows("SELECT 1 FROM imports") == []
    said = command("import", "log", "a.log")
    assert said.code == 0 and "1 part left out:" in said.out and "line 2:" in said.out


def test_snapshots(command: Command) -> None:
    Path("run1").mkdir()
    dump(Path("run1/snapshot-3.pickle"), [*pinned(), *plain()])
    dump_of_a_death(Path("run1/snapshot_4.pickle"), plain(), 90 << 30)
    Path("run1/snapshot_5.pickle").write_bytes(b"nonsense")
    said = command("import", "snapshot", *sorted(Path("run1").iterdir()), "--json")
    assert said.code == 2 and said.document["added"] == 2
    found = rows(READINGS)
    assert [(row[1], row[4], row[5]) for row in found] == [("run1", 3, "exact"), ("run1", 4, "censored")]
    assert all(row[6] > 0 for row in found)


def test_event_files(command: Command) -> None:
    for run, peak in (("a", 4096.0), ("b", 8192.0)):
        folder = Path("tb") / run
        folder.mkdir(parents=True)
        (folder / "events.out.tfevents.1").write_bytes(events(event(1, peak)))
    Path("tb/a/events.out.tfevents.2").write_bytes(events(event(2, 5120.0)))
    assert command("import", "tensorboard", "tb", "--json").document["added"] == 2
    assert [(row[1], row[6]) for row in rows(READINGS)] == [("a", 5120), ("b", 8192)]
    command("import", "tensorboard", "nowhere").refused(2, "nowhere")
    Path("none").mkdir()
    command("import", "tensorboard", "none").refused(2, "no event files")


def test_exports_and_tables(command: Command) -> None:
    Path("w.csv").write_text("Step,my run - mem-max-allocated-bytes\n1,5\n2,6\n")
    assert command("import", "wandb", "w.csv").code == 0
    Path("t.csv").write_text("Max mem,who,when\n1.5,llama,2026-08-01\n2.5,qwen,soon\n")
    said = command("import", "csv", "t.csv", "--columns", "peak_allocated=Max mem:GiB,recipe=who,date=when")
    assert said.code == 0 and "line 3: 'soon' is no date" in said.out
    assert [(row[1], row[6]) for row in rows(READINGS)] == [("my run", 6), ("llama", 3 << 29)]
    command("import", "csv", "t.csv", "--columns", "peak=x").refused(2, "--columns", "peak_allocated")


def test_goldens(command: Command, tmp_path: Path) -> None:
    golden_repo.make(tmp_path / "clone")
    said = command("import", "goldens", "clone")
    assert said.code == 0
    for words in ("7 readings imported", "1 of 8 goldens tell no memory", "2 parts left out", "it is empty"):
        assert words in said.out
    assert "nothing new" in command("import", "goldens", "clone").out
    command("import", "goldens", "clone", "--since", "nonsense").refused(2, "no date")
    command("import", "goldens", "nowhere").refused(2, "no clone")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--commit", "nope"], ["'nope'", "--repo"]),
        (["--commit", "-h"], ["'-h'"]),
        (["--commit", "a", "--date", "2026-01-01"], ["--commit and --date"]),
        (["--date", "32.13."], ["no date"]),
        (["--set", "x"], ["no assignment"]),
    ],
)
def test_wrong_options(command: Command, arguments: list[str], words: list[str]) -> None:
    Path("a.log").write_text(MEGATRON)
    command("import", "log", "a.log", *arguments).refused(2, *words)
    assert not (FOLDER / "oombisect.db").exists() or rows("SELECT 1 FROM imports") == []


@pytest.mark.parametrize("kind", ["log", "wandb", "csv", "snapshot"])
def test_what_is_no_file_is_not_waited_for(command: Command, tmp_path: Path, kind: str) -> None:
    os.mkfifo("pipe")
    for name, what in (("pipe", "a pipe"), (".", "a directory"), ("/dev/zero", "a device")):
        said = command("import", kind, name)
        assert said.code == 2 and what in said.out


def test_the_document_is_described(command: Command) -> None:
    Path("a.log").write_text(f"{MEGATRON}\n{MEGATRON[:-30]}\n")
    document = command("import", "log", "a.log", "nope.log", "--json").document
    text = section("`import`")
    assert keys(document) <= named(text), keys(document) - named(text)
