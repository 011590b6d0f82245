"""What docs/json.md says of the documents of `sessions`, `show`, `compare`, `explain` and `replay` holds of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oombisect.history.store import open_store
from oombisect.readings import Outcome, Reading
from tests.cli.conftest import Command
from tests.cli.dumps import dump, dump_of_a_death, dump_without_allocations, pinned, plain
from tests.cli.test_explain import LOG
from tests.session.memories import DEVICE, add_probe, probe_spec, session_spec, write_snapshot

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text below a heading."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def named(text: str) -> set[str]:
    """The names of fields: quoted, or set as code."""
    return set(re.findall(r'"(\w+)"', text)) | set(re.findall(r"`(\w+)`", text))


def nullable(text: str) -> set[str]:
    """The fields that may be null, as the text says."""
    found = set(re.findall(r'"(\w+)": [^,}\n]*?\|? ?null', text))
    for group in re.findall(r'((?:"\w+",\s*)+"\w+"): n \| null', text):
        found |= set(re.findall(r'"(\w+)"', group))
    return found | set(re.findall(r"`(\w+)` \([^)`]*null", text))


def keys(value: Any) -> set[str]:
    """All names of fields in a document."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


def nulls(value: Any, name: str = "") -> set[str]:
    """The fields that are null somewhere in a document."""
    if value is None:
        return {name}
    if isinstance(value, dict):
        return set().union(*(nulls(one, key) for key, one in value.items()))
    return set().union(*(nulls(one, name) for one in value)) if isinstance(value, list) else set()


def check(documents: Iterable[Any], text: str, *free: str) -> None:
    """Every field is named in `text`, and may be null where it is; `free` hold what others name."""
    for document in documents:
        assert document["schema"] == 1
        plain = {key: value for key, value in document.items() if key not in free}
        assert keys(plain) <= named(text), keys(plain) - named(text)
        assert nulls(plain) <= nullable(text), nulls(plain) - nullable(text)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A session with a probe of each kind, and one of which nothing is known yet."""
    path = tmp_path / "home" / "oombisect.db"
    with open_store(path, clock=lambda: datetime(2026, 11, 30, tzinfo=UTC)) as store:
        session = store.create_session(session_spec(tmp_path, "a" * 40, "b" * 40)).id
        add_probe(store, session, "a" * 40, [(512, [("/p/a.py", 1, "f")])], config={"model": {"x": 1}})
        add_probe(store, session, "b" * 40, [(1024, [("/p/a.py", 1, "f")])], config={"model": {"x": 2}})
        failed = store.begin_probe(probe_spec(session, "c" * 40))
        store.finish_probe(failed, Reading(Outcome.UNRESOLVED, "no x", device=DEVICE, simulated=True))
        store.begin_probe(probe_spec(session, "d" * 40))
        store.create_session(session_spec(tmp_path, "a" * 40, "b" * 40, limit_bytes=80 << 30))
    return path


def test_sessions_and_show(command: Command, database: Path) -> None:
    text = section("`sessions`, `show`")
    check([command("sessions", "--json").document], text)
    shown = command("show", "20261130-1", "--json").document
    for probe in shown["probes"]:
        if probe["reading"]:
            reading = probe.pop("reading")
            of_readings = section("A reading")
            assert keys(reading) <= named(of_readings) | named(text), keys(reading) - named(of_readings)
            assert nulls(reading) <= nullable(of_readings), nulls(reading) - nullable(of_readings)
        probe.pop("settings")
    check([shown], text, "report")


def test_compare(command: Command, database: Path, tmp_path: Path) -> None:
    write_snapshot(tmp_path / "a.gz", [(512, [("/p/a.py", 1, "f")])])
    write_snapshot(tmp_path / "b.gz", [(512, [("/p/a.py", 1, "f")]), (1024, [("/p/b.py", 2, "g")])])
    documents = [
        command("compare", *sides, "--json").document for sides in (("a.gz", "b.gz"), ("1", "2"), ("1", "b.gz"))
    ]
    for document in documents:
        for entry in document["stacks"]:
            for part in (entry["first"], entry["second"]):
                assert part is None or all(isinstance(size, int) for size in part.pop("phases").values())
    check(documents, section("`compare`"), "config_changes")
    assert documents[1]["config_changes"] == [{"path": "model.x", "before": 1, "after": 2}]


def test_explain(command: Command, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "fine.log").write_text("all is well\n")
    check([command("explain", name, "--json").document for name in ("train.log", "fine.log")], section("`explain`"))


def test_replay(command: Command, database: Path, tmp_path: Path) -> None:
    one = dump(tmp_path / "one.gz", pinned())
    died = dump_of_a_death(tmp_path / "died.gz", plain(), 2000 << 20)
    conf = ("--alloc-conf", "expandable_segments:True", "--alloc-conf", "nonsense:1", "--json")
    lines = ((one,), (one, "--limit", "4GiB"), ("1",), (died,), (died, "--limit", "4GiB"))
    documents = [command("replay", *line, *conf).document for line in lines]
    check(documents, section("`replay`"), "first_oom")
    forbidden = command("replay", one, "--gpu", "virtual:2048MiB", "--fraction", "0.5", *conf).document
    check([forbidden], section("`replay`"), "first_oom")
    assert forbidden["first_oom"]["event"] >= 0


def test_errors(command: Command, tmp_path: Path) -> None:
    dump_without_allocations(tmp_path / "none.gz")
    for line in (("replay", "none.gz"), ("compare", "none.gz", "none.gz"), ("explain", "."), ("show", "--no-such")):
        said = command(*line, "--json")
        assert said.document == {
            "schema": 1, "exit": said.code, "error": {"cause": said.document["error"]["cause"],
                                                      "way_out": said.document["error"]["way_out"]},
        }  # fmt: skip
        assert said.code == 2 and said.document["error"]["cause"] in said.err
