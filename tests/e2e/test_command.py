"""A plain PyTorch script in a git repository of its own, bisected on the virtual GPU by the command line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..session.toy import git

pytestmark = [
    pytest.mark.virtual_gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
]
TRAIN = """
import torch
from model import build
model = build().cuda()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    model(torch.ones(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MODEL = """
from torch import nn

def build():
    return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range({layers})])
"""
MIB = 1 << 20


@pytest.fixture
def history(tmp_path: Path) -> list[str]:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "--quiet", "--initial-branch=main")
    (repo / "train.py").write_text(TRAIN)
    shas = []
    for number, layers in enumerate((4, 4, 12, 12)):
        (repo / "model.py").write_text(MODEL.format(layers=layers))
        (repo / f"note_{number}.py").write_text(f"NUMBER = {number}\n")
        git(repo, "add", "--all")
        git(repo, "commit", "--quiet", "-m", f"{layers} layers")
        shas.append(git(repo, "rev-parse", "HEAD"))
    return shas


def oombisect(folder: Path, cache: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), "XDG_DATA_HOME": str(folder / "data")}
    command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", *arguments]
    done = subprocess.run(command, cwd=folder / "repo", env=env, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def test_the_commit_that_made_the_model_larger_is_named_and_compared(
    tmp_path: Path, cache_home: Path, history: list[str]
) -> None:
    options = ["--gpu", "virtual:h100-80gb", "--limit", "700MiB", "--json"]
    code, document = oombisect(
        tmp_path, cache_home, "run", f"{history[0]}..{history[-1]}", *options, "--", "python", "train.py"
    )
    assert code == 0, document
    step = document["verdict"]["steps"][0]
    assert (step["point"], step["subject"], step["confirmed"]) == (history[2], "12 layers", "yes")
    # Eight layers more: weights, gradients and two states of each, and what the optimizer's step takes besides.
    assert 8 * 4 * 4 * MIB <= step["delta_bytes"]["allocated"] < 8 * 4 * 6 * MIB
    assert document["bad"]["simulated"] and document["good"]["ranks"][0]["phases"].keys() >= {"setup", "step_3"}
    code, compared = oombisect(tmp_path, cache_home, "compare", "--json")
    assert code == 0, compared
    assert "train.py" in _files(compared), compared  # where the model is moved to the device


DDP = """
import os
import torch
from torch.nn.parallel import DistributedDataParallel
from model import build

torch.distributed.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = DistributedDataParallel(build().cuda(), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(100):
    model(torch.ones(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_data_parallel_ranks_under_torchrun_are_bisected_each_with_its_buckets(
    tmp_path: Path, cache_home: Path, history: list[str]
) -> None:
    repo = tmp_path / "repo"
    for layers in (4, 12):
        (repo / "train.py").write_text(DDP)
        (repo / "Makefile").write_text("built.txt:\n\techo built > built.txt\n")
        (repo / "model.py").write_text(MODEL.format(layers=layers))
        git(repo, "add", "--all")
        git(repo, "commit", "--quiet", "-m", f"{layers} layers in parallel")
    culprit = git(repo, "rev-parse", "HEAD")
    options = ["--gpu", "virtual:h100-80gb", "--limit", "750MiB", "--build", "make", "--json"]
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py"]
    code, document = oombisect(tmp_path, cache_home, "run", "HEAD~1..HEAD", *options, "--", *torchrun)
    assert code == 0, document
    step = document["verdict"]["steps"][0]
    assert (step["point"], step["confirmed"]) == (culprit, "yes")
    # Weights, gradients (which are the buckets), two states, and what the step takes besides; the same on both ranks.
    assert 8 * 4 * 4 * MIB <= step["delta_bytes"]["allocated"] < 8 * 4 * 7 * MIB
    assert [rank["rank"] for rank in document["bad"]["ranks"]] == [0, 1]
    peaks = {rank["phases"]["step_3"]["allocated_peak"] for rank in document["bad"]["ranks"]}
    assert len(peaks) == 1 and document["bad"]["world_size"] == 2


def _files(value: Any) -> list[str]:
    """Every `file` in a document."""
    if isinstance(value, dict):
        own = [value["file"]] if isinstance(value.get("file"), str) else []
        return own + [file for item in value.values() for file in _files(item)]
    return [file for item in value for file in _files(item)] if isinstance(value, list) else []
