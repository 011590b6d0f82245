"""Run a command under a time limit and a host memory limit, and end everything it started when it passes one.

An address-space limit cannot be used: the virtual GPU reserves 64 TiB of addresses. So the resident size of the
whole process tree is watched instead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import psutil

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 5.0


class Killed(StrEnum):
    """Why the guard ended a command."""

    TIME = "time"
    HOST_MEMORY = "host memory"


@dataclass(frozen=True, slots=True)
class Limits:
    """Wall-clock seconds and resident host bytes one probe may use."""

    seconds: float = 900.0
    host_bytes: int = 16 << 30


@dataclass(frozen=True, slots=True)
class Ended:
    """How a guarded command ended. `exit_code` is negative for a signal, as `subprocess` has it."""

    exit_code: int
    killed: Killed | None
    seconds: float
    peak_host_bytes: int


class Running(Protocol):
    """A process being watched, whoever its parent is."""

    @property
    def pid(self) -> int: ...
    def wait(self, seconds: float | None) -> int | None:
        """Its exit code once it has ended (negative for a signal), None if it has not after `seconds`."""
        ...


def run_guarded(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    limits: Limits,
    on_tick: Callable[[float], None] | None = None,
) -> Ended:
    """Run `command` in a session of its own, stdout and stderr into `log`, and watch it to its end.

    Raises:
        OSError: the command cannot be started, or the log cannot be written.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    return watch(_Child(process), limits, on_tick)


def watch(process: Running, limits: Limits, on_tick: Callable[[float], None] | None = None) -> Ended:
    """Wait for a process that leads a session of its own.

    Whatever it started is ended with it: on a passed limit, on an exception here (Ctrl-C included), and when it ends by
    itself and leaves children behind.
    """
    started = time.monotonic()
    peak = 0
    killed: Killed | None = None
    tree = _Tree(process.pid)
    try:
        while process.wait(_POLL_SECONDS if peak else 0.0) is None:
            resident = tree.resident_bytes()
            peak = max(peak, resident)
            elapsed = time.monotonic() - started
            if resident > limits.host_bytes:
                killed = Killed.HOST_MEMORY
            elif elapsed > limits.seconds:
                killed = Killed.TIME
            if killed:
                break
            if on_tick:
                on_tick(elapsed)
    finally:
        tree.end()
        exit_code = process.wait(None)
    assert exit_code is not None
    return Ended(exit_code, killed, time.monotonic() - started, peak)


class _Child:
    """A process of our own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def wait(self, seconds: float | None) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class _Tree:
    """A process, its descendants, and what else runs in its session (a descendant may lose its parent)."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[int, psutil.Process] = {}

    def _refresh(self) -> list[psutil.Process]:
        for process in psutil.process_iter():
            pid = process.pid
            if pid in self._seen:
                continue
            try:
                mine = pid == self._root or os.getsid(pid) == self._root or process.ppid() in self._seen
            except (ProcessLookupError, psutil.Error):
                continue
            if mine:
                self._seen[pid] = process
        return [process for process in self._seen.values() if process.is_running()]

    def resident_bytes(self) -> int:
        total = 0
        for process in self._refresh():
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def end(self) -> None:
        """Terminate what is still alive, kill what does not go. The root is reaped by its `Popen`, never here."""
        for sign, grace in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS)):
            for process in self._alive():
                with contextlib.suppress(psutil.Error):
                    process.send_signal(sign)
            deadline = time.monotonic() + grace
            while self._alive():
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)
            else:
                return

    def _alive(self) -> list[psutil.Process]:
        alive = []
        for process in self._refresh():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        return alive
