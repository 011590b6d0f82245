"""The GitHub Actions workflow in docs/ can be copied as it is: minimal rights, no secrets, command lines that work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from oombisect.cli.app import app

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "oombisect.yml").read_text(encoding="utf-8")
PAGE = (DOCS / "ci.md").read_text(encoding="utf-8")
# YAML 1.1 reads the key `on` as a boolean.
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
STEPS: list[dict[str, Any]] = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def commands(text: str) -> list[list[str]]:
    """The oombisect command lines in a text, without the program and what is redirected."""
    lines = re.findall(r"^\s*(?:\.venv-oombisect/bin/)?oombisect (.*)$", text, re.MULTILINE)
    return [shlex.split(line.partition(" > ")[0]) for line in lines]


def test_it_may_only_read_and_has_no_secrets() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in WORKFLOW["jobs"].values())
    assert "secrets." not in TEXT and "github.token" not in TEXT and "pull_request_target" not in TEXT
    (checkout,) = [step for step in STEPS if str(step.get("uses", "")).startswith("actions/checkout@")]
    assert checkout["with"] == {"fetch-depth": 0, "submodules": True, "persist-credentials": False}


def test_actions_are_githubs_own_at_a_major_version() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert len(used) >= 5
    assert all(re.fullmatch(r"actions/[a-z-]+@v[0-9]+", action) for action in used)


def test_nothing_that_others_write_is_put_into_a_script() -> None:
    """An expression in a script is replaced before the shell sees it: a title of a pull request would be run."""
    assert all("${{" not in step["run"] for step in STEPS if "run" in step)


def test_every_trigger_has_its_step() -> None:
    triggers = set(WORKFLOW[True])
    assert triggers == {"pull_request", "schedule", "workflow_dispatch"}
    conditions = {step.get("if") for step in STEPS if "oombisect check" in str(step) or "oombisect watch" in str(step)}
    assert conditions == {"github.event_name == 'pull_request'", "github.event_name != 'pull_request'"}
    assert all(job["timeout-minutes"] <= 360 for job in WORKFLOW["jobs"].values())


def test_the_database_and_the_environment_are_cached() -> None:
    cached = {step["with"]["path"]: step["with"] for step in STEPS if "actions/cache" in str(step.get("uses"))}
    assert set(cached) == {".venv-oombisect", ".oombisect/oombisect.db"}
    database = cached[".oombisect/oombisect.db"]
    assert "github.run_id" in database["key"] and database["restore-keys"].split()[-1] == "oombisect-db-"
    assert WORKFLOW["env"]["OOMBISECT_HOME"].endswith("/.oombisect")


@pytest.mark.parametrize("arguments", [*commands(TEXT), *commands(PAGE)], ids=" ".join)
def test_every_command_line_is_understood(arguments: list[str]) -> None:
    group: Any = typer.main.get_command(app)
    name, *rest = arguments
    group.commands[name].make_context(name, rest)
    assert {"check", "watch"} <= {line[0] for line in commands(TEXT)}
