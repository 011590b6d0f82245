"""The order of addresses, and memory that runs out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oombisect.memory.allocator.device import CHUNK, GRANULE, Addresses, VirtualDevice

MIB = 1 << 20
START = 0x1000_0000_0000


def test_small_ones_are_packed_into_chunks_which_none_crosses() -> None:
    addresses = Addresses(START)
    first = [addresses.take(20 * MIB), addresses.take(20 * MIB), addresses.take(2 * MIB)]
    assert first == [START + CHUNK, START + 2 * CHUNK, START + CHUNK + 20 * MIB]


def test_large_ones_go_downwards() -> None:
    addresses = Addresses(START, 1 << 40)
    end = START + (1 << 40) - CHUNK
    assert addresses.take(CHUNK) == end - CHUNK
    assert addresses.take(CHUNK + GRANULE) == end - 3 * CHUNK


def test_what_is_given_back_is_taken_again_the_lowest_first() -> None:
    addresses = Addresses(START)
    taken = [addresses.take(64 * MIB) for _ in range(4)]
    addresses.give(taken[0], 64 * MIB)
    addresses.give(taken[2], 64 * MIB)
    assert addresses.take(40 * MIB) == taken[2]
    assert addresses.take(40 * MIB) == taken[0]


def test_what_was_never_given_out_is_not_taken_back() -> None:
    addresses = Addresses(START)
    addresses.give(0x7F00_0000_0000, 64 * MIB)
    assert addresses.take(64 * MIB) < START + (64 << 40)


@given(st.lists(st.tuples(st.integers(1, 60).map(lambda each: each * GRANULE), st.booleans()), max_size=60))
def test_no_two_overlap(steps: list[tuple[int, bool]]) -> None:
    addresses = Addresses(START)
    held: list[tuple[int, int]] = []
    for size, give_one_back in steps:
        if give_one_back and held:
            addresses.give(*held.pop(size % len(held)))
        address = addresses.take(size)
        assert all(address + size <= other or other + length <= address for other, length in held)
        held.append((address, size))


def test_memory_runs_out() -> None:
    device = VirtualDevice(total=100 * MIB, capacity=50 * MIB)
    first = device.malloc(30 * MIB)
    assert first is not None
    assert device.malloc(30 * MIB) is None
    assert not device.map(device.reserve(100 * MIB, 2 * MIB, 0), 30 * MIB)
    device.free(first, 30 * MIB)
    assert device.used == 0
    base = device.reserve(100 * MIB, 2 * MIB, 0)
    assert device.map(base, 50 * MIB)
    assert device.malloc(2 * MIB) is None
    device.unmap(base, 20 * MIB)
    assert device.used == 30 * MIB
    assert device.malloc(20 * MIB) is not None
