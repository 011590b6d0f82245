"""kill -9 at random instants: no finished probe is lost, no half of one is there, the session goes on."""

from __future__ import annotations

import random
import sqlite3
import time
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import pytest
from history_support import SESSION, Clock, child, probe_spec

from oombisect.history.records import SessionState
from oombisect.history.store import open_store
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading, Reading

ROUNDS = 25


def reading_of(probe: int) -> Reading:
    """Another reading for each probe, with rows in every table."""
    dice = random.Random(probe)

    def rank(number: int) -> RankReading:
        phases = {f"step_{n}": PhaseMetrics(*(dice.randrange(2**40) for _ in range(11)), None, 0.5) for n in range(6)}
        return RankReading(number, phases, dice.randrange(2**30), Oom("step_1", "out of memory"), f"snapshot-{number}")

    ranks = tuple(rank(number) for number in range(4))
    return Reading(Outcome.CENSORED, f"probe {probe}", ranks=ranks, config_hash=f"hash {probe}", notes=("x" * 5000,))


def drive(database: Path, session: str | None, told: Connection) -> None:
    """Probes without end, telling of each that was stored once the store has said so."""
    with open_store(database, clock=Clock()) as store:
        session = store.resume_session(session).id if session else store.create_session(SESSION).id
        told.send(session)
        while True:
            probe = store.begin_probe(probe_spec(session, "s"))
            with store.transaction():
                store.finish_probe(probe, reading_of(probe), {"probe": probe})
                store.append_event(session, "observed", {"probe": probe})
            told.send(probe)


def test_kill_9_at_any_instant(database: Path) -> None:
    dice = random.Random(20261130)
    session: str | None = None
    stored: list[int] = []
    for _ in range(ROUNDS):
        ours, theirs = Pipe(duplex=False)
        driver = child(drive, database, session, theirs)
        theirs.close()
        said = ours.recv()
        assert said == (session or said)
        session = said
        stored += [ours.recv() for _ in range(dice.randrange(4))]
        time.sleep(dice.uniform(0, 0.02))
        driver.kill()
        driver.join()
        while True:
            try:
                stored.append(ours.recv())
            except EOFError:
                break
        check(database, session, stored)
    unfinished = check(database, session, stored)
    # The instants were such that something was there to lose, and something was cut short.
    assert stored and unfinished


def check(database: Path, session: str, stored: list[int]) -> int:
    """What must hold after a kill. Returns the number of probes that it cut short."""
    with open_store(database, clock=Clock()) as store:
        assert store.session("last").id == session
        assert store.session(session).state is SessionState.INTERRUPTED
        probes = {probe.id: probe for probe in store.probes(session)}
        finished = [number for number, probe in probes.items() if probe.finished]
        assert set(stored) <= set(finished)
        assert len(finished) <= len(stored) + ROUNDS  # at most one a round was stored but not told of
        for number in finished:
            expected = reading_of(number)
            reading = probes[number].reading
            assert reading and (reading.ranks, reading.reason) == (expected.ranks, expected.reason)
            assert store.config(reading.config_hash) == {"probe": number}
        assert [event.payload["probe"] for event in store.events(session)] == finished
        newest = store.find_measurement("s")
        assert (newest.id if newest else 0) == max(finished, default=0)
    plain = sqlite3.connect(database)
    assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert plain.execute("PRAGMA foreign_key_check").fetchall() == []
    for table in ("rank_readings", "phase_metrics", "ooms", "snapshots"):
        halves = f"SELECT count(*) FROM {table} JOIN probes ON probes.id = probe WHERE finished IS NULL"
        assert plain.execute(halves).fetchone() == (0,)
    plain.close()
    return len(probes) - len(finished)


def create(database: Path, told: Connection) -> None:
    told.send("ready")
    with open_store(database, clock=Clock()) as store:
        told.send(store.create_session(SESSION).id)
        time.sleep(60)


@pytest.mark.parametrize("milliseconds", [0, 1, 2, 4, 8, 16, 32])
def test_kill_9_while_the_database_is_being_created(database: Path, milliseconds: int) -> None:
    ours, theirs = Pipe(duplex=False)
    driver = child(create, database, theirs)
    theirs.close()
    assert ours.recv() == "ready"
    time.sleep(milliseconds / 1000)
    driver.kill()
    driver.join()
    try:
        said = ours.recv()
    except EOFError:
        said = None
    with open_store(database, clock=Clock()) as store:
        assert said is None or store.session("last").id == said
        probe = store.begin_probe(probe_spec(store.create_session(SESSION).id))
        assert store.finish_probe(probe, Reading(Outcome.EXACT)).reading
