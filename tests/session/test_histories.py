"""Recorded histories: whether one came to its end, and when stored answers about them are no longer taken."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest

from oombisect.memory.allocator import Settings, rules_for
from oombisect.memory.replay import needed, replay
from oombisect.memory.snapshots import load, requests_of
from oombisect.session.replaying import MODEL, open_history
from tests.memory.snapshots.make_snapshots import Recording, random_recording

from .recording import DEVICE_BYTES, TORCH
from .toy import MIB

ANSWERS = {2: "d23a00f94abc901a"}
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
