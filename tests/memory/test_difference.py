"""The difference of two live sets sums to the byte, whatever they hold; stacks that moved are found again."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from oombisect.memory.difference import Entry, Held, by_name, by_phase, difference, likeness
from oombisect.memory.stacks import Key, Keys, Place


def key(name: str, line: int = 1) -> Key:
    return Key(Place("bridge", f"{name[0]}.py"), name, line)


def stack(*names: str, line: int = 1) -> Keys:
    return tuple(key(name, line if index == 0 else 1) for index, name in enumerate(names))


KEYS = st.builds(
    lambda names, line: stack(*names, line=line), st.lists(st.sampled_from("abcd"), max_size=4), st.integers(-2, 2)
)
BLOCKS = st.lists(
    st.builds(
        Held,
        keys=KEYS,
        size=st.integers(1, 3).map(lambda n: n * 512),
        phase=st.sampled_from(["model", "step_1", "step_2"]),
        stack=st.integers(0, 3),
        before=st.booleans(),
    ),
    max_size=25,
)


@given(BLOCKS, BLOCKS)
def test_everything_sums_to_the_difference(first: list[Held], second: list[Held]) -> None:
    entries = difference(first, second)
    sizes = [sum(block.size for block in side) for side in (first, second)]
    delta = sizes[1] - sizes[0]
    assert sum(entry.delta for entry in entries) == delta
    assert [sum(e.first.size for e in entries), sum(e.second.size for e in entries)] == sizes
    assert [sum(e.first.count for e in entries), sum(e.second.count for e in entries)] == [len(first), len(second)]
    for entry in entries:
        for part in (entry.first, entry.second):
            assert sum(part.phases.values()) == part.size
            assert sum(size * count for size, count in part.sizes.items()) == part.size
    for totals in (by_name(entries, lambda e: e.keys[0].function if e.keys else "none"), by_phase(first, second)):
        assert sum(total.delta for total in totals) == delta
        assert [sum(t.first for t in totals), sum(t.second for t in totals)] == sizes
        assert [sum(t.first_count for t in totals), sum(t.second_count for t in totals)] == [len(first), len(second)]


@given(BLOCKS)
def test_equal_sides_differ_in_nothing(blocks: list[Held]) -> None:
    assert all(entry.delta == 0 and not entry.moved for entry in difference(blocks, reversed(blocks)))


@given(BLOCKS, BLOCKS)
def test_no_stack_is_lost_or_told_twice(first: list[Held], second: list[Held]) -> None:
    entries = difference(first, second)
    seconds = Counter((e.keys, e.before) for e in entries if e.second.sizes)
    firsts = Counter((e.first_keys if e.moved else e.keys, e.before) for e in entries if e.first.sizes)
    assert seconds == Counter({(b.keys, b.before) for b in second})
    assert firsts == Counter({(b.keys, b.before) for b in first})


def only(entries: tuple[Entry, ...]) -> Entry:
    (entry,) = entries
    return entry


def test_counts_of_equal_stacks_are_compared() -> None:
    layers = [Held(stack("a", "b"), 1024, "model") for _ in range(36)]
    entry = only(difference(layers, layers[:35]))
    assert (entry.first.count, entry.second.count, entry.delta, entry.moved) == (36, 35, -1024, False)


def test_a_renamed_function_is_one_that_moved() -> None:
    first = [Held(stack("old", "b", "c", "d"), 1024, "model")] * 3
    second = [Held(stack("new", "b", "c", "d"), 1024, "model")] * 3
    entry = only(difference(first, second))
    assert (entry.delta, entry.moved) == (0, True)
    assert entry.keys[0].function == "new" and entry.first_keys[0].function == "old"


def test_a_wrapper_in_the_middle_moves_every_stack_below_it_to_its_own() -> None:
    lines = range(1, 4)
    first = [Held(stack("a", "b", "c", line=n), 1024 * n, "model") for n in lines]
    second = [Held(stack("a", "b", "wrapper", "c", line=n), 1024 * n, "model") for n in lines]
    entries = difference(first, second)
    assert len(entries) == 3 and all(entry.moved and entry.delta == 0 for entry in entries)


def test_a_stack_that_moved_and_grew_is_one_entry_if_it_is_plainly_the_same() -> None:
    first = [Held(stack("a", "b", "c", "d"), 1024, "model")]
    second = [Held(stack("a", "b", "wrapper", "c", "d"), 4096, "model")]
    entry = only(difference(first, second))
    assert (entry.delta, entry.moved) == (3072, True)


def test_what_is_not_alike_is_told_apart() -> None:
    first = [Held(stack("a", "b", "c"), 1024, "model")]
    second = [Held(stack("x", "y", "z"), 1024, "model")]
    assert {entry.delta for entry in difference(first, second)} == {1024, -1024}
    other_sizes = [Held(stack("x", "b", "c"), 4096, "model")]  # alike outside only, and of other sizes
    assert {entry.delta for entry in difference(first, other_sizes)} == {4096, -1024}


def test_blocks_without_a_stack_are_never_taken_for_others() -> None:
    bare, before = Held((), 1024, "step_1"), Held((), 1024, "before the trace", before=True)
    assert {(e.before, e.delta, e.moved) for e in difference([bare], [before])} == {
        (False, -1024, False),
        (True, 1024, False),
    }


def test_the_largest_difference_comes_first() -> None:
    first = [Held(stack("a"), 512, "m"), Held(stack("b"), 4096, "m")]
    second = [Held(stack("a"), 1024, "m"), Held(stack("b"), 512, "m")]
    assert [entry.delta for entry in difference(first, second)] == [-3584, 512]


def test_likeness_counts_shared_frames_in_order() -> None:
    assert likeness(stack("a", "b"), stack("a", "b", line=9)) == 1.0
    assert likeness(stack("a", "b"), stack("a", "x", "b", "y")) == 0.5
    assert likeness(stack("a"), stack("b")) == 0.0
