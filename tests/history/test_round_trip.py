"""A reading comes back from the store as it went in, and what the tables say of it is what it says of itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from history_support import DEVICE, SESSION, Clock, probe_spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oombisect.history.records import StoredProbe
from oombisect.history.signature import json_hash
from oombisect.history.store import Store, open_store
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading, Reading

# SQLite's integers are 64-bit: 2**62 bytes is more than any device will have.
SIZES = st.integers(0, 2**62 // 64)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PHASES = st.builds(
    PhaseMetrics,
    **{field.name: SIZES for field in fields(PhaseMetrics)}
    | {"device_used": st.none() | SIZES, "seconds": st.floats(0, 1e9)},
)
OOMS = st.builds(
    Oom,
    **{field.name: st.none() | SIZES for field in fields(Oom)} | {"phase": TEXT, "message": TEXT},
)
RANKS = st.builds(
    RankReading,
    rank=st.integers(0, 100_000),
    phases=st.dictionaries(TEXT, PHASES, max_size=4),
    external=SIZES,
    oom=st.none() | OOMS,
    snapshot=st.none() | st.from_regex(r"[a-z][a-z0-9 .]{0,8}(/[a-z]{1,3})?", fullmatch=True),
)
READINGS = st.builds(
    Reading,
    outcome=st.sampled_from(Outcome),
    reason=TEXT,
    device=st.just(DEVICE),
    simulated=st.just(True),
    ranks=st.lists(RANKS, max_size=3, unique_by=lambda rank: rank.rank).map(tuple),
    fits=st.none() | st.booleans(),
    recipe_function=TEXT,
    config_hash=st.just(""),
    versions=st.dictionaries(TEXT, TEXT, max_size=3),
    world_size=st.none() | st.integers(1, 100_000),
    attention_backend=TEXT,
    imported=st.lists(st.text(), max_size=3).map(tuple),
    notes=st.lists(st.text(), max_size=3).map(tuple),
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(tmp_path_factory.mktemp("history") / "oombisect.db", clock=Clock()) as store:
        store.create_session(SESSION)
        yield store


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reading=READINGS, config=st.dictionaries(st.text(), JSON, max_size=4), settings_=TEXT)
def test_a_reading_comes_back_as_it_went_in(
    shared: Store, reading: Reading, config: dict[str, object], settings_: str
) -> None:
    reading = replace(reading, config_hash=json_hash(config) if config else "")
    probe = shared.begin_probe(probe_spec("20261130-1"))
    stored = shared.finish_probe(probe, reading, config, allocator_settings=settings_)
    assert stored == shared.probe(probe)
    assert stored.reading == shared.reading(probe) == reading.with_fits(None)
    assert [list(rank.phases) for rank in shared.reading(probe).ranks] == [list(r.phases) for r in reading.ranks]
    assert stored.allocator_settings == settings_
    assert not config or shared.config(reading.config_hash) == config

    with shared._connection.reading() as db:
        (row,) = db.query("SELECT * FROM readings WHERE probe = ?", [probe])
        ranks = {row["rank"]: row for row in db.query("SELECT * FROM rank_readings WHERE probe = ?", [probe])}
    says = reading.to_json()
    for name in ("peak_allocated", "peak_reserved", "peak_device", "external"):
        assert row[name] == (says[name] if reading.ranks else None)
    assert row["worst_rank"] == says["worst_rank"]
    for rank in says["ranks"]:
        columns = ranks[rank["rank"]]
        assert columns == {
            "probe": probe,
            "position": columns["position"],
            **{k: rank[k] for k in columns.keys() & rank},
        }


@given(JSON)
@settings(deadline=None, max_examples=30)
def test_plain_json_comes_back_as_it_went_in(shared: Store, value: object) -> None:
    event = shared.append_event("20261130-1", "kind", {"value": value})
    assert event.payload == {"value": value}
    assert shared.events("20261130-1")[-1] == event
    probe = shared.begin_probe(probe_spec("20261130-1", settings={"value": value}, job={"value": value}))
    assert shared.probe(probe).spec == probe_spec("20261130-1", settings={"value": value}, job={"value": value})


def test_text_that_is_not_unicode_is_written_out(store: Store, session: str) -> None:
    oom = Oom("step_1", "at \udcff")
    reading = Reading(Outcome.CENSORED, "file \udcff", ranks=(RankReading(0, oom=oom),), imported=("a\udcff",))
    stored = finish(store, session, reading)
    assert stored.reading is not None
    assert stored.reading.reason == "file \\udcff"
    assert stored.reading.ranks[0].oom == Oom("step_1", "at \\udcff")
    assert stored.reading.imported == ("a\udcff",)


def test_a_reading_without_a_device_is_of_the_device_it_was_begun_on(store: Store, session: str) -> None:
    stored = finish(store, session, Reading(Outcome.INFRA, "the node was lost"))
    assert stored.reading == Reading(Outcome.INFRA, "the node was lost", DEVICE, True)


def test_snapshots_are_found_and_hashed(store: Store, session: str, database: Path) -> None:
    probe = store.begin_probe(probe_spec(session))
    folder = store.artifacts_dir(session, probe)
    (folder / "snapshot-1.pickle.gz").write_bytes(b"blocks")
    ranks = (RankReading(1, snapshot="snapshot-1.pickle.gz"), RankReading(0, snapshot="gone"), RankReading(2))
    stored = store.finish_probe(probe, Reading(Outcome.EXACT, ranks=ranks))
    assert stored.reading is not None and stored.reading.ranks == ranks
    assert store.snapshot(probe, 1) == database.parent / f"oombisect.artifacts/{session}/{probe}/snapshot-1.pickle.gz"
    assert store.snapshot(probe, 0) == folder / "gone"
    assert store.snapshot(probe, 2) is None
    with store._connection.reading() as db:
        rows = list(db.query("SELECT rank, path, size_bytes, sha256 FROM snapshots ORDER BY rank"))
    assert rows == [
        {"rank": 0, "path": f"{session}/{probe}/gone", "size_bytes": None, "sha256": None},
        {
            "rank": 1,
            "path": f"{session}/{probe}/snapshot-1.pickle.gz",
            "size_bytes": 6,
            "sha256": hashlib.sha256(b"blocks").hexdigest(),
        },
    ]


@pytest.mark.parametrize("name", ["/etc/passwd", "../../x"])
def test_a_snapshot_outside_its_folder_is_refused(store: Store, session: str, name: str) -> None:
    probe = store.begin_probe(probe_spec(session))
    with pytest.raises(ValueError):
        store.finish_probe(probe, Reading(Outcome.EXACT, ranks=(RankReading(0, snapshot=name),)))
    assert store.probe(probe).finished is None


def finish(store: Store, session: str, reading: Reading) -> StoredProbe:
    return store.finish_probe(store.begin_probe(probe_spec(session)), reading)
