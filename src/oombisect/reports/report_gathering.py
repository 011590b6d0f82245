"""From the store to a `SessionDocument`. What cannot be had is told in its place, and stops nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from oombisect import hints
from oombisect.errors import ExitCode, OombisectError
from oombisect.history.records import RUN_AGAIN, Event, SessionState, StoredProbe, StoredSession
from oombisect.history.store import Store
from oombisect.readings import Outcome, Reading
from oombisect.recipes.config_diff import diff
from oombisect.reports.compare import comparison_json
from oombisect.reports.points import short
from oombisect.reports.report_document import (
    CONFIG,
    RANGE,
    RUNS,
    VERDICT,
    WHAT_IFS,
    Mark,
    Pair,
    Range,
    RangeStep,
    Run,
    SessionDocument,
)
from oombisect.reports.sessions import probe_row_json, session_json
from oombisect.reports.terminal import headline, main_step
from oombisect.session.comparing import Comparison, Side
from oombisect.session.events import OBSERVATION, START, standing
from oombisect.session.replay_report import Question, replay_snapshot
from oombisect.session.sides_of import compare_named
from oombisect.session.verdict import Report, StepVerdict
from oombisect.units import counted, format_bytes

_MANY_EVENTS = 30_000
_LONG = 100_000  # events of two runs
_FEW_SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:128")
_MOST_STEPS = 3
_MEASURED = (Outcome.EXACT, Outcome.CENSORED)
_PLAIN = ("measure", "remeasure")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a document is gathered from.

    Args:
        database: the file `store` has open.
        repo, megatron: where the commits are, in the place of what the session was told.
        say: told what is being done.
    """

    store: Store
    database: Path
    cache: Path
    clock: Callable[[], datetime]
    say: Callable[[str], None]
    repo: Path | None = None
    megatron: Path | None = None


def gather(session: StoredSession, sources: Sources) -> SessionDocument:
    """Everything that a report says of a session."""
    return _Gathering(session, sources.store, sources).document()


def ranges_of(session: StoredSession, store: Store) -> tuple[Range, ...]:
    """The axes of a session alone: its own, then those inside its steps."""
    return tuple(_Axes(session, store).ranges())


@dataclass
class _Axes:
    """What the searches of a session asked, and were told."""

    session: StoredSession
    store: Store

    @cached_property
    def probes(self) -> list[StoredProbe]:
        return self.store.probes(self.session.id)

    @cached_property
    def by_number(self) -> dict[int, StoredProbe]:
        """The session's probes, and those of others that answered it."""
        found = {probe.id: probe for probe in self.probes}
        for event in self.events:
            number = event.payload.get("probe") if event.kind == OBSERVATION else None
            if number is not None and number not in found:
                found[number] = self.store.probe(number)
        return found

    @cached_property
    def events(self) -> list[Event]:
        return standing(self.store.events(self.session.id))

    @cached_property
    def report(self) -> Report | None:
        told = self.session.verdict
        return Report.from_json(told) if told and "verdict" in told else None

    def ranges(self) -> Iterator[Range]:
        begun: dict[str, Mapping[str, Any]] = {}
        answers: dict[str, list[Mapping[str, Any]]] = {}
        for event in self.events:
            scope = str(event.payload.get("scope", ""))
            if event.kind == START:
                begun[scope], answers[scope] = event.payload, []
            elif event.kind == OBSERVATION:
                answers.setdefault(scope, []).append(event.payload)
        for scope, start in begun.items():
            yield self._range(scope, start, answers[scope])

    def _range(self, scope: str, start: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> Range:
        marks = [self._mark(answer) for answer in answers]
        known = {mark.index: mark.point for mark in marks if mark.point and mark.request != "revert"}
        points = tuple(start.get("points", ()))
        count = len(points) or (self.report.points if self.report and not scope else 0) or max(known, default=-1) + 1
        points = points or (tuple(known[index] for index in range(count)) if len(known) == count else ())
        places = {point: index for index, point in (enumerate(points) if points else known.items())}
        answered = {mark.probe for mark in marks}
        for probe in self.probes:
            if probe.id not in answered and probe.reading and probe.spec.point in places:
                marks.append(_read_mark(probe, places[probe.spec.point], probe.spec.request, varied=True))
        steps = self.report.verdict.steps if self.report else ()
        inside = [one for step in steps for one in (step.inside if scope else (step,))]
        verdict = self.report.verdict if self.report and not scope else None
        unresolved = (*verdict.unresolved, *verdict.skipped) if verdict else ()
        return Range(
            scope=scope,
            title=_title(scope, self.session),
            count=count,
            points=points,
            marks=tuple(marks),
            steps=tuple(found for step in inside if (found := _range_step(step, places))),
            unresolved=tuple(
                (places[first], places[last]) for first, last in unresolved if first in places and last in places
            ),
        )

    def _mark(self, answer: Mapping[str, Any]) -> Mark:
        request, number = answer["request"], answer["probe"]
        if number is None:
            return Mark(
                request["index"], "", "", request["kind"], None, False, "conflict", str(answer["conflict"] or ""),
                None, False, False,
            )  # fmt: skip
        mark = _read_mark(self.by_number[number], request["index"], request["kind"])
        return replace(mark, cached=bool(answer["cached"]), fits=answer["fits"])


@dataclass
class _Gathering(_Axes):
    """One session, and what of it cannot be had."""

    sources: Sources
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def document(self) -> SessionDocument:
        self.sources.say("comparing what is live at the peaks")
        pair, sides = self._pair() or (None, ())
        ends = self._ends()
        measured = [probe.reading for probe in self.probes if probe.reading and probe.reading.outcome in _MEASURED]
        readings = [*(reading for reading, _ in ends.values() if reading), *measured]
        told = self.session.verdict
        return SessionDocument(
            session=session_json(self.session)
            | {"command": list(self.session.spec.command), "oombisect_version": self.session.oombisect_version},
            report=None if told is None else dict(told),
            headline=self._headline(),
            notes=tuple(self.notes),
            simulated=any(reading.simulated for reading in readings) if readings else None,
            limit_bytes=self._limit,
            ends={name: reading.to_json() if reading else None for name, (reading, _) in ends.items()},
            ranges=self._axes(),
            pair=pair,
            runs=tuple(_run(side) for side in sides),
            steps=tuple(self._steps(sum(len(side.trace) for side in sides) > _LONG)),
            what_ifs=self._what_ifs(sides),
            config_changes=self._config_changes({name: reading for name, (reading, _) in ends.items()}),
            environments={name: _environment(reading, probe) for name, (reading, probe) in ends.items() if reading},
            reproduce=self._reproduce(),
            probes=[
                probe_row_json(probe) | {"seconds": _seconds(probe), "simulated": probe.spec.simulated}
                for probe in self.probes
            ],
            missing=self.missing,
        )

    @property
    def _limit(self) -> int | None:
        return self.report.verdict.limit_bytes if self.report else self.session.spec.limit_bytes

    def _headline(self) -> str:
        if self.report is not None:
            return headline(self.report)
        told = self.session.verdict
        if told and "reading" in told:
            return _probe_headline(told)
        finished = sum(probe.reading is not None for probe in self.probes)
        if told is not None:  # of a kind that ends without a verdict of its own
            return f"{self.session.spec.kind}: finished, {counted(finished, 'probe')}."
        self.missing[VERDICT] = f"The session is {self.session.state}, so there is no verdict yet."
        return f"Not finished: {counted(finished, 'probe')} so far, no verdict yet."

    def _reproduce(self) -> tuple[str, ...]:
        if self.report is not None:
            return self.report.reproduce
        command = shlex.join(["oombisect", *self.session.spec.command[1:]])
        curable = self.session.state is SessionState.INTERRUPTED and self.session.exit_code != ExitCode.USAGE
        if curable and self.session.spec.kind not in RUN_AGAIN:
            return (hints.command("resume", self.session.id), command)
        return (command,)

    def _axes(self) -> tuple[Range, ...]:
        found = tuple(one for one in self.ranges() if one.count)
        if not found:
            self.missing[RANGE] = (
                "A single probe has no range." if self.session.spec.kind == "probe" else "Nothing yet."
            )
        return found

    def _ends(self) -> dict[str, tuple[Reading | None, StoredProbe | None]]:
        """The readings of both ends and the probes that made them, as far as there are any."""
        if self.session.spec.kind == "probe":
            told = self.session.verdict
            plain = next((p for p in self.probes if p.reading and p.spec.request in _PLAIN), None)
            reading = Reading.from_json(told["reading"]) if told and "reading" in told else None
            return {"bad": (reading or (plain.reading if plain else None), plain)}
        own = [e.payload for e in self.events if e.kind == OBSERVATION and not e.payload.get("scope")]
        first = {a["request"]["index"]: a for a in reversed(own) if a["request"]["kind"] == "measure"}
        answers = [first.get(index) if index is not None else None for index in (0, self._last_index)]
        found: dict[str, tuple[Reading | None, StoredProbe | None]] = {}
        for name, answer in zip(("good", "bad"), answers):
            probe = self.by_number.get(answer["probe"]) if answer else None
            reading = probe.reading.with_fits(answer["fits"]) if answer and probe and probe.reading else None
            found[name] = (getattr(self.report, name) if self.report else reading, probe)
        return found

    @property
    def _last_index(self) -> int | None:
        if self.report:
            return self.report.points - 1
        starts = [e.payload for e in self.events if e.kind == START and not e.payload.get("scope")]
        points = starts[-1].get("points", ()) if starts else ()
        return len(points) - 1 if points else None

    # Runs beside each other

    def _pair(self) -> tuple[Pair, tuple[Side, ...]] | None:
        """The ends; failing that, one run by itself: the first whose recording is left."""
        refused: list[str] = []
        for first, second in self._to_compare():
            try:
                found = self._compare(first, second, ends=second is None)
            except OombisectError as error:
                refused.append(f"{error.cause}. {error.way_out}")
                continue
            if first != second:
                return _paired("the good and the bad end", ("good", "bad"), found), (found.first, found.second)
            self.notes += [f"The ends are not set beside each other: {reason}" for reason in refused[:1]]
            told = f"{found.second.located.label}, by itself"
            return replace(_paired(told, ("this run", "this run"), found), single=True), (found.second,)
        none = "No probe of the session has measured anything."
        reused = "The session ran no probe of its own: earlier ones answered."
        self.missing[RUNS] = refused[0] if refused else none if self.probes or not self.session.verdict else reused
        return None

    def _to_compare(self) -> Iterator[tuple[str, str | None]]:
        """What may be set beside each other, best first, as `compare` takes it: the ends, then each run with itself."""
        if self.session.spec.kind != "probe":
            yield self.session.id, None
            ends = [probe for _, probe in self._ends().values() if probe]
            if len(ends) == 2:
                yield str(ends[0].id), str(ends[1].id)
        measured = [probe for probe in self.probes if probe.reading and probe.reading.outcome in _MEASURED]
        for probe in sorted(measured, key=lambda probe: (probe.spec.request not in _PLAIN, -probe.id)):
            yield str(probe.id), str(probe.id)

    def _steps(self, long: bool) -> Iterator[Pair]:
        """The named steps, the one of the headline first."""
        main = main_step(self.report) if self.report else None
        if self.report is None or main is None:
            return
        named = [main, *(step for step in self.report.verdict.steps if step.named and step is not main)]
        most = 1 if long else _MOST_STEPS
        if len(named) > most:
            self.notes.append(
                f"Compared: {most} of {len(named)} steps; "
                f"`{hints.command('compare', '--step', 'COMMIT')}` shows others."
            )
        for step in named[:most]:
            chosen = step.main_inside or step
            title = f"{short(chosen.point)} {chosen.subject}"
            try:
                found = self._compare(self.session.id, None, step=chosen.point)
            except OombisectError as error:
                self.notes.append(f"{short(chosen.point)} is not compared with what was before: {error.cause}.")
            else:
                yield _paired(title, ("before", "with it"), found)

    def _compare(self, first: str, second: str | None, *, step: str | None = None, ends: bool = False) -> Comparison:
        return compare_named(
            first,
            second,
            database=self.sources.database,
            default=self.sources.database,
            clock=self.sources.clock,
            rank=None,
            ends=ends,
            step=step,
            cache=self.sources.cache,
            say=self.sources.say,
            repo=self.sources.repo,
            megatron=self.sources.megatron,
        )

    def _what_ifs(self, sides: Sequence[Side]) -> Mapping[str, Any] | None:
        """Of the side that needs more; of a very long recording under a few settings only."""
        if not sides:
            self.missing[WHAT_IFS] = self.missing[RUNS]
            return None
        side = max(reversed(sides), key=_needs)
        few = len(side.trace) > _MANY_EVENTS
        recorded = str(side.settings.get("PYTORCH_CUDA_ALLOC_CONF") or "")
        confs = tuple(conf for conf in _FEW_SETTINGS if conf != recorded) if few else ()
        self.sources.say(f"replaying {side.located.label}")
        try:
            found = replay_snapshot(
                side.located,
                self.store,
                Question(alloc_confs=confs, device=side.device if side.others else None),
                lambda _: None,
            ).to_json()
        except OombisectError as error:
            self.missing[WHAT_IFS] = f"{error.cause}. {error.way_out}"
            return None
        if few:
            probe = side.located.probe
            name = f"{probe.spec.session}/{probe.id}" if probe else str(side.located.path)
            found["notes"].append(
                f"a long recording, so these settings only; `{hints.command('replay', name)}` tries more"
            )
        return found

    def _config_changes(self, ends: Mapping[str, Reading | None]) -> list[dict[str, Any]] | None:
        configs = [
            self.store.config(reading.config_hash) if reading and reading.config_hash else None
            for reading in (ends.get("good"), ends.get("bad"))
        ]
        if configs[0] is None or configs[1] is None:
            single = self.session.spec.kind == "probe"
            self.missing[CONFIG] = (
                "There is one run, with no other config beside it."
                if single
                else "The resolved config of an end is not known: it was not measured, or a command made it."
            )
            return None
        return [change.to_json() for change in diff(configs[0], configs[1])]


def _needs(side: Side) -> int:
    rank = side.located.rank_reading
    return rank.peak_device if rank else side.live.peak


def _paired(title: str, names: tuple[str, str], comparison: Comparison) -> Pair:
    return Pair(title, names, comparison_json(comparison))


def _read_mark(probe: StoredProbe, index: int, request: str, *, varied: bool = False) -> Mark:
    reading = probe.reading
    assert reading is not None
    measured = reading.outcome in _MEASURED
    return Mark(
        index=index,
        point=probe.spec.point,
        subject=probe.spec.subject,
        request=request,
        probe=probe.id,
        cached=False,
        outcome=str(reading.outcome),
        reason=reading.reason,
        fits=reading.fits,
        is_lower_bound=reading.outcome is Outcome.CENSORED,
        simulated=reading.simulated,
        varied=varied,
        allocated=reading.peak_allocated if measured else None,
        reserved=reading.peak_reserved if measured else None,
        external=reading.external if measured else None,
    )


def _range_step(step: StepVerdict, places: Mapping[str, int]) -> RangeStep | None:
    point = (step.evidence.get("points") or {}).get("point", step.point)
    index = places.get(point, next((at for key, at in places.items() if key.rpartition("+")[2] == point), None))
    if index is None:
        return None
    return RangeStep(
        index, step.point, step.subject, step.kind, dict(step.delta), step.confirmed, step.named, step.crosses_limit
    )


def _title(scope: str, session: StoredSession) -> str:
    """What an axis is of."""
    what, _, key = scope.partition(":")
    if what == "roll":
        return f"Megatron-LM, rolled in with {short(key)}"
    if what == "packages":
        return f"packages that moved with {short(key)}"
    if what == "late":
        return "keys that did nothing in their turn, tried last"
    if what.startswith("joined"):
        return "the keys again, some of them moved together"
    return {"config": "config keys", "releases": "releases"}.get(session.spec.kind, "commits")


def _run(side: Side) -> Run:
    located, moments = side.located, side.timeline()
    rank = located.rank_reading
    return Run(
        name=located.label,
        point=located.point,
        subject=located.probe.spec.subject if located.probe else "",
        rank=located.rank,
        peak_allocated=side.live.peak,
        peak_reserved=rank.peak_reserved if rank else moments.peak_reserved,
        censored=side.censored,
        simulated=side.simulated,
        timeline=moments,
    )


def _environment(reading: Reading, probe: StoredProbe | None) -> dict[str, str]:
    """What a run ran in, by name."""
    told = {
        "device": reading.device,
        "world size": "" if reading.world_size is None else str(reading.world_size),
        "measured ranks": ", ".join(str(rank.rank) for rank in reading.ranks),
        "recipe function": reading.recipe_function,
        "attention backend": reading.attention_backend,
        "allocator settings": probe.allocator_settings if probe else "",
        "config hash": reading.config_hash,
    }
    return {name: value for name, value in told.items() if value} | {
        f"{name} (version)": str(version) for name, version in sorted(reading.versions.items())
    }


def _probe_headline(told: Mapping[str, Any]) -> str:
    reading = Reading.from_json(told["reading"])
    label = " (simulated)" if reading.simulated else ""
    if reading.outcome not in _MEASURED:
        return f"{short(told['point'])} measured nothing: {reading.outcome}: {reading.reason}"
    limit = format_bytes(told["limit_bytes"])
    fits = {True: "fits", False: "does not fit", None: "is not known to fit"}[reading.fits]
    bound = "at least " if reading.outcome is Outcome.CENSORED else ""
    why = f"; {told['classification']['class']}" if told.get("classification") else ""
    peak, reserved = format_bytes(reading.peak_allocated), format_bytes(reading.peak_reserved)
    return (
        f"{short(told['point'])} {fits} in {limit}{label}: {bound}{peak} peak allocated, "
        f"{bound}{reserved} peak reserved{label}{why}."
    )


def _seconds(probe: StoredProbe) -> float | None:
    return (probe.finished - probe.started).total_seconds() if probe.finished else None
