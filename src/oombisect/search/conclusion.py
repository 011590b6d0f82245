"""What the search concludes from what it knows; it may be asked at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oombisect.search import confirm
from oombisect.search.confirm import Confirmed
from oombisect.search.metric import is_bounded, sought
from oombisect.search.observation import NOTHING, Censored, Delta, Exact, Infra, Unresolved, metrics_of
from oombisect.search.plan import is_over, unfinished
from oombisect.search.state import State
from oombisect.search.survey import Interval, Kind, Survey

Verdict = Literal["culprit", "none", "creep", "blurred", "budget", "infra"]


@dataclass(frozen=True, slots=True)
class Step:
    """One change with its size.

    Args:
        index: the point that brought the change; for a blurred step the first readable point after it.
        parent: the point before it; for a blurred step the last readable point before it.
        delta: bytes it added; at least these if `censored`.
        change: what it added of the metric searched for, in its unit; of `memory` the more of allocated and device.
        phases: the change of each phase's peak allocated that moved, bytes.
        named: it is large enough, of the sought kind, alone, and nothing speaks against it.
        blurred_with: first and last point that may have brought it, if what lies between cannot be measured.
    """

    index: int
    parent: int
    delta: Delta
    confirmed: Confirmed
    named: bool
    change: int = 0
    censored: bool = False
    phases: tuple[tuple[str, int], ...] = ()
    blurred_with: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of the axis between two measured points; all of them in a row add up to the growth."""

    first: int
    last: int
    kind: Kind
    delta: Delta
    censored: bool = False


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The outcome of a search. Sizes are bytes; `change`, `epsilon` and what follows it have the unit of the metric.

    Args:
        kind: the verdict; `budget` also while the search is still under way.
        crossing: the point that took memory across the limit for good, if it is known and fresh readings agree.
        crossing_range: first and last point that may have done so.
        steps: every change found, the crossing one first, then by size.
        growth: bad minus good; at least this if `growth_is_bound`.
        change: the same of the metric searched for, as a step has it.
        explained: the share of all movement that single changes account for, 0..1.
        unresolved: stretches of points that could not be measured, first and last.
        non_monotone: measured points where memory turned from rising to falling or back.
        stretches: the whole axis, in order.
        measured: points (or groups of equal points) with an outcome.
        probes: probes spent, cached measurements left out.
        epsilon: the smallest difference that means anything.
        min_step: the smallest change that was looked for and named.
        largest_open: the largest change that may still hide between two measured points.
        ceiling: no single change adds more than this of what was sought, as far as the readings tell.
        good_fits: whether the good end fits the limit, or is not above the threshold; None: not known.
        bad_fits: the same of the bad end.
        notes: further facts, each a sentence.
    """

    kind: Verdict
    crossing: int | None = None
    crossing_range: tuple[int, int] | None = None
    steps: tuple[Step, ...] = ()
    growth: Delta = NOTHING
    growth_is_bound: bool = False
    change: int = 0
    explained: float = 0.0
    unresolved: tuple[tuple[int, int], ...] = ()
    non_monotone: tuple[int, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    measured: int = 0
    probes: int = 0
    epsilon: int = 0
    min_step: int = 0
    largest_open: int = 0
    ceiling: int = 0
    good_fits: bool | None = None
    bad_fits: bool | None = None
    notes: tuple[str, ...] = ()


def conclude(state: State) -> Conclusion:
    """The conclusion from a state."""
    survey = Survey(state)
    measured = len(state.readings)
    if survey.good is None or survey.bad is None:
        kind, notes = _ends(survey)
        return Conclusion(
            kind, unresolved=_unresolved(survey), measured=measured, probes=state.probes, notes=tuple(notes)
        )
    steps = _steps(survey)
    crossing, crossing_range = _crossing(survey)
    return Conclusion(
        kind=_verdict(survey, steps),
        crossing=crossing,
        crossing_range=crossing_range,
        steps=steps,
        growth=survey.growth,
        growth_is_bound=survey.span is not None and survey.span.censored,
        change=0 if survey.span is None else _change(survey, survey.span),
        explained=survey.explained,
        unresolved=_unresolved(survey),
        non_monotone=_turning_points(survey),
        stretches=_stretches(survey),
        measured=measured,
        probes=state.probes,
        epsilon=survey.epsilon,
        min_step=survey.min_step,
        largest_open=max((survey.movement(i) for i in survey.intervals if i.kind is Kind.OPEN), default=0),
        ceiling=max((survey.gain(i) for i in survey.intervals), default=0),
        good_fits=survey.low_side(survey.good),
        bad_fits=survey.low_side(survey.bad),
        notes=tuple(_notes(survey, steps)),
    )


def _ends(survey: Survey) -> tuple[Verdict, list[str]]:
    """The verdict while an end has no reading."""
    state = survey.state
    kind: Verdict = "budget"
    notes = []
    for name, run in (("good", 0), ("bad", state.line.end)):
        seen = state.seen(run)
        if isinstance(seen, Infra):
            kind = "infra"
        elif isinstance(seen, Unresolved | Censored) and state.told(seen) is None and kind != "infra":
            kind = "blurred"
        if isinstance(seen, Infra | Unresolved):
            notes.append(f"the {name} end could not be measured: {seen.reason}")
        elif isinstance(seen, Censored) and state.told(seen) is None:
            what = "its side of the threshold" if is_bounded(state.options.metric) else f"its {state.options.metric}"
            notes.append(f"the {name} end ran out of memory, which does not tell {what}")
    return kind, notes


def _verdict(survey: Survey, steps: tuple[Step, ...]) -> Verdict:
    if unfinished(survey):
        return "budget"
    if survey.span is not None and survey.span.kind is Kind.UNKNOWN:
        return "blurred"
    if not survey.grew and survey.crossing is None:
        return "none"
    blurred = [i for i in survey.intervals if i.kind is Kind.BLURRED and _matters(survey, i)]
    if blurred:
        return "infra" if all(survey.infra_only(i) for i in blurred) else "blurred"
    if any(step.named for step in steps):
        return "culprit"
    # Large single changes that fresh evidence does not bear out: too thin to name one, and no creep either.
    explained = confirm.taken_back(survey)
    doubtful = [i for i in confirm.candidates(survey) if i not in explained and confirm.deserves_name(survey, i)]
    if any(confirm.unanswered(survey, i) for i in doubtful):
        return "infra"
    return "blurred" if doubtful else "creep"


def _matters(survey: Survey, interval: Interval) -> bool:
    """Whether a blurred interval hides what the search was for."""
    if survey.gain(interval) >= survey.min_step:
        return True
    return interval == survey.crossing and (interval.censored or not survey.grew)


def _steps(survey: Survey) -> tuple[Step, ...]:
    """Single changes and blurred ones, the crossing first, then by size."""
    named = set(confirm.candidates(survey))
    found = [
        interval
        for interval in survey.intervals
        if (interval.kind is Kind.STEP and (interval in named or survey.movement(interval) > survey.epsilon))
        or (interval.kind is Kind.BLURRED and (interval.moved.size > survey.epsilon or interval == survey.crossing))
    ]
    found.sort(key=lambda i: (i != survey.crossing, -i.moved.size, i.low))
    return tuple(_step(survey, interval, named) for interval in found)


def _step(survey: Survey, interval: Interval, candidates: set[Interval]) -> Step:
    line = survey.state.line
    confirmed: Confirmed = "not-tried"
    if interval.kind is Kind.STEP and interval in candidates:
        confirmed = confirm.confirmed(survey, interval)
    before, after = survey.state.reading(interval.low), survey.state.reading(interval.high)
    assert before is not None and after is not None
    one, two = dict(metrics_of(before).phases), dict(metrics_of(after).phases)
    moved = {name: two.get(name, 0) - one.get(name, 0) for name in {**one, **two}}
    return Step(
        index=line.first[interval.high],
        parent=line.last(interval.low),
        delta=interval.delta,
        confirmed=confirmed,
        named=interval in candidates
        and confirm.deserves_name(survey, interval)
        and confirmed not in ("refuted", "superseded")
        and not confirm.unanswered(survey, interval),
        change=_change(survey, interval),
        censored=interval.censored,
        phases=tuple((name, delta) for name, delta in moved.items() if abs(delta) > survey.epsilon_bytes),
        blurred_with=None if interval.single else _changes(survey, interval),
    )


def _change(survey: Survey, interval: Interval) -> int:
    """The change in what is sought; of several quantities, in that which moved most in the way asked for."""
    return max(interval.moved.sought, key=survey.options.wanted)


def _changes(survey: Survey, interval: Interval) -> tuple[int, int]:
    """The first and last point whose change lies in an interval."""
    return survey.state.line.first[interval.low + 1], survey.state.line.first[interval.high]


def _crossing(survey: Survey) -> tuple[int | None, tuple[int, int] | None]:
    interval = survey.crossing
    if interval is None:
        return None, None
    first, last = _changes(survey, interval)
    known = interval.single and confirm.crossing_repeats(survey, interval) is not False
    return (last if known else None), (first, last)


def _unresolved(survey: Survey) -> tuple[tuple[int, int], ...]:
    """Stretches of points that told nothing; in a blurred interval that is all of it, tried or not."""
    line = survey.state.line
    hidden = {*survey.blind, *line.skipped} - set(survey.readable)
    for interval in survey.intervals:
        if interval.kind is Kind.BLURRED:
            hidden.update(range(interval.low + 1, interval.high))
    runs = sorted(hidden)
    starts = [run for run in runs if run - 1 not in hidden]
    ends = [run for run in runs if run + 1 not in hidden]
    return tuple((line.first[low], line.last(high)) for low, high in zip(starts, ends, strict=True))


def _turning_points(survey: Survey) -> tuple[int, ...]:
    """Readable points at which what is sought turned by more than epsilon, the first of each plateau."""
    exact = [
        (run, sought(survey.options.metric, reading.metrics))
        for run in survey.readable
        if isinstance(reading := survey.state.reading(run), Exact)
    ]
    turns: set[int] = set()
    for quantity in range(len(exact[0][1]) if exact else 0):
        turns.update(_turns([(run, values[quantity]) for run, values in exact], survey.epsilon))
    return tuple(survey.state.line.point_of(run) for run in sorted(turns))


def _turns(series: list[tuple[int, int]], epsilon: int) -> list[int]:
    """Where a series reverses by more than epsilon."""
    turns: list[int] = []
    if not series:
        return turns
    direction = 0
    extreme = series[0]
    for run, value in series[1:]:
        ahead = (value - extreme[1]) * (direction or 1)
        if direction == 0 and abs(value - extreme[1]) > epsilon:
            direction, extreme = (1 if value > extreme[1] else -1), (run, value)
        elif direction and ahead > 0:
            extreme = (run, value)
        elif direction and ahead < -epsilon:
            turns.append(extreme[0])
            direction, extreme = -direction, (run, value)
    return turns


def _stretches(survey: Survey) -> tuple[Stretch, ...]:
    line = survey.state.line
    return tuple(Stretch(line.last(i.low), line.first[i.high], i.kind, i.delta, i.censored) for i in survey.intervals)


def _notes(survey: Survey, steps: tuple[Step, ...]) -> list[str]:
    """Facts that the other fields do not say, each a sentence."""
    state, span = survey.state, survey.span
    assert survey.good is not None and survey.bad is not None and span is not None
    good, bad = survey.low_side(survey.good), survey.low_side(survey.bad)
    if state.options.threshold_bytes is None:
        limit, lower, upper = "limit", "both ends fit the limit", "neither end fits the limit"
    else:
        limit, lower, upper = "threshold", "neither end is above the threshold", "both ends are above the threshold"
    facts = [
        (span.kind is Kind.UNKNOWN, "both ends ran out of memory, so their sizes cannot be compared"),
        (good is bad is False, f"{upper}, so no change crosses it; steps are attributed by size"),
        (good is bad is True, f"{lower}, so no change crosses it; steps are attributed by size"),
        (good != bad and survey.crossing is None, f"the {limit} is crossed the other way round than was asked for"),
        (not survey.grew and survey.gain(span) > 0, "what moved between the ends is within the noise of a reading"),
        (
            state.options.metric == "memory"
            and is_over(survey)
            and state.options.wanted(survey.growth.cached) > survey.epsilon,
            "reserved minus allocated moved the way that was asked for, but neither allocated nor device memory did",
        ),
        (
            span.kind is not Kind.UNKNOWN and any(i.kind is Kind.UNKNOWN for i in survey.intervals),
            "past the limit peaks are lower bounds: what happened between points that all ran out is unknown",
        ),
        (
            any(step.censored for step in steps),
            "a change after which the run dies is at least as large as given; a larger or a virtual device can tell",
        ),
        (
            any(step.confirmed == "refuted" for step in steps),
            "fresh readings of a change and its parent disagree with the first ones, so it is not named",
        ),
        (
            any(confirm.still_needed_elsewhere(survey, i) for i in confirm.candidates(survey)),
            "the bad tip needs as much memory without a change that was found: another change needs it too",
        ),
        (
            any(isinstance(seen, Censored) for seen in state.reverts.values()),
            "the bad tip runs out of memory without a change that was found, which tells nothing of that change",
        ),
        (
            state.options.confirm and state.room == 0 and bool(confirm.requests(survey)),
            "the budget was spent before every change found could be confirmed",
        ),
    ]
    return [sentence for holds, sentence in facts if holds]
