"""The path of real GPUs, `--gpu cuda`, taken on a virtual device that driver and probes are led to take for a real one.

Everything is as on a card: NVML finds the device, the probe makes a real (NCCL) process group, a limit is enforced by
PyTorch's memory fraction. Only the label says what it is: simulated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oombisect.demo.repository import build_demo, find_megatron_core
from oombisect.virtual_gpu.build import prepare
from oombisect.virtual_gpu.profiles import parse_gpu

pytestmark = pytest.mark.virtual_gpu


@pytest.fixture(scope="module")
def probe(cache_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    demo = build_demo(cache_home / "oombisect" / "demo", find_megatron_core(Path(sys.executable)))
    gpu = prepare(Path(sys.executable), cache_home / "oombisect")
    data = tmp_path_factory.mktemp("data")

    def run(gpu_name: str, *options: str) -> subprocess.CompletedProcess[str]:
        device = gpu.environment(parse_gpu(demo.device)) if gpu_name == "cuda" else {}
        env = dict(os.environ, XDG_DATA_HOME=str(data), XDG_CACHE_HOME=str(cache_home), **device)
        command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", "probe", demo.good]
        arguments = ("--recipe", demo.recipe, "--repo", str(demo.path), "--gpu", gpu_name, "--json", *options)
        return subprocess.run([*command, *arguments], env=env, capture_output=True, text=True, timeout=600, check=False)

    return run


def test_it_reads_what_the_fake_process_group_reads(probe: Any) -> None:
    real, virtual = probe("cuda"), probe("virtual:h100-80gb")
    assert real.returncode == virtual.returncode == 0, real.stderr + virtual.stderr
    one, other = (json.loads(done.stdout)["reading"] for done in (real, virtual))
    assert one["device"] == "cuda"
    assert one["simulated"] is True
    assert one["peak_allocated"] == other["peak_allocated"]
    assert one["external"] > 0


def test_a_limit_is_enforced_by_the_memory_fraction(probe: Any) -> None:
    """Under peak device use and above what is needed the run survives; under what is allocated it cannot."""
    reading = json.loads(probe("cuda").stdout)["reading"]
    assert probe("cuda", "--limit", str(reading["peak_device"] - (64 << 20))).returncode == 0
    assert probe("cuda", "--limit", str(reading["peak_allocated"])).returncode == 1
