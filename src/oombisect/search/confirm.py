"""Before a change is named: fresh readings of it and its parent, and the bad tip without it."""

from __future__ import annotations

from typing import Literal

from oombisect.search.observation import Censored, Conflict, Delta, Exact, Infra, Unresolved, fits, metrics_of
from oombisect.search.requests import Remeasure, Request, Revert
from oombisect.search.survey import Interval, Kind, Survey

Confirmed = Literal["yes", "superseded", "conflict", "not-tried", "refuted"]


def candidates(survey: Survey) -> list[Interval]:
    """The single changes that are large enough to be named, the one that crosses the limit first, then by size."""
    crossing = survey.crossing
    found = [i for i in survey.intervals if i.kind is Kind.STEP and survey.gain(i.delta) >= survey.min_step]
    if crossing is not None and crossing.kind is Kind.STEP and crossing not in found:
        # A last drop is worth a second look, and is all there is to name if memory hardly grew.
        found.append(crossing)
    return sorted(found, key=lambda i: (i != crossing, -survey.gain(i.delta), i.low))


def requests(survey: Survey) -> list[Request]:
    """What is still to be measured to confirm the candidates, in order of importance."""
    wanted: list[Request] = []
    line = survey.state.line
    for step in candidates(survey):
        fresh: list[Request] = [
            Remeasure(line.last(step.low) if run == step.low else line.point_of(run))
            for run in (step.low, step.high)
            if run not in survey.state.fresh
        ]
        revert = step.high not in survey.state.reverts and step.high != line.end and deserves_revert(survey, step)
        if not fresh and revert and supported(survey, step):
            fresh.append(Revert(line.first[step.high]))
        wanted += [request for request in fresh if request not in wanted]
    return wanted


def cost(survey: Survey) -> int:
    """Most probes that confirming the candidates of now can still take."""
    state, line = survey.state, survey.state.line
    steps = candidates(survey)
    fresh = {run for step in steps for run in (step.low, step.high)} - state.fresh.keys()
    reverts = {step.high for step in steps if deserves_revert(survey, step)} - state.reverts.keys() - {line.end}
    return len(fresh) + len(reverts)


def deserves_revert(survey: Survey, step: Interval) -> bool:
    """A last drop too small to be named does not: the tip without it would tell nothing."""
    return survey.gain(step.delta) >= survey.min_step or not survey.grew


def supported(survey: Survey, step: Interval) -> bool | None:
    """Whether fresh readings of a change and its parent say again what the first ones said; None: not known.

    They do if the fresh change is nearer to the first one than to none at all.
    """
    state = survey.state
    pairs = [(state.reading(run), state.fresh.get(run)) for run in (step.low, step.high)]
    fresh = [second for _, second in pairs]
    if any(second is None or isinstance(second, Infra) for second in fresh):
        return None
    if any(isinstance(second, Unresolved | Conflict) for second in fresh):
        return False
    before, after = fresh
    assert isinstance(before, Exact | Censored) and isinstance(after, Exact | Censored)
    if step.censored or isinstance(before, Censored) or isinstance(after, Censored):
        return not step.flips or crossing_repeats(survey, step)
    again = Delta.between(before.metrics, after.metrics)
    if survey.gain(step.delta) <= survey.epsilon:
        return not step.flips or crossing_repeats(survey, step)
    return _share(survey, step, again) > 1 / 2


def crossing_repeats(survey: Survey, step: Interval) -> bool | None:
    """Whether fresh readings fall on the same sides of the limit; None: not known."""
    answers = []
    for run in (step.low, step.high):
        first, second = survey.state.reading(run), survey.state.fresh.get(run)
        if second is None or isinstance(second, Infra):
            return None
        assert first is not None
        answers.append(isinstance(second, Exact | Censored) and fits(first) == fits(second))
    return all(answers)


def confirmed(survey: Survey, step: Interval) -> Confirmed:
    """What the evidence says of a single change that would be named."""
    state = survey.state
    backed = supported(survey, step)
    if backed is False:
        return "refuted"
    reverted, bad = state.reverts.get(step.high), survey.bad
    if isinstance(reverted, Exact) and bad is not None:
        if isinstance(bad, Censored) or (step.flips and fits(reverted) != fits(bad)):
            fell = fits(reverted) != fits(bad)
        else:
            fell = _share(survey, step, Delta.between(reverted.metrics, metrics_of(bad))) > 1 / 2
        if not fell:
            return "superseded"
        return "yes" if backed else "not-tried"
    if taken_back(survey, step):
        return "superseded"
    if isinstance(reverted, Conflict | Unresolved):
        return "conflict"
    if step.high == state.line.end and backed:
        return "yes"  # the tip without its own change is the parent, which was measured afresh
    return "not-tried"


def taken_back(survey: Survey, step: Interval) -> bool:
    """Whether a later change takes this one back; each of those takes back one change only, the most alike."""
    return step in _pairs(survey)


def _pairs(survey: Survey) -> dict[Interval, Interval]:
    """Changes that were taken back, and by what."""
    ups = [i for i in survey.intervals if i.kind is Kind.STEP and survey.gain(i.delta) > survey.epsilon]
    downs = [
        i
        for i in survey.intervals
        if i.kind in (Kind.STEP, Kind.BLURRED) and survey.gain(-i.delta) > survey.epsilon and not i.censored
    ]
    if survey.state.options.find == "change":
        return {}
    matches = []
    for up in ups:
        for down in downs:
            left = up.delta + down.delta
            allowed = max(survey.epsilon, round((1 - survey.state.options.explain) * survey.gain(up.delta)))
            if down.low >= up.high and not up.censored and left.size <= allowed:
                matches.append((left.size, -up.low, up, down))
    pairs: dict[Interval, Interval] = {}
    for _, _, up, down in sorted(matches, key=lambda m: (m[0], m[1], m[3].low)):
        if up not in pairs and down not in pairs.values():
            pairs[up] = down
    return pairs


def _share(survey: Survey, step: Interval, again: Delta) -> float:
    """What part of a change a second look at it shows, in the quantity in which it was largest."""
    wanted = survey.state.options.wanted
    pairs = ((step.delta.allocated, again.allocated), (step.delta.device, again.device))
    first, second = max(pairs, key=lambda pair: wanted(pair[0]))
    return second / first
