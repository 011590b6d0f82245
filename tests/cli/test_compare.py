"""`oombisect compare` on the command line: exit codes, JSON, bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_bad_input import refused
from tests.session.memories import write_snapshot


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_snapshot(tmp_path / "a.pickle.gz", [(512, [("/p/a.py", 1, "f")])])
    write_snapshot(tmp_path / "b.pickle.gz", [(512, [("/p/a.py", 1, "f")]), (1024, [("/p/a\x1b[31m.py", 2, "g")])])
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, XDG_DATA_HOME=str(folder / "data"), XDG_CACHE_HOME=str(folder / "cache"))
    command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", "compare", *arguments]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_two_files(folder: Path) -> None:
    done = run(folder, "a.pickle.gz", "b.pickle.gz")
    assert done.returncode == 0, done.stderr
    assert "B - A: +1024 B peak allocated" in done.stdout and "\x1b" not in done.stdout
    told = json.loads(run(folder, "a.pickle.gz", "b.pickle.gz", "--json").stdout)
    assert (told["schema"], told["delta_bytes"]) == (1, 1024)
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a.pickle.gz", "c.pickle.gz"), ("'c.pickle.gz'", "neither a snapshot file nor a probe")),
        (("a.pickle.gz", "1"), ("no database to look probe 1 up in", "--db")),
        (("a.pickle.gz", "b.pickle.gz", "--by", "colour"), ("colour", "stack, module, phase")),
        (("a.pickle.gz", "b.pickle.gz", "--top", "0"), ("--top 0",)),
        (("a.pickle.gz", "b.pickle.gz", "--ends"), ("--ends",)),
    ],
)
def test_what_cannot_be_compared_is_refused(folder: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(run(folder, *arguments), 2, *words)


def test_a_failure_is_a_document_too(folder: Path) -> None:
    done = run(folder, "a.pickle.gz", "none", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit"] == 2


def test_a_session_without_a_database(folder: Path) -> None:
    refused(run(folder), 14, "cannot be opened", "--db")  # as `show` says it
