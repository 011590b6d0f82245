"""What is measured between the two sides of a step, with some of its parts new: as the search that found it sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from oombisect.search.confirm import falls_without
from oombisect.search.metric import is_bounded
from oombisect.search.observation import Censored, Exact, Metrics, Observation
from oombisect.search.options import Options
from oombisect.search.requests import Measure, Revert
from oombisect.search.state import observe, start
from oombisect.search.survey import Kind, Survey
from oombisect.session.bisection import needed_by_rank, observation_of
from oombisect.session.measuring import Measured, Measurer, Target

if TYPE_CHECKING:
    from oombisect.history.store import Store

ROLL = "roll"
"""The event of a descent's beginning."""


def to_probe(store: Store, session: str, measurer: Measurer, scope: str, targets: Iterable[Target]) -> int:
    """How many of these no measurement was known of when a descent began; that is kept, for the budget's sake."""
    for event in store.events(session):
        if event.kind == ROLL and event.payload["scope"] == scope:
            return int(event.payload["to_probe"])
    unknown = {str(sorted(target.trees.items())) for target in targets if not measurer.known(target)}
    store.append_event(session, ROLL, {"scope": scope, "to_probe": len(unknown)})
    return len(unknown)


def observed(measurer: Measurer, measured: Measured, fits: bool | None, options: Options) -> Observation:
    """A measurement as an answer to the search; `fits` says whether it fits the limit, None: not known."""
    return observation_of(measured.reading, fits, needed_by_rank(measurer, measured, options.metric))


def metrics_told(seen: Observation, options: Options) -> Metrics | None:
    """What an answer tells of what is followed: metrics, bounds where it ran out of memory, or nothing."""
    if isinstance(seen, Exact):
        return seen.metrics
    return seen.bounds if isinstance(seen, Censored) and is_bounded(options.metric) else None


def gain(before: Observation, after: Observation, options: Options, min_step: int) -> int | None:
    """What a change adds of what is sought; None where that cannot be told.

    Where it ran out of memory on one side, crossing the limit is what counts: the bounds may be far too low. So it is
    where the crossing of a threshold is asked for, however small the change that does it.
    """
    state = start(2, replace(options, budget=None, noise_bytes=options.noise_bytes or 0))
    for index, seen in enumerate((before, after)):
        state = observe(state, Measure(index), seen)
    survey = Survey(state)
    if survey.span is None or survey.span.kind is Kind.UNKNOWN:
        return None
    found = survey.gain(survey.span)
    decides = survey.span.bound != 0 or options.threshold_bytes is not None
    return max(found, min_step) if decides and survey.crossing is not None else found


def shows(
    change: tuple[Observation, Observation], at: Observation, without: Observation, options: Options
) -> bool | None:
    """Whether a change, from one answer to the other, is most of what another point has more than without it.

    It is judged as if that point were the bad tip and the change had been reverted there; None: cannot be told.
    """
    state = start(3, replace(options, budget=None, noise_bytes=options.noise_bytes or 0))
    for index, seen in enumerate((*change, at)):
        state = observe(state, Measure(index), seen)
    survey = Survey(observe(state, Revert(1), without))
    return next((falls_without(survey, step) for step in survey.intervals if (step.low, step.high) == (0, 1)), None)
