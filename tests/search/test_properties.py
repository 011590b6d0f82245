"""What holds whatever the history. The oracles look at every point; the search sees only what it asks for."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oombisect.search import (
    Censored,
    Conclusion,
    Delta,
    Exact,
    Infra,
    Kind,
    Measure,
    Options,
    Remeasure,
    Revert,
    State,
    conclude,
    observe,
    plan,
    replay,
    start,
)
from tests.search.histories import OPTIONS, Case, cases, epsilon, gains, min_step, value
from tests.search.world import GIB, MIB, Change, World, probes

MIN_STEPS = st.sampled_from([None, 64 * MIB, GIB])


@settings(max_examples=250, deadline=None)
@given(cases(), OPTIONS)
def test_whatever_the_history(case: Case, options: Options) -> None:
    state, found = case.search(options)
    assert options.budget is None or state.probes <= options.budget
    sums_telescope(case, found)
    nothing_broken_is_blamed(case, found)
    what_died_is_a_bound(case, found)
    sizes_are_true(case, options, found)
    names_are_earned(case, state, found)
    nothing_large_is_left_open(case, options, found)
    nothing_is_given_up_early(case, state, found)
    the_crossing_is_one(case, options, found)
    verdicts_have_reasons(case, options, state, found)
    again = replay(start(case.world.count, options, **case.axis), state.log)
    assert again == state and conclude(again) == found and plan(again, case.parallel) == ()


def sums_telescope(case: Case, found: Conclusion) -> None:
    """The stretches cover the axis without a gap, and add up to the growth to the byte."""
    if not found.stretches:
        return
    groups = case.groups or range(case.world.count)
    end = case.world.count - 1
    edges = [0, *(i for s in found.stretches for i in (s.first, s.last)), end]
    for i, j in zip(edges[::2], edges[1::2]):
        assert i <= j and len(set(groups[i : j + 1])) == 1  # what lies between two stretches is one measurement
    assert sum((stretch.delta for stretch in found.stretches), Delta()) == found.growth
    if not found.growth_is_bound and case.world.card is None:
        assert found.growth == Delta.between(case.truth[0], case.truth[end])
    singles = {(s.first, s.last): s.delta for s in found.stretches if s.kind is Kind.STEP}
    for step in found.steps:
        assert step.blurred_with or singles[step.parent, step.index] == step.delta


def nothing_broken_is_blamed(case: Case, found: Conclusion) -> None:
    """A change is pinned to a point only if it and the point before it were read."""
    for step in found.steps:
        assert not case.unreadable(step.index) and not case.unreadable(step.parent)
        if step.blurred_with is None:
            assert step.parent == step.index - 1
        else:
            assert not step.named and step.confirmed == "not-tried"
            assert step.blurred_with == (step.parent + 1, step.index)
            if not case.world.card:
                assert all(case.unreadable(i) for i in (step.parent + 1, step.index - 1))
    if found.crossing is not None:
        assert found.crossing_range == (found.crossing, found.crossing)
        assert not case.unreadable(found.crossing) and not case.unreadable(found.crossing - 1)
    for first, last in found.unresolved:
        if not case.world.card:
            assert case.unreadable(first) and case.unreadable(last)


def what_died_is_a_bound(case: Case, found: Conclusion) -> None:
    """Two runs that died are never called equal, nor is one of them a size; what is a bound holds."""
    for stretch in found.stretches:
        died = [case.dies(stretch.first), case.dies(stretch.last)]
        if all(died):
            same = case.groups and case.groups[stretch.first] == case.groups[stretch.last]
            assert stretch.kind is Kind.UNKNOWN or (same and stretch.last - stretch.first == 1)
        assert stretch.censored is (any(died) and stretch.kind is not Kind.QUIET)
    for step in found.steps:
        before, after = case.truth[step.parent], case.truth[step.index]
        assert step.censored is (case.dies(step.parent) or case.dies(step.index))
        if case.dies(step.index):
            assert step.delta.allocated <= after.allocated - before.allocated
            assert step.delta.reserved <= after.reserved - before.reserved
        if case.dies(step.parent):
            assert step.delta.allocated >= after.allocated - before.allocated


def sizes_are_true(case: Case, options: Options, found: Conclusion) -> None:
    for step in found.steps:
        before, after = case.truth[step.parent], case.truth[step.index]
        if step.censored:
            continue
        assert step.delta == Delta.between(before, after)
        assert options.wanted(step.change) == gains(options.metric, options.find, before, after)


def names_are_earned(case: Case, state: State, found: Conclusion) -> None:
    """Every name rests on fresh readings of both points and on the tip without it, unless nobody let us look."""
    options = state.options
    for step in found.steps:
        if not step.named:
            continue
        assert step.confirmed in ("yes", "conflict", "not-tried")
        if not step.censored:
            gain = gains(options.metric, options.find, case.truth[step.parent], case.truth[step.index])
            assert gain >= found.min_step or (step.index == found.crossing and gain <= found.min_step)
        if step.confirmed == "yes":
            runs = {state.line.run_of(step.parent), state.line.run_of(step.index)}
            assert runs <= state.fresh.keys()
            assert state.line.run_of(step.index) in state.reverts or step.index == state.line.first[state.line.end]
        if step.confirmed == "not-tried" and state.options.confirm and state.room != 0:
            told = [o for table in (state.fresh, state.reverts) for o in table.values()]
            assert any(isinstance(o, Infra | Censored) for o in told)


def nothing_large_is_left_open(case: Case, options: Options, found: Conclusion) -> None:
    """A stretch whose ends differ by as much as is searched for is one change, or hides behind what cannot be read."""
    if found.kind in ("budget", "none") or not found.stretches or found.growth_is_bound:
        return
    opened = 0
    ends = case.truth[0], case.truth[case.world.count - 1]
    assert (found.epsilon, found.min_step) == (epsilon(options), min_step(options, *ends))
    for stretch in found.stretches:
        if stretch.censored or stretch.kind in (Kind.STEP, Kind.BLURRED, Kind.UNKNOWN):
            continue
        before, after = case.truth[stretch.first], case.truth[stretch.last]
        if stretch.kind is Kind.QUIET:
            assert gains(options.metric, "any", before, after) <= found.epsilon
            if options.metric != "step-time":
                assert Delta.between(before, after).size <= found.epsilon
                assert before.allocations == after.allocations
        else:
            assert not options.exhaustive
            opened += gains(options.metric, "any", before, after)
            if options.min_step_bytes is not None:
                assert gains(options.metric, "any", before, after) < found.min_step
                if options.metric == "memory":
                    assert Delta.between(before, after).size < found.min_step
    if options.min_step_bytes is None and options.metric != "memory" and found.change:
        large = [
            s
            for s in found.stretches
            if s.kind is Kind.OPEN
            and gains(options.metric, "any", case.truth[s.first], case.truth[s.last]) >= found.min_step
        ]
        assert not large or opened <= (1 - options.explain) * options.wanted(found.change) + 1


def nothing_is_given_up_early(case: Case, state: State, found: Conclusion) -> None:
    """Between broken points the rest is tried too, until 2 log2 n + 4 of n points have told nothing."""
    if case.groups or found.kind == "budget":
        return
    asked = {request.index for request, _ in state.log if isinstance(request, Measure)}
    for stretch in found.stretches:
        inside = set(range(stretch.first + 1, stretch.last)) - case.skipped
        if stretch.kind is Kind.BLURRED and not inside <= asked:
            assert not state.options.exhaustive
            assert len(inside & asked) >= 2 * math.log2(len(inside)) + 4


def the_crossing_is_one(case: Case, options: Options, found: Conclusion) -> None:
    """Where one change is said to cross, it does, and nothing that was measured after it lies on the good side."""
    if found.crossing is None or found.kind == "budget":
        return

    def low(i: int) -> bool:
        if options.threshold_bytes is not None:
            return value(options.metric, case.truth[i]) <= options.threshold_bytes
        return case.fits(i)

    assert low(found.crossing - 1) != low(found.crossing)
    assert low(found.crossing) == found.bad_fits and low(found.crossing - 1) == found.good_fits
    for stretch in found.stretches:
        if stretch.first >= found.crossing:
            assert low(stretch.first) == low(stretch.last) == found.bad_fits


def verdicts_have_reasons(case: Case, options: Options, state: State, found: Conclusion) -> None:
    assert (found.kind == "culprit") <= any(step.named for step in found.steps)
    assert (found.kind == "infra") <= bool(case.world.lost)
    assert (found.kind == "budget") <= (options.budget is not None)
    if found.kind == "creep":
        assert found.ceiling < found.min_step or not any(
            s.kind in (Kind.STEP, Kind.BLURRED)
            and not s.censored
            and gains(options.metric, options.find, case.truth[s.first], case.truth[s.last]) >= found.min_step
            and (s.kind is Kind.BLURRED or not _taken_back(found, s.last))
            for s in found.stretches
        )
    ends = (0, case.world.count - 1)
    if found.kind == "none":
        growth = gains(options.metric, options.find, *(case.truth[i] for i in ends))
        assert growth <= found.epsilon or any(case.dies(i) for i in ends)
    if any(case.unreadable(i) for i in ends):
        assert found.kind in ("blurred", "infra", "budget") and not found.steps


def _taken_back(found: Conclusion, index: int) -> bool:
    return any(step.index == index and step.confirmed == "superseded" for step in found.steps)


@settings(max_examples=80, deadline=None)
@given(cases(), OPTIONS, st.randoms(use_true_random=False))
def test_the_order_of_the_answers_does_not_matter(case: Case, options: Options, order: random.Random) -> None:
    """Neither within a round, nor, as far as the conclusion goes, over the whole search; and nothing else is chance."""
    told = replace(case, order=None).search(options)
    shuffled_rounds = replace(case, order=order).search(options)
    assert shuffled_rounds[1] == told[1] and set(shuffled_rounds[0].log) == set(told[0].log)
    log = list(told[0].log)
    order.shuffle(log)
    state = replay(start(case.world.count, options, **case.axis), log)
    assert conclude(state) == told[1] and plan(state, case.parallel) == ()


@settings(max_examples=120, deadline=None)
@given(cases(), MIN_STEPS)
def test_every_large_step_is_found(case: Case, asked: int | None) -> None:
    """In a history that only rises nothing can hide, except in what cannot be read."""
    case = case.rising()
    options = Options(min_step_bytes=asked)
    _, found = case.search(options)
    if case.unreadable(0) or case.unreadable(case.world.count - 1):
        assert not found.steps
        return
    known = {step.index: step for step in found.steps}
    hidden = [range(step.blurred_with[0], step.blurred_with[1] + 1) for step in found.steps if step.blurred_with]
    large = set()
    smallest = min_step(options, case.truth[0], case.truth[-1])
    for index in range(1, case.world.count):
        gain = gains("memory", "regression", case.truth[index - 1], case.truth[index])
        if gain >= max(smallest, epsilon(options) + 1):
            large.add(index)
            blurred = any(index in stretch for stretch in hidden)
            assert blurred or (known[index].named and known[index].blurred_with is None)
    named = {step.index for step in found.steps if step.named}
    last_drop = {found.crossing} if found.growth.device <= found.epsilon else set()
    assert named <= large | last_drop
    if named - last_drop and not hidden:
        assert found.kind == "culprit"
    if not case.world.broken and not case.skipped:
        assert found.kind != "blurred"
    if not large and not hidden and found.growth.device > found.epsilon:
        assert found.kind == "creep"


@settings(max_examples=60, deadline=None)
@given(cases(60), st.integers(1, 5), st.integers(0, 3))
def test_a_failing_machine_only_delays(case: Case, parallel: int, grid: int) -> None:
    """Once every lost point has been measured after all, the search ends where it would have ended without a loss."""
    options = Options(min_step_bytes=64 * MIB, grid=grid)
    case, whole = case.rising(), case.rising(lost=frozenset())
    state, _ = case.search(options, parallel)
    _, expected = whole.search(options, parallel)
    while True:
        requests = plan(state, parallel) or [r for r, seen in state.log if isinstance(seen, Infra) and _lost(state, r)]
        if not requests:
            break
        for request in requests:
            state = observe(state, request, whole.world.answer(request))
    found = conclude(state)
    large = [
        [(s.index, s.delta, s.confirmed, s.named) for s in one.steps if s.delta.size >= 64 * MIB and not s.blurred_with]
        for one in (found, expected)
    ]
    assert sorted(large[0], key=str) == sorted(large[1], key=str)
    assert (found.kind, found.crossing) == (expected.kind, expected.crossing)


def _lost(state: State, request: Measure | Remeasure | Revert) -> bool:
    run = state.line.run_of(request.index)
    seen = {Measure: state.seen(run), Remeasure: state.fresh.get(run), Revert: state.reverts.get(run)}
    return isinstance(seen[type(request)], Infra)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_an_exhaustive_search_leaves_nothing_open(case: Case) -> None:
    _, found = case.search(Options(exhaustive=True, confirm=False))
    assert all(stretch.kind is not Kind.OPEN for stretch in found.stretches)
    for stretch in found.stretches:
        if stretch.kind is Kind.BLURRED:
            assert all(case.unreadable(i) for i in range(stretch.first + 1, stretch.last))


@settings(max_examples=80, deadline=None)
@given(cases())
def test_the_crossing_is_where_it_stops_fitting(case: Case) -> None:
    """Where memory only rises, there is one crossing, and the search finds it or says what hides it."""
    case = case.rising(card=case.world.card)
    _, found = case.search(Options())
    truth = [i for i in range(1, case.world.count) if case.fits(i - 1) and not case.fits(i)]
    if case.unreadable(0) or case.unreadable(case.world.count - 1) or not truth:
        assert found.crossing is None
    else:
        assert found.crossing_range is not None
        assert found.crossing_range[0] <= truth[0] <= found.crossing_range[1]
        assert (found.crossing == truth[0]) is (found.crossing_range[0] == found.crossing_range[1])


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(["regression", "improvement"]))
def test_an_improvement_is_a_regression_backwards(case: Case, find: str) -> None:
    """Negated sizes and negated verdicts on the limit give the same requests and the mirrored conclusion."""
    world = replace(case.world, card=None, conflicts=frozenset())

    class Mirror(World):
        def answer(self, request):
            seen = world.answer(request)
            if not isinstance(seen, Exact):
                return seen
            m = seen.metrics
            phases = tuple((name, -size) for name, size in m.phases)
            flipped = type(m)(-m.allocated, -m.reserved, -m.external, m.allocations, phases)
            return Exact(flipped, not seen.fits)

    case = replace(case, order=None, world=world)
    other = "improvement" if find == "regression" else "regression"
    state, found = case.search(Options(find=find))
    mirrored, opposite = replace(case, world=Mirror(world.count)).search(Options(find=other))
    assert [request for request, _ in state.log] == [request for request, _ in mirrored.log]
    assert (found.kind, found.crossing) == (opposite.kind, opposite.crossing)
    assert [(s.index, s.delta, s.confirmed, s.named, s.change) for s in found.steps] == [
        (s.index, -s.delta, s.confirmed, s.named, -s.change) for s in opposite.steps
    ]


@settings(max_examples=80, deadline=None)
@given(cases(), st.booleans())
def test_the_axis_changes_the_cost_and_not_the_answer(case: Case, equal: bool) -> None:
    """Where memory only rises and all can be read, every order of probing ends at the same steps.

    Weights, equal points, cached points, and how many probes run at once change the order alone.
    """
    case = replace(case.rising(broken=frozenset(), lost=frozenset()), skip=frozenset())
    if equal:
        case = replace(case, groups=tuple(case.truth.index(m) for m in case.truth))
    options = Options(min_step_bytes=512 * MIB)
    _, plain = Case(case.world).search(options)
    _, other = case.search(options)
    large = [
        [(s.index, s.parent, s.delta, s.named) for s in found.steps if gains_of(s.delta) >= 512 * MIB]
        for found in (plain, other)
    ]
    assert large[0] == large[1] and plain.crossing == other.crossing and plain.kind == other.kind


def gains_of(delta: Delta) -> int:
    return max(delta.allocated, delta.device)


@settings(max_examples=120, deadline=None)
@given(
    st.integers(2, 150),
    st.dictionaries(st.integers(1, 149), st.integers(1, 8), max_size=4),
    st.integers(0, 1000),
    st.integers(0, 20),
    st.integers(1, 4),
)
def test_noise_neither_hides_nor_invents_a_step(
    count: int, sizes: dict[int, int], seed: int, noise: int, parallel: int
) -> None:
    sizes = {at: size for at, size in sizes.items() if at < count}
    noise *= MIB
    world = World(count, {at: Change(allocated=n * GIB) for at, n in sizes.items()}, noise=noise, seed=seed)
    _, found = Case(world, parallel=parallel).search(Options(noise_bytes=2 * noise, exhaustive=True))
    assert {step.index for step in found.steps} == set(sizes)
    assert all(abs(step.delta.allocated - sizes[step.index] * GIB) <= 2 * noise for step in found.steps)
    named = {step.index: step.confirmed for step in found.steps if step.named}
    eighth = sum(sizes.values()) * GIB / 8
    large = {at for at, size in sizes.items() if size * GIB > eighth + 3 * noise}
    small = {at for at, size in sizes.items() if size * GIB < eighth - 3 * noise}
    assert large <= named.keys() <= sizes.keys() - small and set(named.values()) <= {"yes"}
    if sizes:
        assert found.kind == "culprit"
    else:
        assert found.kind == "none"


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 100), st.data())
def test_a_spike_is_no_culprit(count: int, data: st.DataObject) -> None:
    """What goes up and comes down at once is no part of the growth, however large; the real step is found beside it."""
    at, spike = (data.draw(st.integers(1, count - 2)) for _ in range(2))
    assume(abs(at - spike) > 1)
    world = World(
        count,
        {at: Change(allocated=4 * GIB), spike: Change(allocated=30 * GIB, allocations=5)},
        reverted={spike: spike + 1},
        limit=43 * GIB,
    )
    _, found = Case(world, parallel=data.draw(st.integers(1, 4))).search(
        Options(
            grid=data.draw(st.integers(0, count)), exhaustive=True, noise_bytes=data.draw(st.sampled_from([0, None]))
        )
    )
    assert found.kind == "culprit" and found.crossing == at
    assert [step.index for step in found.steps if step.named] == [at]
    for step in found.steps:
        if step.index == spike:
            assert step.confirmed == "superseded"
            assert any(turn == spike for turn in found.non_monotone)


@settings(max_examples=40, deadline=None)
@given(st.integers(10, 50), st.data())
def test_up_down_and_up_again(count: int, data: st.DataObject) -> None:
    """Sentinels closer together than the fix came after the regression: all are found, the last is named."""
    first = data.draw(st.integers(1, count - 3), "regression")
    fixed = data.draw(st.integers(first + 1, count - 2), "fix")
    again = data.draw(st.integers(fixed + 1, count - 1), "regression again")
    apart = min(fixed - first, again - fixed)
    size = data.draw(st.integers(1, 9), "GiB")
    world = World(
        count,
        {first: Change(allocated=size * GIB), again: Change(allocated=4 * GIB)},
        reverted={first: fixed},
        limit=43 * GIB,
    )
    _, found = Case(world, parallel=data.draw(st.integers(1, 4))).search(
        Options(grid=count // apart + 1, exhaustive=data.draw(st.booleans()), min_step_bytes=GIB)
    )
    assert {s.index: s.confirmed for s in found.steps} == {first: "superseded", fixed: "not-tried", again: "yes"}
    assert (found.kind, found.crossing) == ("culprit", again)
    assert [step.index for step in found.steps if step.named] == [again]
    turns = [sum(turn >= point for point in (first, fixed, again)) for turn in found.non_monotone]
    assert turns == [1, 2]


# What it costs at most


def bound(count: int, large: int) -> int:
    """Most probes that halving takes: at each depth, no more intervals are split than there are, or than `large`."""
    depth = (count - 2).bit_length()
    return 2 + sum(min(1 << level, large) for level in range(depth))


def test_the_bound_lies_just_above_the_published_means() -> None:
    assert [bound(256, k) for k in (1, 2, 3, 5)] == [10, 17, 23, 34]  # means: 10.0, 16.1, 21.4, 30.9


@settings(max_examples=40, deadline=None)
@given(cases(300), st.sampled_from([None, 64 * MIB, 512 * MIB, GIB]))
def test_no_search_costs_more_than_halving(case: Case, asked: int | None) -> None:
    """Where all can be read: movement of `min_step` fits into a rising history only so often, whatever its shape."""
    world = case.rising(broken=frozenset(), lost=frozenset()).world
    options = Options(min_step_bytes=asked, confirm=False)
    state, found = Case(world).search(options)
    crossed = found.crossing_range is not None
    large = Delta.between(world.metrics(0), world.metrics(world.count - 1)).device // max(1, found.min_step)
    assert probes(state) <= bound(world.count, large + crossed)
    confirmed, _ = Case(world).search(replace(options, confirm=True))
    named = {step.index for step in found.steps if step.named or step.index == found.crossing}
    assert confirmed.probes <= state.probes + 3 * len(named)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 2000), st.dictionaries(st.integers(1, 1999), st.integers(1, 9), max_size=9), st.integers(38, 100))
def test_steps_cost_their_halvings(count: int, sizes: dict[int, int], limit: int) -> None:
    world = World(count, {i: Change(allocated=n * GIB) for i, n in sizes.items() if i < count}, limit=limit * GIB)
    state, found = Case(world).search(Options(exhaustive=True, confirm=False))
    assert {step.index for step in found.steps} == set(world.changes)
    assert probes(state) == 2 + halvings(0, count - 1, world.changes) <= bound(count, len(world.changes))


def halvings(low: int, high: int, steps: Collection[int]) -> int:
    """How often halving cuts, if it cuts what holds a step and nothing else."""
    if high - low == 1 or not any(low < step <= high for step in steps):
        return 0
    middle = (low + high) // 2
    return 1 + halvings(low, middle, steps) + halvings(middle, high, steps)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 2000), st.integers(1, 1999), st.integers(2, 8))
def test_side_by_side_a_step_costs_its_sections(count: int, at: int, parallel: int) -> None:
    """P probes at once leave a part of P + 1 of the interval: the rounds are logarithms to that base."""
    world = World(count, {1 + at % (count - 1): Change(allocated=4 * GIB)}, limit=43 * GIB)
    state, rounds, width = start(count, Options(confirm=False)), 0, count - 1
    while requests := plan(state, parallel):
        state = replay(state, [(request, world.answer(request)) for request in requests])
        rounds += 1
    most = 1
    while width > 1:
        width, most = -(-width // (parallel + 1)), most + 1
    assert rounds <= most + 1


# Chance


def test_nothing_depends_on_the_order_of_sets() -> None:
    """Sets of strings are ordered differently by every interpreter; the search is not."""
    code = (
        "from oombisect.search import Options; from tests.search.world import *;"
        "w = World(90, {7: Change(GIB), 30: Change(5 * GIB, 0, GIB), 31: Change(-GIB), 60: Change(9 * GIB)},"
        " limit=45 * GIB, broken=frozenset({29, 45, 61}), lost=frozenset({22}), reverted={7: 50});"
        "print(w.search(Options(exhaustive=True, grid=3), 3, groups=[str(i // 2 * (i > 70) or -i) for i in range(90)]))"
    )
    root = Path(__file__).resolve().parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1 and outputs.pop().startswith("(State(")


@pytest.mark.parametrize("parallel", [1, 3])
def test_every_search_of_a_case_is_the_same(parallel: int) -> None:
    world = World(60, {20: Change(GIB), 41: Change(5 * GIB)}, broken=frozenset({30}), noise=MIB)
    assert Case(world).search(Options(), parallel) == Case(world).search(Options(), parallel)
