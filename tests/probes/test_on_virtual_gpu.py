"""The probe itself, on a virtual GPU: determinism, running out of memory, the real process group, the worker."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.demo.layout import lay_out

from oombisect.demo.repository import DemoRepository, build_demo, find_megatron_core
from oombisect.virtual_gpu.build import prepare
from oombisect.virtual_gpu.profiles import parse_gpu

pytestmark = [
    pytest.mark.virtual_gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
]
PROBES = Path(__file__).resolve().parents[2] / "probes"
GIB = 2**30
Result = dict[str, Any]
Probe = Callable[..., Result]


class Lab:
    """Jobs over one tree of the demo's Bridge, and the environment of the virtual H100."""

    def __init__(self, demo: DemoRepository, folder: Path, cache: Path) -> None:
        self.root, self.folder = lay_out(demo, demo.good, folder / "tree"), folder
        self.gpu = prepare(Path(sys.executable), cache)
        self.profile = parse_gpu("virtual:h100-80gb")
        self.count = 0

    def environment(self, limit: int | None = None) -> dict[str, str]:
        return {
            **os.environ,
            **self.gpu.environment(self.profile, limit_bytes=limit),
            "OOMBISECT_BYTECODE_CACHE": str(self.folder / "bytecode"),
        }

    def job(self, **changes: Any) -> Path:
        self.count += 1
        out = self.folder / f"out-{self.count}"
        out.mkdir()
        core = self.root / "3rdparty" / "Megatron-LM"
        recipe = {"module": "megatron.bridge.recipes.petrel.petrel", "function": "petrel_3b_pretrain_config"}
        job = {
            "schema": 1,
            "kind": "bridge_train",
            "recipe": recipe,
            "source_paths": [str(self.root / "src"), str(core)],
            "roots": {"bridge": str(self.root), "megatron-lm": str(core)},
            "out": str(out),
            **changes,
        }
        path = out / "job.json"
        path.write_text(json.dumps(job))
        return path

    def result(self, job: Path) -> Result:
        (path,) = job.parent.glob("result-*.json")
        result: Result = json.loads(path.read_text())
        result["out"] = job.parent
        return result


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, cache_home: Path) -> Lab:
    demo = build_demo(tmp_path_factory.mktemp("demo"), find_megatron_core(Path(sys.executable)))
    return Lab(demo, tmp_path_factory.mktemp("lab"), cache_home / "oombisect")


@pytest.fixture(scope="module")
def probe(lab: Lab) -> Probe:
    def run(limit: int | None = None, **changes: Any) -> Result:
        job = lab.job(**changes)
        command = [sys.executable, str(PROBES / "bridge_train.py"), str(job)]
        done = subprocess.run(
            command, env=lab.environment(limit), cwd=job.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return lab.result(job)

    return run


@pytest.fixture(scope="module")
def first(probe: Probe) -> Result:
    return probe()


def measured(result: Result) -> Result:
    """All of a result but clocks, host memory and places."""
    kept = {name: value for name, value in result.items() if name not in ("seconds", "host_peak_rss", "out")}
    kept["phases"] = {
        name: {key: value for key, value in phase.items() if key != "seconds"}
        for name, phase in result["phases"].items()
    }
    return kept


def trace(result: Result) -> list[tuple[Any, ...]]:
    with gzip.open(result["out"] / result["snapshot"]) as file:
        events = pickle.load(file)["device_traces"][0]
    return [(event["action"], event["addr"], event["size"], event["stream"]) for event in events]


def test_a_probe_measures_every_phase(first: Result) -> None:
    assert first["outcome"] == "exact", first["traceback"]
    assert list(first["phases"]) == ["setup", "model", "optimizer", "step_1", "step_2", "step_3"]
    steps = [first["phases"][f"step_{number}"] for number in (1, 2, 3)]
    assert steps[1]["allocated_peak"] > first["phases"]["model"]["allocated_peak"] > 4 * GIB
    assert all(phase["reserved_peak"] >= phase["allocated_peak"] for phase in first["phases"].values())
    assert first["external"] > 0 and steps[1]["device_used"] >= steps[1]["reserved_end"]
    assert any(name.startswith("megatron-lm:megatron/core/") for name in first["imported"])
    assert any(name.startswith("bridge:src/megatron/bridge/recipes/") for name in first["imported"])
    assert not first["cold_compile"]


def test_two_probes_of_one_point_are_bit_identical(first: Result, probe: Probe) -> None:
    second = probe()
    assert measured(second) == measured(first)
    assert trace(second) == trace(first)


def test_a_forked_probe_measures_what_a_fresh_one_does(first: Result, lab: Lab) -> None:
    job = lab.job()
    missing = lab.job(recipe={"module": "megatron.bridge.recipes.petrel.petrel", "function": "petrel_9b_config"})
    done = subprocess.run(
        [sys.executable, str(PROBES / "worker.py")],
        env=lab.environment(),
        input=f"{job}\n{missing}\n",
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.splitlines()
    assert done.returncode == 0 and said[0] == "ready", done.stderr[-3000:]
    assert {f"done {job} 0", f"done {missing} 0"} <= set(said)
    assert measured(lab.result(job)) == measured(first)
    assert trace(lab.result(job)) == trace(first)
    refused = lab.result(missing)
    assert refused["outcome"] == "unresolved" and "petrel_9b_config" in refused["reason"]


def test_a_real_process_group_of_one_rank_takes_the_same_memory(first: Result, probe: Probe) -> None:
    result = probe(process_group="nccl")
    assert result["outcome"] == "exact", result["traceback"]
    peaks = [
        {name: (phase["allocated_peak"], phase["reserved_peak"]) for name, phase in r["phases"].items()}
        for r in (first, result)
    ]
    assert peaks[0] == peaks[1]


def test_running_out_of_memory_is_a_lower_bound_with_its_numbers(first: Result, probe: Probe) -> None:
    peak = max(phase["allocated_peak"] for phase in first["phases"].values())
    limit = peak - 2 * GIB
    result = probe(limit=limit)
    assert (result["outcome"], result["failed_phase"]) == ("censored", "step_1")
    oom = result["oom"]
    assert oom["phase"] == "step_1" and "out of memory" in oom["message"]
    assert oom["allocated"] <= oom["reserved"] <= limit < oom["reserved"] + oom["requested"] + result["external"]
    assert result["phases"]["step_1"]["ooms"] == 1
    with gzip.open(result["out"] / result["snapshot"]) as file:
        snapshot = pickle.load(file)
    assert snapshot["device_traces"][0][-1]["action"] == "oom", "taken at that instant, nothing freed yet"
    live = sum(segment["allocated_size"] for segment in snapshot["segments"])
    assert live == oom["allocated"]


def test_a_configuration_nobody_can_run_is_unresolved(probe: Probe) -> None:
    result = probe(world_size=3, rank=7)
    assert result["outcome"] == "unresolved" and "rank 7" in result["reason"] and not result["phases"]


def test_a_description_is_the_config_that_a_probe_trains_and_makes_it_again(first: Result, probe: Probe) -> None:
    described = probe(describe=True)
    assert described["outcome"] == "described" and not described["phases"] and described["external"] == 0
    assert described["config"] == first["config"] and described["config_hash"] == first["config_hash"]
    given = described["given"]
    assert given["train"]["train_iters"] > first["config"]["train"]["train_iters"] == 3
    given["train"]["micro_batch_size"] *= 2
    file = described["out"] / "given.json"
    file.write_text(json.dumps(given))
    again = probe(describe=True, config_file=str(file))
    assert again["outcome"] == "described" and again["given"] == given
    assert again["config"]["train"]["global_batch_size"] == 2 * first["config"]["train"]["global_batch_size"]
    trained = probe(config_file=str(file))
    assert trained["outcome"] == "exact" and trained["config"] == again["config"]
    assert trained["phases"]["step_2"]["allocated_peak"] > first["phases"]["step_2"]["allocated_peak"]
