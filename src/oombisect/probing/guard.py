"""Run a command under a time limit and a host memory limit, and end everything it started when it passes one.

An address-space limit cannot be used: the virtual GPU reserves 64 TiB of addresses. So the resident size of the
whole process tree is watched instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import psutil

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 5.0

# linux/prctl.h. The library is loaded here: between fork and exec it is too late for that.
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


class Killed(StrEnum):
    """Why the guard ended a command."""

    TIME = "time"
    HOST_MEMORY = "host memory"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Limits:
    """Wall-clock seconds, resident host bytes and bytes of log one probe may use."""

    seconds: float = 900.0
    host_bytes: int = 16 << 30
    log_bytes: int = 64 << 20


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
    with adopting() as bystanders:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=dying_with(os.getpid()),
            )  # fmt: skip
        return watch(_Child(process), limits, on_tick, bystanders=bystanders, log=log)


def dying_with(parent: int) -> Callable[[], None]:
    """For `Popen(preexec_fn=...)`: the child is killed when `parent`, this process, ends, SIGKILL included.

    Strictly, when the thread that starts the child ends. Two system calls and nothing that takes a lock, so it may run
    between fork and exec.
    """

    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before it could be asked for
            os._exit(1)

    return prepare


@contextlib.contextmanager
def adopting() -> Iterator[frozenset[int]]:
    """While it lasts, orphans among our descendants become our children, so that a daemon cannot get out of sight.

    Yields the children there were before: what comes later belongs to the probe.
    """
    before = ctypes.c_int(0)
    _LIBC.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield frozenset(child.pid for child in psutil.Process().children())
    finally:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def watch(
    process: Running,
    limits: Limits,
    on_tick: Callable[[float], None] | None = None,
    *,
    bystanders: frozenset[int],
    log: Path | None = None,
) -> Ended:
    """Wait for a process that leads a session of its own, started within `adopting`, which told the `bystanders`.

    Whatever it started is ended with it: on a passed limit, on an exception here (Ctrl-C included), and when it ends by
    itself and leaves children or daemons behind.
    """
    started = time.monotonic()
    peak = 0
    killed: Killed | None = None
    tree = _Tree(process.pid, bystanders)
    try:
        while process.wait(_POLL_SECONDS if peak else 0.0) is None:
            resident = tree.resident_bytes()
            peak = max(peak, resident)
            elapsed = time.monotonic() - started
            if resident > limits.host_bytes:
                killed = Killed.HOST_MEMORY
            elif elapsed > limits.seconds:
                killed = Killed.TIME
            elif log is not None and _size(log) > limits.log_bytes:
                killed = Killed.LOG
            if killed:
                break
            if on_tick:
                on_tick(elapsed)
    finally:
        tree.end()
        exit_code = process.wait(None)
        tree.reap()
    assert exit_code is not None
    return Ended(exit_code, killed, time.monotonic() - started, peak)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


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
    """A process, its descendants, what else runs in its session, and the orphans we were given meanwhile."""

    def __init__(self, root: int, bystanders: frozenset[int]) -> None:
        self._root = root
        self._bystanders = bystanders
        self._seen: dict[int, psutil.Process] = {}

    def _refresh(self) -> list[psutil.Process]:
        for process in psutil.process_iter():
            pid = process.pid
            if pid in self._seen:
                continue
            try:
                mine = pid == self._root or os.getsid(pid) == self._root or self._adopted(process)
            except (ProcessLookupError, psutil.Error):
                continue
            if mine:
                self._seen[pid] = process
        return [process for process in self._seen.values() if process.is_running()]

    def _adopted(self, process: psutil.Process) -> bool:
        parent = process.ppid()
        return parent in self._seen or (parent == os.getpid() and process.pid not in self._bystanders)

    def reap(self) -> None:
        """Take leave of the orphans that ended as our children; the root is not among them, its `Popen` has."""
        for pid in self._seen:
            if pid != self._root:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)

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
