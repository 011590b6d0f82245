"""What every command has in common when it refuses: the exit code, two sentences, a document for --json."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.dumps import dump, pinned

NUL = "a\0b"


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", NUL),
        ("replay", NUL),
        ("replay", "one.gz", "--alloc-conf", f"{NUL}:1"),
        ("replay", "one.gz", "--gpu", f"virtual:{NUL}"),
        ("compare", "one.gz", NUL),
        ("sessions", "--db", NUL),
        ("show", NUL, "--db", "none.db"),
        ("resume", "last", "--db", NUL),
        ("run", f"{NUL}..b", "--recipe", "r", "--repo", "."),
        ("config", NUL, NUL, "--repo", "."),
        (NUL,),
    ],
)
def test_an_argument_with_a_nul_byte_is_no_bug(command: Command, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A shell cannot pass one on; a caller of `main` can."""
    dump(tmp_path / "one.gz", pinned())
    command(*arguments).refused(2, "a\\x00b", "has a NUL byte")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("explain", "none.log"), 2),
        (("explain", "."), 2),
        (("explain", "/dev/zero"), 2),
        (("explain",), 2),
        (("compare", "none.gz", "one.gz"), 2),
        (("compare", "one.gz", "text"), 2),
        (("compare", "one.gz", "one.gz", "--by", "nothing"), 2),
        (("compare", "one.gz", "1", "--db", "/proc/none.db"), 14),
        (("compare", "one.gz", "pipe"), 2),
        (("replay", "text"), 2),
        (("sessions", "--db", "/proc/none.db"), 14),
    ],
)
def test_an_error_is_a_document_where_one_is_asked_for(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    dump(tmp_path / "one.gz", pinned())
    (tmp_path / "text").write_text("no snapshot")
    os.mkfifo(tmp_path / "pipe")
    plain = command(*arguments)
    plain.refused(code)
    assert plain.err
    said = command(*arguments, "--json")
    assert said.code == code
    assert set(said.document) == {"schema", "exit", "error"} and said.document["exit"] == code
    assert said.document["error"]["cause"] in said.err
