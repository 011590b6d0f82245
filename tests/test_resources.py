"""What messages name is there for those who installed a wheel, too."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from oombisect.resources import db_dir, docs_dir, probes_dir
from tests.cli.conftest import Command, command

__all__ = ["command"]
ROOT = Path(__file__).parents[1]


def test_a_wheel_brings_the_folders_that_are_looked_for() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {folder.name for folder in (db_dir(), docs_dir(), probes_dir())}
    assert wheel["force-include"] == {name: f"oombisect/_shipped/{name}" for name in folders}


def test_the_pages_that_messages_name_can_be_found(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"docs/([\w-]+\.md)|docs_dir\(\) / '([\w-]+\.md)'", source))
    pages = {one or other for one, other in named}
    assert {"snapshots.md", "replay.md", "command.md"} <= pages <= {path.name for path in docs_dir().iterdir()}
    monkeypatch.setenv("COLUMNS", "12")
    assert str(docs_dir()) in command("--help").out  # whole: it may be longer than a terminal is wide
    (tmp_path / "text").write_text("no snapshot")
    said = command("replay", "text").err
    assert Path(re.search(r"See (\S+) for", said)[1]).is_file()  # type: ignore[index]
