from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from history_support import SESSION, Clock, child, exit_codes, probe_spec

from oombisect import __version__
from oombisect.errors import OombisectError
from oombisect.history.records import SessionState
from oombisect.history.store import Store, open_store
from oombisect.readings import Outcome, PhaseMetrics, RankReading, Reading

EXACT = Reading(Outcome.EXACT, ranks=(RankReading(0, {"setup": PhaseMetrics(allocated_peak=5)}, external=1),))


def ids(store: Store, limit: int = 20) -> list[str]:
    return [session.id for session in store.sessions(limit)]


# Sessions


def test_a_session_comes_back_as_it_went_in(store: Store) -> None:
    created = store.create_session(SESSION)
    assert created == store.session("last") == store.session(created.id)
    assert (created.spec, created.state, created.oombisect_version) == (SESSION, SessionState.RUNNING, __version__)
    assert created.created == datetime(2026, 11, 30, 12, tzinfo=UTC).replace(second=created.created.second)

    store.finish_session(created.id, 0, {"kind": "culprit", "steps": [1]})
    finished = store.session("last")
    assert (finished.state, finished.exit_code) == (SessionState.FINISHED, 0)
    assert finished.verdict == {"kind": "culprit", "steps": [1]}
    assert finished.changed > finished.created


def test_ids_are_the_day_and_a_counter(database: Path) -> None:
    for day in (30, 29):
        with open_store(database, clock=Clock(datetime(2026, 11, day, tzinfo=UTC))) as store:
            for n in range(1, 12):
                assert store.create_session(SESSION).id == f"202611{day}-{n}"
    with open_store(database, clock=Clock()) as store:
        assert ids(store, 13) == [f"20261130-{n}" for n in range(11, 0, -1)] + ["20261129-11", "20261129-10"]
        assert store.session("last").id == "20261130-11"


def test_the_day_is_that_of_utc(database: Path) -> None:
    late = datetime.fromisoformat("2026-11-30T23:30:00-02:00")
    with open_store(database, clock=lambda: late) as store:
        created = store.create_session(SESSION)
        assert created.id == "20261201-1"
        assert created.created == late


def test_a_session_is_found_by_the_beginning_of_its_id(database: Path) -> None:
    for day in (29, 30):
        with open_store(database, clock=Clock(datetime(2026, 11, day, tzinfo=UTC))) as store:
            for _ in range(10 if day == 30 else 1):
                store.create_session(SESSION)
    with open_store(database, clock=Clock()) as store:
        assert store.session("20261129").id == "20261129-1"
        assert store.session("20261130-1").id == "20261130-1"  # an id in full, though it begins another
        with pytest.raises(OombisectError, match="begins the ids of 10 sessions: 20261130-10, 20261130-9"):
            store.session("20261130")
        for name in ("", "%", "2027", "20261130-1'; DROP TABLE sessions; --"):
            with pytest.raises(OombisectError, match="There is no session"):
                store.session(name)


def test_without_sessions_there_is_no_last(store: Store) -> None:
    assert store.sessions() == []
    with pytest.raises(OombisectError, match="no session yet"):
        store.session("last")


def test_a_finished_session_is_not_resumed(store: Store, session: str) -> None:
    store.finish_session(session, 10, {})
    with pytest.raises(OombisectError, match="is finished"):
        store.resume_session(session)


def test_an_interrupted_session_is_resumed(store: Store, session: str) -> None:
    store.append_event(session, "plan", {})
    store.interrupt_session(session, 13, {"kind": "budget"})
    stopped = store.session(session)
    assert (stopped.state, stopped.exit_code, stopped.verdict) == (SessionState.INTERRUPTED, 13, {"kind": "budget"})
    with pytest.raises(ValueError):
        store.append_event(session, "plan", {})

    resumed = store.resume_session("last")
    assert (resumed.state, resumed.exit_code, resumed.verdict) == (SessionState.RUNNING, None, None)
    assert store.append_event(session, "plan", {}).seq == 1


def test_a_session_belongs_to_one_process(store: Store, session: str, database: Path) -> None:
    with open_store(database, clock=Clock()) as other:
        assert other.session(session).state is SessionState.RUNNING
        with pytest.raises(OombisectError, match="Another process works on session 20261130-1"):
            other.resume_session(session)
        with pytest.raises(ValueError):
            other.append_event(session, "plan", {})
        with pytest.raises(ValueError):
            other.begin_probe(probe_spec(session))
        with pytest.raises(ValueError):
            other.finish_session(session, 0, {})
        probe = store.begin_probe(probe_spec(session))
        with pytest.raises(ValueError):
            other.finish_probe(probe, EXACT)

        store.close()  # what the kernel does to a process that dies
        assert other.session(session).state is SessionState.INTERRUPTED
        assert other.sessions()[0].state is SessionState.INTERRUPTED
        assert other.resume_session(session).state is SessionState.RUNNING


def test_a_folder_left_by_a_deleted_database_is_not_taken_over(store: Store, session: str, database: Path) -> None:
    leftover = store.artifacts_dir(session, 1) / "result.json"
    leftover.write_text("{}")
    store.close()
    for file in database.parent.glob("oombisect.db*"):
        file.unlink()
    with open_store(database, clock=Clock()) as anew:
        created = anew.create_session(SESSION).id
        assert created == "20261130-2"
        assert not list(anew.artifacts_dir(created, 1).iterdir())


# Events


def test_events_are_counted_per_session(store: Store, session: str) -> None:
    other = store.create_session(SESSION).id
    for n in range(12):
        assert store.append_event(session, "a", {"n": n}).seq == n
        store.append_event(other, "b", {"n": -n})
    assert [event.payload["n"] for event in store.events(session)] == list(range(12))
    assert {event.kind for event in store.events(other)} == {"b"}
    assert store.events("nobody's") == []


# Probes


def test_a_probe_answers_only_once_it_is_finished(store: Store, session: str) -> None:
    probe = store.begin_probe(probe_spec(session, "x"))
    begun = store.probe(probe)
    assert (begun.spec, begun.finished, begun.reading) == (probe_spec(session, "x"), None, None)
    assert store.find_measurement("x") is None
    with pytest.raises(OombisectError, match="did not finish"):
        store.reading(probe)

    stored = store.finish_probe(probe, EXACT)
    assert stored.finished is not None and stored.finished > stored.started
    assert store.find_measurement("x") == stored
    assert store.find_measurement("y") is None
    with pytest.raises(ValueError):
        store.finish_probe(probe, EXACT)
    assert store.probes(session) == [stored]


@pytest.mark.parametrize("outcome", Outcome)
def test_which_outcomes_answer_again(store: Store, session: str, outcome: Outcome) -> None:
    store.finish_probe(store.begin_probe(probe_spec(session, "x")), Reading(outcome))
    assert (store.find_measurement("x") is None) == (outcome is Outcome.INFRA)
    store.finish_probe(store.begin_probe(probe_spec(session, "y")), Reading(outcome), reusable=False)
    assert store.find_measurement("y") is None


def test_an_infrastructure_error_is_never_an_answer(store: Store, session: str) -> None:
    probe = store.begin_probe(probe_spec(session))
    with pytest.raises(ValueError):
        store.finish_probe(probe, Reading(Outcome.INFRA), reusable=True)


def test_the_newest_measurement_answers_in_every_session(store: Store, session: str) -> None:
    old = store.finish_probe(store.begin_probe(probe_spec(session, "x")), EXACT)
    other = store.create_session(SESSION).id
    assert store.find_measurement("x") == old
    new = store.finish_probe(store.begin_probe(probe_spec(other, "x", request="remeasure")), EXACT)
    store.finish_probe(store.begin_probe(probe_spec(other, "x")), Reading(Outcome.INFRA))
    store.begin_probe(probe_spec(other, "x"))
    assert store.find_measurement("x") == new


def test_what_repeats_is_stored_once(store: Store, session: str) -> None:
    reading = replace(EXACT, config_hash="h", versions={"torch": "2.9"}, imported=("bridge:a.py", "bridge:b.py"))
    for n in range(3):
        spec = probe_spec(session, f"s{n}", subject=f"as read the {n}th time")
        store.finish_probe(store.begin_probe(spec), reading, {"a": 1} if n == 0 else None)
    with store._connection.reading() as db:
        for table in ("workloads", "points", "configs", "environments", "import_sets"):
            assert db[table].count == 1
    assert {probe.spec.subject for probe in store.probes(session)} == {"as read the 0th time"}
    assert store.config("h") == {"a": 1}
    assert store.config("other") is None


def test_an_unknown_configuration_must_be_given(store: Store, session: str) -> None:
    probe = store.begin_probe(probe_spec(session))
    with pytest.raises(ValueError):
        store.finish_probe(probe, replace(EXACT, config_hash="h"))
    with store._connection.reading() as db:
        assert db["rank_readings"].count == 0


def test_a_reading_of_another_device_is_refused(store: Store, session: str) -> None:
    probe = store.begin_probe(probe_spec(session))
    with pytest.raises(ValueError):
        store.finish_probe(probe, replace(EXACT, device="virtual:a100-40gb", simulated=True))
    with pytest.raises(ValueError):
        store.finish_probe(probe, replace(EXACT, device="virtual:h100-80gb", simulated=False))


def test_unknown_probes(store: Store) -> None:
    with pytest.raises(OombisectError, match="There is no probe 7"):
        store.probe(7)
    assert store.probes("20261130-9") == []


# Transactions


def test_calls_in_one_transaction_are_stored_together_or_not_at_all(store: Store, session: str, database: Path) -> None:
    probe = store.begin_probe(probe_spec(session, "x"))
    with open_store(database, clock=Clock()) as other:
        with pytest.raises(ZeroDivisionError), store.transaction():
            store.finish_probe(probe, EXACT)
            store.append_event(session, "observed", {"probe": probe})
            assert store.find_measurement("x") is not None
            assert other.find_measurement("x") is None
            raise ZeroDivisionError
        assert store.find_measurement("x") is None and store.events(session) == []

        with store.transaction():
            store.finish_probe(probe, EXACT)
            store.append_event(session, "observed", {"probe": probe})
        assert other.find_measurement("x") is not None and len(other.events(session)) == 1


def test_an_error_of_the_caller_stays_as_it_is(store: Store) -> None:
    with pytest.raises(FileNotFoundError), store.transaction():
        Path("/nowhere").read_text()


def write_a_session(database: Path) -> None:
    with open_store(database, clock=Clock()) as store:
        session = store.create_session(SESSION).id
        for n in range(25):
            probe = store.begin_probe(probe_spec(session, f"{session} {n}", point=str(n)))
            with store.transaction():
                store.finish_probe(probe, EXACT)
                store.append_event(session, "observed", {"probe": probe})
        store.finish_session(session, 0, {})


def test_several_processes_write_at_once(database: Path) -> None:
    # The database does not exist yet: they also race to create it.
    assert exit_codes([child(write_a_session, database) for _ in range(3)]) == [0, 0, 0]
    with open_store(database, clock=Clock()) as store:
        assert sorted(ids(store)) == ["20261130-1", "20261130-2", "20261130-3"]
        for session in ids(store):
            assert len(store.probes(session)) == len(store.events(session)) == 25
            assert all(probe.reading and probe.reading.peak_allocated == 5 for probe in store.probes(session))
            assert store.session(session).state is SessionState.FINISHED


def test_several_threads_share_a_store(store: Store, session: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(n: int) -> int:
        probe = store.begin_probe(probe_spec(session, str(n)))
        with store.transaction():
            store.finish_probe(probe, EXACT)
            return store.append_event(session, "observed", {"probe": probe}).seq

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(work, range(40))) == list(range(40))
    assert sorted(event.payload["probe"] for event in store.events(session)) == list(range(1, 41))


# Looking only


def test_a_store_opened_for_looking_cannot_write(store: Store, session: str, database: Path) -> None:
    store.append_event(session, "plan", {})
    with open_store(database, clock=Clock(), readonly=True) as looking:
        assert looking.session("last").state is SessionState.RUNNING
        assert len(looking.events(session)) == 1
        with pytest.raises(OombisectError, match="is read-only"):
            looking.create_session(SESSION)
        with looking._connection.reading() as db, pytest.raises(sqlite3.OperationalError, match="readonly"):
            db.execute("CREATE TABLE t (a)")


def test_looking_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(OombisectError, match="There is no database"):
        open_store(tmp_path / "folder" / "oombisect.db", clock=Clock(), readonly=True)
    assert not list(tmp_path.iterdir())
