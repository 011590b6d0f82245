"""The driver's side of a worker, against real processes that speak its protocol, well and badly."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from oombisect.probing.guard import Killed, Limits
from oombisect.probing.worker import Worker, WorkerDied
from oombisect.resources import probes_dir

# Forks for each line a child that does what the job file says, as Python.
_FORKER = """
import os, sys
print("ready", flush=True)
for line in sys.stdin:
    job, *assignments = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if not child:
        os.setsid()
        os.environ.update(a.split("=", 1) for a in assignments)
        exec(open(job).read())
        os._exit(0)
    print(f"started {job} {child}", flush=True)
    print(f"done {job} {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
"""


@pytest.fixture
def start(tmp_path: Path):
    workers = []

    def start(code: str = _FORKER) -> Worker:
        workers.append(Worker([sys.executable, "-c", code], os.environ, tmp_path / "log"))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()
        assert worker._process.poll() is not None


def job(tmp_path: Path, text: str) -> Path:
    path = tmp_path / f"job-{time.monotonic_ns()}.py"
    path.write_text(text)
    return path


def test_jobs_run_one_after_another_with_variables_of_their_own(tmp_path: Path, start) -> None:
    worker = start()
    code = job(tmp_path, "os._exit(int(os.environ.get('CODE', 9)))")
    codes = [worker.run(code, {"CODE": str(n)} if n else {}, Limits(), None).exit_code for n in (3, 0, 5)]
    assert codes == [3, 9, 5]


def test_a_signal_is_a_negative_exit_code(tmp_path: Path, start) -> None:
    assert start().run(job(tmp_path, "os.abort()"), {}, Limits(), None).exit_code == -6


def test_a_job_past_its_time_is_ended_with_all_it_started_and_the_worker_lives_on(tmp_path: Path, start) -> None:
    worker = start()
    pid_file = tmp_path / "pid"
    hang = job(
        tmp_path,
        "import subprocess, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid)); time.sleep(600)",
    )
    ended = worker.run(hang, {}, Limits(seconds=2.0), None)
    assert ended.killed is Killed.TIME
    pid = int(pid_file.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert worker.run(job(tmp_path, "os._exit(4)"), {}, Limits(), None).exit_code == 4


def test_host_memory_is_watched(tmp_path: Path, start) -> None:
    hog = job(tmp_path, "x = bytearray(400 << 20); import time; time.sleep(600)")
    assert start().run(hog, {}, Limits(host_bytes=300 << 20), None).killed is Killed.HOST_MEMORY


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit(3)", "print('what?', flush=True); input()", "print('ready'); 1/0"]
)
def test_a_worker_that_dies_or_babbles_is_known_for_it(tmp_path: Path, start, code: str) -> None:
    with pytest.raises(WorkerDied):
        start(code).run(job(tmp_path, ""), {}, Limits(), None)


def _wait_for_end(process: psutil.Process) -> None:
    deadline = time.monotonic() + 20
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.02)


# The worker's own fork, of a probe that only sleeps.
_SLEEPER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import bridge_train, worker
bridge_train.run_forked = lambda job: time.sleep(600)
print(worker.start(sys.argv[2])[1], flush=True)
time.sleep(600)
"""


def test_a_forked_probe_dies_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"out": str(tmp_path)}))
    command = [sys.executable, "-c", _SLEEPER, str(probes_dir()), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        probe = psutil.Process(int(worker.stdout.readline()))
        assert probe.is_running()
        worker.kill()
    _wait_for_end(probe)


def test_a_worker_dies_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from oombisect.probing.worker import Worker\n"
        "command = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "print(Worker(command, os.environ, Path(sys.argv[1]))._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        worker = psutil.Process(int(driver.stdout.readline()))
        driver.kill()
    _wait_for_end(worker)


def test_an_endless_log_ends_a_forked_probe(tmp_path: Path, start) -> None:
    log = tmp_path / "log-0.txt"
    code = job(tmp_path, f"log = open({str(log)!r}, 'w')\nwhile True: log.write('x' * 1000)")
    assert start().run(code, {}, Limits(log_bytes=1 << 20), None, log).killed is Killed.LOG
