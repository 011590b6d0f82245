"""What to measure next."""

from __future__ import annotations

from collections.abc import Iterable

from oombisect.search import confirm
from oombisect.search.observation import Exact
from oombisect.search.requests import Measure, Remeasure, Request, Revert
from oombisect.search.split import split
from oombisect.search.state import State
from oombisect.search.survey import Interval, Survey

__all__ = ["Measure", "Remeasure", "Request", "Revert", "plan"]


def plan(state: State, parallel: int = 1) -> tuple[Request, ...]:
    """The next requests, at most `parallel` of them, none of which depends on another. Empty: the search is over.

    In order: the ends, their noise, the sentinels, the crossing of the limit, the largest intervals, confirmation.
    """
    if parallel < 1:
        raise ValueError(f"parallel must be at least 1, and is {parallel}")
    slots = parallel if state.room is None else min(parallel, state.room)
    if slots == 0:
        return ()
    return tuple(_next(Survey(state), slots))


def _next(survey: Survey, slots: int) -> list[Request]:
    ends = _ends(survey)
    if ends is not None:
        return ends[:slots]
    state = survey.state
    sentinels = _measures(state, split(state.line, 0, state.line.end, (), state.options.grid))
    if sentinels:
        return sentinels[:slots]
    if is_over(survey):
        return []
    search = _search(survey, slots)
    if not state.options.confirm or survey.open_crossing is not None:
        return search
    if state.room is not None:
        # What would be named is confirmed before the last of a budget goes into looking for more.
        search = search[: max(0, state.room - confirm.cost(survey))]
    return search or confirm.requests(survey)[:slots]


def is_over(survey: Survey) -> bool:
    """Whether the ends leave nothing to search for."""
    return not survey.grew and survey.crossing is None and not survey.state.options.exhaustive


def unfinished(survey: Survey) -> bool:
    """Whether there is still something to search for, budget or not."""
    return _ends(survey) not in (None, []) or (not is_over(survey) and bool(_search(survey, 1)))


def _ends(survey: Survey) -> list[Request] | None:
    """What the ends still need; None once both are known, an empty list if one cannot be."""
    state = survey.state
    runs = sorted({0, state.line.end})
    missing = [run for run in runs if state.seen(run) is None]
    if missing:
        return _measures(state, missing)
    if any(state.reading(run) is None for run in runs):
        return []
    if state.options.noise_bytes is None:
        again = [run for run in runs if run not in state.fresh and isinstance(state.reading(run), Exact)]
        if again:
            return [Remeasure(state.line.point_of(run)) for run in again]
    return None


def _search(survey: Survey, slots: int) -> list[Request]:
    """Probes for the crossing, then for the largest intervals, the slots shared out by size."""
    crossing = survey.open_crossing
    chosen = _cut(survey, crossing, slots) if crossing is not None else []
    if len(chosen) < slots and not _explained_enough(survey):
        for interval, share in _shares(survey, slots - len(chosen)).items():
            chosen += _cut(survey, interval, share)
    return _measures(survey.state, chosen)[:slots]


def _shares(survey: Survey, slots: int) -> dict[Interval, int]:
    """How many probes each interval gets: one after another to the one with the most movement per piece."""
    free = {
        interval: (
            survey.movement(interval),
            survey.state.line.between(interval.low, interval.high) - len(interval.broken),
        )
        for interval in survey.intervals
        if survey.worth_splitting(interval) and interval != survey.open_crossing
    }
    shares: dict[Interval, int] = {}
    for _ in range(slots):
        open_ = [interval for interval, (_, places) in free.items() if shares.get(interval, 0) < places]
        if not open_:
            break
        best = max(open_, key=lambda i: (free[i][0] / (1 + shares.get(i, 0)), -i.low))
        shares[best] = shares.get(best, 0) + 1
    return shares


def _explained_enough(survey: Survey) -> bool:
    options = survey.state.options
    if options.exhaustive or options.min_step_bytes is not None or survey.span is None or not survey.grew:
        return False
    return survey.unexplained <= (1 - options.explain) * survey.gain(survey.span)


def _cut(survey: Survey, interval: Interval, probes: int) -> list[int]:
    patient = survey.state.options.exhaustive
    return split(survey.state.line, interval.low, interval.high, interval.broken, probes, patient=patient)


def _measures(state: State, runs: Iterable[int]) -> list[Request]:
    """Requests for runs that are not measured, one for each measurement."""
    groups: dict[int, int] = {}
    for run in runs:
        if state.seen(run) is None:
            groups.setdefault(state.line.group[run], run)
    return [Measure(state.line.point_of(run)) for run in groups.values()]
