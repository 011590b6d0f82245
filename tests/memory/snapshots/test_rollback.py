"""Back from the last state to the one a trace begins with, wherever it begins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st

from oombisect.memory.allocator import Settings
from oombisect.memory.allocator.rules import TORCH_2_9
from oombisect.memory.replay import check
from oombisect.memory.requests import Op, Requests
from oombisect.memory.snapshots.formats import snapshot_of
from oombisect.memory.snapshots.pairing import requests_of
from oombisect.memory.snapshots.rollback import Contradiction, SizeRules, State, roll_back
from oombisect.memory.trace import Snapshot
from oombisect.units import counted
from tests.memory.snapshots.make_snapshots import GIB, MIB, Moment, Part, Piece, Recording, random_recording

DEFAULT = Settings()
EXPANDABLE = Settings(expandable_segments=True)
MAX_SPLIT = Settings(max_split_size=24 * MIB)
ROUNDUP = Settings(roundup=(4,) * 16)
ALL_SETTINGS = [DEFAULT, EXPANDABLE, MAX_SPLIT, ROUNDUP]
NAMES = ["default", "expandable", "max_split", "roundup"]
LIMIT = 10**9
COUNT = 150


def read(plain: Any) -> Snapshot:
    return snapshot_of(plain, LIMIT, LIMIT, LIMIT)


def rules(settings: Settings) -> SizeRules:
    return SizeRules(settings.roundup, settings.max_split_size, settings.large_segment_size)


def parts(state: State) -> tuple[Part, ...]:
    return tuple(
        Part(
            segment.address,
            segment.size,
            segment.stream,
            segment.small,
            segment.expandable,
            tuple(segment.pool),
            tuple(
                Piece(
                    piece.address,
                    piece.size,
                    state.blocks[piece.block].requested if piece.block >= 0 else -1,
                    piece.pending,
                )
                for piece in segment.pieces
            ),
        )
        for segment in state.segments
    )


def told(requests: Requests) -> list[tuple[str, int, int]]:
    """What was asked for; that pools were given up does not show in what the program itself put down."""
    found: list[tuple[str, int, int]] = []
    before = -1
    for op, number in zip(requests.ops, requests.blocks, strict=True):
        if op in (Op.EMPTY_CACHE, Op.CLOSE_POOL):  # a call that found memory of private pools only looks like their end
            if before != Op.CLOSE_POOL:
                found.append(("EMPTY_CACHE", -1, -1))
        elif op != Op.DROP_POOL:
            found.append((Op(op).name, requests.addresses[number], requests.sizes[number]))
        before = op
    return found


def merged(requests: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """As a trace tells it: a free that is completed next is a release, also if that is because a request waited."""
    found: list[tuple[str, int, int]] = []
    for name, address, size in requests:
        before = -2 if name == "WAITED" and found[-1:] and found[-1][0] == "ALLOC" else -1
        if name in ("COMPLETE", "WAITED") and found[before:][:1] == [("FREE", address, size)]:
            found[before] = ("RELEASE", address, size)
        else:
            found.append(("COMPLETE" if name == "WAITED" else name, address, size))
    return found


def cut(run: Recording, moment: Moment) -> tuple[State, Requests]:
    snapshot = read(run.snapshot(moment.event))
    return roll_back(snapshot.devices[0], snapshot.pools, rules(run.settings)), requests_of(
        snapshot.devices[0], snapshot
    )


@pytest.mark.parametrize("settings", ALL_SETTINGS, ids=NAMES)
@options(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), where=st.integers(0, COUNT - 1))
def test_wherever_a_trace_begins_its_first_state_is_found(settings: Settings, seed: int, where: int) -> None:
    run = random_recording(settings, seed, COUNT, keep=where)
    moment = run.moment
    assert moment is not None
    state, requests = cut(run, moment)
    assert parts(state) == moment.parts
    assert told(requests) == merged(run.requests[moment.requests :])
    assert requests.unmatched_frees == 0


@pytest.mark.parametrize("settings", [DEFAULT, MAX_SPLIT, ROUNDUP], ids=["default", "max_split", "roundup"])
@options(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), where=st.integers(0, COUNT - 1))
def test_wherever_a_trace_begins_it_replays_exactly(settings: Settings, seed: int, where: int) -> None:
    run = random_recording(settings, seed, COUNT, keep=where)
    moment = run.moment
    assert moment is not None
    fidelity = check(cut(run, moment)[1], settings, TORCH_2_9, device_bytes=8 * GIB)
    assert fidelity.mismatch == ""


@options(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), where=st.integers(0, COUNT - 1))
def test_a_trace_may_begin_within_a_request(seed: int, where: int) -> None:
    run = random_recording(DEFAULT, seed, COUNT)
    snapshot = read(run.snapshot(where))
    requests = requests_of(snapshot.devices[0], snapshot)
    assert requests.unmatched_frees == 0
    assert not any("do not agree" in note for note in requests.notes)
    assert check(requests, DEFAULT, TORCH_2_9, device_bytes=8 * GIB).mismatch == ""


def test_the_whole_trace_begins_empty() -> None:
    run = random_recording(DEFAULT, 3)
    snapshot = read(run.snapshot())
    requests = requests_of(snapshot.devices[0], snapshot)
    assert requests.initial == ()
    assert told(requests) == merged(run.requests)


def test_a_released_private_pool_is_kept() -> None:
    run = Recording()
    number = run.alloc(30 * MIB, pool=2)
    assert number is not None
    moment = len(run.events)
    run.free(number)
    run.allocator.release_pool(2)
    run.empty_cache()
    snapshot = read(run.snapshot(moment))
    assert not snapshot.devices[0].segments
    requests = requests_of(snapshot.devices[0], snapshot)
    assert [requests.pool_ids[segment.pool] for segment in requests.initial] == [(0, 2)]
    assert requests.pool_ids[requests.pools[0]] == (0, 2)


def test_the_kind_of_an_unmapped_part_is_told_by_its_blocks() -> None:
    run = Recording(EXPANDABLE)
    numbers = [run.alloc(MIB) for _ in range(20)]  # ten pages of the small kind, as large as one of the large kind
    moment = len(run.events)
    for number in numbers:
        assert number is not None
        run.free(number)
    run.empty_cache()
    snapshot = read(run.snapshot(moment))
    (segment,) = roll_back(snapshot.devices[0], snapshot.pools).segments
    assert (segment.size, segment.small) == (20 * MIB, True)


def test_the_kind_of_an_unmapped_part_is_told_by_blocks_that_come_and_go() -> None:
    run = Recording(EXPANDABLE)
    numbers = [run.alloc(MIB) for _ in range(20)]
    for number in numbers:
        assert number is not None
        run.free(number)
    moment = len(run.events)
    number = run.alloc(MIB)
    assert number is not None
    run.free(number)
    run.empty_cache()
    snapshot = read(run.snapshot(moment))
    (segment,) = roll_back(snapshot.devices[0], snapshot.pools).segments
    assert (segment.size, segment.small) == (20 * MIB, True)


def test_parts_of_different_expandable_segments_may_touch() -> None:
    unmapped = [
        {"action": "segment_unmap", "addr": (1 << 40) + 20 * MIB * at, "size": 20 * MIB, "stream": stream}
        for at, stream in enumerate((0, 4256, 4256))
    ]
    snapshot = read({"segments": [], "device_traces": [unmapped]})
    found = [(segment.stream, segment.size) for segment in roll_back(snapshot.devices[0], snapshot.pools).segments]
    assert found == [(0, 20 * MIB), (4256, 40 * MIB)]


def test_max_split_size_and_roundup_decide_on_sizes_from_before_the_trace() -> None:
    for settings, requested, size in ((MAX_SPLIT, 25 * MIB, 26 * MIB), (ROUNDUP, 9 * MIB, 10 * MIB)):
        run = Recording(settings)
        number = run.alloc(requested)
        assert number is not None
        moment = len(run.events)
        run.free(number)
        run.empty_cache()
        snapshot = read(run.snapshot(moment))
        assert requests_of(snapshot.devices[0], snapshot).initial[0].blocks[0].size == size


# ---- snapshots that contradict themselves ----


BEGUN = 10  # events: eight blocks in two segments


def begun(size: int = 4 * MIB) -> Recording:
    """Four blocks from before the trace are freed in it, and four are not; some of its own stay."""
    run = Recording()
    numbers = [run.alloc(size) for _ in range(8)]
    assert len(run.events) == BEGUN
    for number in numbers[::2]:
        assert number is not None
        run.free(number)
    new = [run.alloc(size + step * MIB) for step in range(10)]
    for number in new[::3]:
        assert number is not None
        run.free(number)
    return run


def changed(change: str) -> tuple[Snapshot, int]:
    """A snapshot whose trace begins in the middle, with one thing wrong; and how many of its frees lack their alloc."""
    plain = begun().snapshot(BEGUN)
    trace, segments = plain["device_traces"][0], plain["segments"]
    live = [
        (segment, block) for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"
    ]
    if change == "a block of the trace is gone":
        made = {event["addr"] for event in trace if event["action"] == "alloc"}
        next(block for _, block in live if block["address"] in made)["state"] = "inactive"
    elif change == "a segment of the trace is gone":
        made = {event["addr"] for event in trace if event["action"] == "segment_alloc"}
        segments.remove(next(segment for segment in segments if segment["address"] in made))
    elif change == "blocks overlap":
        made = {event["addr"] for event in trace if event["action"] == "alloc"}
        segment, block = next((segment, block) for segment, block in live if block["address"] not in made)
        block["size"] = segment["total_size"] + 512
    elif change == "segments overlap":
        segments.append(dict(segments[0], address=segments[0]["address"] + 512))
    elif change == "a free is there twice":
        at = next(at for at, event in enumerate(trace) if event["action"] == "free_completed")
        trace.insert(at, trace[at])
    else:
        trace[:] = begun(3 * MIB).events[BEGUN:]
    allocated, freed = set[int](), set[int]()
    unmatched = 0
    for event in trace:
        if event["action"] == "alloc":
            allocated.add(event["addr"])
        elif event["action"] == "free_requested":
            unmatched += event["addr"] not in allocated
            allocated.discard(event["addr"])
            freed.add(event["addr"])
        elif event["action"] == "free_completed":
            unmatched += event["addr"] not in freed
            freed.discard(event["addr"])
    return read(plain), unmatched


@pytest.mark.parametrize(
    "change",
    [
        "a block of the trace is gone",
        "a segment of the trace is gone",
        "blocks overlap",
        "segments overlap",
        "a free is there twice",
        "the trace is of another run",
    ],
)
def test_a_contradiction_is_told_and_frees_of_unknown_memory_are_counted(change: str) -> None:
    snapshot, unmatched = changed(change)
    with pytest.raises(Contradiction):
        roll_back(snapshot.devices[0], snapshot.pools)
    requests = requests_of(snapshot.devices[0], snapshot)
    assert requests.initial == ()
    assert requests.unmatched_frees == unmatched > 0
    assert any("do not agree with the trace" in note for note in requests.notes)
    assert f"left out: {counted(unmatched, 'free')} of memory that was allocated before the trace" in requests.notes
