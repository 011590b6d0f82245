"""Steps and creep: known truths, and what must hold of any series."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oombisect.history.fit import Fit, Sample, Step, estimate_noise, fit
from oombisect.units import GIB, MIB

OUT = "out of memory"
Value = int | None | tuple[str, int]


def samples(values: Sequence[Value]) -> list[Sample]:
    """Points named by their place; `(OUT, n)` is a lower bound, None is unresolved."""
    return [
        Sample(f"c{n}", n, value[1], True) if isinstance(value, tuple) else Sample(f"c{n}", n, value)
        for n, value in enumerate(values)
    ]


def fitted(values: Sequence[Value], *, exact: bool = True) -> Fit:
    return fit(samples(values), exact=exact)


def told(found: Fit) -> list[tuple[str, int, str]]:
    return [(step.point, step.delta_bytes, step.state) for step in found.steps]


A, B = 60 * GIB, 63 * GIB


def test_a_level_series_has_nothing() -> None:
    assert fitted([A] * 30) == Fit(noise=MIB // 2)
    assert fitted([A]).steps == fitted([]).steps == ()


def test_a_step_has_its_place_its_size_and_what_is_left_of_it() -> None:
    (step,) = fitted([A] * 5 + [B] * 7).steps
    assert step == Step("c5", "c4", B - A, A, B, "in force", 0, False, B - A, None, 7)


def test_the_newest_reading_may_be_a_step() -> None:
    assert told(fitted([A] * 20 + [A + 8 * MIB])) == [("c20", 8 * MIB, "in force")]


def test_a_step_that_is_taken_back_is_fixed() -> None:
    found = fitted([A] * 5 + [B] * 5 + [A] * 5)
    assert told(found) == [("c5", B - A, "fixed"), ("c10", A - B, "in force")]
    assert found.steps[0].taken_back_by == "c10" and found.steps[0].left_bytes == 0


def test_a_step_may_be_taken_back_in_part() -> None:
    found = fitted([A] * 5 + [A + 4 * GIB] * 5 + [A + GIB] * 5)
    assert told(found)[0] == ("c5", 4 * GIB, "partly fixed")
    assert found.steps[0].left_bytes == GIB


def test_of_two_steps_the_one_of_that_size_is_taken_back() -> None:
    one, two = [A] * 4 + [A + 5 * GIB] * 4, [A + 8 * GIB] * 4
    assert [state for *_, state in told(fitted([*one, *two, *[A + 3 * GIB] * 4]))] == ["fixed", "in force", "in force"]
    assert [state for *_, state in told(fitted([*one, *two, *[A + 5 * GIB] * 4]))] == ["in force", "fixed", "in force"]


def test_what_fits_no_step_takes_back_the_newest_first() -> None:
    found = fitted([A] * 4 + [A + 5 * GIB] * 4 + [A + 8 * GIB] * 4 + [A + 4 * GIB] * 4)
    assert [(step.state, step.left_bytes) for step in found.steps[:2]] == [("partly fixed", 4 * GIB), ("fixed", 0)]


def test_a_regression_after_an_improvement_is_in_force() -> None:
    assert told(fitted([B] * 5 + [A] * 5 + [B] * 5)) == [("c5", A - B, "fixed"), ("c10", B - A, "in force")]


def test_unresolved_points_blur_a_step() -> None:
    (step,) = fitted([A] * 5 + [None, None] + [B] * 5).steps
    assert (step.previous, step.point, step.blurred) == ("c4", "c7", 2)


def test_commits_that_were_never_probed_blur_a_step() -> None:
    made = [Sample("a", 100, A), Sample("b", 140, A), Sample("c", 190, B)]
    (step,) = fit(made, exact=True).steps
    assert (step.previous, step.point, step.blurred) == ("b", "c", 49)


def test_running_out_of_memory_is_a_step_of_at_least_some_size() -> None:
    found = fitted([A] * 5 + [(OUT, 79 * GIB), None, (OUT, 78 * GIB)] + [A] * 3)
    into, out_of = found.steps
    assert (into.point, into.delta_bytes, into.after, into.at_least, into.state) == (
        "c5",
        19 * GIB,
        79 * GIB,
        True,
        "fixed",
    )
    assert (out_of.point, out_of.previous, out_of.delta_bytes) == ("c8", "c7", -19 * GIB)
    assert into.readings == 2 and into.taken_back_by == "c8"


def test_who_runs_out_early_is_a_step_of_unknown_size() -> None:
    (step,) = fitted([A] * 5 + [(OUT, GIB)] * 2).steps
    assert (step.point, step.delta_bytes, step.after, step.state) == ("c5", 0, GIB, "in force")


def test_coming_back_higher_leaves_a_part() -> None:
    into, out_of = fitted([A] * 5 + [(OUT, 79 * GIB)] * 2 + [A + 2 * GIB] * 5).steps
    assert (into.state, into.left_bytes, out_of.after) == ("partly fixed", 2 * GIB, A + 2 * GIB)


def test_running_out_again_takes_back_the_repair() -> None:
    found = fitted([A] * 3 + [(OUT, 79 * GIB)] + [A] * 3 + [(OUT, 79 * GIB)])
    assert [state for *_, state in told(found)] == ["fixed", "fixed", "in force"]


def test_lower_bounds_are_never_averaged() -> None:
    """Whatever the bounds are: the exact levels, and all that is said of them, stay the same."""
    one, two = (fitted([A] * 5 + [(OUT, bound)] * 3 + [B] * 5) for bound in (GIB, 500 * GIB))
    assert [(s.point, s.before) for s in (one.steps[0], two.steps[0])] == [("c5", A)] * 2
    assert one.steps[1].after == two.steps[1].after == B
    assert one.noise == two.noise


@pytest.mark.parametrize("count", [5, 8, 30, 300])
@pytest.mark.parametrize("slope", [MIB, 20 * MIB, 3 * GIB, -20 * MIB])
def test_a_pure_ramp_is_creep_and_no_step(count: int, slope: int) -> None:
    found = fitted([500 * GIB + slope * n for n in range(count)])
    assert found.steps == ()
    assert [(c.first, c.last, c.delta_bytes, c.commits) for c in found.creeps] == [
        ("c0", f"c{count - 1}", slope * (count - 1), count - 1)
    ]


@pytest.mark.parametrize("noise", [0.001, 0.005, 0.01])
def test_a_noisy_ramp_has_no_step(noise: float) -> None:
    rng = random.Random(f"ramp {noise}")
    for _ in range(20):
        values = [int((A + 60 * MIB * n) * (1 + rng.gauss(0, noise))) for n in range(150)]
        found = fitted(values, exact=False)
        assert found.steps == () and found.creeps


def test_many_small_changes_are_creep() -> None:
    """None is an eighth of them all; a real step among them stays one."""
    values, level = [], A
    for n in range(120):
        level += 30 * MIB if n % 3 == 0 and n else 0
        level += 2 * GIB if n == 60 else 0
        values.append(level)
    found = fitted(values)
    assert [(step.point, step.delta_bytes) for step in found.steps] == [("c60", 2 * GIB + 30 * MIB)]
    assert sum(creep.delta_bytes for creep in found.creeps) == 38 * 30 * MIB
    assert {creep.largest_bytes for creep in found.creeps} <= {0, 30 * MIB}


def test_few_changes_are_steps_whatever_their_sum() -> None:
    values = [A + n // 5 * GIB for n in range(40)]
    assert len(fitted(values).steps) == 7


def test_noise_of_a_series_is_found() -> None:
    for noise in (0.005, 0.01):
        rng = random.Random(f"noise {noise}")
        values = [int((A if n < 100 else B) * (1 + rng.gauss(0, noise))) for n in range(200)]
        assert estimate_noise(values) == pytest.approx(noise * A, rel=0.25)


def test_rare_noise_is_no_step() -> None:
    """Most readings are equal, few are off by up to 1.5 %, as of real devices: 240 or so, in 20 series."""
    rng = random.Random(7)
    false = 0
    for _ in range(20):
        values = [int(A * (1 + (rng.uniform(-0.015, 0.015) if rng.random() < 0.1 else 0))) for _ in range(120)]
        false += len(fitted(values, exact=False).steps)
    assert false <= 8


def test_jumps_of_a_short_series_are_no_noise() -> None:
    """Seven readings that jump at each: no estimate may take that for noise."""
    values = [1634, 2617, 1637, 2617, 1640, 1641, 2610]
    assert len(fitted([value << 20 for value in values], exact=False).steps) == 5


def test_what_moved_in_one_long_gap_is_a_step_and_no_drift() -> None:
    """Four readings close together and one much later: a line passes through them, and so does a step."""
    places = [0, 20, 60, 110, 900]
    values = [value << 20 for value in (1120, 1118, 1121, 1119, 1060)]
    read = [Sample(f"c{place}", place, value) for place, value in zip(places, values, strict=True)]
    found = fit(read, exact=False)
    assert [(step.point, step.previous, step.blurred) for step in found.steps] == [("c900", "c110", 789)]
    assert not found.creeps


changes = st.lists(st.sampled_from((0, 0, 0, 5 * GIB, -3 * GIB, 100 * MIB, 10 * MIB)), min_size=1, max_size=40)


def levels(deltas: Sequence[int]) -> list[int]:
    return [500 * GIB + sum(deltas[: n + 1]) for n in range(len(deltas))]


@settings(max_examples=200, deadline=None)
@given(changes)
def test_nothing_is_lost(deltas: list[int]) -> None:
    """Steps and creep together are the whole difference, but for creep too small to tell."""
    found = fitted(values := levels(deltas))
    total = sum(step.delta_bytes for step in found.steps) + sum(creep.delta_bytes for creep in found.creeps)
    assert abs(total - (values[-1] - values[0])) <= 3 * MIB * len(values)
    assert all(step.after - step.before == step.delta_bytes for step in found.steps)
    assert all(0 <= step.left_bytes / step.delta_bytes <= 1 for step in found.steps)


@settings(max_examples=100, deadline=None)
@given(changes)
def test_upside_down_is_the_same(deltas: list[int]) -> None:
    up, down = fitted(levels(deltas)), fitted([1000 * GIB - value for value in levels(deltas)])
    assert [(s.point, s.delta_bytes, s.state) for s in up.steps] == [
        (s.point, -s.delta_bytes, s.state) for s in down.steps
    ]
    assert [c.delta_bytes for c in up.creeps] == [-c.delta_bytes for c in down.creeps]


@settings(max_examples=100, deadline=None)
@given(changes, st.data())
def test_unresolved_points_move_nothing(deltas: list[int], data: st.DataObject) -> None:
    """They only blur. (Places stay: a drift is one over commits.)"""
    plain = samples(levels(deltas))
    kept = data.draw(st.lists(st.booleans(), min_size=len(plain), max_size=len(plain)))
    spread = [Sample(s.point, 2 * s.place, s.value) for s in plain]
    extra = [Sample(f"u{s.place}", s.place + 1, None) for s, keep in zip(spread, kept, strict=True) if keep]
    one, two = fit(spread, exact=True), fit(sorted([*spread, *extra], key=lambda s: s.place), exact=True)
    assert one == two


@settings(max_examples=50, deadline=None)
@given(changes)
def test_the_same_series_has_the_same_fit(deltas: list[int]) -> None:
    assert fitted(levels(deltas), exact=False) == fitted(levels(deltas), exact=False)
