"""What is known so far, and how an observation changes it.

A state is a value: the same requests and observations, told in the same order to the same start, give an equal
state. Resuming a session is `replay`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from oombisect.search.line import Line
from oombisect.search.metric import NotMeasured, is_bounded, value
from oombisect.search.observation import Censored, Conflict, Exact, Infra, Observation, Reading
from oombisect.search.options import Options
from oombisect.search.requests import Measure, Remeasure, Request, Revert


class SearchError(ValueError):
    """The caller broke the search's contract."""


class BadAxis(SearchError):
    """The axis cannot be searched: too few points, or weights or groups of another length."""


class NoSuchPoint(SearchError):
    """A request names a point that is not on the axis, or a change that the good end cannot have."""


class WrongAnswer(SearchError):
    """The observation is no possible answer to the request."""


class Contradiction(SearchError):
    """One measurement was reported twice with different results. A fresh reading is a `Remeasure`."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything the search knows.

    Args:
        line: the axis.
        options: what the user asked for.
        log: every request and its observation, in the order they came.
        readings: what is known of each group of points.
        fresh: second readings, by run.
        reverts: the bad tip without a run's change, by run.
    """

    line: Line
    options: Options
    log: tuple[tuple[Request, Observation], ...] = ()
    readings: Mapping[int, Observation] = field(default_factory=dict)
    fresh: Mapping[int, Observation] = field(default_factory=dict)
    reverts: Mapping[int, Observation] = field(default_factory=dict)
    probes: int = 0

    def seen(self, run: int) -> Observation | None:
        """What was observed of a run, None if it has not been measured."""
        return self.readings.get(self.line.group[run])

    def reading(self, run: int) -> Reading | None:
        """What was measured of a run, None where there is nothing to know."""
        return self.told(self.seen(run))

    def told(self, seen: Observation | None) -> Reading | None:
        """An observation as far as it tells anything of what is searched for."""
        if isinstance(seen, Exact):
            return seen
        if not isinstance(seen, Censored) or not is_bounded(self.options.metric):
            return None
        threshold = self.options.threshold_bytes
        return seen if threshold is None or value(self.options.metric, seen.bounds) > threshold else None

    @property
    def room(self) -> int | None:
        """Probes left to spend; None: no limit."""
        return None if self.options.budget is None else max(0, self.options.budget - self.probes)


def start(
    count: int,
    options: Options | None = None,
    weights: Sequence[float] | None = None,
    groups: Sequence[Hashable] | None = None,
    known: Collection[int] = frozenset(),
    skip: Collection[int] = frozenset(),
) -> State:
    """The state before anything is measured.

    Args:
        count: points on the axis; point 0 is good, point `count - 1` is bad.
        options: what the user asked for.
        weights: how relevant each point's own change is, 0 or more (that of point 0 is not used).
        groups: equal ids for points that are the same measurement; a reading of one answers for all.
        known: points whose measurement is cached: free, so preferred near a midpoint.
        skip: points that must not be probed, with all that are the same measurement; to the conclusion they are points
            that cannot be measured.

    Raises:
        BadAxis: the axis cannot be searched.
    """
    if count < 2:
        raise BadAxis(f"a search needs a good and a bad point, and the axis has {count}")
    for name, values in (("weights", weights), ("groups", groups)):
        if values is not None and len(values) != count:
            raise BadAxis(f"{len(values)} {name} were given for {count} points")
    if weights is not None and not all(0 <= weight < float("inf") for weight in weights):
        raise BadAxis("a weight is negative or not finite")
    for name, points in (("known", known), ("skipped", skip)):
        if not all(0 <= index < count for index in points):
            raise BadAxis(f"a {name} point is not on the axis")
    line = Line.of(count, weights, groups, known, skip)
    for name, run in (("good", 0), ("bad", line.end)):
        if line.is_skipped(run):
            raise BadAxis(f"the {name} end is skipped, or a point that is the same measurement is")
    return State(line, options or Options())


def observe(state: State, request: Request, observation: Observation) -> State:
    """The state after an observation. Any point may be reported, whether it was planned or not.

    A point given up as `Infra` may be reported again later; nothing else may change.

    Raises:
        NoSuchPoint, WrongAnswer, Contradiction: see there.
    """
    line = state.line
    lowest = 1 if isinstance(request, Revert) else 0
    if not lowest <= request.index < line.count:
        raise NoSuchPoint(f"{request} is outside {lowest}..{line.count - 1}")
    if isinstance(observation, Conflict) and not isinstance(request, Revert):
        raise WrongAnswer(f"{observation} cannot answer {request}")
    if isinstance(observation, Exact):
        try:
            value(state.options.metric, observation.metrics)
        except NotMeasured as error:
            raise WrongAnswer(f"{observation} cannot answer a search for {state.options.metric}: {error}") from error
    run = line.run_of(request.index)
    if isinstance(request, Revert) and line.first[run] != request.index:
        raise NoSuchPoint(f"{request}: this point is the same measurement as the one before it")
    key = line.group[run] if isinstance(request, Measure) else run
    table = _table(state, request)
    before = table.get(key)
    if before == observation:
        return state
    if before is not None and not isinstance(before, Infra):
        raise Contradiction(f"{request} was observed as {before}, now as {observation}")
    free = isinstance(request, Measure) and line.is_known(run)
    told = replace(state, log=(*state.log, (request, observation)), probes=state.probes + (0 if free else 1))
    table = {**table, key: observation}
    match request:
        case Measure():
            return replace(told, readings=table)
        case Remeasure():
            return replace(told, fresh=table)
        case Revert():
            return replace(told, reverts=table)


def replay(state: State, log: Iterable[tuple[Request, Observation]]) -> State:
    """Tell a whole log to a state, in order."""
    for request, observation in log:
        state = observe(state, request, observation)
    return state


def _table(state: State, request: Request) -> Mapping[int, Observation]:
    match request:
        case Measure():
            return state.readings
        case Remeasure():
            return state.fresh
        case Revert():
            return state.reverts
