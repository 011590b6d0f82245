"""One probe of a training command that is not ours: run as it is, watched by the hook, its ranks' results read.

On a virtual GPU it runs once for each rank asked for, alone in a world that the hook makes up; on real GPUs it runs
once and starts its own ranks. What it tells by its exit code is read as `git bisect run` reads it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oombisect.probing.collect import ProbeRun, RankResult, classify_death, merge, read_result
from oombisect.probing.command_call import CommandCall
from oombisect.probing.devices import Device
from oombisect.probing.guard import Ended, Limits, run_guarded
from oombisect.probing.interpreter import Interpreter
from oombisect.probing.workload import Sources, Variation, Workload
from oombisect.readings import Outcome
from oombisect.resources import probes_dir

JOB_VARIABLE = "OOMBISECT_COMMAND_JOB"
HOOK = "command_hook"
CANNOT_TEST = 125
_TRIES = 2
_PYTHONS = ("python", "python3")
_LARGEST_NODE = 8


@dataclass(frozen=True, slots=True)
class CommandProbe:
    """Runs a command in `environment` (a copy of ours for the device) and reads what it did."""

    interpreter: Interpreter
    device: Device
    workload: Workload
    limits: Limits
    environment: Mapping[str, str]
    on_tick: Callable[[float], None] | None = None

    def run(
        self,
        call: CommandCall,
        sources: Sources,
        out: Path,
        variation: Variation,
        ranks: tuple[int, ...] | None = None,
    ) -> ProbeRun:
        """Probe once; files are left in `out`. Compiling takes memory: a run that had to is done again, once.

        Raises:
            OSError: nothing can be written or started here.
        """
        results: list[RankResult] = []
        for _ in range(_TRIES):
            results = []
            for stale in (*out.glob("result-*.json"), *out.glob("snapshot-*.pickle.gz")):
                stale.unlink()
            for rank in self._ranks(ranks):
                results += self._run(call, sources, out, variation, rank)
            if not any(result.cold_compile for result in results):
                break
        return merge(results, self.device, out)

    def _ranks(self, narrowed: tuple[int, ...] | None) -> Sequence[int | None]:
        """The ranks to be, one run each; None: whatever the command makes itself."""
        if self.device.process_group != "fake":
            return (None,)
        if narrowed or self.workload.ranks:
            return narrowed or self.workload.ranks
        world = self.workload.world_size
        return (None,) if world is None else tuple(dict.fromkeys((0, world - 1)))

    def _run(
        self, call: CommandCall, sources: Sources, out: Path, variation: Variation, rank: int | None
    ) -> list[RankResult]:
        named = rank or 0
        job = out / f"job-{named}.json"
        job.write_text(json.dumps(self._job(call, sources, out, variation), indent=1, sort_keys=True) + "\n")
        env = self._environment(call, job, variation, rank)
        log = out / f"log-{named}.txt"
        try:
            ended = run_guarded(
                self._argv(call, sources), env=env, cwd=_folder(sources), log=log, limits=self.limits,
                on_tick=self.on_tick,
            )  # fmt: skip
        except OSError as error:
            # The log could be written: it is the command that is not there, or not a program, at this point.
            if not log.exists():
                raise
            reason = f"{call.argv[0]} cannot be started: {error.strerror or error}"
            return [RankResult(named, Outcome.UNRESOLVED, reason, Ended(CANNOT_TEST, None, 0.0, 0))]
        for left in out.glob("recording-*"):  # by processes that were killed
            left.unlink()
        told = [named] if rank is not None else _ranks_told(out)
        found = [result for number in told if (result := read_result(out, number, ended))]
        return judge(found, out, named, ended, self.limits)

    def _argv(self, call: CommandCall, sources: Sources) -> list[str]:
        first, *rest = call.argv
        return [str(self.interpreter.path) if first in _PYTHONS else first, *rest]

    def _job(self, call: CommandCall, sources: Sources, out: Path, variation: Variation) -> dict[str, Any]:
        """What the hook is told (docs/command.md)."""
        workload = self.workload
        return {
            "schema": 1,
            "kind": "command",
            "command": list(call.argv),
            "name": call.name,
            "config": None if call.config is None else dict(call.config),
            "roots": {name: str(path) for name, path in sources.roots.items()},
            "iterations": workload.iterations,
            "until_exit": workload.until_exit,
            "seed": workload.seed,
            "process_group": self.device.process_group,
            "simulated": self.device.simulated,
            "device": self.device.name,
            "limit_bytes": variation.limit_bytes,
            "moe_skew": workload.moe_skew,
            "prepare": list(dict.fromkeys((*call.prepare, *workload.prepare))),
            "record_history": True,
            "out": str(out),
        }

    def _environment(self, call: CommandCall, job: Path, variation: Variation, rank: int | None) -> dict[str, str]:
        env = {**command_environment(self.environment, self.interpreter), **call.env, **self.workload.env}
        hook = str(probes_dir() / HOOK)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (hook, env.get("PYTHONPATH"))))
        env[JOB_VARIABLE] = str(job)
        env["OOMBISECT_VGPU_ABORT_FILE"] = str(job.with_name(f"abort-{rank or 0}.txt"))
        if variation.alloc_conf is not None:
            env["PYTORCH_CUDA_ALLOC_CONF"] = env["PYTORCH_ALLOC_CONF"] = variation.alloc_conf
        if rank is not None:
            world = self.workload.world_size or rank + 1
            env |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": str(min(world, _LARGEST_NODE)),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": "29500",
            }
        return env


def command_environment(inherited: Mapping[str, str], interpreter: Interpreter) -> dict[str, str]:
    """`inherited`, with the chosen interpreter's programs (python, torchrun) before all others."""
    path = os.pathsep.join(filter(None, (str(interpreter.path.parent), inherited.get("PATH"))))
    return {**inherited, "PATH": path}


def _folder(sources: Sources) -> Path:
    """Where the command runs: the top of the point's sources."""
    return next(iter(sources.roots.values()))


def _ranks_told(out: Path) -> list[int]:
    """The ranks that left a result."""
    names = (re.fullmatch(r"result-(\d{1,7})\.json", path.name) for path in out.glob("result-*.json"))
    return sorted(int(name[1]) for name in names if name)


def judge(found: Sequence[RankResult], out: Path, named: int, ended: Ended, limits: Limits) -> list[RankResult]:
    """What a command's exit code and the results of its ranks say together.

    A run that the hook ended after its iterations is measured, whatever the launcher makes of that. Otherwise the exit
    code decides: 0 success; 125 this point cannot be tested; any other is a failure, of memory where a rank ran out of
    it, caught by the program or not. `named` is the rank that a verdict without any result is given to.
    """

    def unresolved(reason: str) -> list[RankResult]:
        return [RankResult(named, Outcome.UNRESOLVED, reason, ended)]

    dead = classify_death(out, named, ended, limits)
    if (out / f"abort-{named}.txt").is_file():
        return [dead]
    if ended.exit_code == CANNOT_TEST and ended.killed is None:
        return unresolved(f"the command says that this point cannot be tested (exit code {CANNOT_TEST})")
    stopped = bool(found) and all(result.ended_by == "iterations" for result in found)
    if not stopped and (ended.killed is not None or ended.exit_code != 0):
        return _failed(found, dead)
    if not found:
        return unresolved(f"no Python process of the command used a GPU: see {out.name}/log-{named}.txt")
    return [*found, *_missing(found, ended)]


def _failed(found: Sequence[RankResult], dead: RankResult) -> list[RankResult]:
    """Of a command that failed: the ranks that ran out of memory, else the error that one told, else how it died."""
    starved = [_starved(result) for result in found]
    if any(result.outcome is Outcome.CENSORED for result in starved):
        measured = (Outcome.CENSORED, Outcome.EXACT)
        return [r if r.outcome in measured else RankResult(r.rank, r.outcome, r.reason, dead.ended) for r in starved]
    own = next((result for result in found if result.outcome is Outcome.UNRESOLVED), None)
    return [own] if own is not None and dead.ended.killed is None else [dead]


def _starved(result: RankResult) -> RankResult:
    """The result, as one that ran out of memory where its program caught such an error and failed all the same."""
    told = result.result
    if told is None or told.caught is None or told.reading is None or told.outcome is Outcome.UNRESOLVED:
        return result
    reading = replace(told.reading, oom=told.caught)
    reason = f"out of device memory in {told.caught.phase}"
    return RankResult(
        result.rank, Outcome.CENSORED, reason, result.ended, replace(told, outcome=Outcome.CENSORED, reading=reading)
    )


def _missing(found: Sequence[RankResult], ended: Ended) -> list[RankResult]:
    """Ranks that must be there, as the others' process group says, and left nothing, in a run that did not fail."""
    told = [result.result for result in found if result.result is not None]
    alone = len(found) == 1 and (told and told[0].process_group == "fake")
    world = max((result.world_size or 1 for result in told), default=1)
    if alone or len(found) >= min(world, _LARGEST_NODE):
        return []
    there = {result.rank for result in found}
    lost = next(rank for rank in range(world) if rank not in there)
    return [RankResult(lost, Outcome.UNRESOLVED, f"it left no result, though {len(found)} of {world} ranks did", ended)]
