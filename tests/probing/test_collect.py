"""Several ranks make one reading: as bad as the worst, unless the worst is only what another's death did to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from oombisect.probing.collect import RankResult, classify_death, merge
from oombisect.probing.guard import Ended, Killed, Limits
from oombisect.probing.result_file import ProbeResult
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading


class Device:
    name = "cuda"
    simulated = False


def measured(rank: int, outcome: Outcome, ended: Ended) -> RankResult:
    oom = Oom("step_1", "CUDA out of memory") if outcome is Outcome.CENSORED else None
    reading = RankReading(rank, {"step_1": PhaseMetrics(allocated_peak=7, reserved_peak=8)}, oom=oom)
    reason = "out of device memory in step_1" if oom else ""
    return RankResult(rank, outcome, reason, ended, ProbeResult(outcome, reason, reading))


@pytest.mark.parametrize("killed", [None, Killed.TIME])
def test_ranks_that_a_launcher_ended_do_not_hide_the_one_that_ran_out_of_memory(
    tmp_path: Path, killed: Killed | None
) -> None:
    launch = Ended(1, killed, 1.0, 1)  # one process, torchrun, for all ranks
    silent = [classify_death(tmp_path, rank, launch, Limits()) for rank in (0, 1, 3)]
    run = merge([*silent[:2], measured(2, Outcome.CENSORED, launch), silent[2]], Device(), tmp_path)  # type: ignore[arg-type]
    assert run.reading.outcome is Outcome.CENSORED
    assert run.reading.reason == "rank 2: out of device memory in step_1"
    assert [rank.rank for rank in run.reading.ranks] == [2]
    assert run.reading.notes == ("ranks that left no result, ended when another ran out of memory: 0, 1, 3",)


def test_a_launch_without_any_result_stays_unresolved(tmp_path: Path) -> None:
    launch = Ended(1, None, 1.0, 1)
    results = [measured(0, Outcome.EXACT, launch), classify_death(tmp_path, 1, launch, Limits())]
    reading = merge(results, Device(), tmp_path).reading  # type: ignore[arg-type]
    assert reading.outcome is Outcome.UNRESOLVED and reading.reason.startswith("rank 1: ")


def test_ranks_with_processes_of_their_own_answer_for_themselves(tmp_path: Path) -> None:
    results = [
        measured(0, Outcome.CENSORED, Ended(0, None, 1.0, 1)),
        classify_death(tmp_path, 1, Ended(-9, None, 1.0, 1), Limits()),
    ]
    assert merge(results, Device(), tmp_path).reading.outcome is Outcome.INFRA  # type: ignore[arg-type]
