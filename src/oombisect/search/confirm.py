"""Before a change is named: fresh readings of it and its parent, and the bad tip without it."""

from __future__ import annotations

from typing import Literal

from oombisect.search.observation import Censored, Conflict, Exact, Infra, Reading, Unresolved
from oombisect.search.requests import Remeasure, Request, Revert
from oombisect.search.survey import Interval, Kind, Survey

Confirmed = Literal["yes", "superseded", "conflict", "not-tried", "refuted"]


def candidates(survey: Survey) -> list[Interval]:
    """The single changes that are large enough to be named, the one that crosses the limit first, then by size."""
    crossing = survey.crossing
    if crossing is None and not survey.grew:
        return []  # an exhaustive search of a range that gives nobody reason to complain
    found = [i for i in survey.intervals if i.kind is Kind.STEP and survey.gain(i) >= survey.min_step]
    if crossing is not None and crossing.kind is Kind.STEP and crossing not in found:
        # A last drop is worth a second look, and is all there is to name if memory hardly grew.
        found.append(crossing)
    return sorted(found, key=lambda i: (i != crossing, -survey.gain(i), i.low))


def requests(survey: Survey) -> list[Request]:
    """What is still to be measured to confirm the candidates, in order of importance."""
    line = survey.state.line
    wanted: list[Request] = []
    for step in candidates(survey):
        fresh, revert = _pending(survey, step)
        if fresh:
            points = {step.low: line.last(step.low), step.high: line.first[step.high]}
            wanted += [Remeasure(points[run]) for run in fresh]
        elif revert:
            wanted.append(Revert(line.first[step.high]))
    return list(dict.fromkeys(wanted))


def cost(survey: Survey) -> int:
    """Most probes that confirming the candidates of now can still take."""
    pending = [_pending(survey, step) for step in candidates(survey)]
    return len({run for fresh, _ in pending for run in fresh}) + sum(revert for _, revert in pending)


def _pending(survey: Survey, step: Interval) -> tuple[list[int], bool]:
    """The runs of a change that want a fresh reading, and whether the tip without the change is wanted too."""
    state = survey.state
    fresh = [run for run in (step.low, step.high) if run not in state.fresh]
    revert = step.high not in state.reverts and step.high != state.line.end and deserves_name(survey, step)
    return fresh, revert and (bool(fresh) or supported(survey, step) is True)


def deserves_name(survey: Survey, step: Interval) -> bool:
    """Whether a candidate is more than a last drop: large enough, or all there is."""
    return survey.gain(step) >= survey.min_step or not survey.grew


def unanswered(survey: Survey, step: Interval) -> bool:
    """Whether fresh readings were asked for and the machine failed: there is no second evidence, for or against."""
    return any(isinstance(survey.state.fresh.get(run), Infra) for run in (step.low, step.high))


def supported(survey: Survey, step: Interval) -> bool | None:
    """Whether fresh readings of a change and its parent say again what the first ones said; None: not known.

    They do if the fresh change is nearer to the first one than to none at all; where a run that died left no size, if
    both lie on the same sides of the limit again.
    """
    state = survey.state
    fresh = [state.fresh.get(run) for run in (step.low, step.high)]
    if any(second is None or isinstance(second, Infra) for second in fresh):
        return None
    before, after = map(state.told, fresh)
    if before is None or after is None:
        return False
    if (
        step.censored
        or isinstance(before, Censored)
        or isinstance(after, Censored)
        or survey.gain(step) <= survey.epsilon
    ):
        return crossing_repeats(survey, step)  # there is no size to compare
    return _share(survey, step, before, after) > 1 / 2


def crossing_repeats(survey: Survey, step: Interval) -> bool | None:
    """Whether fresh readings fall on the same sides of the limit; None: not known."""
    answers = []
    for run in (step.low, step.high):
        first, second = survey.state.reading(run), survey.state.fresh.get(run)
        if second is None or isinstance(second, Infra):
            return None
        assert first is not None
        told = survey.state.told(second)
        answers.append(told is not None and survey.low_side(first) == survey.low_side(told))
    return all(answers)


def confirmed(survey: Survey, step: Interval) -> Confirmed:
    """What the evidence says of a single change that would be named."""
    state = survey.state
    backed = supported(survey, step)
    if backed is False:
        return "refuted"
    fell = falls_without(survey, step)
    if fell:
        return "yes" if backed else "not-tried"
    if fell is False or step in taken_back(survey):
        return "superseded"
    if isinstance(state.reverts.get(step.high), Conflict | Unresolved):
        return "conflict"
    if step.high == state.line.end and backed:
        return "yes"  # the tip without its own change is the parent, which was measured afresh
    return "not-tried"


def falls_without(survey: Survey, step: Interval) -> bool | None:
    """Whether the tip needs less memory (more, if an improvement is sought) without a change; None: not known."""
    reverted, bad = survey.state.reverts.get(step.high), survey.bad
    if not isinstance(reverted, Exact) or bad is None:
        return None
    other_side = survey.low_side(reverted) != survey.low_side(bad)
    if step.flips and other_side:
        return True
    if step.censored or isinstance(bad, Censored) or survey.gain(step) <= survey.epsilon:
        return other_side
    return _share(survey, step, reverted, bad) > 1 / 2


def still_needed_elsewhere(survey: Survey, step: Interval) -> bool:
    """Whether the tip keeps its memory without a change, and no later change is seen to take that one back."""
    return falls_without(survey, step) is False and step not in taken_back(survey)


def taken_back(survey: Survey) -> set[Interval]:
    """Changes that a later one takes back; each of those takes back one change only, the most alike, then the latest.

    It is the evidence where the revert itself told nothing: a change that was reverted already conflicts.
    """
    options = survey.state.options
    exact = [i for i in survey.intervals if i.kind in (Kind.STEP, Kind.BLURRED) and not i.censored]
    ups = [i for i in candidates(survey) if not i.censored and not falls_without(survey, i)]
    pairs = [
        ((up.moved + down.moved).size, -up.low, up, down)
        for up in ups
        for down in exact
        if down.low >= up.high
        and (up.moved + down.moved).size <= max(survey.epsilon, round((1 - options.explain) * survey.gain(up)))
    ]
    taken: dict[Interval, Interval] = {}
    for _, _, up, down in sorted(pairs, key=lambda pair: (pair[0], pair[1], pair[3].low)):
        if up not in taken and down not in taken.values():
            taken[up] = down
    return set(taken)


def _share(survey: Survey, step: Interval, before: Reading, after: Reading) -> float:
    """What part of a change a second look at it shows, in the quantity in which it was largest."""
    wanted = survey.state.options.wanted
    pairs = zip(step.moved.sought, survey.moved(before, after).sought, strict=True)
    first, second = max(pairs, key=lambda pair: wanted(pair[0]))
    return second / first
