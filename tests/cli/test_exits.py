"""How commands end: exit codes of `probe` under git bisect run, signals, streams and directories that are gone."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oombisect.errors import probe_failure
from oombisect.history.records import SessionState
from tests.cli.test_bad_input import _CLI, _TOY_CLI, Ground
from tests.session import toy
from tests.session.test_resume import store
from tests.session.toy import mib

SLOW = 60.0


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("exits"))


def environment(ground: Ground) -> dict[str, str]:
    return dict(
        os.environ,
        PYTHONPATH=str(Path(__file__).parents[2]),
        XDG_CACHE_HOME=str(ground.folder / "cache"),
        XDG_DATA_HOME=str(ground.folder / "data"),
    )


def line(ground: Ground, *arguments: str) -> str:
    """A shell command: the toy command line with `arguments`."""
    return shlex.join([sys.executable, "-c", _TOY_CLI, *arguments])


def probe_arguments(ground: Ground, *more: str) -> tuple[str, ...]:
    return ("probe", "HEAD", "--recipe", toy.RECIPE, "--repo", str(ground.repo), "--python", str(ground.python), *more)


def shell(ground: Ground, command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        env=environment(ground), cwd=cwd or ground.folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def bisect_run(ground: Ground, command: str) -> subprocess.CompletedProcess[str]:
    toy.git(ground.repo, "bisect", "start", ground.shas[-1], ground.shas[0])
    try:
        return shell(ground, f"git -C {shlex.quote(str(ground.repo))} bisect run {command}")
    finally:
        toy.git(ground.repo, "bisect", "reset")


def test_git_bisect_run_finds_the_commit(ground: Ground) -> None:
    done = bisect_run(ground, line(ground, *probe_arguments(ground)))
    assert f"{ground.shas[2]} is the first bad commit" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (("--iterations", "2"), 129),
        (("--no-such-option",), 129),
        (("--iterations", "three"), 129),
        (("--recipe", "no_such_recipe", "--env", "X"), 129),
        (("--python", "/no/python"), 129),
        (("--repo", "nowhere"), 129),
        (("--db", "/dev/full/db.sqlite"), 128),
    ],
)
def test_git_bisect_run_stops_where_nothing_was_measured(ground: Ground, broken: tuple[str, ...], code: int) -> None:
    done = bisect_run(ground, line(ground, *probe_arguments(ground, *broken)))
    assert "first bad commit" not in done.stdout
    assert f"exit code {code}" in done.stdout + done.stderr


def test_an_unexpected_error_of_probe_is_no_bad_commit(ground: Ground) -> None:
    code = "import oombisect.session.single as s; s.open_workshop = None\n" + _TOY_CLI
    for more in ((), ("--debug",)):
        done = ground.run(*probe_arguments(ground, *more), code=code)
        assert done.returncode == 198
        assert ("Traceback" in done.stderr) == bool(more)


def test_no_failure_of_probe_looks_like_a_measurement() -> None:
    assert {probe_failure(code) for code in range(256)} >= {128, 129, 130, 198}
    assert all(probe_failure(code) >= 128 for code in range(256))


def test_an_import_that_fails_is_no_bad_commit(ground: Ground) -> None:
    code = "import sys; sys.modules['oombisect.cli.app'] = None\n" + _CLI
    assert ground.run(*probe_arguments(ground), code=code).returncode == 198
    assert ground.run("sessions", code=code).returncode == 70


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        ("oombisect.session.replay_report", "replay_snapshot", ("replay", __file__)),
        ("oombisect.session.snapshots_of", "resolve_snapshot", ("replay", "/dev/null")),
        ("oombisect.memory.oom_messages.groups", "summarize", ("explain", __file__)),
        ("oombisect.session.sides_of", "compare_named", ("compare", "a", "b")),
        ("oombisect.history.store", "open_store", ("show", "--db", "/dev/null")),
    ],
)
def test_a_bug_is_no_answer(ground: Ground, module: str, name: str, arguments: tuple[str, ...]) -> None:
    code = f"import {module} as broken\nbroken.{name} = None\n" + _CLI
    done = ground.run(*arguments, code=code)
    assert done.returncode == 70 and "is a bug" in done.stderr and "Traceback" not in done.stderr
    document = json.loads(ground.run(*arguments, "--json", code=code).stdout)
    assert document["exit"] == 70 and "NoneType" in document["error"]["cause"]


def test_interrupted_imports_show_no_traceback(ground: Ground) -> None:
    code = "import sys, builtins\nclass Now:\n def find_spec(self, name, *_):\n"
    code += "  if name == 'typer': raise KeyboardInterrupt\nsys.meta_path.insert(0, Now())\n" + _CLI
    done = ground.run("sessions", code=code)
    assert (done.returncode, done.stderr) == (130, "oombisect: Interrupted\n")


@pytest.mark.parametrize(("command", "words"), [("probe", "same line"), ("check", "same line"), ("run", "resumed")])
def test_an_interrupted_command_says_how_to_go_on(ground: Ground, command: str, words: str) -> None:
    code = "import oombisect.session.opening as opening\nfrom oombisect.errors import Stopped\n"
    code += "def stop(*_): raise Stopped(2)\n"
    what = "HEAD" if command == "probe" else ground.range
    done = ground.run(command, what, *probe_arguments(ground)[2:], code=f"{code}opening.open_device = stop\n{_CLI}")
    assert done.returncode == 130 and "oombisect: Interrupted\n" in done.stderr and words in done.stderr


@pytest.mark.parametrize(
    "streams", [">&-", "2>&-", ">&- 2>&-", ">/dev/full", "2>/dev/full", "| true", "</dev/null <&-"]
)
@pytest.mark.parametrize("command", ["probe", "sessions"])
def test_streams_that_are_gone(ground: Ground, command: str, streams: str) -> None:
    arguments = probe_arguments(ground, "--limit", "11GiB") if command == "probe" else ("sessions",)
    for more in ((), ("--json",)):
        done = shell(ground, f"set -o pipefail; {line(ground, *arguments, *more)} {streams}")
        assert "is a bug" not in done.stderr and "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        if streams == "| true":
            assert done.returncode in (0, 141)
        assert done.returncode in ((0, 14, 141) if command == "sessions" else (0, 128, 141)), done.stderr
        if streams == ">/dev/full":
            assert "No space left" in done.stderr
            assert done.returncode == (14 if command == "sessions" else 128)
        if streams in (">&-", "2>&-", "2>/dev/full"):
            assert done.returncode == 0


def test_a_deleted_current_directory(ground: Ground, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for arguments, code in ((("sessions",), 14), (probe_arguments(ground), 128)):
        gone.mkdir()
        done = shell(ground, f"rmdir {gone}; {line(ground, *arguments)}", cwd=gone)
        assert done.returncode == code
        assert "current directory" in done.stderr and "is a bug" not in done.stderr


def signals_as_in_a_terminal() -> None:
    """A background job or nohup leaves some ignored, and what is ignored stays so."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def slow_run(folder: Path) -> tuple[Ground, subprocess.Popen[str]]:
    """A run whose first probe is at work."""
    ground = Ground(folder)
    ground.repo = folder / "slow repo"
    ground.repo.mkdir()
    ground.shas = toy.history(ground.repo, [mib(8000, tag=0, sleep=SLOW), mib(9800, tag=1, sleep=SLOW)])
    common = ("--recipe", toy.RECIPE, "--repo", str(ground.repo), "--python", str(ground.python))
    process = subprocess.Popen(
        [sys.executable, "-c", _TOY_CLI, "run", ground.range, *common, "--db", "db.sqlite"],
        env=environment(ground), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=signals_as_in_a_terminal,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not ground.calls.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ground.calls.read_text()
    return ground, process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_the_run_in_order(tmp_path: Path, number: signal.Signals) -> None:
    ground, process = slow_run(tmp_path)
    for _ in range(3):  # an impatient user
        process.send_signal(number)
        time.sleep(0.05)
    _, errors = process.communicate(timeout=SLOW / 2)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert "oombisect resume" in errors and f"--db {tmp_path / 'db.sqlite'}" in errors
    with store(tmp_path) as opened:
        (session,) = opened.sessions()
    assert session.state is SessionState.INTERRUPTED
    assert f"probing {ground.shas[0][:10]}" in errors, "nothing was said before the first probe was over"
    left = subprocess.run(["pgrep", "-f", str(ground.python)], capture_output=True, text=True, check=False).stdout
    assert left == ""


def test_errors_as_json(ground: Ground) -> None:
    for arguments, code in (
        (("show", "nothing"), 2),
        (("run", "--no-such-option"), 2),
        (probe_arguments(ground, "--iterations", "2"), 129),
    ):
        done = ground.run(*arguments, "--json")
        document = json.loads(done.stdout)
        assert (done.returncode, document["schema"], document["exit"]) == (code, 1, code)
        assert document["error"]["cause"] in done.stderr
        assert set(document["error"]) == {"cause", "way_out"}
