"""A training command on the command line: what does not go together is refused in two sentences."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oombisect.cli import main, probing_of
from oombisect.session.request import ProbeRequest

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
        (("run", "--", "python", "train.py"), 2, ("GOOD..BAD",)),  # and not a range called python
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


@pytest.mark.parametrize(
    ("arguments", "revision", "command"),
    [
        (["--", "python", "train.py", "--debug", "--json"], "HEAD", ("python", "train.py", "--debug", "--json")),
        (["--debug", "v1", "--", "train", "--", "x"], "v1", ("train", "--", "x")),
    ],
)
def test_what_comes_after_the_dashes_is_the_command_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], revision: str, command: tuple[str, ...]
) -> None:
    asked = list[tuple[str, tuple[str, ...]]]()

    def probe_once(revision: str, request: ProbeRequest, *_: object, **__: object) -> None:
        asked.append((revision, request.command))

    monkeypatch.setattr(probing_of, "probe_once", probe_once)
    monkeypatch.setattr(sys, "argv", ["oombisect", "probe", *arguments])
    monkeypatch.setattr(main, "raise_on_signals", lambda: None)
    monkeypatch.setattr(main, "ignore_signals", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 0
    assert asked == [(revision, command)]
