"""A worker process that has imported torch once and forks a probe per job: imports are most of a probe's time.

It runs `probes/worker.py`, whose protocol is told there. Probes it forks are watched as any other; if the worker itself
dies, the probe is run without one.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from oombisect.probing.guard import Ended, Limits, adopting, dying_with, watch

_START_SECONDS = 300.0


class WorkerDied(Exception):
    """The worker ended, said something unforeseen, or does not answer."""


class Worker:
    """One worker, started at once; `run` waits until it is ready."""

    def __init__(self, command: list[str], env: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
                start_new_session=True, preexec_fn=dying_with(os.getpid()),
            )  # fmt: skip
        self._lines: list[str] = []
        self._pending = b""
        self._ready = False

    def run(
        self,
        job: Path,
        variables: Mapping[str, str],
        limits: Limits,
        on_tick: Callable[[float], None] | None,
        log: Path | None = None,
    ) -> Ended:
        """Fork a probe of `job`, with `variables` in its environment, and watch it and its `log` to its end.

        Raises:
            WorkerDied: the probe was not started, or nobody can tell how it ended.
        """
        if not self._ready:
            self._expect("ready", _START_SECONDS)
            self._ready = True
        line = "\t".join([str(job), *(f"{name}={value}" for name, value in variables.items())])
        with adopting() as bystanders:
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(f"{line}\n".encode())
                self._process.stdin.flush()
            except OSError as error:
                raise WorkerDied(str(error)) from error
            pid = int(self._expect(f"started {job} ", _START_SECONDS))
            return watch(_Forked(self, job, pid), limits, on_tick, bystanders=bystanders, log=log)

    def close(self) -> None:
        """Let the worker end; it is killed if it does not."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was still to be written is nobody's any more
                    pipe.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _expect(self, prefix: str, seconds: float) -> str:
        line = self.line(seconds)
        if line is None or not line.startswith(prefix):
            raise WorkerDied(f"the worker said {line!r} where {prefix!r} was to come")
        return line.removeprefix(prefix)

    def line(self, seconds: float | None) -> str | None:
        """The worker's next line, None if none came in time.

        Raises:
            WorkerDied: there will be no more lines.
        """
        assert self._process.stdout is not None
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._lines:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                return None
            chunk = os.read(self._process.stdout.fileno(), 65536)
            if not chunk:
                raise WorkerDied(f"the worker ended with {self._process.wait()}")
            *lines, self._pending = (self._pending + chunk).split(b"\n")
            self._lines += [line.decode() for line in lines]
        return self._lines.pop(0)


class _Forked:
    """A probe that a worker forked: the worker tells how it ended."""

    def __init__(self, worker: Worker, job: Path, pid: int) -> None:
        self._worker = worker
        self._prefix = f"done {job} "
        self._code: int | None = None
        self.pid = pid

    def wait(self, seconds: float | None) -> int | None:
        if self._code is None:
            line = self._worker.line(seconds)
            if line is not None:
                if not line.startswith(self._prefix):
                    raise WorkerDied(f"the worker said {line!r} where the end of its probe was to come")
                self._code = int(line.removeprefix(self._prefix))
        return self._code
