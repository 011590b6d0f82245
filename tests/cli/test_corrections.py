"""`skip`, `undo`, `log` and `replay-log` on the command line."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest

import oombisect
from tests.cli.test_bad_input import Ground, refused
from tests.session import toy
from tests.session.toy import mib


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    ground = Ground(tmp_path)
    ground.repo = tmp_path / "another"
    ground.repo.mkdir()
    ground.shas = toy.history(ground.repo, [mib(8000 + (1500 if i >= 2 else 0), tag=i) for i in range(4)])
    assert ground.bisect(None, "--json").returncode == 0
    return ground


def test_skip_resume_undo_and_replay(ground: Ground) -> None:
    toy.git(ground.repo, "tag", "2026.1", "HEAD~1")
    done = ground.run("skip", "2026.1", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["skipped"], told["reopened"]) == ([ground.shas[2]], True)
    assert told["resume"] == f"oombisect resume {told['session']}"
    assert (told["added"], told["undone"]) == ([ground.shas[2]], [])
    resumed = ground.run("resume", told["session"], "--json")
    assert json.loads(resumed.stdout)["verdict"]["kind"] == "blurred" and resumed.returncode == 11, resumed.stderr

    (ground.folder / "log.txt").write_text(ground.run("log").stdout)
    done = ground.run("replay-log", "log.txt", "--check", "--json")
    assert done.returncode == 0, done.stderr
    checked = json.loads(done.stdout)
    assert checked["skipped"] == [ground.shas[2]]
    probes = len(ground.calls.read_text().splitlines())
    again = ground.run("replay-log", "log.txt", "--json")
    assert again.returncode == 11, again.stderr
    document = json.loads(again.stdout)
    assert document["session"] != told["session"]
    assert document["verdict"] == json.loads(resumed.stdout)["verdict"]
    assert len(ground.calls.read_text().splitlines()) == probes, "what the database has was probed again"

    refused(ground.run("replay-log", "log.txt", "--db", str(ground.folder / "other.db")), 2, "--trust")
    piped = ground.run("replay-log", "-", "--check", stdin=(ground.folder / "log.txt").read_text())
    assert piped.returncode == 0 and f"without {ground.shas[2]}" in piped.stdout, piped.stderr
    ground.run("undo", document["session"])
    ground.repo.rename(ground.folder / "elsewhere")
    ground.repo.mkdir()
    toy.history(ground.repo, [mib(1)])
    refused(ground.run("replay-log", "log.txt"), 2, ground.shas[0][:9])
    refused(ground.run("skip", document["session"], "2026.1"), 2, "2026.1")
    wrong = ground.run("replay-log", "-", "--json", stdin="no log")
    assert wrong.returncode == json.loads(wrong.stdout)["exit"] == 2 and "first line" in wrong.stderr
    undone = ground.run("undo", told["session"])
    assert f"takes back the skip of {ground.shas[2][:10]}. It was finished" in undone.stdout
    assert undone.returncode == 0 and f"oombisect resume {told['session']}" in undone.stdout
    refused(ground.run("undo", told["session"], "99"), 2, "not 99")
    refused(ground.run("skip", told["session"], ground.shas[0]), 2, "an end")
    refused(ground.run("replay-log", "none.txt"), 14, "cannot be read")


def test_what_is_told_to_be_run_is_about_the_same_database(ground: Ground) -> None:
    database = ["--db", str(ground.folder / "other db.sqlite")]
    told = shlex.join(database)
    done = ground.bisect(None, "--json", *database)
    session = json.loads(done.stdout)["session"]
    assert all(told in line for line in json.loads(done.stdout)["reproduce"])
    refused(ground.run("undo", session, "99", *database), 2, f"`oombisect log {session} {told}`")
    refused(ground.run("resume", session, *database), 2, f"`oombisect show {session} {told}`")
    refused(ground.run("show", "none", *database), 2, f"`oombisect sessions {told}`")
    undone = ground.run("undo", session, "--db", "other db.sqlite", "--json")
    assert json.loads(undone.stdout)["resume"] == f"oombisect resume {session} {told}"
    assert f"oombisect resume {session} {told}" in ground.run("show", session, *database).stdout
    refused(ground.run("undo", "last", "99"), 2, "`oombisect log ")
    assert "--db" not in ground.run("undo", "last", "99").stderr


_COMMANDS = re.compile(r"[`:;] ?oombisect (resume|show|log|sessions|compare|report|query|history|gc|undo|skip)\b")


def test_no_message_writes_a_command_of_a_database_by_itself() -> None:
    """`oombisect.hints` does, for it knows the database; help texts and comments stand for every database."""
    package = Path(oombisect.__file__).parent
    found = []
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        passed = {
            id(node)
            for parent in ast.walk(tree)
            for part in (
                [parent.value]
                if isinstance(parent, ast.Expr) or (isinstance(parent, ast.keyword) and parent.arg == "help")
                else []
            )
            for node in ast.walk(part)
            if isinstance(node, ast.Constant)
        }
        found += [
            f"{path.relative_to(package)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed
            if _COMMANDS.search(node.value)
        ]
    assert found == []


def test_a_spent_budget_is_made_larger(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.repo = tmp_path / "another"
    ground.repo.mkdir()
    ground.shas = toy.history(ground.repo, [mib(8000 + (1500 if i >= 2 else 0), tag=i) for i in range(4)])
    spent = ground.bisect(None, "--json", "--budget", "2")
    assert spent.returncode == 13, spent.stderr
    session = json.loads(spent.stdout)["session"]
    refused(ground.run("resume", session), 2, "has spent its budget", f"oombisect resume {session} --budget N")
    refused(ground.run("resume", session, "--budget", "2"), 2, "no larger")
    refused(ground.run("resume", session, "--budget", "1"), 2, "--budget 1")
    done = ground.run("resume", session, "--budget", "30", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["session"] == session
    refused(ground.run("resume", session), 2, "is finished")
    said = ground.run("skip", session, ground.shas[2]).stdout
    assert said.startswith(f"Session {session} skips {ground.shas[2][:10]}. It was finished")
    said = ground.run("skip", session, ground.shas[1]).stdout
    assert said.startswith(f"Session {session} skips {ground.shas[1][:10]}. To go on")
    said = ground.run("undo", session).stdout
    assert said.startswith(f"Session {session} takes back the skip of {ground.shas[1][:10]}. To go on")


def test_a_session_that_an_end_stopped_says_so(ground: Ground) -> None:
    ground.repo = ground.folder / "broken"
    ground.repo.mkdir()
    ground.shas = toy.history(ground.repo, [mib(1, unresolved="ImportError: no apex"), mib(2, tag=1)])
    assert ground.bisect(None).returncode == 2
    shown = ground.run("show").stdout
    assert "Stopped: The good end" in shown and "ImportError: no apex" in shown and "Choose another good end" in shown
    document = json.loads(ground.run("show", "--json").stdout)
    assert "no apex" in document["stopped"]["cause"]
