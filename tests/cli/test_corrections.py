"""`skip`, `undo`, `log` and `replay-log` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
    assert undone.returncode == 0 and f"oombisect resume {told['session']}" in undone.stdout
    refused(ground.run("undo", told["session"], "99"), 2, "not 99")
    refused(ground.run("skip", told["session"], ground.shas[0]), 2, "an end")
    refused(ground.run("replay-log", "none.txt"), 14, "cannot be read")
