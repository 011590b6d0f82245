"""What a search costs: the means that were published, on histories drawn from fixed seeds."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from itertools import accumulate

import pytest

from oombisect.search import Options, Remeasure, Revert, Unresolved, plan, replay, start
from tests.search.world import GIB, Change, World, probes

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
