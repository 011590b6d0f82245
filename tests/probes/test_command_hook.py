"""The hook in programs that know nothing of it, on a virtual GPU: however they end, what they did to memory is told."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from oombisect.probing.result_file import parse_result
from oombisect.readings import Outcome
from oombisect.virtual_gpu.build import prepare
from oombisect.virtual_gpu.profiles import parse_gpu

PROBES = Path(__file__).resolve().parents[2] / "probes"
MIB = 1 << 20
needs_torch = [
    pytest.mark.virtual_gpu,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
]
TRAIN = """
import sys, torch
mode = sys.argv[1]
weight = torch.nn.Parameter(torch.ones(1 << 20, device="cuda"))
first, second = (torch.optim.AdamW([weight]) for _ in range(2))
for step in range(6):
    weight.sum().backward()
    first.step()
    second.step()
    first.zero_grad()
    if step == 1:
        if mode == "oom":
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        if mode == "caught":
            try:
                torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                sys.exit(3)
        if mode == "error":
            raise ValueError("heads do not divide")
        if mode == "exit":
            sys.exit(3)
        if mode == "wait":
            print("waiting", flush=True)
            import time
            time.sleep(60)
        if mode == "children":
            import subprocess
            code = "import torch; torch.ones(64 << 20, dtype=torch.uint8, device='cuda')"
            subprocess.run([sys.executable, "-c", code], check=True)
print("the end")
"""
WORLD = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
group = dist.new_group([0, 3], backend="gloo")
total = torch.ones(1 << 20, device="cuda")
dist.all_reduce(total)
names = [None] * dist.get_world_size()
dist.all_gather_object(names, "me")
assert names == ["me"] * 4 and dist.get_rank() == 3 and dist.get_world_size(group) == 2
dist.barrier()
"""

RANKS = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
weight = torch.nn.Parameter(torch.ones(1 << 20, device="cuda"))
optimizer = torch.optim.AdamW([weight])
for step in range(4):
    weight.sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
    if step == 1 and dist.get_rank() == 1:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
"""

DDP = """
import sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
net = DistributedDataParallel(torch.nn.Linear(1024, 1024, bias=False, device="cuda"))
if sys.argv[1] == "compressed":
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    net.register_comm_hook(None, fp16_compress_hook)
optimizer = torch.optim.AdamW(net.parameters())
for step in range(3):
    net(torch.ones(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class Shop:
    """Runs programs with the hook before them."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        self.out.mkdir()
        self.cache = cache

    def environment(self, gpu: bool, **job: Any) -> dict[str, str]:
        path = self.folder / "job.json"
        told = {"schema": 1, "kind": "command", "out": str(self.out), "name": "toy", "config": {"a": 1}}
        path.write_text(json.dumps(told | {"roots": {"repo": str(self.folder)}} | job))
        virtual = prepare(Path(sys.executable), self.cache) if gpu else None
        device = virtual.environment(parse_gpu("virtual:h100-80gb"), limit_bytes=None) if virtual else {}
        hook = {"OOMBISECT_COMMAND_JOB": str(path), "PYTHONPATH": str(PROBES / "command_hook")}
        return {**os.environ, **device, **hook}

    def start(self, source: str, *arguments: str, env: dict[str, str] | None = None, **job: Any) -> Any:
        program = self.folder / "program.py"
        program.write_text(source)
        command = [sys.executable, str(program), *arguments]
        variables = self.environment(True, **job) | (env or {})
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, source: str, *arguments: str, env: dict[str, str] | None = None, **job: Any) -> tuple[int, str]:
        process = self.start(source, *arguments, env=env, **job)
        output, _ = process.communicate(timeout=900)
        return process.returncode, output

    def result(self, rank: int = 0) -> dict[str, Any]:
        """The result, which is one that the driver takes."""
        raw = json.loads((self.out / f"result-{rank}.json").read_text())
        parse_result(raw, rank)
        assert (self.out / raw["snapshot"]).is_file() and raw["trace_hash"]
        return dict(raw)


@pytest.fixture
def shop(tmp_path: Path, cache_home: Path) -> Shop:
    return Shop(tmp_path, cache_home)


class TestTraining:
    pytestmark = needs_torch

    def test_a_run_is_ended_after_so_many_iterations_with_its_peaks_by_step(self, shop: Shop) -> None:
        code, output = shop.run(TRAIN, "train", iterations=4)
        assert (code, "the end" in output) == (0, False), output
        result = shop.result()
        assert (result["outcome"], result["ended"], result["iterations"]) == ("exact", "iterations", 4)
        assert list(result["phases"]) == ["setup", "step_1", "step_2", "step_3", "step_4"]
        setup, first, second = (result["phases"][name]["allocated_peak"] for name in ("setup", "step_1", "step_2"))
        # The weight; what the first optimizer needs for its step; the states of the second, which steps after it.
        assert setup == 4 * MIB and first >= 16 * MIB and second - first == 8 * MIB
        assert result["recipe_function"] == "toy" and result["imported"] == ["repo:program.py"]

    def test_it_may_run_to_its_own_end(self, shop: Shop) -> None:
        code, output = shop.run(TRAIN, "train", until_exit=True)
        assert code == 0 and "the end" in output
        result = shop.result()
        assert (result["ended"], result["iterations"]) == ("exit", 6)

    def test_running_out_of_memory_is_told_with_the_state_before_it_unwound(self, shop: Shop) -> None:
        code, _ = shop.run(TRAIN, "oom")
        result = shop.result()
        assert code == 1
        assert (result["outcome"], result["failed_phase"]) == ("censored", "step_3")
        assert result["oom"]["requested"] == 1 << 40 and "CUDA out of memory" in result["oom"]["message"]

    def test_an_error_the_program_caught_is_told_beside_an_end_that_was_none(self, shop: Shop) -> None:
        code, _ = shop.run(TRAIN, "caught")
        result = shop.result()
        assert code == 3 and (result["outcome"], result["ended"]) == ("exact", "exit")
        assert result["caught"]["requested"] == 1 << 40 and result["caught"]["phase"] == "step_3"
        assert result.get("oom") is None

    @pytest.mark.parametrize(("mode", "code", "outcome"), [("error", 1, "unresolved"), ("exit", 3, "exact")])
    def test_other_ends_are_told_as_far_as_the_process_knows_them(
        self, shop: Shop, mode: str, code: int, outcome: str
    ) -> None:
        assert shop.run(TRAIN, mode)[0] == code
        result = shop.result()
        assert result["outcome"] == outcome
        assert result.get("reason") == ("ValueError: heads do not divide" if mode == "error" else None)
        assert list(result["phases"]) == ["setup", "step_1", "step_2", "step_3"]

    def test_a_process_that_is_asked_to_end_leaves_what_it_measured(self, shop: Shop) -> None:
        process = shop.start(TRAIN, "wait")
        assert any("waiting" in line for line in process.stdout)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
        result = shop.result()
        assert (result["outcome"], result["ended"]) == ("infra", "signal")
        assert result["phases"]["step_2"]["allocated_peak"] >= 24 * MIB

    def test_of_several_processes_of_a_rank_the_largest_is_told_and_the_others_noted(self, shop: Shop) -> None:
        shop.run(TRAIN, "children")
        result = shop.result()
        assert max(phase["reserved_peak"] for phase in result["phases"].values()) >= 64 * MIB
        assert any("used a GPU too" in note for note in result["notes"])
        assert len(list(shop.out.glob("snapshot-*"))) == 1

    def test_a_world_is_made_up_for_a_program_that_is_one_rank_of_it(self, shop: Shop) -> None:
        code, output = shop.run(WORLD, env={"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"})
        assert code == 0, output
        result = shop.result(3)
        assert parse_result(result, 3).outcome is Outcome.EXACT and result["world_size"] == 4

    @pytest.mark.parametrize("mode", ["plain", "compressed"])
    def test_ddp_trains_in_a_made_up_world(self, shop: Shop, mode: str) -> None:
        code, output = shop.run(DDP, mode, env={"RANK": "0", "WORLD_SIZE": "4"})
        assert code == 0, output
        phases = shop.result()["phases"]
        assert list(phases) == ["setup", "step_1", "step_2", "step_3"]
        # Weight, gradient and the bucket it is reduced in, 4 MiB each; then the optimizer's two states.
        assert phases["step_1"]["allocated_peak"] >= 12 * MIB
        assert phases["step_2"]["allocated_peak"] >= 20 * MIB

    def test_all_ranks_of_a_launcher_are_watched_with_a_real_process_group(self, shop: Shop) -> None:
        program = shop.folder / "program.py"
        program.write_text(RANKS)
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
        env = shop.environment(True, process_group="nccl")
        done = subprocess.run([sys.executable, *launch], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        first, second = shop.result(0), shop.result(1)
        assert (second["outcome"], second["failed_phase"]) == ("censored", "step_3")
        assert first["phases"]["step_1"]["allocated_peak"] == second["phases"]["step_1"]["allocated_peak"] >= 16 * MIB
        assert first["world_size"] == second["world_size"] == 2


def python(shop: Shop, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A program without a GPU."""
    variables = shop.environment(False) | env
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)


def test_the_sitecustomize_that_was_there_is_still_loaded(shop: Shop) -> None:
    theirs = shop.folder / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import os\nLOADED = os.environ['OOMBISECT_COMMAND_JOB']\n")
    path = os.pathsep.join((str(PROBES / "command_hook"), str(theirs)))
    done = python(shop, "import sitecustomize; print(sitecustomize.LOADED, sitecustomize.__file__)", PYTHONPATH=path)
    assert done.stdout.split() == [str(shop.folder / "job.json"), str(theirs / "sitecustomize.py")]


def test_a_process_without_a_gpu_leaves_nothing_and_sees_nothing_of_ours(shop: Shop) -> None:
    done = python(shop, "import sys; print('torch' in sys.modules, any('probes' in entry for entry in sys.path[1:]))")
    assert (done.stdout, done.stderr) == ("False True\n", "")  # the hook's folder alone, which Python itself put there
    assert list(shop.out.iterdir()) == []


def test_a_job_of_another_version_is_told_and_the_program_runs(shop: Shop) -> None:
    variables = shop.environment(False, schema=99)
    done = subprocess.run([sys.executable, "-c", "print(7)"], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "7\n" and "could not attach" in done.stderr and "99" in done.stderr


def test_random_numbers_are_those_of_the_seed(shop: Shop) -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    assert python(shop, code).stdout == python(shop, code).stdout
