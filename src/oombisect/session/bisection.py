"""The loop: plan, probe, record, observe; until the search has nothing more to ask. Then the verdict.

Every observation is an event in the store before it is acted on, and the search is deterministic, so a session that
was killed goes on where it was: its events are told to a new search, and no finished probe runs again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from oombisect import hints
from oombisect.errors import ExitCode, OombisectError
from oombisect.memory.ranks import asked
from oombisect.readings import Outcome, Reading
from oombisect.recipes import megatron_ci
from oombisect.search.conclusion import Conclusion, conclude
from oombisect.search.metric import Metric
from oombisect.search.observation import Censored, Conflict, Exact, Infra, Metrics, Observation, Unresolved
from oombisect.search.options import Options
from oombisect.search.plan import plan
from oombisect.search.requests import Measure, Remeasure, Request, Revert
from oombisect.search.state import State, observe, start
from oombisect.session.events import OBSERVATION, START, skipped, standing
from oombisect.session.measuring import Measured, Measurer, Question, Target
from oombisect.session.rank_findings import rank_findings
from oombisect.session.steps import Judge
from oombisect.session.verdict import Report, StepVerdict, Verdict
from oombisect.units import counted, format_bytes, format_delta

if TYPE_CHECKING:
    from oombisect.history.store import Store

_REQUESTS: dict[str, type[Measure] | type[Remeasure] | type[Revert]] = {
    "measure": Measure,
    "remeasure": Remeasure,
    "revert": Revert,
}
_NAMES = {kind: name for name, kind in _REQUESTS.items()}


class Line(Protocol):
    """An axis made ready for a session: its points as probe targets."""

    @property
    def targets(self) -> Sequence[Target]:
        """The points, from the good end to the bad one."""
        ...

    @property
    def weights(self) -> Sequence[float]:
        """How likely each point is to have moved memory, against the others."""
        ...

    def lump(self, index: int) -> tuple[str, ...]:
        """The commits that the point stands for, where these are more than its own: a step is one of theirs."""
        ...

    def reverted(self, index: int) -> Target:
        """The bad tip without the change that `index` brought.

        Raises:
            CannotRevert: it does not revert cleanly.
        """
        ...


class CannotRevert(Exception):
    """A change does not revert cleanly on the bad tip."""


@dataclass
class Bisection:
    """One search over one line.

    `scope` names a search inside another one of the same session: its events carry it, and only those are its own.
    `until` ends a search early; `state` is what was known when it ended.
    """

    store: Store
    session: str
    line: Line
    measurer: Measurer
    options: Options
    limit: int
    scope: str = ""
    until: Callable[[State], bool] = lambda _: False
    state: State | None = field(default=None, init=False)

    def run(self) -> Conclusion:
        """Search to the end.

        Raises:
            OombisectError: an end of the range cannot be measured, or no probe can be started.
        """
        state = self._replayed()
        while not self.until(state) and (requests := plan(state, max(1, len(self.measurer.places)))):
            for request, (observation, payload) in zip(requests, self._answers(requests), strict=True):
                self._record(OBSERVATION, {"request": _to_json(request), **payload})
                state = observe(state, request, observation)
                self._check_ends(request, observation)
            self.measurer.watcher.progress(self._progress(state))
        self.state = state
        return conclude(state)

    def verdict(self, conclusion: Conclusion) -> Verdict:
        """The verdict, its steps judged by further probes where the class is in doubt."""
        targets = self.line.targets
        steps = Judge(self.line, self.measurer, self.limit, conclusion).steps()
        crossing = conclusion.crossing
        left_out = self._left_out()
        silent = [part for a, b in conclusion.unresolved for part in _parts(a, b, left_out)]
        return Verdict(
            kind=_kind(conclusion, steps),
            limit_bytes=self.limit,
            crossing=targets[crossing].key if crossing is not None else None,
            steps=steps,
            growth={
                "allocated": conclusion.growth.allocated,
                "reserved": conclusion.growth.reserved,
                "external": conclusion.growth.external,
            },
            explained=conclusion.explained,
            unresolved=self._keys(stretch for stretch in silent if stretch[0] not in left_out),
            skipped=self._keys(stretch for stretch in silent if stretch[0] in left_out),
            notes=(*conclusion.notes, *_notes(conclusion, self.options, [target.key for target in targets])),
            metric=self.options.metric,
            change=conclusion.change,
            threshold_bytes=self.options.threshold_bytes,
        )

    def _left_out(self) -> frozenset[int]:
        """The points that were skipped by hand, with those that are the same measurement."""
        keys = skipped(self.store.events(self.session))
        groups = {str(sorted(target.trees.items())) for target in self.line.targets if target.key in keys}
        told = enumerate(self.line.targets)
        return frozenset(index for index, target in told if str(sorted(target.trees.items())) in groups)

    def _keys(self, stretches: Iterable[tuple[int, int]]) -> tuple[tuple[str, str], ...]:
        return tuple((self.line.targets[first].key, self.line.targets[last].key) for first, last in stretches)

    def report(self, verdict: Verdict, *, reproduce: Sequence[str], workload: Mapping[str, Any]) -> Report:
        """Everything there is to say, `verdict` first."""
        targets = self.line.targets
        (good, good_ranks), (bad, bad_ranks) = (self._end(index) for index in (0, len(targets) - 1))
        log = standing(self.store.events(self.session))
        events = [event.payload for event in log if event.kind == OBSERVATION]
        return Report(
            session=self.session,
            verdict=verdict,
            good=good,
            bad=bad,
            probes=len(self.store.probes(self.session)),
            probes_cached=sum(bool(event["cached"]) for event in events),
            points=len(targets),
            workload=dict(workload),
            reproduce=tuple(reproduce),
            rank_findings={"good": good_ranks, "bad": bad_ranks},
        )

    def _progress(self, state: State) -> str:
        took = [
            (probe.finished - probe.started).total_seconds()
            for probe in self.store.probes(self.session)
            if probe.finished is not None
        ]
        keys = [target.key for target in self.line.targets]
        return progress_text(state, keys, fmean(took) if took else None, max(1, len(self.measurer.places)))

    def _replayed(self) -> State:
        """The search as far as this session came; what was known at its start is fixed then, for the budget's sake."""
        targets = self.line.targets
        begun, answers = self._begun()
        groups = [str(sorted(target.trees.items())) for target in targets]
        skip = self._skipped(groups)
        state = start(
            len(targets),
            self.options,
            weights=self.line.weights,
            groups=groups,
            known=frozenset(begun["known"]),
            skip=skip,
        )
        untold = {groups[index] for index in skip}
        for answer in answers:
            request = _from_json(answer["request"])
            if groups[request.index] not in untold:
                observation = self._recorded(answer)
                state = observe(state, request, observation)
                self._check_ends(request, observation)
        return state

    def _begun(self) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
        """How this search began, and the answers that stand since; it begins anew where its points became others.

        What answers teach makes the points of a search inside another; with answers taken back they may differ.
        """
        events = [
            event
            for event in standing(self.store.events(self.session))
            if event.payload.get("scope", "") == self.scope and event.kind in (START, OBSERVATION)
        ]
        points = [target.key for target in self.line.targets]
        at = max((place for place, event in enumerate(events) if event.kind == START), default=None)
        if at is not None and events[at].payload.get("points", points) == points:
            return events[at].payload, [event.payload for event in events[at + 1 :]]
        known = [index for index, target in enumerate(self.line.targets) if self.measurer.known(target)]
        begun = {"known": known, "points": points}
        self._record(START, begun)
        return begun, []

    def _skipped(self, groups: Sequence[str]) -> frozenset[int]:
        """The points that are not to be probed; an end must be, and with it what is the same measurement."""
        keys = skipped(self.store.events(self.session))
        asked = [index for index, target in enumerate(self.line.targets) if target.key in keys]
        for index in asked:
            for name, end in (("good", groups[0]), ("bad", groups[-1])):
                if groups[index] == end:
                    self.measurer.watcher.say(
                        f"{self.line.targets[index].key[:10]} is the same measurement as the {name} end, which must be "
                        "made: skipping it changes nothing"
                    )
        return frozenset(index for index in asked if groups[index] not in (groups[0], groups[-1]))

    def _record(self, kind: str, payload: Mapping[str, Any]) -> None:
        self.store.append_event(self.session, kind, {**payload, **({"scope": self.scope} if self.scope else {})})

    def _answers(self, requests: Sequence[Request]) -> Iterator[tuple[Observation, dict[str, Any]]]:
        """The answers, in order; their probes run at once where there are places for that."""
        questions: list[Question | CannotRevert] = []
        for request in requests:
            try:
                target = self._target(request)
                questions.append(Question(target, _NAMES[type(request)], fresh=not isinstance(request, Measure)))
            except CannotRevert as error:
                questions.append(error)
        answers = iter(
            self.measurer.measure_all([question for question in questions if isinstance(question, Question)])
        )
        for question in questions:
            if isinstance(question, CannotRevert):
                told = str(question)
                yield Conflict(told), {"probe": None, "fits": None, "conflict": told, "cached": False}
            else:
                yield self._answer(question.target, next(answers))

    def _answer(self, target: Target, measured: Measured) -> tuple[Observation, dict[str, Any]]:
        fits = self.measurer.fits(target, measured, self.limit)
        needed = needed_by_rank(self.measurer, measured, self.options.metric)
        observation = observation_of(measured.reading, fits, needed)
        told = {"probe": measured.probe, "fits": fits, "conflict": None, "cached": measured.cached}
        return observation, told if needed is None else {**told, "needed": list(needed.items())}

    def _target(self, request: Request) -> Target:
        if isinstance(request, Revert):
            return self.line.reverted(request.index)
        return self.line.targets[request.index]

    def _recorded(self, payload: Mapping[str, Any]) -> Observation:
        if payload["conflict"] is not None:
            return Conflict(payload["conflict"])
        needed = dict(payload["needed"]) if "needed" in payload else None
        return observation_of(self.store.reading(payload["probe"]), payload["fits"], needed)

    def _end(self, index: int) -> tuple[Reading, Mapping[str, Any] | None]:
        """The reading of an end, and its ranks beside each other."""
        target = self.line.targets[index]
        measured = self.measurer.measure(target, "measure")
        fits = self.measurer.fits(target, measured, self.limit)
        ranks = rank_findings(self.measurer, measured, self.limit, fits)
        return measured.reading.with_fits(fits), None if ranks is None else ranks.to_json()

    def _check_ends(self, request: Request, observation: Observation) -> None:
        last = len(self.line.targets) - 1
        if request.index not in (0, last) or not isinstance(observation, Unresolved):
            return
        name = "good" if request.index == 0 else "bad"
        raise OombisectError(
            f"The {name} end {self.line.targets[request.index].key[:10]} cannot be probed: {observation.reason}",
            f"Choose another {name} end, or mend what it says ({self._remedies()}).",
            ExitCode.USAGE,
        )

    def _remedies(self) -> str:
        """What may mend an end, of what this kind of call takes."""
        workload = self.measurer.prober.workload
        if workload.command:
            return "a --build that does what it lacks, a variable with --env, another --python"
        if megatron_ci.asked(workload.recipe):
            return "a variable with --env, another --python"
        return "an override with --set, another --python"


def _kind(conclusion: Conclusion, steps: Sequence[StepVerdict]) -> str:
    """The search's verdict; a step among commits that the line leaves out carries no single name."""
    lumped = conclusion.kind == "culprit" and any(s.named for s in conclusion.steps) and not any(s.named for s in steps)
    return "blurred" if lumped else conclusion.kind


def _parts(first: int, last: int, apart: Collection[int]) -> list[tuple[int, int]]:
    """A stretch, cut where points `apart` begin and end."""
    cuts = [index for index in range(first + 1, last + 1) if (index in apart) != (index - 1 in apart)]
    return list(zip([first, *cuts], [*(cut - 1 for cut in cuts), last], strict=True))


def _notes(conclusion: Conclusion, options: Options, keys: Sequence[str]) -> list[str]:
    if conclusion.kind == "budget":
        return [
            *_left_open(conclusion, options, keys),
            f"`{hints.command('resume', '--budget', 'N')}` goes on from here with a larger budget: "
            "what was probed counts, and is not probed again",
        ]
    alone = options.metric != "memory"
    moved = conclusion.change if alone else conclusion.growth.allocated
    if conclusion.kind == "none" and options.wanted(moved) < 0 and abs(moved) > conclusion.epsilon:
        other = "regression" if options.find == "improvement" else "improvement"
        what = options.metric if alone else "peak allocated"
        return [f"memory moved the other way: {what} {format_delta(moved)}; --find {other} follows that"]
    return []


def _left_open(conclusion: Conclusion, options: Options, keys: Sequence[str], most: int = 3) -> list[str]:
    """The largest stretches that a search without a budget would look into next, each a sentence."""
    stretches = [stretch for stretch in conclusion.stretches if stretch.kind == "open"]
    stretches.sort(key=lambda stretch: -abs(stretch.delta.size))
    said = []
    for stretch in stretches[:most]:
        where = f"{keys[stretch.first][:10]}..{keys[stretch.last][:10]}"
        size = "" if options.metric != "memory" else f", peak allocated {format_delta(stretch.delta.allocated)}"
        said.append(f"not searched yet: {where} ({counted(stretch.last - stretch.first, 'change')}{size})")
    return said


def progress_text(state: State, keys: Sequence[str], seconds: float | None, at_once: int = 1) -> str:
    """How far a search has come: what is explained, where it looks, and about what is left.

    Args:
        keys: of the points.
        seconds: that a probe took on average; None: not known yet.
        at_once: how many probes run at once.
    """
    so_far = conclude(state)
    if not so_far.stretches:
        return ""
    open_ones = [stretch for stretch in so_far.stretches if stretch.kind == "open"]
    told = [f"{so_far.explained:.0%} of the movement explained"]
    if open_ones:
        widest = max(open_ones, key=lambda stretch: (abs(stretch.delta.size), stretch.last - stretch.first))
        between = counted(widest.last - widest.first, "change")
        size = format_bytes(so_far.largest_open)
        told.append(f"largest open interval {keys[widest.first][:10]}..{keys[widest.last][:10]} ({between}, {size})")
    left = sum(math.ceil(math.log2(stretch.last - stretch.first)) for stretch in open_ones)
    if left:
        rest = "" if seconds is None else f", {_duration(seconds * math.ceil(left / at_once))}"
        told.append(f"about {counted(left, 'probe')} to go{rest}, then confirmation")
    elif state.room is None or state.room:
        told.append("confirming")
    if state.room is not None:
        told.append(f"{state.room} left of the budget")
    return ", ".join(told)


def _duration(seconds: float) -> str:
    """In the unit that people would say."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def needed_by_rank(measurer: Measurer, measured: Measured, metric: Metric) -> dict[int, int | None] | None:
    """The needed capacity of each rank, where a search follows it."""
    if metric != "fragmentation" or measured.reading.outcome is not Outcome.EXACT:
        return None
    return {rank.rank: measurer.replays.needed(measured.probe, rank) for rank in measured.reading.ranks}


def metrics_of(reading: Reading, needed: int | None = None) -> Metrics:
    """A reading as the search sees it: the worst rank of each figure, and the peak allocated of each phase.

    A rank that ran out of memory would have had at least what it asked for in vain besides what it held then.
    `needed`: the least the allocator must be given, bytes, if somebody found out.
    """
    phases: dict[str, int] = {}
    for rank in reading.ranks:
        for name, phase in rank.phases.items():
            phases[name] = max(phases.get(name, 0), phase.allocated_peak)
    return Metrics(
        allocated=max((asked(rank) for rank in reading.ranks), default=0),
        reserved=max((max(rank.peak_reserved, asked(rank)) for rank in reading.ranks), default=0),
        external=reading.external,
        allocations=max((rank.allocations for rank in reading.ranks), default=0),
        phases=tuple(phases.items()),
        needed=needed,
    )


def observation_of(reading: Reading, fits: bool | None, needed: Mapping[int, int | None] | None = None) -> Observation:
    """A reading as an answer to the search; `fits` says whether it fits the limit, None: not known.

    With `needed`, the capacity each rank needs (external memory included, None: not known), the answer is that of the
    rank that needs most: what an allocator strands is of one device, never of two.
    """
    match reading.outcome:
        case Outcome.EXACT:
            if fits is None:
                return Infra("the probe with the limit enforced told nothing")
            return Exact(metrics_of(reading), fits) if needed is None else _most_needing(reading, fits, needed)
        case Outcome.CENSORED:
            return Censored(metrics_of(reading))
        case Outcome.UNRESOLVED:
            return Unresolved(reading.reason)
        case Outcome.INFRA:
            return Infra(reading.reason)


def _most_needing(reading: Reading, fits: bool, needed: Mapping[int, int | None]) -> Observation:
    unknown = sorted(rank for rank, size in needed.items() if size is None)
    if unknown:
        which = ", ".join(map(str, unknown))
        return Unresolved(
            f"what rank {which} needs is not known, so neither is its fragmentation: there is no replay of its "
            "allocations that agrees with the recording"
        )
    sizes = {rank: size for rank, size in needed.items() if size is not None}
    rank = max(reading.ranks, key=lambda r: (sizes[r.rank], -r.rank))
    return Exact(metrics_of(replace(reading, ranks=(rank,)), sizes[rank.rank] - rank.external), fits)


def _to_json(request: Request) -> dict[str, Any]:
    return {"kind": _NAMES[type(request)], "index": request.index}


def _from_json(data: Mapping[str, Any]) -> Request:
    return _REQUESTS[data["kind"]](data["index"])
