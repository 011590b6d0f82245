"""What-ifs: the row of a setting does not contradict itself."""

from __future__ import annotations

import pytest

from oombisect.memory.allocator import Settings, rules_for
from oombisect.memory.replay import needed, replay
from oombisect.memory.whatif import NOT_MONOTONIC, under

from .test_replay import DEVICE, record

RULES = rules_for("2.14.1")
COLLECTS = "garbage_collection_threshold:0.6"


@pytest.mark.parametrize("seed", range(4))
def test_what_garbage_collection_needs_is_what_it_fits(seed: int) -> None:
    requests = record(Settings(), seed, 150).requests
    settings = Settings.parse(COLLECTS, RULES)
    least = under(requests, settings, Settings(), RULES, device_bytes=DEVICE).needed
    assert least is not None
    assert replay(requests, settings, RULES, device_bytes=DEVICE, limit=least, fraction=least / DEVICE).survived
    for limit in (least - (2 << 20), least, least + (2 << 20), least + (40 << 20)):
        row = under(requests, settings, Settings(), RULES, device_bytes=DEVICE, limit=limit)
        assert row.needed is not None and row.unlimited is not None
        assert row.fits is (row.needed <= limit) or NOT_MONOTONIC in row.unlimited.notes


def test_garbage_collection_changes_what_is_needed() -> None:
    found = []
    for seed in range(12):
        requests = record(Settings(), seed, 150).requests
        settings = Settings.parse(COLLECTS, RULES)
        both = [
            needed(requests, settings, RULES, device_bytes=DEVICE, limit_is_fraction=collects)
            for collects in (False, True)
        ]
        found.append(both[0] != both[1])
    assert any(found)
