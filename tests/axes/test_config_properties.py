"""Config diffs of known truth: every key that adds memory is found, and no rejected state is blamed."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from oombisect.axes.config_effects import NONE
from oombisect.search import Exact

from .config_world import EVERYTHING, GIB, MIB, ConfigWorld, name, telescopes

SIZES = st.integers(64, 8192).map(lambda size: size * MIB)


@st.composite
def worlds(draw: st.DrawFn, *, rejections: bool = True, interactions: bool = True) -> ConfigWorld:
    count = draw(st.integers(2, 32))
    index = st.integers(0, count - 1)
    pair = st.tuples(index, index).filter(lambda two: two[0] != two[1])
    adds = draw(st.dictionaries(index, SIZES, max_size=min(5, count)))
    together = draw(st.dictionaries(pair, SIZES, max_size=2)) if interactions else {}
    needs = draw(st.lists(pair, max_size=3)) if rejections else []
    total = sum(adds.values()) + sum(together.values())
    limit = 40 * GIB + draw(st.integers(0, total + GIB))
    return ConfigWorld(count, adds, together, needs, limit)


@settings(max_examples=60, deadline=None)
@given(worlds(rejections=False, interactions=False))
def test_every_key_that_adds_memory_is_found_with_its_size(world: ConfigWorld) -> None:
    chain, _, conclusion = world.search(EVERYTHING)
    found = {chain.groups[step.index - 1].name: step.delta.allocated for step in conclusion.steps}
    assert found == {name(i): size for i, size in world.adds.items()}
    assert telescopes(conclusion)


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_a_rejected_state_is_never_blamed_and_never_hides_a_key(world: ConfigWorld) -> None:
    chain, _, conclusion = world.search(EVERYTHING)
    assert telescopes(conclusion)
    assert all(step.blurred_with is None for step in conclusion.steps)
    for step in conclusion.steps:
        before, after = (world.state_of(chain, point) for point in (step.parent, step.index))
        one, two = world.read(before), world.read(after)
        assert isinstance(one, Exact) and isinstance(two, Exact)
        assert step.delta.allocated == two.metrics.allocated - one.metrics.allocated
        # What moved memory is in the group, and the group holds nothing but keys that go together.
        group = chain.groups[step.index - 1]
        assert group.names & world.culprits
        assert len(group.names) == 1 or group.names <= {name(i) for pair in world.needs for i in pair}
    moved = {key for step in conclusion.steps for key in chain.groups[step.index - 1].names}
    assert {name(i) for i in world.adds} <= moved


@settings(max_examples=60, deadline=None)
@given(worlds(rejections=False))
def test_what_returning_keys_does_on_the_bad_side_is_told_to_the_byte(world: ConfigWorld) -> None:
    chain, state, conclusion = world.search(EVERYTHING)
    effects = world.effects(chain, state, conclusion)
    bad = frozenset(name(i) for i in range(world.count))
    assert set(effects.names) == world.culprits
    for found in effects.names:
        own = effects.own(found)
        assert own is not None and own.allocated == world.size(bad) - world.size(bad - {found})
    for pair in effects.pairs():
        one, other = sorted(pair)
        told = effects.interaction(one, other)
        truth = sum(s for (a, b), s in world.together.items() if {name(a), name(b)} == pair)
        assert told is not None and told.allocated == truth


@settings(max_examples=60, deadline=None)
@given(worlds(rejections=False))
def test_the_smallest_set_makes_the_bad_side_as_it_should_be(world: ConfigWorld) -> None:
    chain, state, conclusion = world.search(EVERYTHING)
    effects = world.effects(chain, state, conclusion)
    smallest = effects.smallest()
    if effects.meets(NONE):
        assert smallest is None
        return
    bad = frozenset(name(i) for i in range(world.count))
    grown = world.size(bad) - world.base

    def enough(some: frozenset[str]) -> bool:
        size = world.size(bad - some)
        return size <= world.limit if effects.wants_fit else size - world.base <= effects.growth_left

    if smallest is None:
        assert not effects.names or grown == 0
        return
    assert smallest.names in effects.without and enough(smallest.names)
    if smallest.proven:
        fewer = [
            frozenset(some)
            for size in range(1, len(smallest.names))
            for some in combinations(sorted(effects.names), size)
        ]
        assert not any(enough(some) for some in fewer)
