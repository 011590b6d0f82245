"""kill -9 at any instant of a run, then resume: no finished probe is repeated or lost, the verdict is the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from oombisect.errors import OombisectError
from oombisect.history.records import SessionState
from oombisect.history.store import Store, open_store

from . import toy
from .toy import mib

# The command line with a toy device in place of the virtual GPU; everything else is what a user runs.
_CLI = """
import sys
from tests.session import toy
import oombisect.session.opening as opening
opening.open_device = lambda *_: toy.ToyDevice()
from oombisect.cli.main import main
main()
"""


def cli(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    env = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2]), XDG_CACHE_HOME=str(folder / "cache"))
    return subprocess.Popen(
        [sys.executable, "-c", _CLI, *arguments, "--db", str(folder / "db.sqlite")],
        env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job inherits it ignored
    )  # fmt: skip


def store(folder: Path) -> Store:
    return open_store(folder / "db.sqlite", clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def run_arguments(tmp_path: Path) -> list[str]:
    repo = tmp_path / "repo"
    repo.mkdir()
    python, _ = toy.interpreter(tmp_path)
    memories = [mib(8000 + (1500 if i >= 11 else 0) + (300 if i >= 4 else 0), tag=i, sleep=0.05) for i in range(16)]
    shas = toy.history(repo, memories)
    options = ["--recipe", toy.RECIPE, "--repo", str(repo), "--python", str(python), "--limit", "9900MiB", "--json"]
    return ["run", f"{shas[0]}..{shas[-1]}", *options]


def finished(folder: Path) -> Counter[tuple[str, str]]:
    with store(folder) as opened:
        sessions = [session for session in opened.sessions() if session.state is not None]
        probes = [probe for session in sessions for probe in opened.probes(session.id)]
    return Counter((probe.spec.signature, probe.spec.request) for probe in probes if probe.reading)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_kill_and_resume(tmp_path: Path, run_arguments: list[str], seed: int) -> None:
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    process = cli(undisturbed, *run_arguments)
    expected, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors

    chance = random.Random(seed)
    before: Counter[tuple[str, str]] = Counter()
    arguments, kills = run_arguments, 0
    while True:
        process = cli(tmp_path, *arguments)
        try:
            output, errors = process.communicate(timeout=chance.uniform(0.8, 2.5) if kills < 6 else 120)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            time.sleep(0.3)  # the orphaned toy probe ends by itself
            if not (tmp_path / "db.sqlite").exists():
                continue
            with store(tmp_path) as opened:
                found = opened.sessions()
                if not found:
                    continue
            now = finished(tmp_path)
            assert before <= now, "a finished probe was lost"
            before, arguments = now, ["resume", "last", "--json"]
            if found[0].state is SessionState.FINISHED:  # killed between its verdict and the end of the process
                report = dict(found[0].verdict or {})
                break
            continue
        assert process.returncode == 0, errors
        report = json.loads(output)
        break
    assert kills > 0
    plain = json.loads(expected)
    assert report["verdict"] == plain["verdict"]
    counts = finished(tmp_path)
    assert before <= counts
    assert max(counts.values()) == 1, "a finished probe was repeated"


def test_ctrl_c_ends_the_probe_and_prints_the_resume_command(tmp_path: Path, run_arguments: list[str]) -> None:
    process = cli(tmp_path, *run_arguments)
    while not (tmp_path / "calls.jsonl").read_text():
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    with store(tmp_path) as opened:
        (session,) = opened.sessions()
    assert session.state is SessionState.INTERRUPTED
    assert f"oombisect resume {session.id} --db {tmp_path / 'db.sqlite'}" in errors
    resumed = cli(tmp_path, "resume", session.id, "--json")
    output, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    assert json.loads(output)["session"] == session.id


def test_a_finished_session_is_not_resumed(tmp_path: Path, run_arguments: list[str]) -> None:
    process = cli(tmp_path, *run_arguments)
    process.communicate(timeout=120)
    again = cli(tmp_path, "resume")
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 2
    assert "finished" in errors and "oombisect show" in errors
    with store(tmp_path) as opened, pytest.raises(OombisectError):
        opened.resume_session("last")
