"""The canned questions: their heads, their parameters, and what they answer on a database of known truth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from history_support import Clock
from series_support import OUT, add_series, sha

from oombisect.errors import OombisectError
from oombisect.history.connection import Connection
from oombisect.history.imported import ImportedReading, ImportSpec
from oombisect.history.queries import found_in, parse_query, queries, query_named
from oombisect.history.reader import Reader
from oombisect.history.records import ReplayRecord
from oombisect.history.series import bring_up_to_date
from oombisect.history.store import open_store
from oombisect.reports.answers import answer_markdown
from oombisect.units import GIB

GPUS = {"a100-40gb": 40 * GIB, "h100-80gb": 80 * GIB}
NEEDED = {
    "between-releases": [f"old={sha(0)}", f"new={sha(9)}"],
    "steps-between": ["since=2026-01-01"],
    "not-probed-lately": ["days=-9"],
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """`grows` by 3 GiB at commit 5, `shrinks` by 5 GiB there, `dies` at the end, `creeps`, and one imported."""
    database = tmp_path_factory.mktemp("queries") / "oombisect.db"
    with open_store(database, clock=Clock()) as store:
        session = add_series(store, [60 * GIB] * 5 + [63 * GIB] * 5, recipe="grows")
        add_series(store, {9: 63 * GIB + 1}, recipe="grows", request="remeasure")
        add_series(store, [60 * GIB] * 5 + [55 * GIB] * 5, recipe="shrinks", device="cuda", simulated=False)
        add_series(store, [70 * GIB] * 8 + [(OUT, 79 * GIB)] * 2, recipe="dies")
        add_series(store, [30 * GIB + n * GIB // 5 for n in range(10)], recipe="creeps")
        store.add_replay(
            ReplayRecord(store.probes(session)[-1].id, 0, "", "torch", None, True, 63 * GIB, 65 * GIB, 64 * GIB)
        )
        imported = [
            ImportedReading(
                "golden", "dgx_h100", "megatron-lm", sha(n), f"line {n}", peak_allocated=size * GIB, position=n
            )
            for n, size in enumerate((10, 10, 12, 12))
        ]
        store.add_import(ImportSpec("csv", "a.csv"), imported)
    assert bring_up_to_date(database, now, GPUS) is None
    with Reader(Connection(database, now, 5, readonly=True)) as opened:
        yield opened


def now() -> str:
    return "2026-11-30T12:00:00.000000Z"


def ask(reader: Reader, name: str, *given: str) -> list[dict[str, Any]]:
    query = query_named(name)
    answer = reader.ask(query.sql, query.values([*NEEDED.get(name, []), *given]))
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


@pytest.mark.parametrize("name", list(queries()))
def test_every_number_says_where_it_is_from(reader: Reader, name: str) -> None:
    query = query_named(name)
    answer = reader.ask(query.sql, query.values(NEEDED.get(name, [])))
    assert answer.columns[0] == "provenance"
    assert answer.rows, "nothing to see in the database of known truth"
    assert len(query.about) < 121 and query.about.endswith(".")
    assert all(parameter.meaning for parameter in query.parameters)


def test_largest_regressions(reader: Reader) -> None:
    rows = ask(reader, "largest-regressions")
    assert [(r["recipe"], r["delta_bytes"], r["at_least"], r["point"]) for r in rows] == [
        ("dies", 9 * GIB, 1, sha(8)),
        ("grows", 3 * GIB, 0, sha(5)),
        ("golden", 2 * GIB, 0, sha(2)),
    ]
    assert [r["recipe"] for r in ask(reader, "largest-regressions", "provenance=imported")] == ["golden"]
    assert [r["recipe"] for r in ask(reader, "largest-regressions", "since=2026-01-07", "limit=1")] == ["dies"]
    assert ask(reader, "largest-regressions", "state=fixed") == []


def test_near_the_limit(reader: Reader) -> None:
    rows = ask(reader, "near-the-limit", "within=0.2")
    assert [(r["recipe"], r["headroom_bytes"], r["outcome"]) for r in rows] == [
        ("dies", -2 * GIB, "censored"),
        ("grows", 14 * GIB, "exact"),
    ]


def test_headroom(reader: Reader) -> None:
    rows = ask(reader, "headroom", "recipe=shrinks")
    assert [(r["gpu"], r["headroom_bytes"], r["verdict"], r["provenance"]) for r in rows] == [
        ("a100-40gb", -18 * GIB, "more than it has", "measured"),
        ("h100-80gb", 22 * GIB, "fits", "measured"),
    ]
    (row,) = [r for r in ask(reader, "headroom", "recipe=dies") if r["gpu"] == "h100-80gb"]
    assert row["verdict"] == "more than it has"


def test_where_device_memory_is_not_told_the_peak_is_a_lower_bound(reader: Reader) -> None:
    (row,) = [r for r in ask(reader, "headroom", "recipe=golden") if r["gpu"] == "a100-40gb"]
    assert (row["peak_device_bytes"], row["at_least"], row["verdict"]) == (12 * GIB, 1, "not known")
    near = {r["recipe"]: r["at_least"] for r in ask(reader, "near-the-limit", "within=0.9")}
    assert near["golden"] == 1 and near["grows"] == 0 and near["dies"] == 1


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("near-the-limit", "gpu=h100", "Did you mean h100-80gb?"),
        ("near-the-limit", "gpu=z9", "There is a100-40gb, h100-80gb."),
        ("headroom", "recipe=shrink", "Did you mean shrinks?"),
        ("latest", "recipe=nosuch", "no recipe that was measured"),
        ("oom-sites", "recipe=nosuch", "no recipe that was measured"),
        ("between-releases", "old=nosuchtag", "is no point that was read"),
        ("between-releases", "old=v1", "is commit cccccccccc, which was never read"),
    ],
)
def test_what_the_database_has_not_is_refused(reader: Reader, name: str, given: str, words: str) -> None:
    query = query_named(name)
    values = query.values([*(item for item in NEEDED.get(name, []) if item[:4] != given[:4]), given])
    with pytest.raises(OombisectError) as refused:
        found_in(query, values, lambda sql, given: reader.ask(sql, given).rows, lambda n: ["c" * 40] * (n == "v1"))
    assert words in f"{refused.value.cause} {refused.value.way_out}"


def test_a_tag_is_the_commit_that_was_read(reader: Reader) -> None:
    query = query_named("between-releases")
    values = query.values(["old=v1", f"new={sha(9)[:9]}"])
    tags = {"v1": ["c" * 40, sha(0)]}
    found = found_in(query, values, lambda sql, given: reader.ask(sql, given).rows, lambda name: tags.get(name, []))
    assert (found["old"], found["new"]) == (sha(0), sha(9)[:9])


def test_fragmentation_is_what_replays_showed(reader: Reader) -> None:
    (row,) = ask(reader, "worst-fragmentation")
    assert (row["recipe"], row["fragmentation_bytes"], row["needed_bytes"]) == ("grows", GIB, 64 * GIB)


def test_between_releases(reader: Reader) -> None:
    rows = ask(reader, "between-releases")
    assert [(r["recipe"], r["delta_bytes"], r["new_outcome"]) for r in rows] == [
        ("dies", 9 * GIB, "censored"),
        ("shrinks", -5 * GIB, "exact"),
        ("grows", 3 * GIB + 1, "exact"),
        ("creeps", 9 * GIB // 5, "exact"),
    ]
    short = ask(reader, "between-releases", "least=4GiB")
    assert [r["recipe"] for r in short] == ["dies", "shrinks"]


def test_steps_between(reader: Reader) -> None:
    rows = ask(reader, "steps-between", "until=2026-01-06")
    assert {(r["recipe"], r["delta_bytes"], r["date"]) for r in rows} == {
        ("grows", 3 * GIB, "2026-01-06"),
        ("shrinks", -5 * GIB, "2026-01-06"),
    }


def test_latest_noise_and_creep(reader: Reader) -> None:
    latest = {r["recipe"]: r for r in ask(reader, "latest")}
    assert latest["grows"]["latest_bytes"] in (63 * GIB, 63 * GIB + 1) and latest["grows"]["read_points"] == 10
    assert (latest["dies"]["outcome"], latest["dies"]["highest_bytes"]) == ("censored", 70 * GIB)
    noise = {r["recipe"]: r for r in ask(reader, "noise")}
    assert (noise["grows"]["repeats"], noise["grows"]["repeat_spread_bytes"]) == (1, 1)
    (creep,) = ask(reader, "creeping")
    assert (creep["recipe"], creep["commits"]) == ("creeps", 9)
    assert abs(creep["delta_bytes"] - 9 * GIB // 5) < 10


def test_not_probed_lately_and_oom_sites(reader: Reader) -> None:
    names = {r["recipe"] for r in ask(reader, "not-probed-lately")}
    assert names == {"grows", "shrinks", "dies", "creeps", "golden"}
    old = query_named("not-probed-lately")
    assert reader.ask(old.sql, old.values(["days=100000"])).rows == ()
    (site,) = ask(reader, "oom-sites")
    assert (site["recipe"], site["phase"], site["ooms"], site["points"]) == ("dies", "step_1", 2, 2)


def test_stranded_candidates(reader: Reader) -> None:
    rows = ask(reader, "stranded-candidates")
    assert {r["peak_inactive_split_bytes"] for r in rows} == {GIB // 2}
    assert {r["cached_bytes"] for r in rows} == {2 * GIB}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["limt=5"], "Did you mean limit"),
        (["limit=five"], "is no whole number"),
        (["metric=alocated"], "is none of what can be chosen"),
        (["state=open"], "is none of what can be chosen"),
        (["limit=5", "limit=6"], "given twice"),
        (["since=yesterday"], "is no date"),
        (["since=2026-02-30"], "is no date"),
    ],
)
def test_wrong_parameters(given: list[str], words: str) -> None:
    with pytest.raises(OombisectError) as refused:
        query_named("largest-regressions").values(given)
    assert words in f"{refused.value.cause} {refused.value.way_out}"


def test_every_choice_that_is_listed_can_be_made() -> None:
    for query in queries().values():
        chosen = [one for one in query.parameters if one.type == "choice"]
        assert all(one.value(choice) == choice for one in chosen for choice in one.choices)
    state = next(one for one in query_named("largest-regressions").parameters if one.name == "state")
    assert state.choices == ("in force", "fixed", "partly fixed", "any")
    told = next(one for one in query_named("oom-sites").parameters if one.name == "provenance")
    assert told.choices == ("measured", "simulated", "any")


def test_a_parameter_without_default_is_needed() -> None:
    with pytest.raises(OombisectError, match="needs old and new"):
        query_named("between-releases").values([])
    with pytest.raises(OombisectError, match="no query 'larges'"):
        query_named("larges")


def test_sizes_have_units() -> None:
    assert query_named("between-releases").values(["old=a", "new=b", "least=1GiB"])["least"] == GIB


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "-- About.\n-- :x\nSELECT 1", "-- About.\n-- :x blob = 1 -- m\nSELECT 1", "-- :x text\nSELECT 1"],
)
def test_a_head_that_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        parse_query("q", text)


def test_what_is_shipped_is_all(tmp_path: Path) -> None:
    assert len(queries()) >= 10
    assert queries(tmp_path) == {}


@pytest.mark.parametrize("name", list(queries()))
def test_a_table_has_each_heading_once_and_no_flag_as_a_number(reader: Reader, name: str) -> None:
    query = query_named(name)
    answer = reader.ask(query.sql, query.values(NEEDED.get(name, [])))
    heads, _, *rows = answer_markdown(answer).splitlines()
    names = [head.strip() for head in heads.strip("|").split("|")]
    assert len(names) == len(set(names)), names
    if "at least" in names:
        at = names.index("at least")
        told = [row.strip("|").split("|")[at].strip() for row in rows if row]
        assert told == ["yes" if row[answer.columns.index("at_least")] else "" for row in answer.rows]
