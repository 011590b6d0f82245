"""Which session a name means, which can be resumed, and that the commands of a report show it again."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

from oombisect.history.store import open_store
from oombisect.readings import Outcome, Reading
from tests.cli.conftest import Command
from tests.cli.test_bad_input import Ground, refused
from tests.session import toy
from tests.session.memories import DEVICE, add_probe, probe_spec, session_spec
from tests.session.toy import mib


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """A history whose second commit strands memory; it was bisected, and then probed once."""
    folder = tmp_path_factory.mktemp("sessions")
    ground = Ground(folder)
    ground.repo = folder / "a repo"
    ground.repo.mkdir()
    memories = [mib(8000, 8100, tag=0), mib(8000, 9900, needed=9700, tag=1), mib(8000, 9900, needed=9700, tag=2)]
    ground.shas = toy.history(ground.repo, memories)
    done = ground.bisect(None, "--json")
    assert done.returncode == 0, done.stderr
    (folder / "report.json").write_text(done.stdout)
    common = ("--recipe", toy.RECIPE, "--repo", str(ground.repo), "--python", str(ground.python))
    assert ground.run("probe", ground.shas[0], *common).returncode == 0
    return ground


def test_last_is_the_newest_bisection(ground: Ground) -> None:
    shown = json.loads(ground.run("show", "--json").stdout)
    assert shown["session"]["kind"] == "run"
    refused(ground.run("resume"), 2, shown["session"]["id"], "is finished")
    newest, *_ = json.loads(ground.run("sessions", "--json").stdout)["sessions"]
    assert (newest["kind"], newest["verdict"]) == ("probe", "fits")


def test_a_probe_is_not_resumed(ground: Ground) -> None:
    newest, *_ = json.loads(ground.run("sessions", "--json").stdout)["sessions"]
    done = ground.run("resume", newest["id"])
    refused(done, 2, "single probe", f"oombisect probe {ground.shas[0]}", f"'{ground.repo}'")


def test_last_is_a_probe_where_there_is_nothing_else(ground: Ground, tmp_path: Path) -> None:
    common = ("--recipe", toy.RECIPE, "--repo", str(ground.repo), "--python", str(ground.python))
    database = ("--db", str(tmp_path / "db.sqlite"))
    assert ground.run("probe", ground.shas[0], *common, *database).returncode == 0
    assert json.loads(ground.run("show", "--json", *database).stdout)["session"]["kind"] == "probe"
    refused(ground.run("resume", *database), 2, "single probe")


def test_the_commands_of_a_report_show_it_again(ground: Ground) -> None:
    report = json.loads((ground.folder / "report.json").read_text())
    (step,) = [step for step in report["verdict"]["steps"] if step["named"]]
    assert step["class"] == "fragmentation"
    commands = [shlex.split(command) for command in report["reproduce"]]
    assert all(command[:2] == ["oombisect", "probe"] and "--fresh" in command for command in commands)
    plain = [command[2] for command in commands if "--limit" not in command]
    assert plain == [step["parent"][:12], step["point"][:12]]
    ends = {}
    for command in commands:
        limited, expandable = "--limit" in command, any("expandable_segments:True" in word for word in command)
        ends[(command[2], limited, expandable)] = ground.run(*command[1:]).returncode
    before, after = plain
    assert ends == {
        (before, False, False): 0,
        (after, False, False): 1,
        (before, True, False): 0,
        (after, True, False): 1,
        (after, True, True): 0,
    }


def test_control_characters_of_a_commit_are_not_printed(command: Command, tmp_path: Path) -> None:
    with open_store(tmp_path / "o.db", clock=lambda: datetime(2026, 11, 30, tzinfo=UTC)) as store:
        session = store.create_session(
            session_spec(tmp_path / "a\x1b[31m", "a" * 40, "b" * 40, recipe="r\x1b]0;t\x07")
        ).id
        add_probe(store, session, "b" * 40, [(512, [])], subject="evil\x1b[2J\u202e")
        failed = store.begin_probe(probe_spec(session, "c" * 40))
        store.finish_probe(failed, Reading(Outcome.UNRESOLVED, "no \x9b2J\n", device=DEVICE, simulated=True))
    for arguments in (("sessions",), ("show", session)):
        said = command(*arguments, "--db", tmp_path / "o.db")
        assert said.code == 0 and not {"\x1b", "\x07", "\x9b", "\u202e"} & set(said.out)
    assert "evil?[2J?" in said.out and "unresolved: no ?2J" in said.out


def test_how_many_are_listed(command: Command, tmp_path: Path) -> None:
    with open_store(tmp_path / "o.db", clock=lambda: datetime(2026, 11, 30, tzinfo=UTC)) as store:
        ids = [store.create_session(session_spec(tmp_path, "a" * 40, "b" * 40)).id for _ in range(3)]
    told = command("sessions", "-n", "2", "--db", tmp_path / "o.db", "--json").document["sessions"]
    assert [session["id"] for session in told] == ids[:0:-1]
    for number in ("0", "-1"):
        command("sessions", "-n", number, "--db", tmp_path / "o.db").refused(2, f"--number {number}")


def test_an_empty_file_and_none(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    for name in ("sessions", "show"):
        command(name, "--db", tmp_path / "empty.db").refused(2, "is empty: it holds no session yet")
        command(name, "--db", tmp_path / "none.db").refused(14, "There is no database")
        command(name, "--db", tmp_path).refused(2, "is a directory")
    assert (tmp_path / "empty.db").read_bytes() == b""
