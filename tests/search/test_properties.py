"""What holds whatever the history, and what a search costs."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oombisect.search import (
    Censored,
    Conclusion,
    Delta,
    Exact,
    Infra,
    Kind,
    Options,
    Remeasure,
    Revert,
    State,
    Unresolved,
    conclude,
    plan,
    replay,
    start,
)
from tests.search.world import GIB, MIB, Change, World, probes

STEP = st.builds(
    Change,
    allocated=st.integers(-30, 60).map(lambda n: n * 256 * MIB),
    stranded=st.sampled_from([0, 0, 0, 2 * GIB, 5 * GIB]),
    external=st.sampled_from([0, 0, 0, 32 * MIB, GIB]),
    phase=st.sampled_from([0, 0, GIB]),
    allocations=st.integers(0, 9),
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Steps, creep, spikes, reverts, broken stretches, lost nodes, cards too small, in any mixture."""
    count = draw(st.integers(2, 120))
    points = st.integers(1, count - 1)
    changes = draw(st.dictionaries(points, STEP, max_size=6))
    if draw(st.booleans()):
        drift = draw(st.integers(1, 40)) * MIB
        changes = {**{i: Change(allocated=drift) for i in range(1, count)}, **changes}
    reverted = {}
    for point in draw(st.lists(st.sampled_from(sorted(changes)), max_size=2, unique=True)) if changes else ():
        later = draw(st.integers(point, count - 1))
        if later not in changes and later not in reverted.values():
            reverted[point] = later
    broken: set[int] = set()
    for first, length in draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(1, 30)), max_size=3)):
        broken |= set(range(first, min(count, first + length)))
    lost = draw(st.frozensets(st.integers(0, count - 1), max_size=3))
    if draw(st.integers(0, 9)):  # mostly the ends can be read
        broken -= {0, count - 1}
        lost -= {0, count - 1}
    return World(
        count,
        changes,
        limit=draw(st.integers(30, 70)) * GIB,
        card=draw(st.sampled_from([None, None, 50 * GIB, 60 * GIB])),
        death=draw(st.sampled_from([None, 5 * GIB])),
        broken=frozenset(broken),
        lost=lost,
        conflicts=frozenset(draw(st.lists(points, max_size=2))),
        reverted=reverted,
    )


OPTIONS = st.builds(
    Options,
    find=st.sampled_from(["regression", "improvement", "any"]),
    noise_bytes=st.sampled_from([0, 0, None, 10 * MIB]),
    explain=st.sampled_from([0.9, 0.5, 1.0]),
    min_step_bytes=st.sampled_from([None, None, 64 * MIB, GIB]),
    budget=st.sampled_from([None, None, None, 7, 20]),
    exhaustive=st.booleans(),
    grid=st.sampled_from([0, 0, 3, 10]),
    confirm=st.booleans(),
)


def unreadable(world: World, index: int) -> bool:
    return index in world.broken or index in world.lost


@settings(max_examples=400, deadline=None)
@given(worlds(), OPTIONS, st.integers(1, 8))
def test_whatever_the_history(world: World, options: Options, parallel: int) -> None:
    state, found = world.search(options, parallel)
    assert options.budget is None or len(world.asked) <= options.budget
    sums_telescope(world, found)
    nothing_broken_is_blamed(world, found)
    sizes_are_true(world, found)
    names_are_earned(state, found)
    assert (found.kind == "culprit") <= any(step.named for step in found.steps)
    assert (found.kind == "infra") <= bool(world.lost)
    assert (found.kind == "budget") <= (options.budget is not None)
    again = replay(start(world.count, options), state.log)
    assert again == state and conclude(again) == found and plan(again, parallel) == ()


def sums_telescope(world: World, found: Conclusion) -> None:
    """The stretches cover the axis without a gap, and add up to the growth to the byte."""
    if not found.stretches:
        return
    assert found.stretches[0].first >= 0 and found.stretches[-1].last <= world.count - 1
    assert sum((stretch.delta for stretch in found.stretches), Delta()) == found.growth
    if not found.growth_is_bound and world.card is None:
        assert found.growth == Delta.between(world.metrics(0), world.metrics(world.count - 1))
    singles = {(s.first, s.last): s.delta for s in found.stretches if s.kind is Kind.STEP}
    for step in found.steps:
        assert step.blurred_with or singles[step.parent, step.index] == step.delta


def nothing_broken_is_blamed(world: World, found: Conclusion) -> None:
    """A change is pinned to a point only if it and the point before it were read."""
    for step in found.steps:
        assert not unreadable(world, step.index) and not unreadable(world, step.parent)
        if step.blurred_with is None:
            assert step.parent == step.index - 1
        else:
            assert not step.named
            assert all(unreadable(world, i) for i in (step.parent + 1, step.index - 1))
            assert step.blurred_with == (step.parent + 1, step.index)
    if found.crossing is not None:
        assert found.crossing_range == (found.crossing, found.crossing)
        assert not unreadable(world, found.crossing) and not unreadable(world, found.crossing - 1)


def sizes_are_true(world: World, found: Conclusion) -> None:
    for step in found.steps:
        truth = Delta.between(world.metrics(step.parent), world.metrics(step.index))
        if not step.censored:
            assert step.delta == truth


def names_are_earned(state: State, found: Conclusion) -> None:
    """Every name rests on fresh readings of both points and on the tip without it, unless nobody let us look."""
    for step in found.steps:
        if not step.named:
            continue
        assert step.confirmed in ("yes", "conflict", "not-tried")
        if step.confirmed == "yes":
            runs = {state.line.run_of(step.parent), state.line.run_of(step.index)}
            assert runs <= state.fresh.keys()
            assert state.line.run_of(step.index) in state.reverts or step.index == state.line.first[state.line.end]
        if step.confirmed == "not-tried" and state.options.confirm and state.room != 0:
            told = [o for table in (state.fresh, state.reverts) for o in table.values()]
            assert any(isinstance(o, Infra | Censored) for o in told)


@settings(max_examples=200, deadline=None)
@given(worlds(), st.sampled_from([None, 64 * MIB, GIB]), st.integers(1, 5))
def test_every_large_step_is_found(world: World, min_step: int | None, parallel: int) -> None:
    """In a history that only rises nothing can hide, except in what cannot be read."""
    world.card = None
    world.changes = {i: Change(abs(c.allocated), c.stranded, c.external, c.phase) for i, c in world.changes.items()}
    world.reverted = {}
    _, found = world.search(Options(min_step_bytes=min_step), parallel)
    if unreadable(world, 0) or unreadable(world, world.count - 1):
        assert not found.steps
        return
    known = {step.index for step in found.steps}
    hidden = [range(step.blurred_with[0], step.blurred_with[1] + 1) for step in found.steps if step.blurred_with]
    for index in range(1, world.count):
        delta = Delta.between(world.metrics(index - 1), world.metrics(index))
        if max(delta.allocated, delta.device) >= max(found.min_step, found.epsilon + 1):
            assert index in known or any(index in stretch for stretch in hidden)


@settings(max_examples=150, deadline=None)
@given(worlds(), st.integers(1, 5))
def test_an_exhaustive_search_leaves_nothing_open(world: World, parallel: int) -> None:
    _, found = world.search(Options(exhaustive=True, confirm=False), parallel)
    assert all(stretch.kind is not Kind.OPEN for stretch in found.stretches)
    for stretch in found.stretches:
        if stretch.kind is Kind.QUIET:
            one, two = world.metrics(stretch.first), world.metrics(stretch.last)
            assert Delta.between(one, two).size <= found.epsilon and one.allocations == two.allocations
        if stretch.kind is Kind.BLURRED:
            assert all(unreadable(world, i) for i in range(stretch.first + 1, stretch.last))


@settings(max_examples=150, deadline=None)
@given(worlds(), st.integers(1, 5))
def test_the_crossing_is_where_it_stops_fitting(world: World, parallel: int) -> None:
    """Where memory only rises, there is one crossing, and the search finds it or says what hides it."""
    world.changes = {i: Change(abs(c.allocated), c.stranded, c.external) for i, c in world.changes.items()}
    world.reverted = {}
    _, found = world.search(Options(), parallel)
    used = [world.metrics(i).reserved + world.metrics(i).external for i in range(world.count)]
    edge = min(world.limit, world.card or world.limit)
    truth = [i for i in range(1, world.count) if used[i - 1] <= edge < used[i]]
    if unreadable(world, 0) or unreadable(world, world.count - 1) or not truth:
        assert found.crossing is None
    else:
        assert found.crossing_range is not None
        assert found.crossing_range[0] <= truth[0] <= found.crossing_range[1]
        assert (found.crossing == truth[0]) is (found.crossing_range[0] == found.crossing_range[1])


@settings(max_examples=150, deadline=None)
@given(worlds(), st.sampled_from(["regression", "improvement"]), st.integers(1, 3))
def test_an_improvement_is_a_regression_backwards(world: World, find: str, parallel: int) -> None:
    """Negated sizes and negated verdicts on the limit give the same requests and the mirrored conclusion."""
    world.card, world.conflicts = None, frozenset()

    class Mirror(World):
        def answer(self, request):
            seen = world.answer(request)
            if not isinstance(seen, Exact):
                return seen
            m = seen.metrics
            phases = tuple((name, -size) for name, size in m.phases)
            flipped = type(m)(-m.allocated, -m.reserved, -m.external, m.allocations, phases)
            return Exact(flipped, not seen.fits)

    other = "improvement" if find == "regression" else "regression"
    state, found = world.search(Options(find=find), parallel)
    mirrored, opposite = Mirror(world.count).search(Options(find=other), parallel)
    assert [request for request, _ in state.log] == [request for request, _ in mirrored.log]
    assert (found.kind, found.crossing) == (opposite.kind, opposite.crossing)
    assert [(s.index, s.delta, s.confirmed, s.named) for s in found.steps] == [
        (s.index, -s.delta, s.confirmed, s.named) for s in opposite.steps
    ]


@settings(max_examples=100, deadline=None)
@given(
    worlds(), st.integers(1, 4), st.lists(st.integers(0, 9), min_size=120, max_size=120), st.sets(st.integers(0, 119))
)
def test_weights_and_cached_points_change_the_cost_and_not_the_answer(world, parallel, weights, known):
    """Where memory only rises and all can be read, every order of probing ends at the same steps."""
    world.card, world.broken, world.lost, world.reverted = None, frozenset(), frozenset(), {}
    world.changes = {i: Change(abs(c.allocated), c.stranded, c.external) for i, c in world.changes.items()}
    options = Options(min_step_bytes=512 * MIB)
    _, plain = world.search(options)
    _, other = world.search(
        options, parallel, weights=weights[: world.count], known={i for i in known if i < world.count}
    )
    large = [
        [
            (s.index, s.delta, s.confirmed, s.named)
            for s in found.steps
            if max(s.delta.allocated, s.delta.device) >= 512 * MIB
        ]
        for found in (plain, other)
    ]
    assert large[0] == large[1] and plain.crossing == other.crossing and plain.kind == other.kind


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 150), st.integers(1, 149), st.integers(0, 1000), st.integers(0, 20))
def test_noise_neither_hides_nor_invents_a_step(count: int, at: int, seed: int, noise: int) -> None:
    at = 1 + at % (count - 1)
    noise *= MIB
    world = World(count, {at: Change(allocated=4 * GIB)}, noise=noise, seed=seed, limit=43 * GIB)
    _, found = world.search(Options(noise_bytes=2 * noise, exhaustive=True))
    assert (found.kind, found.crossing) == ("culprit", at)
    assert [(step.index, step.confirmed) for step in found.steps] == [(at, "yes")]


# Costs on 256 points, the ends included. A mean may lie above the figure by three standard errors.


def within(costs: list[int], reference: float) -> bool:
    return statistics.mean(costs) <= reference + 3 * statistics.stdev(costs) / len(costs) ** 0.5 + 1e-9


def runs(make: Callable[[random.Random], World], options: Options, parallel: int = 1, times: int = 200):
    for seed in range(times):
        world = make(random.Random(seed))
        yield world, *world.search(options, parallel)


def steps(count: int, many: int) -> Callable[[random.Random], World]:
    def make(rng: random.Random) -> World:
        points = rng.sample(range(1, count), many)
        return World(count, {i: Change(allocated=rng.randint(GIB, 9 * GIB)) for i in points}, limit=42 * GIB)

    return make


@pytest.mark.parametrize(("many", "reference"), [(1, 10.0), (2, 16.1), (3, 21.4), (5, 30.9)])
def test_cost_of_finding_all_steps(many: int, reference: float) -> None:
    costs = []
    for world, state, found in runs(steps(256, many), Options(exhaustive=True, confirm=False)):
        assert {step.index for step in found.steps} == set(world.changes)
        costs.append(probes(state))
    assert within(costs, reference)


@pytest.mark.parametrize(("parallel", "reference"), [(1, 9.0), (2, 6.1), (4, 5.0), (8, 4.0)])
def test_rounds_in_parallel(parallel: int, reference: float) -> None:
    costs = []
    for seed in range(200):
        world = steps(256, 1)(random.Random(seed))
        state, rounds = start(256, Options(confirm=False)), 0
        while requests := plan(state, parallel if rounds else 2):  # the two ends are one round
            state = replay(state, [(request, world.answer(request)) for request in requests])
            rounds += 1
        costs.append(rounds)
    assert within(costs, reference)


@pytest.mark.parametrize("count", [256, 512, 2048])
def test_cost_of_creep(count: int) -> None:
    def make(rng: random.Random) -> World:
        return World(count, {i: Change(allocated=rng.randint(1, 2 * (16 << 30) // count)) for i in range(1, count)})

    costs = [probes(state) for _, state, _ in runs(make, Options(), times=20)]
    assert within(costs, 16)


def test_confirmation_costs_three_probes_a_step() -> None:
    for world, state, found in runs(steps(256, 2), Options(min_step_bytes=GIB), times=50):
        asked = [request for request, _ in state.log]
        fresh = {r.index for r in asked if isinstance(r, Remeasure)}
        reverts = {r.index for r in asked if isinstance(r, Revert)}
        points = set(world.changes)
        assert fresh == points | {point - 1 for point in points}
        assert reverts == points - {255}
        assert all(step.confirmed == "yes" and step.named for step in found.steps)


def test_a_broken_stretch_costs_its_edges() -> None:
    """Finding a stretch of 40 broken points and both its edges by halving takes far fewer probes than points."""
    for first in range(20, 180, 7):
        world = World(
            256, {first + 20: Change(allocated=4 * GIB)}, broken=frozenset(range(first, first + 40)), limit=43 * GIB
        )
        state, found = world.search()
        assert found.kind == "blurred" and found.crossing_range == (first, first + 40)
        assert found.unresolved == ((first, first + 39),)
        blind = sum(isinstance(seen, Unresolved) for _, seen in state.log)
        assert probes(state) - blind <= 2 + 2 * 8 and blind <= 2 * (41).bit_length() + 4


def test_ten_thousand_points_with_weights_equal_neighbours_and_cached_ones() -> None:
    rng = random.Random(1)
    weights = [rng.random() for _ in range(10_000)]
    groups = list(accumulate(rng.choice((0, 1, 1)) for _ in range(10_000)))
    world = steps(10_000, 5)(rng)
    for at in world.changes:
        groups[at:] = [group + 1 for group in groups[at:]]  # a change of memory is a change of the tree
    state, found = world.search(
        Options(exhaustive=True), weights=weights, groups=groups, known=set(range(0, 10_000, 97))
    )
    assert {step.index for step in found.steps} == set(world.changes)
    assert {step.confirmed for step in found.steps if step.named} == {"yes"}
    assert state.probes < probes(state) <= 2 + 5 * (10_000).bit_length()
