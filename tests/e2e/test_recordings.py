"""Snapshots as users dump them with PyTorch's own defaults, of real runs of its allocator on the virtual GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oombisect.virtual_gpu.build import prepare
from oombisect.virtual_gpu.profiles import parse_gpu

pytestmark = pytest.mark.virtual_gpu

MIB = 1 << 20
Recorder = Callable[[str], tuple[Path, dict[str, dict[str, int]]]]


@pytest.fixture(scope="module")
def record(cache_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    gpu, folder = prepare(Path(sys.executable), cache_home / "oombisect"), tmp_path_factory.mktemp("recordings")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "CUDA_"))}

    def run(what: str) -> tuple[Path, dict[str, dict[str, int]]]:
        path = folder / f"{what}.pickle"
        env = clean | gpu.environment(parse_gpu("virtual:h100-80gb"))
        command = [sys.executable, str(Path(__file__).with_name("record_defaults.py")), what, str(path)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        return path, json.loads(done.stdout.splitlines()[-1])

    return run


def oombisect(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    env = dict(os.environ, XDG_DATA_HOME=str(folder), XDG_CACHE_HOME=str(folder))
    command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", *arguments, "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, json.loads(done.stdout)


def test_what_default_segments_leave_uncut_no_allocator_needs(record: Recorder, tmp_path: Path) -> None:
    path, peaks = record("uncut")
    counted, cut = peaks["default"], peaks["expandable"]
    assert counted == {"allocated": 12_000 * MIB, "requested": 1000 * (11 * MIB + 1), "reserved": 12_000 * MIB}
    code, told = oombisect(tmp_path, "replay", str(path), "--limit", "11500MiB")
    assert code == 1 and told["fidelity"]["exact"]
    assert told["perfect"] == {"min_limit_bytes": counted["requested"], "fits": True}
    rows = {row["alloc_conf"]: row for row in told["settings"]}
    assert (rows[""]["fits"], rows["expandable_segments:True"]["fits"]) == (False, True)
    assert cut["requested"] == counted["requested"]
    assert cut["allocated"] < 11_001 * MIB
    assert rows["expandable_segments:True"]["peak_allocated"] == cut["allocated"]


def test_recordings_with_cpp_frames_name_python_and_operators(record: Recorder, tmp_path: Path) -> None:
    path, peaks = record("train")
    code, told = oombisect(tmp_path, "compare", str(path), str(path))
    assert code == 0 and told["second"]["peak_allocated"] == peaks["default"]["allocated"]
    frames = [entry["second"]["frames"][0] for entry in told["stacks"]]
    assert not any("unwind" in frame["function"] or "CachingAllocator" in frame["function"] for frame in frames)
    assert any(frame["function"] == "__init__" and frame["file"].endswith("linear.py") for frame in frames)
    modules = {entry["module"] for entry in told["stacks"]}
    assert any(module.startswith("C++ AddmmBackward") for module in modules), modules
    code, told = oombisect(tmp_path, "replay", str(path), "--limit", "40MiB")
    assert code == 1
    told["first_oom"]["requested_by"][0].index(".py:")
