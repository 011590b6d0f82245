"""The floor under every allocator: what was asked for and not freed, at its peak."""

from __future__ import annotations

import pytest

from oombisect.memory.allocator import Settings, rules_for
from oombisect.memory.replay import needed, replay
from oombisect.memory.requests import InitialBlock, InitialSegment, Requests
from oombisect.memory.snapshots import requests_of
from oombisect.memory.snapshots.formats import snapshot_of
from tests.memory.snapshots.make_snapshots import Recording

MIB, DEVICE = 1 << 20, 80 << 30
RULES = rules_for("2.14.1")


def requests(run: Recording) -> Requests:
    snapshot = snapshot_of(run.snapshot(), 1 << 20, 1 << 20, 1 << 20)
    return requests_of(snapshot.devices[0], snapshot)


def test_rests_of_blocks_that_only_expandable_segments_cut_are_above_the_floor() -> None:
    run = Recording(rules=RULES, total=DEVICE)
    for _ in range(1000):
        run.alloc(11 * MIB + 1)
    asked = requests(run)
    assert asked.peak_requested() == 1000 * (11 * MIB + 1)
    default, expandable = (Settings.parse(conf, RULES) for conf in ("", "expandable_segments:True"))
    assert replay(asked, default, RULES, device_bytes=DEVICE).peak_allocated == 12_000 * MIB
    assert needed(asked, default, RULES, device_bytes=DEVICE) == 12_000 * MIB
    least = needed(asked, expandable, RULES, device_bytes=DEVICE)
    assert asked.peak_requested() <= least <= 11_020 * MIB  # a multiple of 20 MiB


@pytest.mark.parametrize("pending", [True, False])
def test_what_a_stream_still_uses_after_it_was_freed_is_not_counted(pending: bool) -> None:
    run = Recording(rules=RULES)
    first = run.alloc(30 * MIB)
    assert first is not None
    run.free(first, pending=pending)
    run.alloc(20 * MIB)
    assert requests(run).peak_requested() == 30 * MIB


def test_a_request_that_failed_counts() -> None:
    run = Recording(capacity=100 * MIB, rules=RULES)
    run.alloc(60 * MIB)
    assert run.alloc(70 * MIB) is None
    assert requests(run).peak_requested() == 130 * MIB


def test_what_was_there_before_the_trace_counts() -> None:
    blocks = (InitialBlock(0, 4 * MIB, 0), InitialBlock(4 * MIB, 4 * MIB, 1, pending=True), InitialBlock(8 * MIB, MIB))
    found = Requests(initial=(InitialSegment(0, 9 * MIB, 0, False, blocks),))
    found.sizes.extend((3 * MIB, 4 * MIB))
    assert found.peak_requested() == 3 * MIB
