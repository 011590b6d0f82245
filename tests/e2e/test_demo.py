"""`oombisect demo`, whole: the right commits with the right class, against a truth that what bisects cannot see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oombisect.demo.commits import Edit, bridge_commits
from oombisect.demo.repository import DemoRepository, build_demo, find_megatron_core
from oombisect.demo.truth import truth

pytestmark = pytest.mark.virtual_gpu


@pytest.fixture(scope="module")
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def demo(cache_home: Path) -> DemoRepository:
    return build_demo(cache_home / "oombisect" / "demo", find_megatron_core(Path(sys.executable)))


def oombisect(data_home: Path, cache_home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ, XDG_DATA_HOME=str(data_home), XDG_CACHE_HOME=str(cache_home))
    command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=1200, check=False)


@pytest.fixture(scope="module")
def report(data_home: Path, cache_home: Path, demo: DemoRepository) -> dict[str, Any]:
    done = oombisect(data_home, cache_home, "demo", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_right_commits_are_named_with_the_right_class(report: dict[str, Any], demo: DemoRepository) -> None:
    known = truth(demo)
    steps = {step["point"]: step for step in report["verdict"]["steps"]}
    assert report["verdict"]["kind"] == "culprit"
    assert report["verdict"]["crossing"] == known.fragmentation
    named = {point: step["class"] for point, step in steps.items() if step["named"]}
    assert named == {known.fragmentation: "fragmentation", known.capacity: "capacity"}
    assert all(steps[point]["confirmed"] == "yes" for point in named)
    assert report["good"]["fits"] is True and report["bad"]["fits"] is False
    assert report["good"]["simulated"] is True and report["bad"]["simulated"] is True


def test_the_fragmentation_is_proved_by_counterfactuals(report: dict[str, Any], demo: DemoRepository) -> None:
    (step,) = [s for s in report["verdict"]["steps"] if s["point"] == truth(demo).fragmentation]
    needed = step["evidence"]["needed_capacity"]
    assert step["delta_bytes"]["allocated"] == 0
    assert needed["larger_bytes"] - needed["smaller_bytes"] > 2 * needed["resolution_bytes"]
    assert needed["larger_expandable_bytes"] < needed["larger_bytes"] - needed["resolution_bytes"]
    assert step["evidence"]["expandable_segments"]["fits"] is True


def test_nobody_innocent_is_named(report: dict[str, Any], demo: DemoRepository) -> None:
    known = truth(demo)
    innocent = {known.roll, known.merge, known.reverted, known.revert, *known.unimportable}
    assert not innocent & {step["point"] for step in report["verdict"]["steps"] if step["named"]}


def test_what_cannot_be_imported_is_unresolved_with_its_reason(
    report: dict[str, Any], demo: DemoRepository, data_home: Path, cache_home: Path
) -> None:
    broken = truth(demo).unimportable[0]
    options = ("--recipe", demo.recipe, "--repo", str(demo.path), "--gpu", demo.device, "--json")
    done = oombisect(data_home, cache_home, "probe", broken, *options)
    assert done.returncode == 125, done.stderr
    reading = json.loads(done.stdout)["reading"]
    assert reading["outcome"] == "unresolved"
    assert "ModuleNotFoundError" in reading["reason"] or "ImportError" in reading["reason"]


def test_two_probes_of_a_point_are_bit_identical(
    report: dict[str, Any], demo: DemoRepository, data_home: Path, cache_home: Path
) -> None:
    options = ("--recipe", demo.recipe, "--repo", str(demo.path), "--gpu", demo.device, "--json", "--fresh")
    readings = []
    for _ in range(2):
        done = oombisect(data_home, cache_home, "probe", demo.bad, *options)
        assert done.returncode == 1, done.stderr  # it does not fit
        readings.append(json.loads(done.stdout)["reading"])
    for reading in readings:
        for rank in reading["ranks"]:
            for phase in rank["phases"].values():
                del phase["seconds"]  # the clock is no memory figure
    assert readings[0] == readings[1]
    assert readings[0]["ranks"][0]["trace"] is not None


def test_show_and_sessions_tell_it_again(report: dict[str, Any], data_home: Path, cache_home: Path) -> None:
    listed = json.loads(oombisect(data_home, cache_home, "sessions", "--json").stdout)["sessions"]
    assert report["session"] in {session["id"] for session in listed}
    shown = json.loads(oombisect(data_home, cache_home, "show", report["session"], "--json").stdout)
    assert shown["report"] == report
    assert len(shown["probes"]) == report["probes"]


def test_compare_shows_the_line_that_the_commit_added(
    report: dict[str, Any], demo: DemoRepository, data_home: Path, cache_home: Path
) -> None:
    known = truth(demo)
    done = oombisect(data_home, cache_home, "compare", report["session"], "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["second"]["point"], told["adjacent"], told["simulated"]) == (known.capacity, True, True)
    (step,) = [s for s in report["verdict"]["steps"] if s["point"] == known.capacity]
    assert told["delta_bytes"] == step["delta_bytes"]["allocated"] > 0
    culprit, *rest = told["stacks"]
    assert culprit["delta_bytes"] == told["delta_bytes"] and not any(item["delta_bytes"] for item in rest)
    assert culprit["module"].endswith("training/checkpointing.py WeightStaging.__init__")
    frame = culprit["second"]["frames"][0]
    (edit,) = [
        change
        for commit in bridge_commits()
        if commit.slug == "staged-weights"
        for change in commit.changes
        if isinstance(change, Edit) and frame["source"] in change.new
    ]
    assert frame["source"] not in edit.old and "torch.empty_like" in frame["source"]
    assert f"+        {frame['source']}" in told["hunks"][frame["hunk"]]["text"].split("\n")
    for grouping in ("modules", "phases"):
        assert sum(item["delta_bytes"] for item in told[grouping]) == told["delta_bytes"]


def test_compare_of_the_ends_agrees_with_their_readings(
    report: dict[str, Any], data_home: Path, cache_home: Path
) -> None:
    done = oombisect(data_home, cache_home, "compare", "--ends", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for side, end in (("first", "good"), ("second", "bad")):
        (rank,) = report[end]["ranks"]
        assert told[side]["peak_allocated"] == rank["peak_allocated"]
        assert rank["phases"][told[side]["peak_phase"]]["allocated_peak"] == rank["peak_allocated"]
    assert sum(item["delta_bytes"] for item in told["stacks"]) == told["delta_bytes"]
    assert told["delta_bytes"] == report["verdict"]["growth_bytes"]
