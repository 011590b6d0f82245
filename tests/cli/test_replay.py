"""`oombisect replay` on the command line: exit codes, several devices, runs that died, what is refused, JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oombisect.history.store import Store, open_store
from tests.cli.conftest import Command
from tests.cli.dumps import (
    MIB,
    dump,
    dump_devices,
    dump_of_a_death,
    dump_of_the_end,
    dump_without_allocations,
    edit,
    pinned,
    plain,
)
from tests.cli.test_exits import signals_as_in_a_terminal
from tests.session.memories import add_probe, session_spec

VERSIONS = Path(__file__).parents[1] / "history" / "versions"
NEEDED = 5400 * MIB  # by `pinned`, of which it holds 3300 MiB
ONE = ("--alloc-conf", "expandable_segments:True")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return dump(tmp_path / "one.gz", pinned())


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Five devices: the first has the longest history, the third needs most, two did nothing."""
    small = [("alloc", f"small{n}", 512) for n in range(60)]
    return dump_devices(tmp_path / "several.gz", {0: [*plain(), *small], 2: pinned(), 3: plain(100 * MIB)}, 5)


# Exit codes


@pytest.mark.parametrize(
    ("limit", "code", "fits"),
    [((), 0, None), (("--limit", f"{NEEDED}"), 0, True), (("--limit", f"{NEEDED - 2 * MIB}"), 1, False)],
)
def test_the_exit_code_says_whether_it_fits(
    command: Command, file: Path, limit: tuple[str, ...], code: int, fits: bool | None
) -> None:
    said = command("replay", file, *ONE, *limit)
    assert said.code == code and said.err == ""
    told = command("replay", file, *ONE, *limit, "--json")
    assert told.code == told.document["exit"] == code
    assert told.document["fits"] is fits and told.document["settings"][0]["fits"] is fits
    assert told.document["settings"][0]["min_limit_bytes"] == NEEDED
    assert (told.document["first_oom"] is None) == (code == 0)
    assert ("first out-of-memory error" in said.out) == (code == 1)
    if code == 1:  # what does not fit never looks like the limit
        assert "limit 5.271 GiB" in said.out and " 5.273 GiB " in said.out


def test_external_memory_counts_and_may_be_none(command: Command, file: Path) -> None:
    limit = ("--limit", f"{NEEDED}", *ONE, "--json")
    assert command("replay", file, *limit, "--external", "0").code == 0
    assert command("replay", file, *limit, "--external", "0GiB").code == 0
    said = command("replay", file, *limit, "--external", "2MiB")
    assert said.code == 1 and said.document["settings"][0]["min_limit_bytes"] == NEEDED + 2 * MIB
    command("replay", file, "--limit", "2GiB", "--external", "2GiB").refused(
        2, "leave nothing of the limit of 2.00 GiB"
    )


def test_a_named_device_is_the_limit(command: Command, file: Path) -> None:
    for gpu, code in (("virtual:5400MiB", 0), ("virtual:5398MiB", 1), ("virtual:a100-40gb", 0)):
        assert command("replay", file, *ONE, "--gpu", gpu).code == code
    assert command("replay", file, *ONE, "--gpu", "virtual:5398MiB", "--limit", "6GiB").code == 0


# Several devices


def test_every_device_is_judged(command: Command, several: Path) -> None:
    said = command("replay", several, *ONE, "--limit", "5GiB")
    assert said.code == 1
    assert "several.gz, device 2: 28 events replayed" in said.out
    assert "all 3 devices as recorded" in said.out
    assert [line.split()[0] for line in said.out.partition("fits \n")[2].partition("fits \n")[2].splitlines()] == [
        "2", "0", "3"
    ]  # fmt: skip
    told = command("replay", several, *ONE, "--limit", "5GiB", "--json").document
    assert (told["fits"], told["device"], told["exit"]) == (False, 2, 1)
    assert [(row["device"], row["fits"]) for row in told["devices"]] == [(2, False), (0, True), (3, True)]
    assert [row["min_limit_bytes"] for row in told["devices"]] == [NEEDED, 902 * MIB, 100 * MIB]
    assert told["settings"][0]["min_limit_bytes"] == NEEDED and told["first_oom"] is not None
    assert command("replay", several, *ONE, "--limit", f"{NEEDED}").code == 0


def test_one_device_is_chosen(command: Command, several: Path) -> None:
    said = command("replay", several, *ONE, "--limit", "5GiB", "--device", "0")
    assert said.code == 0 and "several.gz, device 0:" in said.out and "all 3 devices" not in said.out
    assert "only device 0 is replayed; there is a history of 2, 3, too" in said.out
    told = command("replay", several, *ONE, "--device", "3", "--json").document
    assert (told["device"], [row["device"] for row in told["devices"]]) == (3, [3])
    for device in ("1", "9"):
        words = f"no history of allocations of device {device}, but of 0, 2, 3 (--device)"
        command("replay", several, "--device", device).refused(2, words)
    command("replay", several, "--device", "-1").refused(2, "--device -1")


# Runs that died, and what is no run


def test_a_run_that_died_is_not_said_to_fit(command: Command, tmp_path: Path) -> None:
    died = dump_of_a_death(tmp_path / "died.gz", plain(), 2000 * MIB)
    said = command("replay", died, *ONE, "--limit", "4GiB")
    assert said.code == 0  # nothing shows that it would not fit
    row = next(line for line in said.out.splitlines() if "(as recorded)" in line)
    assert row.count("at least 2.83 GiB") == 3 and row.rstrip().endswith("so far")  # with the request that failed
    assert "so far: under these settings all that was recorded fits" in said.out
    assert "died of an out-of-memory error" in said.out and "(--external SIZE counts it)" in said.out
    said = command("replay", died, *ONE, "--limit", "4GiB", "--external", "1GiB")
    assert said.code == 0 and "--external" not in said.out  # it has been counted
    told = command("replay", died, *ONE, "--limit", "4GiB", "--json").document
    assert (told["fits"], told["complete"], told["perfect"]["fits"]) == (None, False, None)
    assert all(row["is_lower_bound"] and row["fits"] is None for row in told["settings"])
    told = command("replay", died, *ONE, "--limit", "2GiB", "--json").document
    assert (told["fits"], told["exit"], told["perfect"]["fits"]) == (False, 1, False)


def test_a_recording_that_begins_late_is_not_said_to_fit(command: Command, tmp_path: Path) -> None:
    """Its first events are lost, as a ring buffer loses them: those of a block of 900 MiB that was freed again."""
    late = dump_of_the_end(tmp_path / "late.gz", [*plain(), ("alloc", "c", 4 * MIB), ("alloc", "d", 4 * MIB)], 2)
    said = command("replay", late, *ONE, "--limit", "1GiB")
    assert said.code == 0 and "the recording begins when there is memory already" in said.out
    rows = [line for line in said.out.splitlines() if "(as recorded)" in line or "(approximate)" in line]
    assert len(rows) == 2 and all("at least" in row and row.rstrip().endswith("so far") for row in rows)
    told = command("replay", late, *ONE, "--limit", "1GiB", "--json").document
    assert (told["fits"], told["complete"], told["perfect"]["fits"]) == (None, False, None)
    assert command("replay", late, *ONE, "--limit", "800MiB").code == 1  # of less even this part shows that it fails


def test_nothing_allocated_is_no_answer(command: Command, tmp_path: Path) -> None:
    nothing = dump_without_allocations(tmp_path / "none.gz")
    for limit in ((), ("--limit", "1GiB")):
        command("replay", nothing, *limit).refused(2, "none.gz", "holds no history of allocations")
    assert command("replay", nothing, "--json").document["exit"] == 2


def test_a_memory_fraction(command: Command, file: Path) -> None:
    device = ("--gpu", "virtual:10800MiB", *ONE)
    assert command("replay", file, *device, "--fraction", "0.5").code == 0
    said = command("replay", file, *device, "--fraction", "0.4")
    assert said.code == 1 and "none: the memory fraction forbids it" in said.out and "at least" in said.out
    told = command("replay", file, *device, "--fraction", "0.4", "--json").document
    row, expandable = told["settings"]
    assert (row["fits"], row["min_limit_bytes"], row["is_lower_bound"], expandable["fits"]) == (False, None, True, True)
    assert (told["memory_fraction"], told["fidelity"]["exact"]) == (0.4, False)


# The table


def test_refused_settings_are_below_the_table(command: Command, file: Path) -> None:
    said = command("replay", file, "--alloc-conf", "no_such_setting:" + "1" * 60, *ONE)
    assert said.code == 0
    lines = said.out.splitlines()
    refused = next(n for n, line in enumerate(lines) if "refused: " in line)
    assert refused > next(n for n, line in enumerate(lines) if "a perfect allocator" in line)
    told = command("replay", file, "--alloc-conf", "no_such_setting:1", *ONE, "--json").document
    assert [bool(row["refused"]) for row in told["settings"]] == [False, True, False]


def test_a_script_does_not_see_success_where_every_setting_is_refused(command: Command, file: Path) -> None:
    confs = ("--alloc-conf", "no_such_setting:" + "1" * 5000, "--alloc-conf", "max_split_size_mb:1" + "0" * 5000)
    said = command("replay", file, *confs)
    said.refused(2, "'no_such_setting' is no allocator setting", "max_split_size_mb is '1000", "too large")
    assert len(said.err) < 600
    assert command("replay", file, *confs, "--json").document["exit"] == 2
    one = command("replay", file, *confs, *ONE)
    assert one.code == 0 and one.out.count("refused: ") == 2
    assert max(map(len, one.out.splitlines())) < 300  # a value is cut: the reason comes after it


def test_a_setting_it_was_recorded_under_is_told_by_the_first_row(command: Command, file: Path) -> None:
    for conf in ("", "expandable_segments:False"):
        said = command("replay", file, "--alloc-conf", conf)
        assert said.code == 0 and f"note: --alloc-conf {conf!r}: recorded so, told by the row `as recorded`" in said.out
    assert "recorded so" not in command("replay", file).out


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_each_setting_is_one_row(command: Command, tmp_path: Path, conf: str) -> None:
    file = dump(tmp_path / "conf.gz", plain(), conf)
    same = ["--alloc-conf", conf or "expandable_segments:False", "--alloc-conf", conf]
    told = command("replay", file, *same, "--alloc-conf", "max_split_size_mb:64", "--json").document
    assert [row["alloc_conf"] for row in told["settings"]] == [conf, "max_split_size_mb:64"]
    usual = command("replay", file, "--json").document["settings"]
    assert len({row["alloc_conf"] for row in usual}) == len(usual) == 9


def test_what_ifs_of_a_trace_that_begins_in_the_middle_are_approximate(command: Command, file: Path) -> None:
    """The first segment and its block from before the trace are known from the snapshot alone."""
    import gzip
    import pickle

    with gzip.open(file) as opened:
        (trace,) = pickle.load(opened)["device_traces"]
    edit(file, device_traces=[trace[8:]])
    said = command("replay", file, *ONE)
    assert "expandable_segments:True (approximate)" in said.out and "(as recorded)" in said.out
    told = command("replay", file, *ONE, "--json").document["settings"]
    assert [row["approximate"] for row in told] == [False, True]


@pytest.mark.parametrize("width", [40, 200])
def test_a_narrow_terminal_cuts_nothing(several: Path, width: int) -> None:
    from io import StringIO

    from rich.console import Console

    from oombisect.reports.replay import render_replay
    from oombisect.session.replay_report import Question, replay_snapshot
    from oombisect.session.snapshots_of import resolve_snapshot

    report = replay_snapshot(resolve_snapshot(str(several), None), None, Question(limit=5 << 30), lambda _: None)
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    render_replay(report, console)
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "…" not in shown
    assert ("  needed capacity: 5.27 GiB\n" in shown) == (width == 40)
    assert len(re.findall(r"\b5\.27 GiB", shown)) >= 3


def test_progress_tells_of_every_row(several: Path) -> None:
    from oombisect.session.replay_report import Question, replay_snapshot
    from oombisect.session.snapshots_of import resolve_snapshot

    said: list[str] = []
    report = replay_snapshot(resolve_snapshot(str(several), None), None, Question(), said.append)
    assert len(said) == 1 + len(report.devices) + len(report.what_ifs)
    assert said[:2] == [f"reading {several}", "replaying device 0 as recorded (66 events)"]
    assert said[-1].endswith(f"({len(report.what_ifs)} of {len(report.what_ifs)})")


# What is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpu", "nonsense"), ("--gpu 'nonsense'", "virtual:h100-80gb")),
        (("--gpu", "cuda"), ("--gpu 'cuda'", "virtual:h100-80gb")),
        (("--gpu", "virtual:h100-80g"), ("virtual:h100-80g", "Did you mean")),
        (("--torch", "x"), ("--torch 'x'", "2.9")),
        (("--torch", ""), ("--torch ''",)),
        (("--torch", "2"), ("--torch '2'",)),
        (("--limit", ""), ("'' is not a memory size",)),
        (("--limit", "0"), ("'0' is too little", "must be more than 0")),
        (("--limit", "-1"), ("'-1' is too little", "must be more than 0")),
        (("--limit", "1e99"), ("'1e99' is too large",)),
        (("--external", ""), ("'' is not a memory size",)),
        (("--external", "-1GiB"), ("must be 0 or more",)),
        (("--alloc-conf", "x:1"), ("refuses every --alloc-conf", "'x' is no allocator setting")),
        (("--rank", "99"), ("of no known rank", "--rank")),
        (("--rank", "-1"), ("--rank",)),
        (("--fraction", "0.5"), ("--fraction 0.5", "--gpu")),
        (("--fraction", "0", "--gpu", "virtual:h100-80gb"), ("--fraction 0 ",)),
        (("--fraction", "1.5", "--gpu", "virtual:h100-80gb"), ("--fraction 1.5",)),
        (("--fraction", "nan", "--gpu", "virtual:h100-80gb"), ("--fraction nan",)),
    ],
)
def test_options_that_make_no_sense(
    command: Command, file: Path, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    command("replay", file, *options).refused(2, *words)
    assert command("replay", file, *options, "--json").document["exit"] == 2


def test_arguments_that_are_no_snapshot(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("no snapshot")
    (tmp_path / "empty").touch()
    for name, words in {
        "pipe": ("'pipe' is a pipe, not a snapshot file",),
        ".": ("'.' is a directory",),
        "/dev/zero": ("is a device",),
        "nowhere": ("neither a snapshot file nor a probe",),
        "text/x": ("neither a snapshot file nor a probe",),
        "x" * 300: ("cannot be read", "name too long"),
        "text": ("text: ", "docs/snapshots.md"),
        "empty": ("empty: ",),
        "1": ("no database to look probe 1 up in",),
    }.items():
        said = command("replay", name)
        said.refused(2, *words)
        assert "Error:" not in said.err


# Databases


@pytest.mark.parametrize("content", [b"", b"not a database" * 500, None])
def test_a_bare_file_needs_no_database(command: Command, file: Path, tmp_path: Path, content: bytes | None) -> None:
    home = tmp_path / "home"
    if content is None:  # a pipe: whoever opens it hangs
        home.mkdir()
        os.mkfifo(home / "oombisect.db")
    else:
        home.mkdir()
        (home / "oombisect.db").write_bytes(content)
    assert command("replay", file, *ONE).code == 0
    command("replay", file, *ONE, "--db", home / "oombisect.db").refused(
        {b"": 2, None: 2}.get(content, 14), "oombisect.db"
    )
    command("replay", "1").refused({b"": 2, None: 2}.get(content, 14), "oombisect.db")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "home" / "oombisect.db", clock=lambda: datetime(2026, 11, 30, tzinfo=UTC)) as opened:
        yield opened


def test_a_number_is_a_probe_and_a_path_the_file(command: Command, store: Store, tmp_path: Path) -> None:
    session = store.create_session(session_spec(tmp_path, "a" * 40, "b" * 40, device="virtual:2048MiB")).id
    probe = add_probe(store, session, "b" * 40, [(512, [])])
    dump(tmp_path / str(probe), pinned())
    said = command("replay", str(probe), *ONE)
    assert f"probe {session}/{probe}, rank 0: 2 events" in said.out
    assert f"{probe} is taken for a probe; the file of that name is ./{probe}" in said.out
    assert f"./{probe}: 28 events" in command("replay", f"./{probe}", *ONE).out
    dump(tmp_path / "77", pinned())
    command("replay", "77").refused(2, "no probe 77", "./77")
    inside = store.snapshot(probe, 0)
    assert inside is not None  # a file of the default database's artifacts is known for the probe's
    assert command("replay", inside, *ONE, "--json").document["simulated"] is True
    (tmp_path / "elsewhere.gz").write_bytes(inside.read_bytes())
    assert command("replay", tmp_path / "elsewhere.gz", *ONE, "--json").document["simulated"] is False


@pytest.mark.parametrize("version", ["001_initial", "002_replays"])
def test_an_earlier_database_is_brought_up_to_date(command: Command, tmp_path: Path, version: str) -> None:
    import sqlite3

    for name, arguments, code in (
        ("sessions", (), 0),
        ("show", ("20261130-1",), 0),
        ("replay", ("1",), 2),  # its snapshot is gone
        ("compare", ("20261130-1",), 2),  # its verdict names no step
    ):
        path = tmp_path / f"{name}.db"
        db = sqlite3.connect(path)
        db.executescript((VERSIONS / f"{version}.sql").read_text(encoding="utf-8"))
        db.close()
        said = command(name, *arguments, "--db", path)
        assert said.code == code, said.err
        assert "earlier oombisect" not in said.err and "is a bug" not in said.err
        with sqlite3.connect(path) as db:
            assert db.execute("SELECT count(*) FROM replays").fetchone() is not None
        db.close()


# Ctrl-C


def test_an_interrupted_replay_says_so(tmp_path: Path) -> None:
    many = [("alloc", f"keep{n}", 3 * MIB) for n in range(60)]
    many += [step for n in range(8000) for step in (("alloc", f"x{n}", (n % 97 + 1) * MIB), ("free", f"x{n}", 0))]
    file = dump(tmp_path / "long.gz", many)
    code = "import sys; from oombisect.session import replay_report as r; told = r.under\n"
    code += "def under(*a, **k):\n print('begun', file=sys.stderr, flush=True)\n while True: told(*a, **k)\n"
    code += "r.under = under\nfrom oombisect.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "replay", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env=dict(os.environ, OOMBISECT_HOME=str(tmp_path / "home")), preexec_fn=signals_as_in_a_terminal,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == "begun\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "oombisect: Interrupted\n")


# JSON


def documented(section: str) -> set[str]:
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    text = page.split(f"\n## `{section}`\n")[1].split("\n## ")[0]
    return set(re.findall(r'"(\w+)"', text))


def keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


def test_the_document_is_the_documented_one(command: Command, several: Path) -> None:
    told = command("replay", several, "--limit", "5GiB", "--json").document
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    stranded = set(re.findall(r'"(\w+)"', page.split("**stranded**:")[1].split("```")[1]))
    assert keys({**told, "first_oom": None}) <= documented("replay")
    assert keys(told["first_oom"]) == stranded - {"limit_bytes", "enforced"}
    top = {"schema", "snapshot", "rank", "simulated", "events", "allocations", "rules", "fidelity", "limit_bytes"}
    assert top | {"external_bytes", "settings", "perfect", "first_oom", "notes", "device", "devices"} <= told.keys()
    assert json.dumps(told)  # plain values all through
