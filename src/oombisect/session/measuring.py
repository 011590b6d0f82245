"""Answer one question about one point: from the database if it was ever measured, else by a probe, recorded first.

A measurement is keyed by its signature: everything that the probe can see. Same signature, same measurement.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.records import ProbeSpec, StoredProbe
from oombisect.history.signature import signature
from oombisect.probing.benches import Bench, Job
from oombisect.probing.collect import ProbeRun
from oombisect.probing.prober import Prober
from oombisect.probing.workload import PLAIN, Call, Sources, Variation
from oombisect.readings import Outcome, RankReading, Reading
from oombisect.recipes.resolve import RESOLVER_VERSION
from oombisect.resources import probes_dir
from oombisect.session.events import taken_back
from oombisect.session.replaying import Replays

if TYPE_CHECKING:
    from oombisect.history.store import Store
    from oombisect.probing.interpreter import Interpreter
    from oombisect.repo.slots import Slot

ENVIRONMENT = "environment"
"""The key of `Target.trees` for the Python packages, where these are the point's own."""
_INFRA_TRIES = 2
_TICK_SECONDS = 0.2
Method = Literal["peak", "floor", "replay", "probe", "run"]


class CannotProbe(Exception):
    """There is nothing to run: no such recipe at the point, or a submodule commit that is nowhere. It is unresolved."""


class NotAtHand(CannotProbe):
    """What it needs is not to be had now. Another clone, or a network that is back, may have it: it is asked again."""


class LayOut(Protocol):
    """Puts a point on disk: in `slot`, or where it usually lies."""

    def __call__(self, slot: Slot | None = None, /) -> Sources:
        """May raise `CannotProbe`."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """Something a probe can run at: a commit, or the bad tip with a change reverted.

    `trees` identify all a probe sees: the code and, as `ENVIRONMENT`, the Python packages where these are the point's
    own. `call` finds the recipe function, `lay_out` puts the point on disk, `interpreter` builds its environment (None:
    the session's); each raises `CannotProbe` where that cannot be done. `submodule` is the Megatron-LM commit it pins.
    `notes` go into every reading: what a reader of its numbers should know of the point.
    """

    key: str
    subject: str
    trees: Mapping[str, Any]
    call: Callable[[], Call]
    lay_out: LayOut
    submodule: str = ""
    committed: datetime | None = None
    repo: str = "bridge"
    interpreter: Callable[[], Interpreter] | None = None
    notes: tuple[str, ...] = ()


class Question(NamedTuple):
    """What `measure` is asked: a target, the purpose, and whether an older measurement will not do."""

    target: Target
    purpose: str
    fresh: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement and where it lies in the database. `cached` if no probe had to run for it."""

    probe: int
    reading: Reading
    cached: bool
    config: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one probe at a time can run beside others: its slot, and the process that runs it."""

    slot: Slot
    bench: Bench


class Fit(NamedTuple):
    """Whether something survives within a limit, and what says so.

    `fits` None: not known. `by`: `peak`, it never took more of the device; `floor`, more was asked for, so that no
    allocator can fit it; `replay` of its recorded requests; `probe` with the limit enforced; `run`, it ran out of
    memory when it was measured.
    """

    fits: bool | None
    by: Method


class Watcher(Protocol):
    """Is told what goes on; the live view is one."""

    def say(self, text: str) -> None:
        """A sentence for people."""
        ...

    def progress(self, text: str) -> None:
        """How far the whole has come; replaces what was said of that before."""
        ...

    def tick(self, seconds: float) -> None:
        """The probe that runs has run for so long."""
        ...

    def probe_started(self, target: Target, variation: Variation, purpose: str) -> None:
        """A probe begins."""
        ...

    def probe_finished(self, target: Target, measured: Measured, purpose: str, seconds: float) -> None:
        """A question was answered, by a probe or (0 seconds) from the database."""
        ...


@dataclass
class Measurer:
    """Measures targets for one session: `prober` runs probes, `store` remembers them.

    `places`: where several can run at once.
    """

    store: Store
    session: str
    prober: Prober
    watcher: Watcher
    places: Sequence[Place] = ()

    def measure(
        self,
        target: Target,
        purpose: str,
        variation: Variation = PLAIN,
        *,
        fresh: bool = False,
        ranks: tuple[int, ...] | None = None,
        trace: str | None = None,
    ) -> Measured:
        """The measurement of `target`. `fresh` accepts none from before this session asked for a fresh one.

        With `trace` the measurement of any point with that trace will do.

        Infrastructure failures are tried again; what remains is returned, never hidden.

        Raises:
            OombisectError: no probe can be started (disk full, interpreter gone).
        """
        sign = self.sign(target, variation, ranks, trace)
        known = self._stored(target, purpose, sign, fresh)
        if known is not None:
            measured = self._of(known, cached=True)
            self.watcher.probe_finished(target, measured, purpose, 0.0)
            return measured
        for attempt in range(1, _INFRA_TRIES + 1):
            self.watcher.probe_started(target, variation, purpose)
            measured, seconds = self._probe(target, purpose, variation, sign, ranks)
            self.watcher.probe_finished(target, measured, purpose, seconds)
            if measured.reading.outcome is not Outcome.INFRA:
                break
            if attempt < _INFRA_TRIES:
                self.watcher.say(f"trying again: {measured.reading.reason}")
        return measured

    def measure_all(self, questions: Sequence[Question]) -> list[Measured]:
        """As `measure`, the answers in order; what no probe has told yet is probed at once, one in each place.

        Raises:
            OombisectError: a probe cannot be started; the others are ended.
        """
        ran: dict[int, Measured] = {}
        if len(questions) > 1 and self.places:
            signs: dict[str, int] = {}
            for index, (target, purpose, fresh) in enumerate(questions):
                sign = self.sign(target, PLAIN, None)
                if self._stored(target, purpose, sign, fresh) is None:
                    signs.setdefault(sign, index)
            open_ = list(signs.values())[: len(self.places)]
            for attempt in range(1, _INFRA_TRIES + 1):
                ran |= self._at_once({index: questions[index] for index in open_})
                open_ = [index for index in open_ if ran[index].reading.outcome is Outcome.INFRA]
                for index in open_ if attempt < _INFRA_TRIES else ():
                    self.watcher.say(f"trying again: {ran[index].reading.reason}")
        return [ran.get(i) or self.measure(q.target, q.purpose, fresh=q.fresh) for i, q in enumerate(questions)]

    def _at_once(self, questions: Mapping[int, Question]) -> dict[int, Measured]:
        """A probe for each, one in each place. The rows are begun in order, so that only times depend on chance."""
        done: dict[int, Measured] = {}
        running: dict[Future[ProbeRun], tuple[int, int, Place]] = {}

        def finish(index: int, probe: int, run: ProbeRun) -> None:
            target, purpose, _ = questions[index]
            done[index] = self._finish(probe, target, run)
            self.watcher.probe_finished(target, done[index], purpose, run.seconds)

        begun = time.monotonic()
        try:
            for (index, (target, purpose, _)), place in zip(questions.items(), self.places, strict=False):
                self.watcher.probe_started(target, PLAIN, purpose)
                probe = self._begin(target, purpose, PLAIN, self.sign(target, PLAIN, None), None)
                job = self._job(target, PLAIN, probe, None, place.slot)
                if isinstance(job, ProbeRun):
                    finish(index, probe, job)
                else:
                    running[place.bench.start(job)] = (index, probe, place)
            while running:
                for future in wait(running, _TICK_SECONDS, FIRST_COMPLETED).done:
                    index, probe, place = running.pop(future)
                    finish(index, probe, place.bench.outcome(future, self.prober.device))
                self.watcher.tick(time.monotonic() - begun)
        except BaseException:
            for place in self.places:
                place.bench.close()
            raise
        return done

    def known(self, target: Target) -> bool:
        """Whether a plain measurement of `target` is in the database."""
        return self._find(target, self.sign(target, PLAIN, None)) is not None

    def _stored(self, target: Target, purpose: str, sign: str, fresh: bool) -> StoredProbe | None:
        known = self._asked_before(sign, purpose) if fresh else self._find(target, sign)
        return known if known is not None and known.reading is not None else None

    def _find(self, target: Target, sign: str) -> StoredProbe | None:
        """The stored measurement; not an environment's that told nothing in another session: an index changes."""
        after = self._taken_back.get((sign, "measure"), 0)
        found = self.store.find_measurement(sign, after=after, besides=self._taken_back.values())
        if found is None or found.spec.session == self.session or ENVIRONMENT not in target.trees:
            return found
        unresolved = found.reading is not None and found.reading.outcome is Outcome.UNRESOLVED
        return None if unresolved else found

    def fits(self, target: Target, measured: Measured, limit: int, variation: Variation = PLAIN) -> bool | None:
        """Whether `target` survives within `limit` bytes, external memory included; None: not known."""
        return self.fit(target, measured, limit, variation).fits

    def fit(self, target: Target, measured: Measured, limit: int, variation: Variation = PLAIN) -> Fit:
        """As `fits`, and what says so: of several ranks, what says it of the one that decides.

        Peak device use within the limit always fits. What was asked for at the peak and external memory above it never
        do. In between the allocator decides (it frees cached segments and tries again): a replay of the recorded
        history tells or, where there is none that the model reproduces, a probe with the limit enforced.
        """
        if measured.reading.outcome is not Outcome.EXACT:
            return Fit(False, "run")
        answers = [self._rank_fits(target, measured, rank, limit, variation) for rank in measured.reading.ranks]
        for wanted in (False, None):
            if found := next((answer for answer in answers if answer.fits is wanted), None):
                return found
        return next((answer for answer in answers if answer.by != "peak"), Fit(True, "peak"))

    def deciding(self, target: Target, measured: Measured, limit: int) -> tuple[RankReading, ...]:
        """The ranks to look at for why `target` does not fit: those that do not; all, where none is known not to.

        The rank that takes most may be one whose cache is given back, while another, smaller one strands memory.
        """
        ranks = measured.reading.ranks
        if measured.reading.outcome is not Outcome.EXACT:
            return tuple(rank for rank in ranks if rank.oom) or ranks
        return tuple(r for r in ranks if self._rank_fits(target, measured, r, limit, PLAIN).fits is False) or ranks

    def _rank_fits(
        self, target: Target, measured: Measured, rank: RankReading, limit: int, variation: Variation
    ) -> Fit:
        if rank.peak_device <= limit:
            return Fit(True, "peak")
        if rank.floor is not None and rank.floor > limit:
            return Fit(False, "floor")
        replayed = self.replays.survives(measured.probe, rank, limit)
        if replayed is not None:
            return Fit(replayed, "replay")
        return Fit(self.survives(target, rank, limit, variation, "fit"), "probe")

    def survives(
        self, target: Target, rank: RankReading, limit: int, variation: Variation, purpose: str
    ) -> bool | None:
        """Whether a rank survives a probe with `limit` bytes enforced; None if the probe told nothing.

        Points whose rank asks the same of the allocator, in the same order, share one answer.
        """
        limited = self.measure(
            target, purpose, replace(variation, limit_bytes=limit), ranks=(rank.rank,), trace=rank.trace
        )
        outcome = limited.reading.outcome
        return outcome is Outcome.EXACT if outcome in (Outcome.EXACT, Outcome.CENSORED) else None

    def sign(
        self, target: Target, variation: Variation, ranks: tuple[int, ...] | None, trace: str | None = None
    ) -> str:
        """The signature of a measurement: the code a probe sees, or what it is known to ask of the allocator."""
        return signature(
            {
                "trees": None if trace else dict(target.trees),
                "trace": trace,
                **({ENVIRONMENT: target.trees[ENVIRONMENT]} if trace and ENVIRONMENT in target.trees else {}),
                "variation": variation.to_json(),
                "ranks": list(ranks) if ranks else None,
                **self._common,
            }
        )

    @cached_property
    def _taken_back(self) -> Mapping[tuple[str, str], int]:
        """The newest probe, by what was measured for which purpose, whose answer was undone: none up to it answers."""
        newest: dict[tuple[str, str], int] = {}
        for purpose, probe in taken_back(self.store.events(self.session)):
            asked = self.store.probe(probe).spec.signature, purpose
            newest[asked] = max(probe, newest.get(asked, 0))
        return newest

    @cached_property
    def replays(self) -> Replays:
        """Answers from the histories that probes of this device left."""
        return Replays(self.store, self.prober.device.capacity)

    @cached_property
    def _common(self) -> dict[str, Any]:
        return {
            "workload": self.prober.workload.to_json(),
            "resolver": RESOLVER_VERSION,
            "device": dict(self.prober.device.identity),
            "interpreter": self.prober.interpreter.fingerprint,
            "probe": probe_version(),
        }

    def _asked_before(self, sign: str, purpose: str) -> StoredProbe | None:
        """A finished probe of this session for the same purpose: it was interrupted between probing and deciding."""
        after = self._taken_back.get((sign, purpose), 0)
        asked = (p for p in self.store.probes(self.session) if p.spec.signature == sign and p.spec.request == purpose)
        mine = (p for p in asked if p.id > after)
        return next((p for p in mine if p.reading is not None and p.reading.outcome is not Outcome.INFRA), None)

    def _of(self, probe: StoredProbe, cached: bool) -> Measured:
        reading = probe.reading
        assert reading is not None
        config = self.store.config(reading.config_hash) if reading.config_hash else None
        return Measured(probe.id, reading, cached, config)

    def _probe(
        self, target: Target, purpose: str, variation: Variation, sign: str, ranks: tuple[int, ...] | None
    ) -> tuple[Measured, float]:
        probe = self._begin(target, purpose, variation, sign, ranks)
        run = self._run(target, variation, probe, ranks)
        return self._finish(probe, target, run), run.seconds

    def _begin(
        self, target: Target, purpose: str, variation: Variation, sign: str, ranks: tuple[int, ...] | None
    ) -> int:
        prober = self.prober
        return self.store.begin_probe(
            ProbeSpec(
                session=self.session,
                signature=sign,
                repo=target.repo,
                point=target.key,
                subject=target.subject,
                recipe=prober.workload.recipe,
                device=prober.device.name,
                simulated=prober.device.simulated,
                settings=prober.workload.to_json() | {"alloc_conf": variation.alloc_conf},
                job={"trees": dict(target.trees), "ranks": list(ranks or ())},
                probe_version=probe_version(),
                request=purpose,
                capacity_bytes=variation.limit_bytes,
                committed=target.committed,
            )
        )

    def _finish(self, probe: int, target: Target, run: ProbeRun) -> Measured:
        reading = replace(run.reading, notes=(*run.reading.notes, *target.notes))
        stored = self.store.finish_probe(
            probe,
            reading,
            reusable=None if run.lasting else False,
            config=run.config,
            allocator_settings=run.allocator_settings,
        )
        return self._of(stored, cached=False)

    def _run(self, target: Target, variation: Variation, probe: int, ranks: tuple[int, ...] | None) -> ProbeRun:
        job = self._job(target, variation, probe, ranks)
        if isinstance(job, ProbeRun):
            return job
        return job.prober.run(job.call, job.sources, job.out, job.variation, job.ranks)

    def _job(
        self,
        target: Target,
        variation: Variation,
        probe: int,
        ranks: tuple[int, ...] | None,
        slot: Slot | None = None,
    ) -> Job | ProbeRun:
        """What is to run, laid out (in `slot`); or at once what comes of a target with nothing to run."""
        device = self.prober.device
        unresolved = Reading(Outcome.UNRESOLVED, device=device.name, simulated=device.simulated)
        try:
            call, sources = target.call(), target.lay_out(slot)
            prober = self._prober_of(target)
        except CannotProbe as error:
            return ProbeRun(replace(unresolved, reason=str(error)), lasting=not isinstance(error, NotAtHand))
        out = self.store.artifacts_dir(self.session, probe)
        return Job(prober, call, sources, out, variation, ranks)

    def _prober_of(self, target: Target) -> Prober:
        """The prober in the interpreter of a target.

        Raises:
            CannotProbe: its environment does not build, or the device does not take its torch.
        """
        if target.interpreter is None:
            return self.prober
        try:
            return self.prober.within(target.interpreter())
        except OombisectError as error:
            if error.exit_code == ExitCode.INFRASTRUCTURE:
                raise
            raise CannotProbe(error.cause) from error


@cache
def probe_version() -> str:
    """A hash of the probe scripts: another probe is another measurement."""
    digest = hashlib.sha256()
    for path in sorted(probes_dir().rglob("*")):
        if path.is_file() and path.suffix in (".py", ".json"):
            digest.update(f"{path.relative_to(probes_dir())}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
