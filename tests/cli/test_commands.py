"""A training command on the command line: what does not go together is refused in two sentences."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..session.toy import git


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "HEAD~1..HEAD"), 2, ("nothing to run", "--recipe NAME")),
        (("probe", "HEAD"), 129, ("nothing to run", "-- python train.py")),
        (("probe", "HEAD", "--recipe", "a", "--", "python"), 129, ("both given",)),
        (("run", "HEAD~1..HEAD", "--recipe", "ci:bert/x"), 2, ("ci:bert/x", "gpt, moe, mixtral")),
        (("probe", "HEAD", "--prepare", "nothing", "--", "python"), 129, ("--prepare nothing", "megatron-lm")),
        (("probe", "HEAD", "--recipe", "a", "--until-exit"), 129, ("--until-exit", "-- COMMAND")),
    ],
)
def test_what_cannot_be_run_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    git(tmp_path, "init", "--quiet")
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
