"""`oombisect history`, `query` and `sql` as a user types them."""

from __future__ import annotations

import csv
import io
import re
import subprocess
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from history_support import SESSION, Clock, probe_spec
from series_support import OUT, add_series, reading, sha
from tests.cli.conftest import Command, command
from tests.cli.test_documents import check, section

from oombisect.history.imported import ImportedReading, ImportSpec
from oombisect.history.queries import queries
from oombisect.history.store import open_store
from oombisect.units import GIB

__all__ = ["command"]
A, B = 60 * GIB, 63 * GIB


@pytest.fixture
def filled(database: Path) -> Path:
    with open_store(database, clock=Clock()) as store:
        add_series(store, [A] * 5 + [B] * 3 + [(OUT, 79 * GIB), None, A])
        add_series(store, [A, B], settings={"overrides": ["model.seq_length=4096"], "iterations": 3})
        add_series(
            store, [A + n * GIB // 5 for n in range(9)], recipe="llama3_8b_pretrain", device="cuda", simulated=False
        )
        imported = [
            ImportedReading("qwen3_golden", "dgx_h100", "megatron-lm", sha(n), "line", peak_allocated=GIB)
            for n in (0, 1)
        ]
        store.add_import(ImportSpec("goldens", "a"), imported)
    return database


def test_a_series_with_its_steps(filled: Path, command: Command) -> None:
    said = command("history", "--db", filled, "--workload", "1")
    assert said.code == 0
    assert "qwen3_8b_lora on virtual:h100-80gb: peak allocated of the worst rank (simulated)" in said.out
    lines = said.out.splitlines()
    (step,) = [line for line in lines if line.startswith(f"  {sha(5)[:10]}") and "2026-01-06" in line]
    assert re.search(r"63\.00 GiB +\+3\.00 GiB, fixed by 0000000000", step)
    (died,) = [line for line in lines if "2026-01-09" in line and "out of memory" in line]
    assert "out of memory, at least 79.00 GiB" in died
    assert any("unresolved" in line for line in lines)
    dates = re.findall(r"2026-01-\d\d", "\n".join(line for line in lines if line.startswith("  0000")))
    assert dates == sorted(dates) and len(dates) == 11
    assert "▁▁▁▁▁███x.▁" in said.out


def test_creep(filled: Path, command: Command) -> None:
    said = command("history", "--db", filled, "--recipe", "llama3_8b_pretrain")
    assert re.search(r"Creep: \+1\.60 GiB from 0000000000 to 0000000000, over 8 commits\.", said.out)
    assert "(measured)" in said.out and "noise" in said.out


def test_json(filled: Path, command: Command) -> None:
    document = command("history", "--db", filled, "--workload", "1", "--metric", "device", "--json").document
    (one,) = document["series"]
    assert (one["metric"], one["provenance"], one["ordered_by"]) == ("device", "simulated", "date")
    assert [r["bytes"] for r in one["readings"]][:2] == [A + 3 * GIB] * 2
    assert [(s["point"], s["at_least"], s["state"]) for s in one["steps"]] == [
        (sha(5), False, "fixed"),
        (sha(8), True, "fixed"),
        (sha(10), True, "in force"),
    ]


def test_a_step_at_which_the_config_changed_says_which_keys(database: Path, command: Command) -> None:
    small: dict[str, Any] = {"ARGS": {"--layers": 2, "--lr": 0.1, "--old": True}, "same": [1]}
    large = {"ARGS": {"--layers": 8, "--lr": 0.1, "--new": {}}, "same": [1]}
    with open_store(database, clock=Clock()) as store:
        readings = [
            ImportedReading(
                "golden",
                "dgx_h100",
                "megatron-lm",
                sha(n),
                "line",
                peak_allocated=size * GIB,
                position=n,
                config=config,
            )
            for n, (size, config) in enumerate([(1, small)] * 4 + [(9, large)] * 4 + [(5, large)] * 4)
        ]
        store.add_import(ImportSpec("goldens", "a"), readings)
    up, down = command("history", "--db", database, "--json").document["series"][0]["steps"]
    assert up["config_changes"] == [
        {"path": "ARGS.--layers", "before": "2", "after": "8"},
        {"path": "ARGS.--new", "before": None, "after": "{}"},
        {"path": "ARGS.--old", "before": "true", "after": None},
    ]
    assert down["config_changes"] == []
    said = " ".join(command("history", "--db", database, "--md").out.split())
    assert said.count("its config changed") == 1
    assert "--layers 2 to 8" in said and "--new unset to" in said and "--old true to unset" in said


def test_csv_and_markdown(filled: Path, command: Command) -> None:
    rows = list(csv.DictReader(io.StringIO(command("history", "--db", filled, "--workload", "1", "--csv").out)))
    assert len(rows) == 11 and rows[5]["step_bytes"] == str(B - A) and rows[9]["bytes"] == ""
    assert {row["provenance"] for row in rows} == {"simulated"}
    text = command("history", "--db", filled, "--workload", "1", "--md").out
    assert "| 0000000000 | 2026-01-06 | 63.00 GiB | +3.00 GiB, fixed by 0000000000 | change 5 |" in text


def test_several_workloads_are_told_apart(filled: Path, command: Command) -> None:
    said = command("history", "--db", filled)
    assert "4 workloads match" in said.out and "--workload 2" in said.out and "model.seq_length=4096" in said.out
    document = command("history", "--db", filled, "--json").document
    assert (len(document["workloads"]), document["series"]) == (4, [])
    assert len(command("history", "--db", filled, "--all", "--json").document["series"]) == 4
    both = command("history", "--db", filled, "--recipe", "qwen3_8b_lora").out
    assert both.count("peak allocated of the worst rank") == 2


@pytest.mark.parametrize(
    ("arguments", "workloads"),
    [
        (("--set", "model.seq_length=4096"), [2]),
        (("--provenance", "imported"), [4]),
        (("--gpu", "h100-80gb"), [1, 2]),
        (("--gpu", "cuda"), [3]),
        (("--recipe", "qwen3"), [1, 2, 4]),
        (("--recipe", "golden"), [4]),
        (("--where", "iterations=3", "--recipe", "QWEN3-8B-lora"), [1, 2]),
    ],
)
def test_what_narrows(filled: Path, command: Command, arguments: tuple[str, ...], workloads: list[int]) -> None:
    document = command("history", "--db", filled, "--json", *arguments).document
    assert sorted(one["workload"] for one in document["workloads"]) == workloads


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("--since", "2026-01-09"), [8, 9, 10]),
        (("--until", "2026-01-02"), [0, 1]),
        (("--since", "2026-01-03", "--until", "2026-01-05"), [2, 3, 4]),
        (("--since", sha(9)), [9, 10]),
        (("--until", sha(1)), [0, 1]),
    ],
)
def test_since_and_until(filled: Path, command: Command, arguments: tuple[str, ...], shown: list[int]) -> None:
    (one,) = command("history", "--db", filled, "--workload", "1", "--json", *arguments).document["series"]
    assert [r["point"] for r in one["readings"]] == [sha(n) for n in shown]
    # The fit is that of the whole series.
    assert {s["state"] for s in one["steps"] if s["point"] == sha(5)} <= {"fixed"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--recipe", "mixtral_8x7b"), "was ever measured"),
        (("--recipe", "qwen3_8b_loar"), "Did you mean qwen3_8b_lora"),
        (("--recipe", "qwen3_8b_lora", "--gpu", "cuda"), "virtual:h100-80gb (simulated)"),
        (("--workload", "1", "--since", "yesterday"), "Write a date like"),
        (("--workload", "1", "--since", "2026-02-30"), "no such day"),
        (("--workload", "1", "--since", "2027-01-01"), "Widen --since"),
        (("--workload", "1", "--since", "00000"), "begins several commits"),
        (("--workload", "1", "--rank", "5"), "Leave --rank out"),
        (("--workload", "4", "--metric", "reserved"), "There is allocated: name it with --metric"),
        (("--workload", "1", "--line", "r0.1"), "There are readings on the main one"),
        (("--workload", "1", "--repo", "/nowhere"), "--repo PATH"),
        (("--set", "nonsense"), "--set NAME=VALUE"),
    ],
)
def test_errors_say_what_to_do(filled: Path, command: Command, arguments: tuple[str, ...], words: str) -> None:
    command("history", "--db", filled, *arguments).refused(2, words)


def test_a_metric_that_was_not_read_names_those_that_were(filled: Path, command: Command) -> None:
    asked = ("history", "--db", filled, "--recipe", "qwen3_golden", "--metric", "reserved")
    said = command(*asked)
    said.refused(2, "There is allocated: name it with --metric.")
    assert "--rank" not in said.err
    command(*asked, "--rank", 7).refused(2, "Leave --rank out")


def test_two_formats_are_one_too_many(filled: Path, command: Command) -> None:
    for name in (("history",), ("query", "latest"), ("sql", "SELECT 1")):
        command(*name, "--db", filled, "--csv", "--md").refused(2, "formats of one output")


def test_an_empty_database(database: Path, command: Command) -> None:
    open_store(database, clock=Clock()).close()
    command("history", "--db", database).refused(2, "holds no measurements yet")
    assert command("query", "latest", "--db", database, "--json").document["rows"] == []


def test_the_repository_tells_the_order(database: Path, command: Command, tmp_path: Path) -> None:
    """Dates that run backwards, and a release branch: by date there would be steps that never were."""
    repo = tmp_path / "repo"
    repo.mkdir()

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@e"]
        done = subprocess.run(
            ["git", *identity, "-C", str(repo), *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(subject: str) -> str:
        git("commit", "--quiet", "--allow-empty", "-m", subject)
        return git("rev-parse", "HEAD")

    git("init", "--quiet", "--initial-branch=main")
    main = [commit(f"m{n}") for n in range(6)]
    git("checkout", "--quiet", "-b", "r0.1", main[1])
    release = commit("release")
    git("checkout", "--quiet", "main")
    with open_store(database, clock=Clock()) as store:
        session = store.create_session(replace(SESSION, repo=str(repo))).id
        dates = {main[0]: 3, main[1]: 9, main[4]: 1, main[5]: 5, release: 4}
        for point, day in dates.items():
            committed = f"2026-01-0{day}T00:00:00+00:00"
            spec = probe_spec(session, point, point=point, committed=datetime.fromisoformat(committed))
            store.finish_probe(store.begin_probe(spec), reading(B if point in main[4:] else A))
        store.finish_session(session, 0, {})
    said = command("history", "--db", database, "--json")
    one = next(one for one in said.document["series"])
    assert one["ordered_by"] == "first-parent"
    assert [r["point"] for r in one["readings"]] == [main[n] for n in (0, 1, 4, 5)]
    assert [(s["point"], s["blurred"]) for s in one["steps"]] == [(main[4], 2)]
    shown = command("history", "--db", database)
    assert "in the order of first parents" in shown.out and "--line BRANCH" in shown.out and "r0.1 (1)" in shown.out
    assert command("history", "--db", database, "--line", "r0.1", "--json").document["series"][0]["line"] == "r0.1"
    # What the repository told is kept: the canned questions know it, too, and so does a machine without it.
    repo.rename(tmp_path / "moved")
    rows = command("query", "largest-regressions", "--db", database, "--json").document["rows"]
    assert len(rows) == 1
    since = command("history", "--db", database, "--repo", tmp_path / "moved", "--since", main[3], "--json")
    assert [r["point"] for r in since.document["series"][0]["readings"]] == [main[4], main[5]]


def test_query(filled: Path, command: Command) -> None:
    said = command("query", "largest-regressions", "--db", filled, "--param", "limit=1")
    assert "+16.00 GiB" in said.out and "simulated" in said.out and "1 row" in said.out
    document = command("query", "latest", "--db", filled, "--param", "recipe=qwen3_golden", "--json").document
    assert (document["query"], document["columns"][0], len(document["rows"])) == ("latest", "provenance", 1)
    rows = list(csv.DictReader(io.StringIO(command("query", "latest", "--db", filled, "--csv").out)))
    assert {row["provenance"] for row in rows} == {"simulated", "measured", "imported"}
    assert command("query", "latest", "--db", filled, "--md").out.startswith("| provenance | recipe |")
    command("query", "latets", "--db", filled).refused(2, "Did you mean latest")


def test_query_lists(command: Command) -> None:
    said = command("query")
    assert said.out == command("query", "--list").out and "largest-regressions" in said.out
    assert len(command("query", "--list", "--json").document["queries"]) >= 10


def test_sql(filled: Path, command: Command) -> None:
    assert "11" in command("sql", "SELECT count(*) AS n FROM probes WHERE workload = 1", "--db", filled).out
    document = command("sql", "SELECT x'00ff' AS b, NULL AS c", "--db", filled, "--json").document
    assert document == {"schema": 1, "columns": ["b", "c"], "rows": [["00ff", None]], "cut": False}
    endless = command("sql", "SELECT 9e999 AS a, -9e999 AS b", "--db", filled, "--json")
    assert "Infinity," not in endless.out and endless.document["rows"] == [["Infinity", "-Infinity"]]
    hostile = "SELECT '=HYPERLINK(1)' AS a, '@x' AS b, char(27) || '[31m' || char(10) || 'c' AS c, -5 AS d, 'a-b' AS e"
    assert command("sql", hostile, "--db", filled, "--csv").out == "a,b,c,d,e\n'=HYPERLINK(1),'@x,?[31m c,-5,a-b\n"
    cut = command("sql", "SELECT id FROM probes ORDER BY id", "--limit", "2", "--db", filled, "--csv")
    assert cut.out == "id\n1\n2\n" and "only the first 2 rows" in cut.err
    command("sql", "DELETE FROM gpus", "--db", filled).refused(2, "Only reading is allowed")
    command("sql", "SELECT * FROM nowhere", "--db", filled).refused(2, "no such table", "docs/database.md")
    command("sql", "SELECT 1", "--seconds", "0", "--db", filled).refused(2, "--seconds")


def test_the_documents_are_as_described(filled: Path, command: Command) -> None:
    """Every field of the JSON is named in docs/json.md, and may be null where that says so."""
    histories = [
        command("history", "--db", filled, "--all", "--json", "--metric", m).document for m in ("allocated", "cached")
    ]
    for document in histories:
        for one in [*document["workloads"], *document["series"]]:
            one.pop("settings")
    assert any(one["creep"] for one in histories[0]["series"]) and any(one["steps"] for one in histories[0]["series"])
    check(histories, section("`history`"))
    of_queries = section("`query`, `sql`")
    check([command("query", "latest", "--db", filled, "--json").document], of_queries, "rows", "parameters")
    check([command("query", "--list", "--json").document], of_queries)
    check([command("sql", "SELECT 1 AS one", "--db", filled, "--json").document], of_queries)
    check([command("gc", "--db", filled, "--json").document], section("`gc`"))


def test_every_question_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "queries.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == list(queries())
