"""Every command line that the documentation shows is one the parser takes: no renamed option, no missing argument."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from oombisect.cli.app import app
from oombisect.errors import ExitCode
from oombisect.resources import docs_dir

BLOCK = re.compile(r"^```.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINE = re.compile(r"^\s*(?:git bisect run )?oombisect (?P<words>.*)")
PAGES = [docs_dir().parent / "README.md", *sorted(docs_dir().glob("*.md"))]


def shown(text: str) -> list[list[str]]:
    """The words of each command line in the code blocks of a page, up to a pipe or a redirection."""
    lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    commands = [part for line in lines for part in re.split(r";\s+(?=oombisect)", line)]
    found = [shlex.split(match["words"], comments=True) for line in commands if (match := LINE.match(line))]
    return [words[: next((i for i, word in enumerate(words) if word in {"|", ">"}), None)] for words in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_lines_of_a_page_parse(page: Path) -> None:
    commands: Any = typer.main.get_command(app)
    for name, *arguments in shown(page.read_text()):
        commands.commands[name].make_context(name, arguments)


def test_there_are_such_lines() -> None:
    found = [words for page in PAGES for words in shown(page.read_text())]
    assert len(found) > 60
    assert {"run", "config", "releases", "probe", "skip", "undo", "log", "replay-log"} <= {words[0] for words in found}


@pytest.mark.parametrize("name", ["run", "config", "releases", "resume", "demo"])
def test_the_help_of_what_runs_a_session_tells_all_its_exit_codes(name: str) -> None:
    commands: Any = typer.main.get_command(app)
    told = commands.commands[name].help.partition("Exit codes:")[2]
    codes = {int(code) for code in re.findall(r"\b(\d+) [a-z]", told)}
    assert codes == {int(code) for code in ExitCode} - {ExitCode.GREW}
