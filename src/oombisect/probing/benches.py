"""Probes side by side: each bench is a process of its own that runs one probe at a time.

Not threads: the guard takes in orphans for the whole process, and a child that is to die with its parent dies with the
thread that started it, so that threads would end each other's probes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from oombisect.errors import OombisectError, Stopped
from oombisect.probing.collect import ProbeRun
from oombisect.probing.devices import VISIBLE_VARIABLE, Device
from oombisect.probing.guard import dying_with
from oombisect.probing.prober import Prober
from oombisect.probing.workload import Call, Sources, Variation, Workload
from oombisect.readings import Outcome, Reading
from oombisect.units import format_bytes

HOST_BYTES = 4 << 30
"""Host memory that a probe is taken to need when benches are counted and none like it was seen."""
_END_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Job:
    """One probe, as `Prober.run` takes it."""

    prober: Prober
    call: Call
    sources: Sources
    out: Path
    variation: Variation
    ranks: tuple[int, ...] | None


@dataclass
class Bench:
    """A process that runs probes, started with the first one. `gpus`: what it sees of a machine's own, None: all."""

    gpus: str | None = None
    _pool: ProcessPoolExecutor | None = field(default=None, init=False)
    _processes: tuple[psutil.Process, ...] = field(default=(), init=False)

    def start(self, job: Job) -> Future[ProbeRun]:
        """Begin a probe. If the bench dies under it, `outcome` says so and the next probe gets a new bench."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(os.getpid(), self.gpus)
            )
        alone = replace(
            job.prober, on_tick=None, open_device=None, _worker=None, _worker_failed=False, _other=None
        )  # what a process can be told
        # Ctrl-C is for the driver, also while a bench begins.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            future = self._pool.submit(_run, replace(job, prober=alone))
            if not self._processes:
                self._processes = tuple(psutil.Process(pid) for pid in self._pool._processes)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return future

    def outcome(self, future: Future[ProbeRun], device: Device) -> ProbeRun:
        """What a probe brought, once it has ended.

        Raises:
            OombisectError: it could not be started at all.
        """
        try:
            return future.result()
        except BrokenProcessPool:
            self.close()
            reason = "the process that watched over the probe was killed"
            return ProbeRun(Reading(Outcome.INFRA, reason=reason, device=device.name, simulated=device.simulated))

    def close(self) -> None:
        """End the probe that runs, with all it started, and the bench."""
        if self._pool is None:
            return
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in psutil.wait_procs(self._processes, timeout=_END_SECONDS)[1]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._pool, self._processes = None, ()


def bench_count(
    wanted: int | None, device: Device, workload: Workload, host_bytes: int = HOST_BYTES
) -> tuple[int, str]:
    """How many probes run at once, and a sentence where that is fewer than `wanted` (None: as many as there can be).

    Virtual GPUs share cores and host memory, of which a bench is to have `host_bytes` free; real ones are shared out,
    each probe its whole world.

    Raises:
        OombisectError: there are not as many real GPUs.
    """
    if device.process_group != "fake":
        gpus = len(_gpus(device))
        world = gpus if workload.command else workload.world_size or device.count
        most = max(1, gpus // world)
        if wanted is not None and wanted > most:
            raise OombisectError(
                f"--jobs {wanted} is more than the {gpus} GPUs here hold: a probe takes {world} of them",
                f"Use --jobs {most}, a smaller --world-size, or a virtual GPU.",
            )
        return wanted or most, ""
    cores = len(os.sched_getaffinity(0))
    free = psutil.virtual_memory().available
    most = max(1, min(cores, free // host_bytes))
    if wanted is None or wanted <= most:
        return wanted or most, ""
    there = f"there are {cores} cores and {format_bytes(free)} of memory, {format_bytes(host_bytes)} for a probe"
    return most, f"probing {most} at a time, not {wanted}: {there}"


def benches(count: int, device: Device, workload: Workload) -> Sequence[Bench]:
    """`count` benches, as `bench_count` has it; on real GPUs each has its own share of them."""
    if device.process_group == "fake":
        return [Bench() for _ in range(count)]
    gpus = _gpus(device)
    world = workload.world_size or device.count
    return [Bench(",".join(gpus[i * world : (i + 1) * world])) for i in range(count)]


def _gpus(device: Device) -> list[str]:
    """By the names that this process has for them: a share of them is a shorter list of the same."""
    told = os.environ.get(VISIBLE_VARIABLE)
    names = [str(i) for i in range(device.count)] if told is None else [name.strip() for name in told.split(",")]
    return names[: device.count]


_prober: Prober | None = None  # of this process, where it is a bench: its worker serves one probe after another


def _begin(driver: int, gpus: str | None) -> None:
    dying_with(driver)()
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches the driver too, which ends us
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    if gpus is not None:
        os.environ[VISIBLE_VARIABLE] = gpus


def _run(job: Job) -> ProbeRun:
    global _prober
    if _prober is None or (_prober.interpreter, _prober.device) != (job.prober.interpreter, job.prober.device):
        if _prober is not None:
            _prober.__exit__()
        _prober = job.prober
    signal.signal(signal.SIGTERM, _stop)
    try:
        return _prober.run(job.call, job.sources, job.out, job.variation, job.ranks)
    except Stopped:
        os._exit(1)  # the probe has been ended; nobody waits for an answer
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _stop(number: int, _: object) -> None:
    raise Stopped(number)
