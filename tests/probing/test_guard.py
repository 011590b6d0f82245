"""The guard against real processes: it ends what passes a limit, and all that it started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from oombisect.probing.guard import Killed, Limits, run_guarded

ORPHAN = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session={detached})
open("pid", "w").write(str(child.pid))
time.sleep({parent_sleep})
"""


def run(tmp_path: Path, code: str, **limits: float):
    return run_guarded(
        [sys.executable, "-c", code],
        env=dict(os.environ),
        cwd=tmp_path,
        log=tmp_path / "log",
        limits=Limits(**{"seconds": 30.0, "host_bytes": 1 << 30, **limits}),
    )


def test_output_and_exit_code_are_kept(tmp_path: Path) -> None:
    ended = run(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert (ended.exit_code, ended.killed) == (7, None)
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


def test_a_signal_is_a_negative_exit_code(tmp_path: Path) -> None:
    assert run(tmp_path, "import os; os.abort()").exit_code == -6


def test_the_time_limit_ends_a_probe_that_ignores_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oombisect.probing.guard._GRACE_SECONDS", 0.3)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    ended = run(tmp_path, code, seconds=1.0)
    assert ended.killed is Killed.TIME
    assert ended.seconds < 10


def test_the_host_memory_limit_counts_the_whole_tree(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'x = bytearray(400 << 20); import time; time.sleep(600)'])\n"
        "time.sleep(600)"
    )
    ended = run(tmp_path, code, host_bytes=300 << 20)
    assert ended.killed is Killed.HOST_MEMORY
    assert ended.peak_host_bytes > 300 << 20


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("parent_sleep", [1, 600])
def test_no_child_outlives_the_probe(tmp_path: Path, detached: bool, parent_sleep: int) -> None:
    run(tmp_path, ORPHAN.format(detached=detached, parent_sleep=parent_sleep), seconds=3.0)
    pid = int((tmp_path / "pid").read_text())
    time.sleep(0.1)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
