"""Replays: under other settings and limits, of traces that begin in the middle, and against what was recorded."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import pytest

from oombisect.memory.allocator import CachingAllocator, Settings, VirtualDevice
from oombisect.memory.allocator.blocks import FREE, Block
from oombisect.memory.allocator.rules import TORCH_2_9, TORCH_2_14
from oombisect.memory.replay import BEFORE, ReplayError, check, needed, replay
from oombisect.memory.requests import Op, Requests
from oombisect.memory.trace import DEFAULT_POOL, EventKind, PoolId

MIB, GIB = 1 << 20, 1 << 30
DEVICE = 4 * GIB
DEFAULT = Settings()
EXPANDABLE = Settings(expandable_segments=True)
SETTINGS = pytest.mark.parametrize(
    "settings",
    [DEFAULT, EXPANDABLE, Settings(max_split_size=64 * MIB), Settings(roundup=(4,) * 16)],
    ids=["default", "expandable", "max_split", "roundup"],
)


class Recorder(VirtualDevice):
    """A device that keeps the segment events, as PyTorch's trace does."""

    def __init__(self, requests: Requests, total: int, capacity: int | None = None) -> None:
        super().__init__(total, capacity)
        self.requests = requests

    def _put(self, kind: EventKind, address: int, size: int) -> None:
        self.requests.segment_kinds.append(kind)
        self.requests.segment_addresses.append(address)
        self.requests.segment_sizes.append(size)
        self.requests.segment_streams.append(0)

    def malloc(self, size: int) -> int | None:
        address = super().malloc(size)
        if address is not None:
            self._put(EventKind.SEGMENT_ALLOC, address, size)
        return address

    def free(self, address: int, size: int) -> None:
        super().free(address, size)
        self._put(EventKind.SEGMENT_FREE, address, size)

    def map(self, address: int, size: int) -> bool:
        mapped = super().map(address, size)
        if mapped:
            self._put(EventKind.SEGMENT_MAP, address, size)
        return mapped

    def unmap(self, address: int, size: int) -> None:
        super().unmap(address, size)
        self._put(EventKind.SEGMENT_UNMAP, address, size)


class Recording:
    """A program that asks an allocator, and its trace."""

    def __init__(self, settings: Settings = DEFAULT, capacity: int | None = None) -> None:
        self.requests = Requests(stream_ids=(0, 4256))
        self.device = Recorder(self.requests, DEVICE, capacity)
        self.allocator = CachingAllocator(settings, TORCH_2_14, device=self.device)
        self.live: dict[int, Block] = {}

    def _put(self, op: Op, number: int) -> None:
        self.requests.ops.append(op)
        self.requests.blocks.append(number)
        self.requests.events.append(self.requests.trace_events)
        self.requests.trace_events += 1

    def alloc(self, size: int, stream: int = 0, *, keep_failed: bool = False) -> int | None:
        block = self.allocator.alloc(size, stream)
        if block is None and not keep_failed:
            return None
        number = len(self.requests.sizes)
        self.requests.sizes.append(size)
        self.requests.streams.append(stream)
        self.requests.pools.append(0)
        self.requests.stacks.append(-1)
        self.requests.addresses.append(0 if block is None else block.address)
        self._put(Op.ALLOC, number)
        if block is None:
            return None
        self.live[number] = block
        return number

    def free(self, number: int, op: Op = Op.RELEASE) -> None:
        block = self.live[number]
        if op is Op.COMPLETE:
            self.allocator.complete(block)
        else:
            self.allocator.free(block, pending=op is Op.FREE)
        if op is not Op.FREE:
            del self.live[number]
        self._put(op, number)

    def empty_cache(self) -> None:
        self.allocator.empty_cache()
        self._put(Op.EMPTY_CACHE, -1)

    def stats(self) -> dict[str, int]:
        return self.allocator.statistics.memory_stats()


def record(
    settings: Settings, seed: int, count: int = 400, capacity: int | None = None, *, keep_failed: bool = False
) -> Recording:
    """A random program; it goes on where memory is short."""
    chance = random.Random(seed)
    run = Recording(settings, capacity)
    freed: list[int] = []
    for _ in range(count):
        choice = chance.random()
        idle = [number for number in run.live if number not in freed]
        if choice < 0.03:
            run.empty_cache()
        elif choice < 0.1 and freed:
            run.free(freed.pop(0), Op.COMPLETE)
        elif choice < 0.5 and idle:
            number = chance.choice(idle)
            if chance.random() < 0.15:
                freed.append(number)
                run.free(number, Op.FREE)
            else:
                run.free(number)
        else:
            size = chance.choice((chance.randrange(1, MIB), chance.randrange(1, 90 * MIB)))
            run.alloc(size, chance.randrange(2), keep_failed=keep_failed)
    return run


def program(*sizes: int) -> Requests:
    """Blocks of these MiB, allocated one after the other; a negative size frees the first block that was so large."""
    run = Recording()
    for size in sizes:
        if size > 0:
            run.alloc(size * MIB)
        else:
            run.free(next(number for number in run.live if run.requests.sizes[number] == -size * MIB))
    return run.requests


@SETTINGS
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_ends_with_the_counters_of_the_run(settings: Settings, seed: int) -> None:
    run = record(settings, seed)
    result = replay(run.requests, settings, TORCH_2_14, device_bytes=DEVICE)
    assert result.statistics == run.stats()
    assert result.peak_reserved == run.stats()["reserved_bytes.all.peak"]
    assert result.peak_active == run.stats()["active_bytes.all.peak"] >= result.peak_allocated
    assert result.final_reserved == run.stats()["reserved_bytes.all.current"]
    assert result.survived
    assert result.notes == ()


@SETTINGS
@pytest.mark.parametrize("seed", range(3))
def test_a_recording_is_reproduced(settings: Settings, seed: int) -> None:
    run = record(settings, seed)
    fidelity = check(run.requests, settings, TORCH_2_14, device_bytes=DEVICE)
    assert (fidelity.exact, fidelity.mismatch, fidelity.event) == (True, "", -1)
    assert fidelity.allocations == len(run.requests.sizes)
    assert fidelity.segment_events == len(run.requests.segment_kinds)
    assert fidelity.replay.statistics == run.stats()


@SETTINGS
@pytest.mark.parametrize("seed", [2, 8])
def test_a_recording_with_a_full_device_is_reproduced(settings: Settings, seed: int) -> None:
    run = record(settings, seed, 150, capacity=900 * MIB)
    assert run.stats()["num_alloc_retries"] > 0
    assert run.stats()["num_ooms"] == 0  # a request that failed would be in no trace
    fidelity = check(run.requests, settings, TORCH_2_14, device_bytes=DEVICE)
    assert fidelity.exact, fidelity.mismatch
    assert fidelity.replay.retries == run.stats()["num_alloc_retries"]


@SETTINGS
@pytest.mark.parametrize("seed", range(3))
def test_requests_that_failed_when_recorded_fail_again(settings: Settings, seed: int) -> None:
    run = record(settings, seed, 200, capacity=500 * MIB, keep_failed=True)
    assert run.stats()["num_ooms"] > 0
    fidelity = check(run.requests, settings, TORCH_2_14, device_bytes=DEVICE)
    assert fidelity.exact, fidelity.mismatch
    assert fidelity.replay.statistics == run.stats()


def test_a_request_that_failed_when_recorded_is_served_where_there_is_room() -> None:
    run = Recording(capacity=100 * MIB)
    run.alloc(60 * MIB)
    run.alloc(60 * MIB, keep_failed=True)
    assert replay(run.requests, DEFAULT, TORCH_2_14, device_bytes=DEVICE).final_allocated == 120 * MIB
    assert needed(run.requests, DEFAULT, TORCH_2_14, device_bytes=DEVICE) == 120 * MIB


def test_other_settings_than_the_recorded_ones_are_noticed() -> None:
    run = record(DEFAULT, 1)
    for settings in (EXPANDABLE, Settings(roundup=(2,) * 16), Settings(max_split_size=32 * MIB)):
        fidelity = check(run.requests, settings, TORCH_2_14, device_bytes=DEVICE)
        assert not fidelity.exact
        assert fidelity.mismatch


def test_other_rules_than_the_recorded_ones_are_noticed() -> None:
    run = Recording()
    first, second = run.alloc(64 * MIB), run.alloc(64 * MIB)
    assert first is not None and second is not None
    run.free(first)
    run.free(second)
    run.alloc(64 * MIB)
    fidelity = check(run.requests, DEFAULT, TORCH_2_9, device_bytes=DEVICE)
    assert (fidelity.exact, fidelity.event, fidelity.allocations) == (False, 4, 2)
    assert "were at" in fidelity.mismatch


@pytest.mark.parametrize("column", ["addresses", "segment_addresses", "segment_sizes"])
def test_any_number_that_differs_is_noticed(column: str) -> None:
    run = record(DEFAULT, 2)
    values = getattr(run.requests, column)
    values[len(values) // 2] += 512
    assert not check(run.requests, DEFAULT, TORCH_2_14, device_bytes=DEVICE).exact


@pytest.mark.parametrize("missing", ["first", "last"])
def test_a_segment_event_that_lacks_is_noticed(missing: str) -> None:
    run = record(DEFAULT, 2)
    at = 0 if missing == "first" else -1
    for column in (run.requests.segment_kinds, run.requests.segment_addresses, run.requests.segment_sizes):
        column.pop(at)
    assert not check(run.requests, DEFAULT, TORCH_2_14, device_bytes=DEVICE).exact


def test_a_segment_event_too_many_is_noticed() -> None:
    run = record(DEFAULT, 2)
    run.device.malloc(2 * MIB)
    fidelity = check(run.requests, DEFAULT, TORCH_2_14, device_bytes=DEVICE)
    assert "nothing more is done" in fidelity.mismatch


def test_the_first_oom() -> None:
    requests = program(40, 40, -40, 90)
    result = replay(requests, DEFAULT, TORCH_2_14, device_bytes=DEVICE, limit=100 * MIB)
    oom = result.first_oom
    assert oom is not None and not result.survived
    assert (oom.op, oom.event, oom.block) == (3, 3, 2)
    assert (oom.requested, oom.size, oom.segment) == (90 * MIB, 90 * MIB, 90 * MIB)
    assert (oom.allocated, oom.active, oom.reserved) == (40 * MIB, 40 * MIB, 40 * MIB)
    assert (oom.stream, oom.pool, oom.small) == (0, 0, False)
    (segment,) = oom.segments
    assert [(block.size, block.block) for block in segment.blocks] == [(40 * MIB, 1)]
    assert (result.ooms, result.retries) == (1, 1)


def test_a_replay_that_goes_on_leaves_the_block_out() -> None:
    requests = program(40, 90, -90, 30, -40)
    stopped = replay(requests, DEFAULT, TORCH_2_14, device_bytes=DEVICE, limit=100 * MIB)
    gone_on = replay(requests, DEFAULT, TORCH_2_14, device_bytes=DEVICE, limit=100 * MIB, stop_at_oom=False)
    assert stopped.final_allocated == 40 * MIB
    assert gone_on.final_allocated == 30 * MIB
    assert gone_on.first_oom == stopped.first_oom
    assert gone_on.ooms == 1


def test_streams_and_pools_are_named_as_the_requests_name_them() -> None:
    requests = program(40, 40, 90)
    requests = replace(
        requests,
        streams=array("i", [0, 1, 0]),
        pools=array("i", [0, 1, 1]),
        stream_ids=(4256, 0),
        pool_ids=(PoolId(0, 7), DEFAULT_POOL),
    )
    result = replay(requests, DEFAULT, TORCH_2_14, device_bytes=DEVICE, limit=100 * MIB)
    assert result.first_oom is not None
    segments = {segment.blocks[0].block: segment for segment in result.first_oom.segments}
    assert [(segments[number].stream, segments[number].pool) for number in (0, 1)] == [(0, 0), (1, 1)]
    assert (result.first_oom.stream, result.first_oom.pool) == (0, 1)
    assert any("private pools" in note for note in result.notes)


@SETTINGS
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("resolution", [2 * MIB, 64 * MIB])
def test_the_needed_limit_survives_and_one_just_below_was_seen_to_fail(
    settings: Settings, seed: int, resolution: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = record(settings, seed, 200).requests
    tried: dict[int | None, bool] = {}

    def watched(*args: object, **options: object) -> object:
        result = replay(*args, **options)  # type: ignore[arg-type]
        tried[options["limit"]] = result.survived  # type: ignore[index]
        return result

    monkeypatch.setattr("oombisect.memory.replay.replay", watched)
    limit = needed(requests, settings, TORCH_2_14, device_bytes=DEVICE, resolution=resolution)
    unlimited = replay(requests, settings, TORCH_2_14, device_bytes=DEVICE)
    assert requests.peak_requested() <= limit <= unlimited.peak_reserved  # what is allocated may be less then
    assert tried.get(limit, limit == unlimited.peak_reserved)
    assert replay(requests, settings, TORCH_2_14, device_bytes=DEVICE, limit=limit).survived
    failed = [below for below, survived in tried.items() if below is not None and below < limit and not survived]
    assert max(failed, default=requests.peak_requested() - 1) >= limit - resolution
    assert len(tried) < 20


def test_the_needed_limit_of_a_program_that_wastes() -> None:
    # Five blocks fill a segment of 20 MiB; three are freed, and those 12 MiB in pieces are no room for 11 in one.
    run = Recording()
    numbers = [run.alloc(4 * MIB) for _ in range(5)]
    for number in numbers[::2]:
        assert number is not None
        run.free(number)
    run.alloc(11 * MIB)
    assert replay(run.requests, DEFAULT, TORCH_2_14, device_bytes=DEVICE).peak_allocated == 20 * MIB
    assert needed(run.requests, DEFAULT, TORCH_2_14, device_bytes=DEVICE) == 32 * MIB


def test_nothing_needs_nothing() -> None:
    assert needed(Requests(), DEFAULT, TORCH_2_14, device_bytes=DEVICE) == 0


def test_a_fraction_that_forbids_it_is_told() -> None:
    with pytest.raises(ReplayError):
        needed(program(90), DEFAULT, TORCH_2_14, device_bytes=100 * MIB, fraction=0.5)


# ---- traces that begin in the middle ----


def cut(run: Recording, at: int, settings: Settings) -> Requests:
    """The trace of a run from operation `at` on, with what was there before as its initial state."""
    whole = run.requests
    before = Recording(settings)
    numbers: dict[int, int] = {}
    for op, number in zip(whole.ops[:at], whole.blocks[:at]):
        if op == Op.ALLOC:
            made = before.alloc(whole.sizes[number], whole.streams[number])
            assert made == number
        elif op == Op.EMPTY_CACHE:
            before.empty_cache()
        else:
            before.free(number, Op(op))
    events = len(before.requests.segment_kinds)
    for number, block in sorted(before.live.items()):
        if block.state == FREE:  # it was pending, and releasing memory waited for it
            del before.live[number]
        else:
            numbers[number] = len(numbers)
    initial = before.allocator.segments({block: numbers[number] for number, block in before.live.items()})
    rest = Requests(stream_ids=whole.stream_ids, initial=initial)
    for number in sorted(before.live):
        _copy_block(whole, number, rest)
    for index in range(at, len(whole.ops)):
        op, number = whole.ops[index], whole.blocks[index]
        if op == Op.ALLOC:
            numbers[number] = len(rest.sizes)
            _copy_block(whole, number, rest)
        elif op != Op.EMPTY_CACHE and number not in numbers:
            continue
        rest.ops.append(op)
        rest.blocks.append(numbers[number] if number >= 0 else -1)
        rest.events.append(whole.events[index])
    rest.segment_kinds = whole.segment_kinds[events:]
    rest.segment_addresses = whole.segment_addresses[events:]
    rest.segment_sizes = whole.segment_sizes[events:]
    return rest


def _copy_block(source: Requests, number: int, target: Requests) -> None:
    target.sizes.append(source.sizes[number])
    target.streams.append(source.streams[number])
    target.pools.append(source.pools[number])
    target.stacks.append(-1)
    target.addresses.append(source.addresses[number])


@pytest.mark.parametrize("settings", [DEFAULT, EXPANDABLE], ids=["default", "expandable"])
@pytest.mark.parametrize("seed", range(3))
def test_a_trace_that_begins_in_the_middle_ends_in_the_same_state(settings: Settings, seed: int) -> None:
    run = record(settings, seed)
    rest = cut(run, 200, settings)
    assert rest.initial
    result = replay(rest, settings, TORCH_2_9, device_bytes=DEVICE)  # the order of segments' making is not known
    whole = replay(run.requests, settings, TORCH_2_9, device_bytes=DEVICE)
    assert result.final_allocated == whole.final_allocated
    assert result.final_active == whole.final_active
    aged = replay(rest, settings, TORCH_2_14, device_bytes=DEVICE)
    assert any("not known" in note for note in aged.notes) and aged.final_allocated == whole.final_allocated


def test_a_recording_that_begins_in_the_middle_is_reproduced() -> None:
    # each size once, so that no two free blocks tie and the age of segments does not matter
    run = Recording()
    numbers = [run.alloc((30 + 7 * index) * MIB) for index in range(10)]
    for number in numbers[::2]:
        assert number is not None
        run.free(number)
    middle = len(run.requests.ops)
    for index in range(6):
        run.alloc((25 + 11 * index) * MIB)
    run.empty_cache()
    fidelity = check(cut(run, middle, DEFAULT), DEFAULT, TORCH_2_14, device_bytes=DEVICE)
    assert fidelity.exact, fidelity.mismatch
    assert fidelity.allocations == 6


def test_other_settings_place_the_initial_blocks_anew_and_say_so() -> None:
    run = record(DEFAULT, 5)
    rest = cut(run, 200, DEFAULT)
    result = replay(rest, EXPANDABLE, TORCH_2_14, device_bytes=DEVICE, as_recorded=False)
    assert result.statistics["segment.all.peak"] == 0
    assert result.final_allocated == replay(rest, DEFAULT, TORCH_2_14, device_bytes=DEVICE).final_allocated
    assert any("anew" in note for note in result.notes)


@pytest.mark.parametrize("as_recorded", [True, False])
def test_an_initial_state_that_does_not_fit(as_recorded: bool) -> None:
    rest = cut(record(DEFAULT, 5), 200, DEFAULT)
    result = replay(rest, DEFAULT, TORCH_2_14, device_bytes=DEVICE, limit=20 * MIB, as_recorded=as_recorded)
    assert result.first_oom is not None
    assert (result.first_oom.op, result.first_oom.event) == (BEFORE, BEFORE)


def test_cached_memory_of_the_initial_state_may_be_released_to_fit() -> None:
    run = Recording()
    first, second = run.alloc(100 * MIB), run.alloc(50 * MIB)
    assert first is not None and second is not None
    run.free(first)
    run.alloc(2 * MIB)
    rest = cut(run, 3, DEFAULT)
    assert replay(rest, DEFAULT, TORCH_2_14, device_bytes=DEVICE, limit=80 * MIB).survived
