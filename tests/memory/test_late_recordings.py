"""Recordings of torch 2.14.1, on the virtual GPU, that begin in the middle: what is learned makes them replay exactly.

Each was begun late, or lost its first events to a ring buffer (`max_entries`); the programs are those of
`oracle/program.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from oombisect.memory.allocator import Rules, Settings, rules_for
from oombisect.memory.allocator.guided import Ages
from oombisect.memory.replay import check, learn, needed, replay
from oombisect.memory.requests import Op, Requests
from oombisect.memory.snapshots import load, requests_of
from oombisect.memory.trace import PoolId

FOLDER = Path(__file__).parent / "snapshots" / "late"
DEVICES = {
    "default": 85_520_809_984,
    "graph": 3_000_000_000,
    "unsplit-pool": 1_048_576_000,
    "pools": 80_000_000_000,
    "expandable": 24_000_000_000,
    "expandable-ring": 3_012_345_678,
}
MIB = 1 << 20


def opened(name: str) -> tuple[Requests, Settings, Rules]:
    snapshot = load(FOLDER / f"{name}.pickle.gz")
    rules = rules_for("2.14.1")
    memory = next(memory for memory in snapshot.devices if len(memory.trace))
    return requests_of(memory, snapshot), Settings.of_snapshot(snapshot.settings, rules), rules


@pytest.mark.parametrize("name", DEVICES)
def test_what_the_trace_shows_is_learned(name: str) -> None:
    requests, settings, rules = opened(name)
    assert requests.initial
    before = check(requests, settings, rules, device_bytes=DEVICES[name])
    assert not before.exact  # by what the snapshot says alone
    found = learn(requests, settings, rules, device_bytes=DEVICES[name])
    after = check(found, settings, rules, device_bytes=DEVICES[name])
    assert after.mismatch == "" and after.allocations > before.allocations
    assert after.allocations == sum(op == Op.ALLOC for op in requests.ops)


def test_each_kind_of_thing_is_learned_from_the_recording_that_has_it() -> None:
    requests, settings, rules = opened("unsplit-pool")
    found = learn(requests, settings, rules, device_bytes=DEVICES["unsplit-pool"])
    assert {requests.pool_ids[pool] for pool in found.whole_pools} == {PoolId(0, 2), PoolId(0, 3)}
    requests, settings, rules = opened("expandable")
    (base,) = learn(requests, settings, rules, device_bytes=DEVICES["expandable"]).ranges
    assert all(base.address != segment.address for segment in requests.initial)
    requests, settings, rules = opened("default")
    oldest = learn(requests, settings, rules, device_bytes=DEVICES["default"]).oldest_first
    assert sorted(oldest) == sorted(segment.address for segment in requests.initial)
    requests, *_ = opened("pools")
    assert requests.open_pools  # a request in one released memory: it is no graph's
    assert Op.CLOSE_POOL in requests.ops


def test_what_is_learned_holds_under_a_limit_too() -> None:
    requests, settings, rules = opened("default")
    found = learn(requests, settings, rules, device_bytes=DEVICES["default"])
    least = needed(found, settings, rules, device_bytes=DEVICES["default"])
    assert replay(found, settings, rules, device_bytes=DEVICES["default"], limit=least).survived


def test_ages_keep_the_order_that_nothing_speaks_against() -> None:
    ages = Ages(5)
    assert ages.oldest_first() == [1, 2, 3, 4, 5]
    ages.learn(4, 2)
    ages.learn(2, 1)
    assert ages.oldest_first() == [3, 4, 2, 1, 5]
    ages.learn(1, 4)  # a circle
    assert sorted(ages.oldest_first()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["streams", "pools"])
def test_tens_of_thousands_of_streams_and_pools_take_seconds(kind: str) -> None:
    count = 30_000
    requests = Requests()
    for number in range(count):
        requests.sizes.append(512 + number * MIB // 64)
        requests.streams.append(number if kind == "streams" else 0)
        requests.pools.append(number if kind == "pools" else 0)
        requests.stacks.append(-1)
        requests.addresses.append(0)
        for op in (Op.ALLOC, Op.RELEASE):
            requests.ops.append(op)
            requests.blocks.append(number)
            requests.events.append(2 * number)
    if kind == "streams":
        requests.stream_ids = tuple(range(count, 0, -1))
    else:
        requests.pool_ids = tuple(PoolId(0, number) for number in range(count))
    rules = rules_for("2.14.1")
    start = time.process_time()
    assert replay(requests, Settings(), rules, device_bytes=80 << 30).survived
    assert time.process_time() - start < 20
