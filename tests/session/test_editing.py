"""A session corrected by hand goes on as corrected, and keeps what was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oombisect.errors import OombisectError
from oombisect.history.records import SessionState
from oombisect.session import editing, log
from oombisect.session.events import OBSERVATION

from .toy import mib
from .world import World

MEMORIES: list[Any] = [mib(8000 + (1500 if i >= 5 else 0), tag=i) for i in range(8)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def edited(world: World, session: str, *points: str, undo: int = 0) -> editing.Edited:
    with world.store() as store:
        found = store.session(session)
        return editing.undo(store, found, undo) if undo else editing.skip(store, found, points, lambda name: name)


def test_a_skipped_culprit_is_blurred_and_named_again_once_that_is_undone(world: World) -> None:
    first = world.run(MEMORIES)
    named = first.verdict.steps[0].point
    assert (first.verdict.kind, named) == ("culprit", world.shas[5])
    probed = len(world.probes())

    told = edited(world, first.session, named[:12])
    assert (told.reopened, told.skipped) == (True, (named,))
    with world.store() as store:
        assert store.session(first.session).state is SessionState.INTERRUPTED
        kept = [event.payload for event in store.events(first.session) if event.kind == "reopened"]
        assert [(was["exit_code"], was["verdict"]["verdict"]["kind"]) for was in kept] == [(0, "culprit")]
    without = world.run(MEMORIES, session=first.session)
    assert without.verdict.kind == "blurred"
    assert named in without.verdict.steps[0].blurred

    edited(world, first.session, undo=_answers_since_skip(world, first.session))
    again = world.run(MEMORIES, session=first.session)
    assert (again.verdict.kind, again.verdict.steps[0].point) == ("culprit", named)
    assert len(world.probes()) > probed
    with world.store() as store:
        assert sum(event.kind == "reopened" for event in store.events(first.session)) == 2


def _answers_since_skip(world: World, session: str) -> int:
    with world.store() as store:
        events = store.events(session)
    at = next(event.seq for event in events if event.kind == "skip")
    return 1 + sum(event.kind == OBSERVATION and event.seq > at for event in events)


def test_an_answer_taken_back_is_measured_afresh_and_only_that(world: World) -> None:
    first = world.run(MEMORIES)
    with world.store() as store:
        answers = [event for event in store.events(first.session) if event.kind == OBSERVATION]
        before = store.probes(first.session)
    told = edited(world, first.session, undo=3)
    assert any(event.payload["probe"] is not None for event in answers[-3:])
    assert [event.seq for event in told.undone] == [event.seq for event in answers[-3:]]
    again = world.run(MEMORIES, session=first.session)
    assert again.verdict.to_json() == first.verdict.to_json()
    with world.store() as store:
        events = store.events(first.session)
        asked = [
            event.payload["request"] for event in events if event.kind == OBSERVATION and event.seq > told_seq(events)
        ]
        assert asked == [event.payload["request"] for event in answers[-3:]]
        fresh = store.probes(first.session)[len(before) :]
        by_id = {probe.id: probe for probe in before}
        gone = [by_id[probe] for event in answers[-3:] if (probe := event.payload["probe"]) is not None]
        assert [(p.spec.signature, p.spec.request) for p in fresh] == [(p.spec.signature, p.spec.request) for p in gone]


def told_seq(events: list[Any]) -> int:
    return max(event.seq for event in events if event.kind == "undo")


def test_what_cannot_be_corrected_is_refused_and_changes_nothing(world: World) -> None:
    first = world.run(MEMORIES)
    with world.store() as store:
        before = store.events(first.session)
    for points, words in (
        ((world.shas[0],), "an end"),
        ((world.shas[-1][:10],), "an end"),
        (("no-such-point",), "no point of the session"),
        ((world.shas[3], "nothing"), "no point of the session"),
    ):
        with pytest.raises(OombisectError, match=words):
            edited(world, first.session, *points)
    with pytest.raises(OombisectError, match="answers and skips to take back, not 100"):
        edited(world, first.session, undo=100)
    with world.store() as store:
        assert store.events(first.session) == before
        assert store.session(first.session).state is SessionState.FINISHED


def test_a_log_tells_every_answer_and_is_read_back(world: World) -> None:
    first = world.run(MEMORIES)
    edited(world, first.session, world.shas[3])
    edited(world, first.session, undo=1)
    edited(world, first.session, world.shas[4])
    with world.store() as store:
        stored = store.session(first.session)
        entries = log.entries(store, stored)
        answers = [event for event in store.events(first.session) if event.kind == OBSERVATION]
    told = [entry for entry in entries if entry["entry"] == "answer"]
    assert [entry["seq"] for entry in told] == [event.seq for event in answers]
    assert (told[0]["point"], told[0]["peak_allocated"]) == (world.shas[0], 8000 << 20)
    text = log.to_text(entries)
    assert all(line.isprintable() for line in text.splitlines())
    assert len([line for line in text.splitlines() if not line.startswith("#")]) == len(entries)
    read = log.parse(text)
    assert (read.kind, read.skipped) == ("run", (world.shas[4],))
    assert read.request.to_json() == log._request("run", stored.spec.arguments).to_json()


def test_what_is_no_log_is_refused(world: World) -> None:
    first = world.run(MEMORIES[:2])
    with world.store() as store:
        text = log.to_text(log.entries(store, store.session(first.session)))
    log.parse(text)
    for old, new in (
        ("version 1", "version 2"),
        ('"kind": "run"', '"kind": "probe"'),
        ('"kind": "run"', '"kind": ["run"]'),
        ('"find": "regression"', '"find": "regression", "more": 1'),
        ('"seed": 1234', '"seed": "1234"'),
        ('"overrides": []', '"overrides": [1]'),
        ("start {", "start ["),
        ("session {", "sessions {"),
    ):
        assert old in text
        with pytest.raises(OombisectError, match="no log that can be replayed"):
            log.parse(text.replace(old, new))
