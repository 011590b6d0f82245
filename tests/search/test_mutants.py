"""The properties notice mistakes: each deliberate one in the search fails at least one of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from oombisect.search import Kind, confirm, line, metric, split, state, survey
from oombisect.search.observation import Censored, Delta
from tests.search import test_costs as costs
from tests.search import test_properties as properties

plan = importlib.import_module("oombisect.search.plan")  # the package exports a function of this name
Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A mistake, and the properties that are asked whether they see it."""

    name: str
    patch: Patch
    seen_by: tuple[Callable[..., Any], ...]


def swap(owner: object, name: str, make: Callable[[Any], Any]) -> Patch:
    """A patch that puts what `make` makes of the original in its place."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, make(getattr(owner, name)))


def wrap(owner: object, name: str, change: Callable[..., Any]) -> Patch:
    """A patch after which a function's result goes through `change(result, *arguments)`."""
    return swap(owner, name, lambda original: lambda *a, **k: change(original(*a, **k), *a, **k))


def attribute(owner: type, name: str, change: Callable[[Any, Any], Any]) -> Patch:
    """The same for a property: `change(value, self)`."""

    def make(original: Any) -> property:
        read = getattr(original, "func", None) or original.fget
        return property(lambda self: change(read(self), self))

    return swap(owner, name, make)


def kind_instead(wrong: Callable[..., bool], kind: Kind) -> Patch:
    """Intervals for which `wrong(survey, low, high, before, after, broken, right)` holds get another kind."""
    return swap(
        survey.Survey,
        "_kind",
        lambda original: lambda self, *a: kind if wrong(self, *a, original(self, *a)) else original(self, *a),
    )


def without_skips(original: Any) -> Any:
    """The line of an axis on which nothing is skipped."""
    return classmethod(lambda cls, count, weights, groups, known, skip=(): original(count, weights, groups, known))


whatever = properties.test_whatever_the_history
every = properties.test_every_large_step_is_found
crossing = properties.test_the_crossing_is_where_it_stops_fitting
order = properties.test_the_order_of_the_answers_does_not_matter
axis = properties.test_the_axis_changes_the_cost_and_not_the_answer
noise = properties.test_noise_neither_hides_nor_invents_a_step
steps_cost = properties.test_steps_cost_their_halvings
halving = properties.test_no_search_costs_more_than_halving
spike = properties.test_a_spike_is_no_culprit
lost = properties.test_a_failing_machine_only_delays
sections = properties.test_side_by_side_a_step_costs_its_sections

MUTANTS = [
    Mutant(
        "two runs that died are equal",
        kind_instead(lambda self, low, high, b, a, broken, right: right is Kind.UNKNOWN, Kind.QUIET),
        (whatever,),
    ),
    Mutant(
        "a run that died is taken for a size",
        swap(survey.Interval, "censored", lambda _: property(lambda self: False)),
        (whatever,),
    ),
    Mutant(
        "the first point after a broken stretch is blamed",
        kind_instead(lambda self, low, high, b, a, broken, right: right is Kind.BLURRED, Kind.STEP),
        (whatever, every),
    ),
    Mutant(
        "a broken point ends the search of its interval",
        kind_instead(lambda self, low, high, b, a, broken, right: right is Kind.OPEN and broken, Kind.BLURRED),
        (whatever, every),
    ),
    Mutant(
        "what lies between two broken points is given up at once",
        swap(split, "patience", lambda _: lambda places: 0),
        (whatever,),
    ),
    Mutant("skipped points are probed", swap(line.Line, "of", without_skips), (whatever,)),
    Mutant(
        "the parent is one too early",
        wrap(line.Line, "last", lambda last, self, run: max(0, last - 1)),
        (whatever,),
    ),
    Mutant(
        "external memory is left out of the sums",
        swap(
            Delta,
            "__add__",
            lambda _: lambda a, b: Delta(a.allocated + b.allocated, a.reserved + b.reserved, a.external),
        ),
        (whatever,),
    ),
    Mutant(
        "only allocated memory draws probes",
        swap(
            survey,
            "moved",
            lambda original: lambda *a: (lambda m: replace(m, channels=m.channels[:1], sums=()))(original(*a)),
        ),
        (every, whatever),
    ),
    Mutant(
        "growth is that of device memory alone",
        swap(survey.Survey, "gain", lambda _: lambda self, i: self.options.wanted(i.delta.device)),
        (whatever, every),
    ),
    Mutant("the smallest step is twice as large", attribute(survey.Survey, "min_step", lambda v, _: 2 * v), (every,)),
    Mutant(
        "a larger difference still agrees",
        attribute(survey.Survey, "epsilon", lambda v, _: 100 * v),
        (whatever, every),
    ),
    Mutant(
        "noise is not allowed for", attribute(survey.Survey, "epsilon", lambda v, s: metric.finest("memory")), (noise,)
    ),
    Mutant(
        "readings are taken in the order they came",
        swap(
            survey.Survey,
            "blind",
            lambda _: property(
                lambda self: tuple(
                    r
                    for g, o in self.state.readings.items()
                    if not self.state.told(o)
                    for r in self.state.line.places[g]
                )
            ),
        ),
        (order, whatever),
    ),
    Mutant(
        "the first crossing is taken for the last",
        swap(
            survey.Survey,
            "crossing",
            lambda original: property(
                lambda self: next((i for i in self.intervals if i.flips), None) if original.func(self) else None
            ),
        ),
        (whatever,),
    ),
    Mutant("nothing crosses", swap(survey.Survey, "crossing", lambda _: property(lambda self: None)), (crossing,)),
    Mutant(
        "a run that died fits",
        wrap(survey.Survey, "low_side", lambda side, self, reading: True if isinstance(reading, Censored) else side),
        (crossing, whatever),
    ),
    Mutant(
        "the budget is a suggestion",
        attribute(state.State, "room", lambda room, self: room and room + 1),
        (whatever,),
    ),
    Mutant(
        "cached points cost a probe",
        swap(line.Line, "is_known", lambda _: lambda self, run: False),
        (costs.test_ten_thousand_points_with_weights_equal_neighbours_and_cached_ones,),
    ),
    Mutant(
        "names need no fresh readings",
        swap(confirm, "requests", lambda _: lambda s: []),
        (whatever, noise),
    ),
    Mutant(
        "what was taken back is to blame",
        swap(confirm, "taken_back", lambda _: lambda s: set()),
        (spike,),
    ),
    Mutant(
        "a failure of the machine is one of the code",
        swap(survey.Survey, "infra_only", lambda _: lambda self, interval: False),
        (every,),
    ),
    Mutant(
        "a fresh reading that tells nothing bears a change out",
        swap(confirm, "supported", lambda _: lambda s, step: True),
        (whatever,),
    ),
    Mutant(
        "a probe goes to the first tenth of its interval",
        swap(
            split,
            "_nearest",
            lambda original: (
                lambda li, left, right, chosen, target: original(
                    li, left, right, chosen, li.mileage[left] + (target - li.mileage[left]) / 5
                )
            ),
        ),
        (steps_cost, halving, sections),
    ),
    Mutant(
        "the smallest interval goes first",
        swap(survey.Survey, "worth_splitting", lambda _: lambda self, i: i.kind is Kind.OPEN),
        (halving,),
    ),
    Mutant(
        "side by side all probes go to one place",
        swap(plan, "_cut", lambda original: lambda s, i, n: original(s, i, 1)),
        (sections,),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.patch(monkeypatch)
    for test in mutant.seen_by:
        if fails(test):
            return
    pytest.fail(f"no property saw that {mutant.name}")


def fails(test: Callable[..., Any]) -> bool:
    """Whether a property fails on a few hundred cases, always the same ones."""
    quick = settings(
        max_examples=400,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(test, "hypothesis"):
            patch.setattr(test, "_hypothesis_internal_use_settings", quick)
        try:
            test()
        except Exception:
            return True
    return False
