"""`check` and `watch` as a job of CI runs them: exit codes, streams, and what other commands make of their sessions."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from oombisect.session.gate import WatchRequest
from oombisect.session.watching import Watched
from tests.cli.conftest import Command
from tests.cli.test_bad_input import Ground, refused
from tests.session import toy


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("gate"))


def ask(ground: Ground, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    common = ("--recipe", toy.RECIPE, "--repo", str(ground.repo), "--python", str(ground.python))
    return ground.run(command, *arguments, *common)


def test_check_and_what_is_made_of_its_session(ground: Ground, tmp_path: Path) -> None:
    done = ask(ground, "check", ground.range, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit"] == 15
    assert document["grew_bytes"] == 1800 * toy.MIB and document["base"] == ground.shas[0]
    assert "session" in done.stderr
    again = ask(ground, "check", ground.range, "--min-step", "2GiB", "--limit", "20GiB", "--md")
    assert again.returncode == 0 and again.stdout.startswith("### Memory grows by 1.76 GiB")
    assert "kind" not in json.loads(ground.run("show", document["session"], "--json").stdout)["report"]
    assert document["session"] in ground.run("sessions").stdout
    report = ground.run("report", document["session"], "--md")
    assert report.returncode == 0 and "capacity" in report.stdout
    refused(ground.run("resume", document["session"]), 2, "single check", "oombisect check")
    refused(ground.run("skip", document["session"], ground.shas[1]), 2, "single check")


def test_watch_and_what_is_made_of_its_session(ground: Ground) -> None:
    first = ask(ground, "watch", "--once", "--since", ground.shas[0], "--branch", "main", "--json")
    document = json.loads(first.stdout)
    assert first.returncode == document["exit"] == 15 and document["commits"] == 2
    (landed,) = document["landed"]
    assert (landed["from"], landed["to"]) == (ground.shas[1], ground.shas[2])
    again = ask(ground, "watch", "--once", "--branch", "main")
    assert again.returncode == 0 and "Nothing new" in again.stdout
    refused(ground.run("resume", document["session"]), 2, "single watch")
    shown = ground.run("show", document["session"])
    assert shown.returncode == 0 and ground.shas[2][:10] in shown.stdout
    last = json.loads(ground.run("show", "last", "--json").stdout)
    assert last["session"]["kind"] == "run", "the search of what landed, not the watch"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "HEAD"], ["no range"]),
        (["check", "nope..HEAD"], ["'nope'"]),
        (["check", "HEAD~1..HEAD", "--md", "--json"], ["--md and --json"]),
        (["check", "HEAD~1..HEAD", "--min-step", "5"], ["no unit"]),
        (["watch", "--once", "--branch", "nope"], ["'nope'"]),
        (["watch", "--once", "--every", "0"], ["--every 0"]),
        (["watch", "--interval", "nan"], ["--interval nan"]),
        (["watch", "--once", "--since", "nope"], ["'nope'"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_wrong_requests(ground: Ground, arguments: list[str], words: list[str]) -> None:
    done = ask(ground, *arguments)
    assert done.returncode == 2 and all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr


def test_a_watch_without_once_looks_until_something_lands(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    looks = iter([(), (), ("landed",)])

    def look(_: object, request: WatchRequest, **__: object) -> Watched:
        one = Watched(request.branch, None, "a" * 40, "b" * 40, 1, 1, 1, "r", "d")
        return replace(one, landed=next(looks))  # type: ignore[arg-type]

    monkeypatch.setattr("oombisect.cli.gate_of.watch_once", look)
    monkeypatch.setattr("oombisect.cli.gate_of.time.sleep", slept.append)
    monkeypatch.setattr("oombisect.cli.gate_of._print", lambda *_, **__: None)
    assert command("watch", "--interval", "2", "--recipe", "x").code == 15
    assert slept == [120.0, 120.0]
