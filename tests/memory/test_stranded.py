"""Free memory is put down to the blocks that keep it from being given back."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from oombisect.memory.requests import InitialBlock, InitialSegment, Op, Requests
from oombisect.memory.stranded import Lifetimes, stranded

MIB = 1 << 20


def requests(ops, stacks):
    """Operations as (op, block); every block is of 1 MiB on stream 0."""
    count = len(stacks)
    return Requests(
        bytearray(op for op, _ in ops),
        array("i", [block for _, block in ops]),
        array("i", range(len(ops))),
        array("Q", [MIB] * count),
        array("i", [0] * count),
        array("i", [0] * count),
        array("i", stacks),
        array("Q", [0] * count),
    )


def segment(*pieces, stream=0, expandable=False, pool=0):
    """A segment of pieces (size in MiB, block number or None)."""
    blocks, address = [], 0
    for size, block in pieces:
        blocks.append(InitialBlock(address, size * MIB, -1 if block is None else block))
        address += size * MIB
    return InitialSegment(0, address, stream, False, tuple(blocks), expandable, pool)


# Block 0 stays for ever, block 1 is freed late, block 2 early; 0 and 1 come from one place.
OPS = [(Op.ALLOC, 0), (Op.ALLOC, 1), (Op.ALLOC, 2), (Op.RELEASE, 2), (Op.FREE, 1), (Op.COMPLETE, 1)]
REQUESTS = requests(OPS, [7, 7, 8])


def find(*segments):
    return stranded(segments, REQUESTS, stream=0, pool=0, small=False)


def test_lifetimes_end_with_the_free_not_with_its_completion():
    lifetimes = Lifetimes.of(REQUESTS)
    assert list(lifetimes.births) == [0, 1, 2]
    assert list(lifetimes.deaths) == [6, 4, 3]


def test_a_segment_is_held_by_the_block_that_is_freed_last():
    found = find(segment((3, 2), (5, None), (1, 1), (4, None)))
    (holder,) = found.holders
    assert (holder.stack, holder.blocks, holder.size, holder.stranded, holder.forever) == (7, 1, MIB, 9 * MIB, 0)
    assert (found.total, found.usable_elsewhere, found.largest, found.idle) == (9 * MIB, 0, 5 * MIB, 0)


def test_an_expandable_segment_is_held_piece_by_piece_by_neighbours():
    found = find(segment((2, None), (3, 2), (5, None), (1, 1), (4, None), expandable=True))
    assert [(h.stack, h.stranded) for h in found.holders] == [(7, 9 * MIB), (8, 2 * MIB)]


def test_blocks_of_one_place_are_one_holder():
    found = find(segment((1, 0), (2, None)), segment((1, 1), (3, None)))
    (holder,) = found.holders
    assert (holder.blocks, holder.size, holder.stranded, holder.forever) == (2, 2 * MIB, 5 * MIB, 1)


def test_free_memory_of_other_streams_and_pools_is_told_apart():
    found = find(segment((1, 0), (2, None)), segment((1, 1), (3, None), stream=1), segment((4, None), pool=1))
    assert (found.total, found.usable_elsewhere, found.largest, found.idle) == (9 * MIB, 7 * MIB, 2 * MIB, 4 * MIB)


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([None, 0, 1, 2])), min_size=1), max_size=5),
    st.booleans(),
)
def test_every_free_byte_is_put_down_once(layout, expandable):
    segments = [segment(*pieces, expandable=expandable) for pieces in layout]
    found = find(*segments)
    free = sum(size * MIB for pieces in layout for size, block in pieces if block is None)
    assert found.total == free == found.idle + sum(holder.stranded for holder in found.holders)
    assert found.rounding == sum(holder.stranded for holder in found.rounders)


def test_what_blocks_have_beyond_what_was_asked_for_is_put_down_to_their_stacks():
    found = find(segment((3, 0), (4, 1)), segment((1, 2)))
    assert (found.total, found.requested, found.rounding) == (0, 3 * MIB, 5 * MIB)
    (holder,) = found.rounders
    assert (holder.stack, holder.blocks, holder.size, holder.stranded) == (7, 2, 7 * MIB, 5 * MIB)
    assert not found.holders
