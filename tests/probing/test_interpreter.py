"""Asking an interpreter what it is: one that fails or lies is refused in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from oombisect.errors import OombisectError
from oombisect.probing.interpreter import inspect_interpreter

TOLD = {"version": "3.12.1", "packages": ["torch==2"], "torch": True}


def fake(tmp_path: Path, code: str) -> Path:
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\n{code}\n")
    path.chmod(0o755)
    return path


def saying(tmp_path: Path, told: Any) -> Path:
    return fake(tmp_path, f"print({json.dumps(told)!r})")


def test_what_it_says_is_kept(tmp_path: Path) -> None:
    found = inspect_interpreter(saying(tmp_path, TOLD))
    assert (found.version, found.packages) == ("3.12.1", ("torch==2",))


@pytest.mark.parametrize(
    "told",
    [
        *(None, 5, [], {}),
        *(TOLD | {"version": value} for value in (3, None, "", "../../x", "3.12\n")),
        *(TOLD | {"packages": value} for value in (None, "torch", [1])),
        *(TOLD | {"torch": value} for value in (1, None, "yes")),
    ],
)
def test_an_answer_of_other_types_is_refused(tmp_path: Path, told: Any) -> None:
    with pytest.raises(OombisectError, match="not what was asked for"):
        inspect_interpreter(saying(tmp_path, told))


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("print('hello')", "no JSON"),
        ("import sys; sys.stdout.buffer.write(bytes([255, 254]))", "no JSON"),
        ("print('[' * 100000)", "recursion"),
        ("import sys; sys.exit('first\\nlast \\x1b[2J')", r"it ended with 1: last \?\[2J$"),
        ("import os; os.kill(os.getpid(), 9)", "it ended with -9: no output"),
    ],
)
def test_one_that_fails_is_refused_in_one_line(tmp_path: Path, code: str, cause: str) -> None:
    with pytest.raises(OombisectError, match=cause) as caught:
        inspect_interpreter(fake(tmp_path, code))
    assert str(caught.value).isprintable()
    assert "importlib.metadata" not in str(caught.value)


def test_one_without_torch_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OombisectError, match="has no torch"):
        inspect_interpreter(saying(tmp_path, TOLD | {"torch": False}))
    with pytest.raises(OombisectError, match="No such file"):
        inspect_interpreter(tmp_path / "nowhere")
