"""Goldens mined from a history: a small one that is made here, and Megatron-LM's own where a clone of it is."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from oombisect.errors import OombisectError
from oombisect.history.asking import Wanted, series, workloads
from oombisect.history.store import Store, open_store
from oombisect.imports.golden_history import mine
from oombisect.imports.run_import import import_goldens
from oombisect.session.history_places import told_places
from tests.imports import golden_repo
from tests.imports.golden_repo import CASES, GoldenRepo

JUMPS = Path(__file__).parents[3] / "shared" / "data" / "golden_jumps.csv"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[GoldenRepo, dict[str, str]]:
    return golden_repo.make(tmp_path_factory.mktemp("goldens") / "clone")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "oombisect.db", clock=lambda: datetime(2026, 11, 30, tzinfo=UTC)) as opened:
        yield opened


def test_the_series_of_a_history(made: tuple[GoldenRepo, dict[str, str]]) -> None:
    repo, at = made
    mined = mine(repo.folder, known={})
    found = [(r.recipe, r.device, r.settings["environment"], r.point, r.peak_allocated) for r in mined.readings]
    a = ("gpt/gpt3_a", "dgx_a100", "dev")  # what the folder was called when the file moved
    assert found == [
        (*a, at["lists"], None),
        (*a, at["first"], 100),
        (*a, at["merge"], 200),
        ("gpt/gpt3_a", "dgx_h100", "dev", at["machines"], 70),
        ("gpt/gpt3_a", "dgxa100_dracooci-ord", "lts", at["machines"], 80),
        ("moe/inference", "dgx_gb200", "dev", at["machines"], 900),
        (*a, at["back"], 100),
    ]
    assert mined.readings[0].values == {"allocated": {1: 3, 2: 4, 3: 5}}
    assert (mined.goldens, mined.silent) == (8, 1)
    broken = {problem.where: problem.what for problem in mined.problems}
    assert broken == {
        f"{CASES}/gpt/gpt3_a/golden_values_dev.json@{at['broken']}": "it is empty",
        f"{CASES}/gpt/gpt3_a/golden_values_dev_dgx_h100.json@{at['broken']}": (
            "mem-max-allocated-bytes is 'many' at step 1"
        ),
    }


def test_commits_configurations_and_places(made: tuple[GoldenRepo, dict[str, str]]) -> None:
    repo, at = made
    readings = {(reading.point, reading.device): reading for reading in mine(repo.folder, known={}).readings}
    first, merge = readings[at["first"], "dgx_a100"], readings[at["merge"], "dgx_a100"]
    assert readings[at["lists"], "dgx_a100"].config is None
    assert first.config == {"MODEL_ARGS": {"--num-layers": 12}, "ENV_VARS": {"A": 1}}
    assert merge.config == {"MODEL_ARGS": {"--num-layers": 24}}
    assert merge.subject == "Merge branch 'topic' into 'main'"
    assert (merge.repo, merge.origin) == ("megatron-lm", f"{CASES}/gpt/gpt3_a/golden_values_dev.json@{at['merge']}")
    assert first.committed == datetime.fromtimestamp(int(repo.git("show", "-s", "--format=%ct", at["first"])), UTC)
    positions = [reading.position for reading in mine(repo.folder, known={}).readings]
    assert positions == sorted(positions) and readings[at["lists"], "dgx_a100"].position == 0


def test_since_leaves_out_what_is_older(made: tuple[GoldenRepo, dict[str, str]]) -> None:
    repo, at = made
    since = datetime.fromtimestamp(int(repo.git("show", "-s", "--format=%ct", at["machines"])), UTC)
    mined = mine(repo.folder, since=since, known={})
    assert {reading.point for reading in mined.readings} == {at["machines"], at["back"]}


def test_a_second_import_adds_nothing_and_a_later_one_what_is_new(tmp_path: Path, store: Store) -> None:
    repo, _ = golden_repo.make(tmp_path / "clone")
    assert import_goldens(store, repo.folder).added == 7
    again = import_goldens(store, repo.folder)
    assert (again.added, again.readings) == (0, 7)
    # A series stays what it was called when it was first imported.
    case = repo.folder / CASES / "gpt" / "gpt3_a"
    case.rename(case.with_name("gpt3_renamed"))
    repo.commit("Rename")
    repo.write("gpt/gpt3_renamed/golden_values_dev.json", golden_repo.golden(300))
    repo.commit("Grow again")
    assert import_goldens(store, repo.folder).added == 1
    db = sqlite3.connect(store.path)
    query = """SELECT recipe, peak_allocated FROM measurements JOIN workloads ON workloads.id = workload
        WHERE device = 'dgx_a100' ORDER BY position"""
    assert db.execute(query).fetchall() == [("gpt/gpt3_a", peak) for peak in (None, 100, 200, 100, 300)]
    assert db.execute("SELECT DISTINCT provenance FROM measurements").fetchall() == [("imported",)]


@pytest.mark.parametrize("revision", ["HEAD", "nope", "--all", "-n1"])
def test_what_is_no_clone_with_goldens_is_refused(tmp_path: Path, revision: str) -> None:
    folder = tmp_path / "clone"
    with pytest.raises(OombisectError, match="no clone"):
        mine(folder, revision=revision, known={})
    GoldenRepo(folder).commit("Nothing")
    with pytest.raises(OombisectError, match="no goldens" if revision == "HEAD" else "no clone"):
        mine(folder, revision=revision, known={})


def test_nothing_of_a_clone_is_executed(tmp_path: Path) -> None:
    repo, _ = golden_repo.make(tmp_path / "clone")
    spoiled = tmp_path / "spoiled"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {spoiled}\ncat\n")
    script.chmod(0o755)
    repo.write("gpt/gpt3_a/model_config.yaml", "!!python/object/apply:os.system ['touch x']\n")
    repo.write("gpt/gpt3_a/golden_values_dev.json", golden_repo.golden(400))
    (repo.folder / ".gitattributes").write_text("*.json diff=x\n")
    repo.commit("Hostile")
    for setting in ("core.fsmonitor", "core.pager", "diff.external", "diff.x.textconv", "diff.x.command"):
        repo.git("config", setting, str(script))
    mined = mine(repo.folder, known={})
    assert mined.readings[-1].peak_allocated == 400 and mined.readings[-1].config is None
    assert "model_config.yaml" in mined.problems[-1].where and "python/object" in mined.problems[-1].what
    assert not spoiled.exists()


@pytest.mark.slow
def test_every_known_jump_of_the_real_history_is_there(store: Store) -> None:
    """Needs OOMBISECT_MEGATRON_REPO, a clone of Megatron-LM with its history up to 2026-08, and the list of jumps."""
    clone = os.environ.get("OOMBISECT_MEGATRON_REPO")
    if not clone or not JUMPS.exists():
        pytest.skip("OOMBISECT_MEGATRON_REPO names no clone of Megatron-LM" if not clone else f"there is no {JUMPS}")
    imported = import_goldens(store, Path(clone))
    assert imported.added > 4000
    recorded: dict[int, list[tuple[str, int | None]]] = {}
    query = "SELECT workload, origin, peak_allocated FROM imported_readings ORDER BY position, origin"
    for workload, origin, peak in sqlite3.connect(store.path).execute(query):
        recorded.setdefault(workload, []).append((origin, peak))
    steps = {
        origin: (goldens[index - 1][1], peak)
        for goldens in recorded.values()
        for index, (origin, peak) in enumerate(goldens)
        if index
    }
    rows = list(csv.DictReader(JUMPS.read_text(encoding="utf-8").splitlines()))
    assert len(rows) > 100
    for row in rows:
        origin = f"{CASES}/{row['test']}/{row['golden_file']}@{row['commit']}"
        assert steps[origin] == (int(row["old_max_alloc"]), int(row["new_max_alloc"])), json.dumps(row)
    shown = _shown_steps(store, Path(clone))
    large = [row for row in rows if abs(float(row["max_pct"])) >= 3]
    assert len(large) > 50
    for row in large:
        delta = shown[f"{CASES}/{row['test']}/{row['golden_file']}@{row['commit']}"]
        assert (delta > 0) == (float(row["max_pct"]) > 0), json.dumps(row)


def _shown_steps(store: Store, clone: Path) -> dict[str, int]:
    """The steps that `history --repo CLONE` shows in the goldens, by origin: bytes of peak allocated."""
    with store._connection.reading() as db:
        found = {}
        known = workloads(db, Wanted())
        places = told_places(db, [workload.id for workload in known], clone, clone, clone)
        for workload in known:
            rows = db.query(
                "SELECT key, origin FROM imported_readings JOIN points ON points.id = point WHERE workload = ?",
                [workload.id],
            )
            origins = {row["key"]: row["origin"] for row in rows}
            for one in series(db, workload, "allocated", places=places):
                found |= {origins[step.point]: step.delta_bytes for step in one.fit.steps}
        return found
