"""Sizes of blocks and of segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oombisect.memory.allocator.model import round_up, segment_size

KIB, MIB = 1 << 10, 1 << 20
LARGE = 20 * MIB


@pytest.mark.parametrize(
    ("requested", "size"),
    [
        (0, 512),
        (1, 512),
        (511, 512),
        (512, 512),
        (513, 1024),
        (MIB, MIB),
        (MIB + 1, MIB + 512),
        (10**9 + 1, 10**9 + 512),
    ],
)
def test_without_divisions(requested: int, size: int) -> None:
    assert round_up(requested, ()) == size


@pytest.mark.parametrize(
    ("requested", "divisions", "size"),
    [
        # PyTorch's own example: between 1024 and 2048 in quarters; it holds from 512 B times the divisions up
        (1200 * KIB, 4, 1280 * KIB),
        (1024 * KIB, 4, 1024 * KIB),
        (1281 * KIB, 4, 1536 * KIB),
        (2047 * KIB, 4, 2048 * KIB),
        (2049, 4, 2560),
        (2048, 4, 2048),
        (2000, 4, 2048),  # too small for four divisions: whole 512 B
        (600, 8, 1024),
        (5000, 2, 6144),
        (5000, 1, 5120),
        (5000, 0, 5120),
    ],
)
def test_divisions(requested: int, divisions: int, size: int) -> None:
    assert round_up(requested, (divisions,) * 16) == size


def test_divisions_by_interval() -> None:
    divisions = (0, 2, 4) + (0,) * 12 + (2,)
    assert round_up(MIB + 1, divisions) == MIB + 512
    assert round_up(2 * MIB + 1, divisions) == 3 * MIB
    assert round_up(4 * MIB + 1, divisions) == 5 * MIB
    assert round_up(8 * MIB + 1, divisions) == 8 * MIB + 512
    assert round_up((100 << 30) + 1, divisions) == 128 << 30  # the last interval has no end


@given(st.integers(1, 1 << 40), st.sampled_from([0, 1, 2, 4, 8, 16, 32, 64]))
def test_never_smaller_and_never_wastes_more_than_a_step(requested: int, divisions: int) -> None:
    size = round_up(requested, (divisions,) * 16)
    step = 512
    if divisions > 1 and requested > 512 * divisions:
        step = (1 << (requested.bit_length() - 1)) // divisions
    assert requested <= size < requested + max(step, 512)
    assert size % 512 == 0
    assert round_up(size, (divisions,) * 16) == size


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, LARGE),
        (10 * MIB - 512, LARGE),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (64 * MIB, 64 * MIB),
    ],
)
def test_segments(size: int, segment: int) -> None:
    assert segment_size(size, LARGE) == segment


def test_large_segments_of_another_size() -> None:
    assert segment_size(2 * MIB, 64 * MIB) == 64 * MIB
    assert segment_size(MIB, 64 * MIB) == 2 * MIB
    assert segment_size(12 * MIB, 64 * MIB) == 12 * MIB
