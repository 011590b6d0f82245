"""A session corrected by hand goes on as corrected, and keeps what was."""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.records import SessionState
from oombisect.history.store import Store
from oombisect.reports.terminal import silent_lines
from oombisect.session import editing, log
from oombisect.session.config_request import SideRequest
from oombisect.session.events import OBSERVATION, SKIP, START, why_stopped
from oombisect.session.request import ProbeRequest
from oombisect.session.single import probe_commit

from . import toy
from .config_toy import ConfigWorld, Truth, run_here
from .rolls import Rolls, run
from .toy import MIB, mib
from .world import Quiet, World

MEMORIES: list[Any] = [mib(8000 + (1500 if i >= 5 else 0), tag=i) for i in range(8)]


@pytest.fixture(autouse=True)
def probes_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy probes in this process: what is looked at here is what is recorded of them."""
    monkeypatch.setattr("oombisect.probing.prober.run_guarded", run_here)


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


def logged(world: World, session: str) -> str:
    with world.store() as store:
        return log.to_text(log.entries(store, store.session(session)))


def test_a_skip_that_is_taken_back_leaves_the_verdict_as_it_was_and_probes_nothing(world: World) -> None:
    first = world.run(MEMORIES)
    probed = len(world.probes())
    edited(world, first.session, world.shas[5])
    edited(world, first.session, undo=1)
    again = world.run(MEMORIES, session=first.session)
    assert again.to_json() == first.to_json()
    assert len(world.probes()) == probed


def test_undo_goes_back_one_answer_after_another(world: World) -> None:
    first = world.run(MEMORIES)
    with world.store() as store:
        answers = [event.seq for event in store.events(first.session) if event.kind == OBSERVATION]
    gone = [edited(world, first.session, undo=n).undone for n in (1, 2, len(answers) - 3)]
    assert [event.seq for events in reversed(gone) for event in events] == answers
    with pytest.raises(OombisectError, match="0 answers and skips to take back"):
        edited(world, first.session, undo=1)
    again = world.run(MEMORIES, session=first.session)
    assert again.verdict.to_json() == first.verdict.to_json()
    with world.store() as store:
        probes = [probe for probe in store.probes(first.session) if probe.spec.request == "measure"]
    for sha in (world.shas[0], world.shas[-1]):
        assert sum(probe.spec.point == sha for probe in probes) == 2, "an end was not measured afresh"


def test_skipping_what_is_the_same_measurement_as_an_end_is_said_and_changes_nothing(world: World) -> None:
    memories = [MEMORIES[0], None, *MEMORIES[1:], None]
    first = world.run(memories)
    edited(world, first.session, world.shas[1])

    class Hearing(Quiet):
        said = ""

        def say(self, text: str) -> None:
            self.said += text

    watcher = Hearing()
    again = world.run(memories, session=first.session, watcher=watcher)
    assert again.verdict.to_json() == first.verdict.to_json()
    assert f"{world.shas[1][:10]} is the same measurement as the good end" in watcher.said


def test_a_session_from_before_points_were_recorded_can_be_corrected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Store.append_event

    def as_before(store: Store, session: str, kind: str, payload: Any) -> Any:
        return append(store, session, kind, {k: v for k, v in payload.items() if k != "points" or kind != START})

    monkeypatch.setattr(Store, "append_event", as_before)
    first = world.run(MEMORIES)
    assert "search, 0 readings known" in logged(world, first.session)
    with pytest.raises(OombisectError, match="an end"):
        edited(world, first.session, world.shas[0])
    edited(world, first.session, world.shas[5][:8])
    assert world.run(MEMORIES, session=first.session).verdict.kind == "blurred"
    assert log.parse(logged(world, first.session)).skipped == (world.shas[5],)


def test_a_commit_inside_a_roll_is_skipped_and_that_undone(world: World) -> None:
    rolls = Rolls(world.folder)
    rolls.start()
    for n, size in enumerate((0, 1800, 0), 1):
        rolls.core(f"m{n}", size)
    rolls.commit("roll", pin="m3")
    first = run(world, rolls)

    def inner(report: Any) -> Any:
        return report.verdict.steps[0].evidence["descent"]

    assert inner(first)["steps"][0]["point"] == rolls.ids["m2"]
    told = edited(world, first.session, rolls.ids["m2"][:9])
    assert told.skipped == (f"{rolls.ids['roll']}+{rolls.ids['m2']}",)
    without = run(world, rolls, session=first.session)
    assert without.verdict.steps[0].point == rolls.ids["roll"]
    assert inner(without)["kind"] == "blurred"
    assert log.parse(logged(world, first.session)).skipped == told.skipped
    edited(world, first.session, undo=_answers_since_skip(world, first.session))
    assert inner(run(world, rolls, session=first.session))["steps"][0]["point"] == rolls.ids["m2"]


def test_a_config_key_is_skipped_by_the_name_that_the_verdict_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oombisect.session.opening.open_device", lambda *_: toy.ToyDevice())
    world = ConfigWorld(tmp_path)
    keys = {f"model.{name}": 1 for name in "abcd"}
    truth = Truth({"model": dict.fromkeys("abcd", 0)}, adds={"model.b=1": 900 * MIB})
    sides = SideRequest(toy.RECIPE), SideRequest(toy.RECIPE, tuple(f"{key}={value}" for key, value in keys.items()))
    first = world.diff(truth, *sides)
    assert [step.point for step in first.verdict.steps] == ["model.b"]
    told = edited(world, first.session, "model.b")
    assert len(told.skipped) == 1 and "@model.b #" in told.skipped[0]
    with pytest.raises(OombisectError, match="begins 4 points"):
        edited(world, first.session, "model")
    without = world.diff(truth, *sides, session=first.session)
    assert without.verdict.kind == "blurred"
    read = log.parse(logged(world, first.session))
    assert (read.kind, read.skipped) == ("config", told.skipped)
    edited(world, first.session, undo=_answers_since_skip(world, first.session))
    again = world.diff(truth, *sides, session=first.session)
    assert [step.point for step in again.verdict.steps] == ["model.b"]


def test_a_single_probe_has_a_log_and_nothing_to_correct(world: World) -> None:
    world.shas = toy.history(world.repo, MEMORIES[:1])
    request = ProbeRequest(toy.RECIPE, repo=str(world.repo), python=str(world.python), limit_bytes=10_000 * MIB)
    with world.store() as store:
        probe_commit(
            store, "HEAD", request, watcher=Quiet(), cwd=world.folder, cache=world.folder / "cache", command=("test",)
        )
        (session,) = store.sessions()
    for correct in ({"undo": 1}, {}):
        with pytest.raises(OombisectError, match="single probe"):
            edited(world, session.id, *[] if correct else ["HEAD"], **correct)
    with pytest.raises(OombisectError, match="kind 'probe' cannot be begun again"):
        log.parse(logged(world, session.id))


def test_a_log_edited_by_hand(world: World) -> None:
    first = world.run(MEMORIES)
    text = logged(world, first.session)
    plain = log.parse(text)
    without_answers = "\n".join(line for line in text.splitlines() if not line.startswith("answer"))
    changed = re.sub(r'"peak_allocated": \d+', '"peak_allocated": 1', text)
    assert changed != text
    for edit in (without_answers, changed, text.replace("\n", "\r\n"), f"{text}\n# a remark\n\n"):
        assert log.parse(edit) == plain
    by_hand = f'{text}skip {{"points": ["{world.shas[4][:7]}"]}}\n'
    assert log.parse(by_hand).skipped == (world.shas[4],)
    assert log.parse(
        f'{by_hand}skip {{"seq": 99, "points": ["{world.shas[3]}"]}}\nundo {{"events": [99]}}'
    ).skipped == (world.shas[4],)
    for name, words in (("1234567", "no point"), (world.shas[-1][:7], "an end")):
        with pytest.raises(OombisectError, match=words):
            log.parse(f'{text}skip {{"points": ["{name}"]}}\n')


def _make_pipe(path: Path) -> None:
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=(b"x" * 100,), daemon=True).start()


_HEADER = b"# oombisect log, version 1\n"
HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.touch(), "the first line"),
    "binary": (lambda path: path.write_bytes(bytes(range(256)) * 99), "not UTF-8"),
    "folder": (lambda path: path.mkdir(), "a directory"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a device"),
    "pipe": (_make_pipe, "the first line"),
    "header alone": (lambda path: path.write_bytes(_HEADER), "its one session"),
    "nested": (lambda path: path.write_bytes(_HEADER + b"session " + b"[" * 200_000), "line 2"),
    "long number": (lambda path: path.write_bytes(_HEADER + b'session {"a": ' + b"1" * 9999 + b"}"), "line 2"),
    "two sessions": (lambda path: path.write_bytes(_HEADER + b"session {}\nsession {}\n"), "its one session"),
    "no kind": (lambda path: path.write_bytes(_HEADER + b"session {}\n"), "kind None"),
    "other version": (lambda path: path.write_bytes(b"# oombisect log, version 2\n"), "version 1"),
    "huge": (lambda path: path.write_bytes(_HEADER + b"#" * 4096), "larger than"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_log_is_refused_in_a_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "huge":
        monkeypatch.setattr(log, "_MOST_BYTES", 4096)
    make, words = HOSTILE[name]
    make(tmp_path / "log")
    with pytest.raises(OombisectError, match=words) as raised:
        log.read(tmp_path / "log")
    assert raised.value.exit_code == ExitCode.USAGE
    assert len(raised.value.cause) < 300


def test_a_log_that_was_cut_off_is_refused(world: World) -> None:
    text = logged(world, world.run(MEMORIES[:2]).session)
    with pytest.raises(OombisectError, match="no log that can be replayed: line"):
        log.parse(text[:-20])


def test_nobody_corrects_a_session_that_somebody_works_on(world: World) -> None:
    first = world.run(MEMORIES)
    edited(world, first.session, undo=1)
    with world.store() as store:
        store.resume_session(first.session)
        before = store.events(first.session)
        for correct in ({"undo": 1}, {}):
            with pytest.raises(OombisectError, match="Another process works on session"):
                edited(world, first.session, *[] if correct else [world.shas[3]], **correct)
        assert store.events(first.session) == before
        assert store.session(first.session).state is SessionState.RUNNING


@pytest.mark.parametrize("dying", ["reopened", SKIP, "interrupt_session"])
def test_a_correction_that_is_killed_leaves_the_verdict(world: World, dying: str) -> None:
    first = world.run(MEMORIES)
    with world.store() as store:
        before = store.session(first.session), store.events(first.session)

    def killed() -> None:
        append = Store.append_event

        def append_event(store: Store, session: str, kind: str, payload: Any) -> Any:
            told = append(store, session, kind, payload)
            if kind == dying:
                os._exit(9)
            return told

        Store.append_event = append_event  # type: ignore[method-assign]
        if dying == "interrupt_session":
            Store.interrupt_session = lambda *_: os._exit(9)  # type: ignore[method-assign]
        edited(world, first.session, world.shas[5])

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join()
    assert process.exitcode == 9
    with world.store() as store:
        assert (store.session(first.session), store.events(first.session)) == before


def test_a_larger_budget_goes_on_from_where_the_smaller_one_was_spent(world: World) -> None:
    first = world.run(MEMORIES, budget=3)
    assert first.exit_code is ExitCode.BUDGET
    probed = len(world.probes())
    with world.store() as store:
        spent = store.session(first.session)
        for budget in (2, 3):
            with pytest.raises(OombisectError, match=f"had a --budget of 3, and {budget} is no larger"):
                editing.give_budget(store, spent, budget)
        assert store.session(first.session) == spent
        editing.give_budget(store, spent, 20)
        store.interrupt_session(first.session, 130)
        (was,) = [event.payload for event in store.events(first.session) if event.kind == "reopened"]
        assert (was["exit_code"], was["verdict"]["verdict"]["kind"]) == (13, "budget")
        assert editing.arguments_of(store, store.session(first.session))["budget"] == 20
    read = log.parse(logged(world, first.session))
    assert (read.request.to_json()["budget"], read.arguments["budget"]) == (20, 3)
    again = world.run(MEMORIES, session=first.session, budget=20)
    assert (again.verdict.kind, again.verdict.steps[0].point) == ("culprit", world.shas[5])
    with world.store() as store:
        told = [probe.spec.point for probe in store.probes(first.session) if probe.spec.request == "measure"]
        assert len(told) == len(set(told)) and len(world.probes()) > probed, "a point was probed again"
        with pytest.raises(OombisectError, match="had a --budget of 20"):
            editing.give_budget(store, store.session(first.session), 20)


def test_a_finished_session_without_a_budget_takes_none(world: World) -> None:
    first = world.run(MEMORIES[:2])
    with world.store() as store, pytest.raises(OombisectError, match="is finished: it had no --budget"):
        editing.give_budget(store, store.session(first.session), 20)


def test_what_was_skipped_is_told_from_what_cannot_be_probed(world: World) -> None:
    memories = [*MEMORIES[:3], mib(8000, tag=3, unresolved="no"), mib(8000, tag=4), *MEMORIES[5:]]
    first = world.run(memories)
    assert (first.verdict.unresolved, first.verdict.skipped) == ((), ())
    edited(world, first.session, world.shas[4], world.shas[5])
    again = world.run(memories, session=first.session)
    assert again.verdict.kind == "blurred"
    assert again.verdict.unresolved == ((world.shas[3], world.shas[3]),)
    assert again.verdict.skipped == ((world.shas[4], world.shas[5]),)
    assert type(again).from_json(again.to_json()) == again
    assert silent_lines(again.verdict) == [
        f"cannot be probed: {world.shas[3][:10]}",
        f"skipped: {world.shas[4][:10]} .. {world.shas[5][:10]}",
    ]


def test_an_undo_says_what_it_took_back(world: World) -> None:
    first = world.run(MEMORIES)
    edited(world, first.session, world.shas[4])
    told = edited(world, first.session, world.shas[3])
    assert (told.added, set(told.skipped)) == ((world.shas[3],), {world.shas[3], world.shas[4]})
    told = edited(world, first.session, undo=3)
    assert [(one.kind, one.request, one.points) for one in told.undone] == [
        (OBSERVATION, "revert", (world.shas[5],)),
        (SKIP, None, (world.shas[4],)),
        (SKIP, None, (world.shas[3],)),
    ]


def test_why_a_session_stopped_is_kept_until_it_goes_on(world: World) -> None:
    with pytest.raises(OombisectError, match="good end") as caught:
        world.run([mib(8000, unresolved="ImportError: no apex"), mib(9000, tag=1)])
    assert "--set" in caught.value.way_out
    with world.store() as store:
        (session,) = store.sessions()
        cause, way_out = why_stopped(store.events(session.id)) or ("", "")
        assert "ImportError: no apex" in cause and way_out == caught.value.way_out
        text = log.to_text(log.entries(store, session))
        assert f"# stopped: {cause}" in text
        store.resume_session(session.id)
        store.append_event(session.id, SKIP, {"points": ["x"]})
        assert why_stopped(store.events(session.id)) is None
