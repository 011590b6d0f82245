"""Recorded histories: whether one came to its end, and when stored answers about them are no longer taken."""

from __future__ import annotations

import gzip
import hashlib
import pickle
from dataclasses import replace as changed
from datetime import UTC, datetime
from pathlib import Path

import pytest

from oombisect.history.store import open_store
from oombisect.memory.allocator import Settings, rules_for
from oombisect.memory.replay import needed, replay
from oombisect.memory.snapshots import load, requests_of
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading, Reading
from oombisect.session.replaying import MODEL, Replays, open_history
from tests.memory.snapshots.make_snapshots import Recording, random_recording

from .memories import probe_spec, session_spec
from .recording import DEVICE_BYTES, TORCH
from .toy import MIB

ANSWERS = {2: "311db62c31c1f244"}
"""What replays answer, by `MODEL`."""


@pytest.mark.parametrize(
    ("events", "complete"),
    [([], True), (["fits"], True), (["fits", "fails"], False), (["fails", "fits"], True), (["fails", "fails"], False)],
)
def test_a_history_that_ends_with_a_request_in_vain_is_not_complete(
    tmp_path: Path, events: list[str], complete: bool
) -> None:
    run = Recording(Settings(), 100 * MIB, rules=rules_for(TORCH))
    run.free(run.alloc(MIB) or 0)
    for event in events:
        assert (run.alloc(1 * MIB if event == "fits" else 200 * MIB) is not None) == (event == "fits")
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(run.snapshot()))
    assert open_history(path, device_bytes=DEVICE_BYTES, torch_version=TORCH).complete is complete


def died(path: Path | None) -> tuple[RankReading, int]:
    """A rank that died holding 60 MiB and asking for 70; a snapshot of its history, unless there is none."""
    run = Recording(Settings(), 100 * MIB, rules=rules_for(TORCH))
    run.alloc(60 * MIB)
    assert run.alloc(70 * MIB) is None
    if path is not None:
        path.write_bytes(gzip.compress(pickle.dumps(run.snapshot())))
    phase = PhaseMetrics(allocated_peak=60 * MIB, reserved_peak=60 * MIB, requested_peak=60 * MIB, allocations=1)
    oom = Oom("step_1", "CUDA out of memory", requested=70 * MIB, allocated=60 * MIB)
    return RankReading(0, {"step_1": phase}, 8 * MIB, oom, path.name if path else None, "t"), 130 * MIB


@pytest.mark.parametrize("recorded", [True, False])
def test_of_a_rank_that_died_the_history_has_what_it_asked_for_in_vain(tmp_path: Path, recorded: bool) -> None:
    with open_store(tmp_path / "o.db", clock=lambda: datetime(2026, 11, 30, tzinfo=UTC)) as store:
        session = store.create_session(session_spec(tmp_path, "a" * 40, "b" * 40)).id
        probe = store.begin_probe(probe_spec(session, "b" * 40))
        folder = store.artifacts_dir(session, probe)
        folder.mkdir(parents=True, exist_ok=True)
        rank, asked_for = died(folder / "snapshot-0.pickle.gz" if recorded else None)
        store.finish_probe(probe, Reading(Outcome.CENSORED, ranks=(rank,), versions={"torch": TORCH}))
        replays = Replays(store, DEVICE_BYTES)
        assert replays.peak_requested(probe, rank) == (asked_for if recorded else 60 * MIB)
        fine = changed(rank, oom=None)
        assert replays.peak_requested(probe, fine) == fine.peak_requested == 60 * MIB


def test_replays_that_answer_otherwise_are_another_model(tmp_path: Path) -> None:
    """Stored answers are reused as long as `MODEL` is the same: where this fails, raise it and note the new digest.

    (A model that no release has had yet needs the new digest only.)
    """
    rules, told, path = rules_for(TORCH), hashlib.sha256(), tmp_path / "a.pickle"
    confs = ("", "expandable_segments:True", "max_split_size_mb:32", "garbage_collection_threshold:0.5")
    for seed, conf in enumerate(confs):
        recorded = Settings.parse(conf, rules)
        path.write_bytes(pickle.dumps(random_recording(recorded, seed, 300, None, rules=rules).snapshot()))
        snapshot = load(path)
        requests = requests_of(snapshot.devices[0], snapshot)
        for settings in (recorded, Settings.parse("expandable_segments:True", rules), Settings()):
            least = needed(requests, settings, rules, device_bytes=DEVICE_BYTES)
            for limit in (None, least, least - 2 * MIB, least // 2):
                found = replay(requests, settings, rules, device_bytes=DEVICE_BYTES, limit=limit)
                peaks = (found.peak_allocated, found.peak_requested, found.peak_reserved, found.final_reserved)
                told.update(repr((least, *peaks, found.retries, found.first_oom and found.first_oom.event)).encode())
    assert told.hexdigest()[:16] == ANSWERS.get(MODEL)
