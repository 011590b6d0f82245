"""Bad input and faults on the command line: the message names cause and way out; no traceback, nothing lost."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.session import toy
from tests.session.toy import mib

Cli = Callable[..., subprocess.CompletedProcess[str]]

_TOY_CLI = """
from tests.session import toy
import oombisect.session.opening as opening
opening.open_device = lambda *_: toy.ToyDevice()
from oombisect.cli.main import main
main()
"""
_CLI = "from oombisect.cli.main import main; main()"


class Ground:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repo = folder / "repo"
        self.repo.mkdir()
        self.python, self.calls = toy.interpreter(folder)
        self.shas = toy.history(self.repo, [mib(8000, tag=0), mib(8000, tag=1), mib(9800, tag=2)])

    @property
    def range(self) -> str:
        return f"{self.shas[0]}..{self.shas[-1]}"

    def run(
        self, *arguments: str, code: str = _TOY_CLI, cwd: Path | None = None, stdin: str | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2]), **env)
        environment.setdefault("XDG_CACHE_HOME", str(self.folder / "cache"))
        environment.setdefault("XDG_DATA_HOME", str(self.folder / "data"))
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=environment, cwd=cwd or self.folder, capture_output=True, text=True, timeout=120, check=False,
            input=stdin,
        )  # fmt: skip

    def bisect(self, range_: str | None = None, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
        common = ("--recipe", toy.RECIPE, "--repo", str(self.repo), "--python", str(self.python))
        return self.run("run", range_ or self.range, *common, *options, **more)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("ground"))


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """It ended with `code`, said all `words` on stderr, nothing on stdout, and showed no traceback."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr, done.stderr


def test_unknown_revision(ground: Ground) -> None:
    refused(ground.bisect("no-such-tag..main"), 2, "no-such-tag")


_NO_DEVICE = """
import oombisect.session.opening as opening
from oombisect.cli.main import main
def build(*_): raise SystemExit("a device was opened")
opening.open_device = build
main()
"""


@pytest.mark.parametrize(
    "line",
    [
        "run no-such-tag..main",
        "run main..no-such-tag",
        "run no-such-tag...main",
        "probe no-such-tag",
        "probe main --freeze-config no-such-tag",
        "check no-such-tag..main --min-step 1GiB",
        "watch --once --branch no-such-tag --every 1 --min-step 1GiB",
        "releases torch 2.9.1..2.14.1 --at no-such-tag",
        "config a b --at no-such-tag",
    ],
)
def test_a_revision_that_is_none_is_refused_before_a_device_is_built(ground: Ground, line: str) -> None:
    command, *rest = line.split()
    options = ("--recipe", toy.RECIPE, "--repo", str(ground.repo), "--python", str(ground.python))
    done = ground.run(command, *rest, *options, code=_NO_DEVICE)
    refused(done, 129 if command == "probe" else 2, "no-such-tag")
    assert f"repository: {ground.repo}" in done.stderr


def test_a_revision_near_a_real_one_is_suggested(ground: Ground) -> None:
    refused(ground.bisect(f"{ground.shas[0]}..mian"), 2, "Did you mean main")


def test_reversed_range(ground: Ground) -> None:
    refused(ground.bisect(f"{ground.shas[-1]}..{ground.shas[0]}"), 2, "reversed", "Swap")


def test_no_range_at_all(ground: Ground) -> None:
    refused(ground.bisect("main"), 2, "GOOD..BAD")


def test_missing_repository(ground: Ground) -> None:
    refused(ground.bisect(None, "--repo", "nowhere"), 2, "nowhere", "--repo")


def test_not_a_repository(ground: Ground) -> None:
    (ground.folder / "plain").mkdir(exist_ok=True)
    refused(ground.bisect(None, "--repo", str(ground.folder / "plain")), 2, "no git repository")


def test_a_dirty_checkout_is_said_and_not_probed(ground: Ground) -> None:
    readme = ground.repo / "src/megatron/bridge/memory/allocated"
    clean = readme.read_text()
    readme.write_text("1\n")
    try:
        done = ground.bisect(None, "--json")
    finally:
        readme.write_text(clean)
    assert done.returncode == 0
    assert "uncommitted" in done.stderr


def test_unknown_recipe_lists_near_names(ground: Ground) -> None:
    refused(ground.bisect(None, "--recipe", "toy_2b_lora"), 2, "toy_2b_lora", "toy_1b_pretrain")


def test_a_config_that_bridge_rejects(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    broken = {"unresolved": "AssertionError: sequence parallel needs TP>1", "allocated": 0, "reserved": 0}
    ground.repo = tmp_path / "broken"
    ground.repo.mkdir()
    ground.shas = toy.history(ground.repo, [mib(8000), broken])
    done = ground.bisect()
    refused(done, 2, "sequence parallel needs TP>1")
    assert "resume" not in done.stderr  # it would end the same way


def test_no_network_and_no_repository(ground: Ground, tmp_path: Path) -> None:
    """Outside a checkout Bridge would be cloned; the proxy leads nowhere."""
    nowhere = {"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    common = ("--recipe", toy.RECIPE, "--python", str(ground.python))
    done = ground.run("run", "v1..v2", *common, cwd=tmp_path, **nowhere)
    refused(done, 14, "--repo")
    assert "clon" in done.stderr


def test_unknown_gpu(ground: Ground) -> None:
    refused(ground.bisect(None, "--gpu", "virtual:h10-80gb", code=_CLI), 2, "h100-80gb")


def test_no_real_gpu(ground: Ground) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    refused(ground.bisect(None, "--gpu", "cuda", code=_CLI), 2, "no NVIDIA GPU", "virtual:h100-80gb")


def test_no_compiler(ground: Ground, tmp_path: Path) -> None:
    """A virtual GPU that was never built needs one."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    git = next(Path(folder, "git") for folder in os.environ["PATH"].split(":") if Path(folder, "git").exists())
    (bin_ / "git").symlink_to(git)
    env = {"PATH": str(bin_), "XDG_CACHE_HOME": str(tmp_path / "cache"), "CC": ""}
    done = ground.bisect(None, "--gpu", "virtual:h100-80gb", code=_CLI, **env)
    if "has no torch" in done.stderr:
        pytest.skip("this Python has no torch")
    refused(done, done.returncode, "compiler")
    assert done.returncode in (2, 14)


def test_a_python_that_is_none(ground: Ground) -> None:
    refused(ground.bisect(None, "--python", "/no/python", code=_CLI), 2, "/no/python", "--python")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--limit", "plenty"), "plenty"),
        (("--limit", "0GiB"), "0GiB"),
        (("--limit", ""), "memory size"),
        (("--set", "model.seq_length"), "--set"),
        (("--env", "X"), "--env"),
        (("--ranks", "0,x"), "--ranks"),
        (("--ranks", "8", "--world-size", "8"), "world of 8"),
        (("--world-size", "0"), "--world-size"),
        (("--iterations", "2"), "--iterations"),
        (("--find", "luck"), "luck"),
        (("--budget", "0"), "2 to"),
        (("--min-step", "x"), "x"),
        (("--min-step", ""), "memory size"),
    ],
)
def test_options_that_make_no_sense(ground: Ground, options: tuple[str, ...], word: str) -> None:
    refused(ground.bisect(None, *options), 2, word)


def test_a_newer_database(ground: Ground, tmp_path: Path) -> None:
    database = tmp_path / "db.sqlite"
    assert ground.bisect(None, "--db", str(database)).returncode == 0
    with sqlite3.connect(database) as connection:
        (table,) = [
            row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%migrations'")
        ]
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        row = dict(zip(columns, connection.execute(f"SELECT * FROM {table} LIMIT 1").fetchone(), strict=True))
        row["name"] = "999_from_the_future"
        row["oombisect_version"] = "99.0"
        marks = ",".join("?" * len(columns))
        connection.execute(f"INSERT INTO {table} VALUES ({marks})", list(row.values()))
    connection.close()
    before = database.read_bytes()
    refused(ground.run("sessions", "--db", str(database)), 2, "99.0")
    refused(ground.bisect(None, "--db", str(database)), 2, "99.0")
    assert database.read_bytes() == before


def test_a_file_that_is_no_database(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x" * 5000)
    refused(ground.bisect(None, "--db", str(tmp_path / "notes.txt")), 14, "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "x" * 5000


def test_sessions_before_there_are_any(ground: Ground, tmp_path: Path) -> None:
    done = ground.run("sessions", XDG_DATA_HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "No sessions yet" in done.stdout
    refused(ground.run("sessions", "--db", str(tmp_path / "none.sqlite")), 14, "none.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_session(ground: Ground, tmp_path: Path) -> None:
    database = tmp_path / "db.sqlite"
    assert ground.bisect(None, "--db", str(database)).returncode == 0
    refused(ground.run("show", "20000101-7", "--db", str(database)), 2, "20000101-7")
    refused(ground.run("resume", "20000101-7", "--db", str(database)), 2, "20000101-7")


def test_a_full_disk_stops_the_run_and_keeps_what_was_measured(tmp_path: Path) -> None:
    """The database and the artifacts lie on a disk of 4 MiB that something else fills up."""
    ground = Ground(tmp_path)
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        assert ground.bisect(None, "--db", str(disk / "db.sqlite")).returncode == 0
        with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * 4096)
        done = ground.bisect(None, "--db", str(disk / "db.sqlite"), "--limit", "9GiB")
        assert done.returncode in (2, 14), done.stderr
        assert "Traceback" not in done.stderr
        assert "space" in done.stderr.lower() or "full" in done.stderr.lower()
        (disk / "filler").unlink()
        listed = ground.run("sessions", "--db", str(disk / "db.sqlite"))
        assert listed.returncode == 0 and "culprit" in listed.stdout
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_debug_shows_the_traceback(ground: Ground) -> None:
    done = ground.bisect("no-such-tag..main", "--debug")
    assert "Traceback" in done.stderr and "no-such-tag" in done.stderr


def test_help_and_version_need_nothing(ground: Ground) -> None:
    for arguments in (("--help",), ("--version",), ("run", "--help"), ("probe", "-h")):
        done = ground.run(*arguments, code=_CLI, HOME="/nonexistent")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


def test_the_list_of_commands_is_whole_sentences(ground: Ground) -> None:
    listed = ground.run("--help", code=_CLI).stdout.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert {line.split()[0] for line in listed if line} >= {"run", "config", "probe", "replay", "compare", "explain"}
    assert all(line.endswith((".", "?")) and not line.endswith("...") for line in listed if line)


@pytest.mark.parametrize("command", ["run", "probe"])
def test_a_command_without_dashes_before_it_is_shown_where_they_belong(ground: Ground, command: str) -> None:
    first = ground.range if command == "run" else "HEAD"
    done = ground.run(command, first, "--repo", str(ground.repo), "python", "train.py", "big model.yaml")
    code = 2 if command == "run" else 129
    refused(done, code, "without --", f"oombisect {command} ... -- python train.py 'big model.yaml'")
