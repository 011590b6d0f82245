"""The guard against real processes: it ends what passes a limit, and all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("pid", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists("pid") or not open("pid").read():
    time.sleep(0.01)
"""


def test_a_daemon_that_left_parent_and_session_is_ended_and_reaped(tmp_path: Path) -> None:
    run(tmp_path, DAEMON)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_children_of_ours_that_are_no_part_of_the_probe_live_on(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other:
        run(tmp_path, DAEMON)
        assert other.poll() is None
        other.kill()


def test_a_log_without_end_ends_the_probe(tmp_path: Path) -> None:
    ended = run(tmp_path, "while True: print('x' * 1000)", log_bytes=1 << 20)
    assert ended.killed is Killed.LOG


DRIVER = """
import os, sys
from pathlib import Path
from oombisect.probing.guard import Limits, run_guarded
folder = Path(sys.argv[1])
code = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
run_guarded([sys.executable, "-c", code], env=dict(os.environ), cwd=folder, log=folder / "log", limits=Limits())
"""


def test_a_probe_dies_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)]) as driver:
        _wait(lambda: pid_file.exists() and pid_file.read_text() != "")
        driver.send_signal(signal.SIGKILL)
    _wait(lambda: _gone(int(pid_file.read_text())))


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _wait(true: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
