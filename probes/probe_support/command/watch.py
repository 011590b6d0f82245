"""Watches one process of a command from the moment it starts CUDA to its end, however it ends, and writes its result.

Set-up ends when the first optimizer is built (with the first step, where CUDA starts later than that); an iteration
ends when the optimizer that stepped first has stepped again. A process that never starts CUDA leaves nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import torch

from .. import outcome
from .job import SCHEMA, CommandJob

_CAUGHT = "caught"


class Watch:
    """One process. `arm` waits for CUDA; `finish` writes the result, once."""

    def __init__(self, job: CommandJob) -> None:
        self.job = job
        self.out = Path(job.out)
        self.iterations = 0
        self.started = 0.0
        self.pid = 0  # of the process that started CUDA; a child that was forked off later is not watched
        self.phases: Any = None
        self.history: Any = None
        self._leader: weakref.ref[Any] | None = None
        self._set_up = False
        self._oom_phase: str | None = None
        self._real_exit = os._exit

    @property
    def watching(self) -> bool:
        return self.pid == os.getpid() and self.phases is not None

    def arm(self) -> None:
        torch.cuda._lazy_call(self._guarded_start)  # type: ignore[no-untyped-call]
        with contextlib.suppress(ImportError):  # it came with torch 2.0
            from torch.optim.optimizer import register_optimizer_step_post_hook

            def stepped(optimizer: Any, *_: Any) -> None:
                self._stepped(optimizer)

            stepped._torchdynamo_disable = True  # type: ignore[attr-defined]  # a compiled step breaks its graph here
            register_optimizer_step_post_hook(stepped)
        self._watch_construction()

    def _guarded_start(self) -> None:
        # Called inside torch's own start of CUDA: an error here would be the command's.
        try:
            self._start()
        except Exception as error:
            print(f"oombisect: the probe cannot watch this process: {outcome.one_line(error)}", file=sys.stderr)

    def _start(self) -> None:
        from .. import environment
        from ..history import History
        from ..phases import Phases

        self.pid = os.getpid()
        self.started = time.monotonic()
        if self.job.limit_bytes and self.job.process_group != "fake":
            with torch.cuda.device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count()):
                environment.cap_memory(self.job.limit_bytes)
        self.history = History(self.out / f"recording-{self.pid}.pickle.gz", self.job.record_history)
        self.phases = Phases(busiest_device)
        atexit.register(self.finish, "exit")
        os._exit = self._exit  # type: ignore[assignment]
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)

    def _watch_construction(self) -> None:
        """The first optimizer built ends the set-up: the model is there, its optimizer's state is not."""
        construct = torch.optim.Optimizer.__init__
        watch = self

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            construct(self, *args, **kwargs)
            watch._built()

        __init__.__wrapped__ = construct  # type: ignore[attr-defined]
        __init__.__doc__ = construct.__doc__
        torch.optim.Optimizer.__init__ = __init__  # type: ignore[method-assign]

    def _built(self) -> None:
        if self.watching and not self._set_up:
            self._close("setup", "step_1")

    def _stepped(self, optimizer: Any) -> None:
        if not self.watching:
            return
        leader = self._leader() if self._leader is not None else None
        if leader is None:
            self._leader = weakref.ref(optimizer)
        elif leader is not optimizer:
            return
        self.iterations += 1
        self._close(f"step_{self.iterations}", f"step_{self.iterations + 1}")
        if self.iterations >= self.job.iterations and not self.job.until_exit:
            self.finish("iterations")
            self._leave()

    def _leave(self) -> None:
        """Ends the process as a success, without its exit handlers: what it was to save nobody needs."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._real_exit(0)

    def _close(self, name: str, following: str) -> None:
        self._set_up = True
        self._note_oom()
        self.phases.close(name, following)

    def _note_oom(self) -> None:
        if self._oom_phase is None and self.history.at_oom is not None:
            self._oom_phase = self.phases.current

    def _exit(self, status: int) -> None:
        self.finish("exit" if status == 0 else "error")
        self._real_exit(status)

    def _terminated(self, number: int, _frame: Any) -> None:
        self.finish("signal")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def finish(self, ended: str) -> None:
        """Writes this process's result, the first time it is called; `ended` says why it is."""
        if not self.watching:
            return
        phases, self.phases = self.phases, None
        try:
            self._write(phases, ended)
        except Exception as error:
            print(f"oombisect: the probe could not write its result: {outcome.one_line(error)}", file=sys.stderr)

    def _write(self, phases: Any, ended: str) -> None:
        from . import files

        error = uncaught() if ended in ("exit", "error") else None
        in_this_phase = self._oom_phase is None and self.history.at_oom is not None
        result: dict[str, Any] = {"schema": SCHEMA, "outcome": "exact", "notes": [], "ended": ended}
        if error is not None:
            result |= self._failure(error, phases.current)
            result["ended"] = "error"
        elif ended == "signal":
            result |= {"outcome": "infra", "reason": f"ended by SIGTERM in {phases.current}"}
        if error is not None or ended != "iterations":
            try:
                phases.close_failed()
            except Exception as second:
                result["notes"].append(f"the allocator's counters could not be read: {outcome.one_line(second)}")
        if self.history.at_oom is not None and result.get("oom") is None:
            phase = self._oom_phase or phases.current
            message = "an out-of-memory error that the program caught"
            result[_CAUGHT] = {"phase": phase, "message": message, **self.history.at_oom}
        try:
            result["snapshot"] = self.history.finish(in_this_phase)
            result["trace_hash"] = self.history.trace_hash
        except Exception as second:
            result["notes"].append(f"the allocation history could not be saved: {outcome.one_line(second)}")
        result.update(phases=phases.records, external=max(0, phases.external), iterations=self.iterations)
        files.complete(result, self.job)
        result["seconds"] = {
            "total": round(time.monotonic() - self.started, 2),
            "cpu": round(time.process_time(), 2),
        }
        files.write(self.out, rank_of_this_process(), result)

    def _failure(self, error: BaseException, phase: str) -> dict[str, Any]:
        told: dict[str, Any] = {"failed_phase": phase, "traceback": outcome.traceback_text(error)}
        if outcome.is_out_of_memory(error):
            oom = outcome.oom_record(error, phase, self.history.at_oom)
            return told | {"outcome": "censored", "oom": oom, "reason": f"out of device memory in {phase}"}
        kind = "infra" if isinstance(error, KeyboardInterrupt) else "unresolved"
        return told | {"outcome": kind, "reason": outcome.one_line(error)}


def uncaught() -> BaseException | None:
    """The exception that ends this program, None where there is none: the interpreter keeps it for debuggers."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def busiest_device() -> int:
    """The device that this process holds most memory of; the current one while it holds none."""
    held = [torch.cuda.memory_reserved(index) for index in range(torch.cuda.device_count())]
    most = max(held, default=0)
    return held.index(most) if most else torch.cuda.current_device()


_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def rank_of_this_process() -> int:
    """As torch.distributed has it, else as the launcher's environment says; 0 where nobody tells."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    for name in _RANK_VARIABLES:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0
