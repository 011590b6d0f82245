"""One probe: its processes started, watched and ended, and the reading made of what they left.

On a virtual GPU each rank is a process of its own; on real GPUs all ranks run under torchrun.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oombisect.probing.collect import ProbeRun, RankResult, classify_death, merge, read_result
from oombisect.probing.command import CommandProbe
from oombisect.probing.command_call import CommandCall
from oombisect.probing.description import Description, NoDescription, read_description
from oombisect.probing.devices import Device
from oombisect.probing.guard import Ended, Limits, run_guarded
from oombisect.probing.interpreter import Interpreter
from oombisect.probing.worker import Worker, WorkerDied
from oombisect.probing.workload import CONFIG_FILE, PLAIN, Call, ConfigCall, Sources, Variation, Workload, job_json
from oombisect.resources import probes_dir

ABORT_FILE_VARIABLE = "OOMBISECT_VGPU_ABORT_FILE"
_SCRIPT = "bridge_train.py"
_WORKER = "worker.py"
_NOT_INHERITED = ("LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "RANK", "WORLD_SIZE", "LOCAL_RANK")


@dataclass(slots=True)
class Prober:
    """Runs probes of one workload in one interpreter on one device; a context manager, for its worker's sake.

    `open_device` finds the same device for another interpreter (a virtual GPU is built for one torch).
    """

    interpreter: Interpreter
    device: Device
    workload: Workload
    limits: Limits
    cache: Path
    on_tick: Callable[[float], None] | None = None
    open_device: Callable[[Interpreter], Device] | None = None
    _worker: Worker | None = None
    _worker_failed: bool = False
    _other: Prober | None = None

    def __enter__(self) -> Prober:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()
        if self._other is not None:
            self._other.__exit__()

    def within(self, interpreter: Interpreter | None) -> Prober:
        """This prober, or the same one in another interpreter; of those the last is kept, for its worker's sake.

        Raises:
            OombisectError: there is no such device for that interpreter.
        """
        if interpreter is None or interpreter == self.interpreter:
            return self
        if self._other is None or self._other.interpreter != interpreter:
            device = self.open_device(interpreter) if self.open_device else self.device
            if self._other is not None:
                self._other.__exit__()
            self._other = Prober(interpreter, device, self.workload, self.limits, self.cache, self.on_tick)
        return self._other

    def run(
        self,
        call: Call,
        sources: Sources,
        out: Path,
        variation: Variation,
        ranks: tuple[int, ...] | None = None,
    ) -> ProbeRun:
        """Probe once. `ranks` narrows the workload's own choice. Files are left in `out`, which is made.

        Raises:
            OombisectError: the probe cannot be started at all (disk full, interpreter gone).
        """
        out.mkdir(parents=True, exist_ok=True)
        if isinstance(call, CommandCall):
            environment = self._environment(variation)
            probe = CommandProbe(self.interpreter, self.device, self.workload, self.limits, environment, self.on_tick)
            return probe.run(call, sources, out, variation, ranks)
        if self.device.process_group == "fake":
            results = self._run_ranks(call, sources, out, variation, ranks or self.workload.ranks)
        else:
            results = self._run_torchrun(call, sources, out, variation)
        return merge(results, self.device, out)

    def describe(self, call: Call, sources: Sources, out: Path) -> Description:
        """The configuration that `call` makes, with nothing trained. Files are left in `out`, which is made.

        Raises:
            NoDescription: the code does not build, import or accept it.
            OombisectError: it cannot be started at all.
        """
        out.mkdir(parents=True, exist_ok=True)
        job = self._write_job(call, sources, out, PLAIN, 0, describe=True)
        ended = self._run_alone(job, out, 0, PLAIN)
        found = read_description(out, 0)
        if found is None:
            raise NoDescription(classify_death(out, 0, ended, self.limits).reason)
        return found

    def _run_ranks(
        self, call: Call, sources: Sources, out: Path, variation: Variation, ranks: tuple[int, ...]
    ) -> list[RankResult]:
        first = self._run_rank(call, sources, out, variation, ranks[0] if ranks else 0)
        rest = ranks[1:] if ranks else tuple(rank for rank in first.suggested_ranks if rank != first.rank)
        return [first, *(self._run_rank(call, sources, out, variation, rank) for rank in rest)]

    def _run_rank(self, call: Call, sources: Sources, out: Path, variation: Variation, rank: int) -> RankResult:
        job = self._write_job(call, sources, out, variation, rank)
        ended = self._run_alone(job, out, rank, variation)
        return read_result(out, rank, ended) or classify_death(out, rank, ended, self.limits)

    def _run_alone(self, job: Path, out: Path, rank: int, variation: Variation) -> Ended:
        """Run a job in one process: forked by the worker, else started."""
        ended = self._fork(job, out, rank, variation) if self.device.process_group == "fake" else None
        if ended is None:
            command = [str(self.interpreter.path), str(probes_dir() / _SCRIPT), str(job)]
            ended = self._launch(command, out, rank, variation)
        return ended

    def _fork(self, job: Path, out: Path, rank: int, variation: Variation) -> Ended | None:
        """Have the worker fork the probe; None if there is no worker that can."""
        if self._worker_failed:
            return None
        try:
            if self._worker is None:
                command = [str(self.interpreter.path), str(probes_dir() / _WORKER)]
                self._worker = Worker(command, self._environment(PLAIN), out / "worker-log.txt")
            changed = self._environment(variation).items() - self._environment(PLAIN).items()
            variables = dict(changed) | {ABORT_FILE_VARIABLE: str(out / f"abort-{rank}.txt")}
            return self._worker.run(job, variables, self.limits, self.on_tick, out / f"log-{rank}.txt")
        except WorkerDied:
            self._worker_failed = True
            return None

    def _run_torchrun(self, call: Call, sources: Sources, out: Path, variation: Variation) -> list[RankResult]:
        world = self.workload.world_size or self.device.count
        job = self._write_job(call, sources, out, variation, 0)
        command = [str(self.interpreter.path), str(probes_dir() / _SCRIPT), str(job)]
        if world > 1:
            command[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        results: list[RankResult] = []
        for _ in range(2):  # compiling takes memory: a run that had to is done again with what it compiled
            ended = self._launch(command, out, 0, variation)
            results = [read_result(out, r, ended) or classify_death(out, r, ended, self.limits) for r in range(world)]
            if not any(result.cold_compile for result in results):
                break
        return results

    def _write_job(
        self, call: Call, sources: Sources, out: Path, variation: Variation, rank: int, describe: bool = False
    ) -> Path:
        if isinstance(call, ConfigCall) and call.config is not None:
            (out / CONFIG_FILE).write_text(json.dumps(call.config, indent=1, sort_keys=True) + "\n")
        job = job_json(
            self.workload,
            call,
            sources,
            variation,
            rank=rank,
            process_group=self.device.process_group,
            device=self.device.name,
            simulated=self.device.simulated,
            model_configs=probes_dir() / "model_configs",
            out=out,
            describe=describe,
        )
        path = out / f"job-{rank}.json"
        path.write_text(json.dumps(job, indent=1, sort_keys=True) + "\n")
        return path

    def _launch(self, command: list[str], out: Path, rank: int, variation: Variation) -> Ended:
        env = self._environment(variation) | {ABORT_FILE_VARIABLE: str(out / f"abort-{rank}.txt")}
        return run_guarded(
            command, env=env, cwd=out, log=out / f"log-{rank}.txt", limits=self.limits, on_tick=self.on_tick
        )

    def _environment(self, variation: Variation) -> dict[str, str]:
        env = inherited_environment()
        if self.device.process_group == "nccl" and "LD_PRELOAD" in os.environ:
            env["LD_PRELOAD"] = os.environ["LD_PRELOAD"]  # the caller's own set-up of the real device
        env.update(self.device.environment(variation.limit_bytes))
        env["PYTHONHASHSEED"] = "0"
        env["OOMBISECT_BYTECODE_CACHE"] = str(self.cache / "bytecode" / self.interpreter.version)
        return env


def inherited_environment() -> dict[str, str]:
    """Our environment without what would change what a probe measures, or break it."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
