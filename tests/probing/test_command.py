"""What a training command's exit code and its ranks' results say together."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oombisect.probing.collect import RankResult, merge
from oombisect.probing.command import CommandProbe, judge
from oombisect.probing.command_call import CommandCall
from oombisect.probing.guard import Ended, Killed, Limits
from oombisect.probing.interpreter import Interpreter
from oombisect.probing.result_file import ProbeResult
from oombisect.probing.workload import PLAIN, Sources, Variation, Workload
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading, Reading

CAUGHT = Oom("step_2", "an out-of-memory error that the program caught", requested=5)


@dataclass(frozen=True)
class Device:
    name: str = "cuda"
    simulated: bool = False
    process_group: str = "nccl"


def ended(code: int = 0, killed: Killed | None = None) -> Ended:
    return Ended(code, killed, 1.0, 1)


def told(
    end: Ended,
    rank: int = 0,
    by: str = "exit",
    outcome: Outcome = Outcome.EXACT,
    caught: Oom | None = None,
    reason: str = "",
    world: int = 1,
) -> RankResult:
    oom = Oom("step_1", "CUDA out of memory") if outcome is Outcome.CENSORED else None
    reading = RankReading(rank, {"step_1": PhaseMetrics(allocated_peak=7, reserved_peak=8)}, oom=oom)
    result = ProbeResult(outcome, reason, reading, ended=by, caught=caught, world_size=world, process_group="nccl")
    return RankResult(rank, outcome, reason, end, result)


def reading_of(results: list[RankResult], out: Path) -> Reading:
    return merge(results, Device(), out).reading  # type: ignore[arg-type]


def judged(found: list[RankResult], out: Path, end: Ended) -> Reading:
    return reading_of(judge(found, out, 0, end, Limits()), out)


def test_success_is_exact_and_an_error_the_program_survived_is_no_verdict(tmp_path: Path) -> None:
    end = ended()
    reading = judged([told(end, caught=CAUGHT)], tmp_path, end)
    assert reading.outcome is Outcome.EXACT and reading.ranks[0].oom is None


def test_exit_code_125_is_the_commands_own_word_for_cannot_be_tested(tmp_path: Path) -> None:
    end = ended(125)
    reading = judged([told(end)], tmp_path, end)
    assert (reading.outcome, "125" in reading.reason) == (Outcome.UNRESOLVED, True)


def test_a_failure_tells_the_last_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "log-0.txt").write_text("loading\nno such file: corpus.bin\n")
    end = ended(3)
    reading = judged([told(end)], tmp_path, end)
    assert reading.outcome is Outcome.UNRESOLVED
    assert reading.reason == "the probe ended with exit code 3: no such file: corpus.bin"


def test_the_error_of_a_rank_says_more_than_the_launchers_log(tmp_path: Path) -> None:
    end = ended(1)
    bad = told(end, 1, "error", Outcome.UNRESOLVED, reason="ValueError: heads do not divide", world=2)
    dying = told(end, 0, "signal", Outcome.INFRA, reason="ended by SIGTERM", world=2)
    reading = judged([dying, bad], tmp_path, end)
    assert (reading.outcome, reading.reason) == (Outcome.UNRESOLVED, "ValueError: heads do not divide")


@pytest.mark.parametrize("killed", [None, Killed.TIME])
def test_out_of_memory_on_one_rank_decides_whatever_became_of_the_others(tmp_path: Path, killed: Killed | None) -> None:
    end = ended(1, killed)
    found = [
        told(end, 0, "signal", Outcome.INFRA, reason="ended by SIGTERM"),
        told(end, 1, "error", Outcome.CENSORED, reason="out of device memory in step_1"),
        told(end, 2, "iterations"),
    ]
    reading = judged(found, tmp_path, end)
    assert (reading.outcome, reading.reason) == (Outcome.CENSORED, "rank 1: out of device memory in step_1")
    assert [rank.rank for rank in reading.ranks] == [1, 2]
    assert reading.notes == ("ranks that left no result, ended when another ran out of memory: 0",)


def test_an_out_of_memory_error_that_was_caught_counts_where_the_command_failed(tmp_path: Path) -> None:
    end = ended(3)
    reading = judged([told(end, caught=CAUGHT)], tmp_path, end)
    assert reading.outcome is Outcome.CENSORED
    assert reading.ranks[0].oom == CAUGHT


def test_a_run_the_hook_ended_is_measured_whatever_the_launcher_makes_of_it(tmp_path: Path) -> None:
    end = ended(1)
    found = [told(end, rank, "iterations", world=2) for rank in (0, 1)]
    reading = judged(found, tmp_path, end)
    assert reading.outcome is Outcome.EXACT and len(reading.ranks) == 2


def test_a_rank_that_left_nothing_in_a_run_that_succeeded_is_missed(tmp_path: Path) -> None:
    end = ended()
    reading = judged([told(end, 0, world=2)], tmp_path, end)
    assert reading.outcome is Outcome.UNRESOLVED and reading.reason.startswith("rank 1: it left no result")


def test_a_command_that_used_no_gpu_measured_nothing(tmp_path: Path) -> None:
    reading = judged([], tmp_path, ended())
    assert reading.outcome is Outcome.UNRESOLVED and "used a GPU" in reading.reason


@pytest.mark.parametrize(
    ("end", "outcome"),
    [(ended(-15, Killed.TIME), Outcome.INFRA), (ended(-9), Outcome.INFRA), (ended(-11), Outcome.UNRESOLVED)],
)
def test_signals_and_limits_are_read_as_those_of_probes(tmp_path: Path, end: Ended, outcome: Outcome) -> None:
    assert judged([told(end, by="signal", outcome=Outcome.INFRA)], tmp_path, end).outcome is outcome


# What a command of these tests does in the place of training: it writes a result as the hook would.
PRETEND = """
import hashlib, json, os, sys
from pathlib import Path
job = json.loads(Path(os.environ["OOMBISECT_COMMAND_JOB"]).read_text())
rank = int(os.environ.get("RANK", 0))
seen = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "PYTORCH_CUDA_ALLOC_CONF", "A", "PATH")}
config = {"seen": seen, "cwd": os.getcwd(), "argv": sys.argv[1:]}
text = json.dumps(config, sort_keys=True, separators=(",", ":"))
runs = Path(job["out"]) / f"runs-{rank}"
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
result = {
    "schema": 1, "outcome": "exact", "rank": rank, "world_size": 1, "ended": "exit", "process_group": "fake",
    "phases": {"step_1": {"allocated_peak": 10 + rank, "reserved_peak": 20 + rank}}, "config": config,
    "config_hash": hashlib.sha256(text.encode()).hexdigest(), "cold_compile": "cold" in sys.argv,
}
(Path(job["out"]) / f"snapshot-{os.getpid()}.pickle.gz").write_text("")
(Path(job["out"]) / f"result-{rank}.json").write_text(json.dumps(result))
"""


def probe(tmp_path: Path, argv: list[str], **workload: Any) -> tuple[CommandProbe, CommandCall, Sources, Path]:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(PRETEND)
    out = tmp_path / "out"
    out.mkdir()
    runner = CommandProbe(
        Interpreter(Path(sys.executable), "3.12", ()),
        Device("virtual:toy", True, "fake"),  # type: ignore[arg-type]
        Workload("train", command=tuple(argv), **workload),
        Limits(seconds=60),
        dict(os.environ),
    )
    return runner, CommandCall(tuple(argv), "train"), Sources((), {"repo": tmp_path / "src"}), out


def test_the_command_runs_in_the_laid_out_sources_with_the_chosen_python_first(tmp_path: Path) -> None:
    run = CommandProbe.run(*probe(tmp_path, ["python", "train.py", "--lr", "1"], env={"A": "b"}), PLAIN)
    assert run.reading.outcome is Outcome.EXACT, run.reading.reason
    assert run.config is not None
    assert run.config["cwd"] == str(tmp_path / "src") and run.config["argv"] == ["--lr", "1"]
    seen = run.config["seen"]
    assert seen["A"] == "b" and seen["RANK"] is None
    assert seen["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_on_a_virtual_gpu_the_first_and_the_last_rank_of_a_world_are_run(tmp_path: Path) -> None:
    run = CommandProbe.run(*probe(tmp_path, ["python", "train.py"], world_size=8), PLAIN)
    assert [rank.rank for rank in run.reading.ranks] == [0, 7]
    assert run.config is not None and run.config["seen"]["WORLD_SIZE"] == "8"


def test_allocator_settings_reach_the_command(tmp_path: Path) -> None:
    run = CommandProbe.run(*probe(tmp_path, ["python", "train.py"]), Variation(alloc_conf="expandable_segments:True"))
    assert run.config is not None and run.config["seen"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_a_run_that_had_to_compile_is_done_again_once(tmp_path: Path) -> None:
    runner, call, sources, out = probe(tmp_path, ["python", "train.py", "cold"])
    runner.run(call, sources, out, PLAIN)
    assert (out / "runs-0").read_text() == "xx"
    assert len(list(out.glob("snapshot-*"))) == 1


def test_a_command_that_is_not_there_makes_the_point_unresolved(tmp_path: Path) -> None:
    run = CommandProbe.run(*probe(tmp_path, ["./train.sh"]), PLAIN)
    assert run.reading.outcome is Outcome.UNRESOLVED
    assert run.reading.reason == "./train.sh cannot be started: No such file or directory"
