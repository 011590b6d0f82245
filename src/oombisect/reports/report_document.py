"""All that a report says of a session, as one plain value: HTML, Markdown and JSON are renderings of it.

Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from oombisect.memory.timeline import Timeline, aligned

SCHEMA = 1

VERDICT, RANGE, RUNS, WHAT_IFS, CONFIG = "verdict", "range", "runs", "what_ifs", "config"
"""The parts that may be missing, each for a reason."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One answer that a search got: what was asked of which point, and what was told.

    Args:
        index: the point's place on its axis. Of a `revert` it is the change that was taken back from the bad end.
        request: `measure`, `remeasure` (a fresh probe), `revert`, or what another probe of the session was for.
        probe: its number; None: there was none (a change does not revert).
        cached: an earlier probe answered.
        outcome: as of a reading, or `conflict`.
        is_lower_bound: it ran out of memory: sizes are at least.
        varied: under other settings or an enforced limit: no measurement of the point as it is.
        allocated, reserved, external: peaks of the largest rank; None: nothing was measured.
    """

    index: int
    point: str
    subject: str
    request: str
    probe: int | None
    cached: bool
    outcome: str
    reason: str
    fits: bool | None
    is_lower_bound: bool
    simulated: bool
    varied: bool = False
    allocated: int | None = None
    reserved: int | None = None
    external: int | None = None

    @property
    def device(self) -> int | None:
        """Reserved memory and that outside PyTorch."""
        return None if self.reserved is None else self.reserved + (self.external or 0)


@dataclass(frozen=True, slots=True)
class RangeStep:
    """A step of the verdict where it lies on an axis."""

    index: int
    point: str
    subject: str
    kind: str
    delta: Mapping[str, int]
    confirmed: str
    named: bool
    crosses_limit: bool


@dataclass(frozen=True, slots=True)
class Range:
    """The axis of one search: the session's own, or one inside a step (`scope` not empty).

    `points` are their keys from good to bad, all or (of sessions of old) those that were probed, empty where not known;
    `count` is how many there are.
    """

    scope: str
    title: str
    count: int
    points: tuple[str, ...]
    marks: tuple[Mark, ...]
    steps: tuple[RangeStep, ...] = ()
    unresolved: tuple[tuple[int, int], ...] = ()

    @property
    def simulated(self) -> bool:
        """Its numbers are of a virtual GPU."""
        return any(mark.simulated for mark in self.marks)


@dataclass(frozen=True, slots=True)
class Run:
    """One of the two runs that are set beside each other: where it is from, and its memory over time."""

    name: str
    point: str | None
    subject: str
    rank: int | None
    peak_allocated: int
    peak_reserved: int
    censored: bool
    simulated: bool
    timeline: Timeline

    def to_json(self) -> dict[str, Any]:
        """Plain values; the contract in docs/json.md."""
        told = asdict(self)
        return told | {"timeline": told["timeline"] | {"phases": [asdict(span) for span in self.timeline.phases]}}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs compared: which, in words, what each is called, and `comparison` as `compare --json` has it.

    Of a single run both sides are that run.
    """

    title: str
    names: tuple[str, str]
    comparison: Mapping[str, Any]
    single: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values; the contract in docs/json.md."""
        return {"title": self.title, "names": list(self.names), "comparison": self.comparison}


@dataclass(frozen=True, slots=True)
class SessionDocument:
    """A session, from its verdict down to every probe.

    Args:
        session: as `show --json` has it, with the command line and the version.
        report: what the command printed as JSON; None: it has not ended.
        headline: the answer in a sentence. `notes` follow it.
        simulated: numbers are of a virtual GPU. None: nothing is measured yet.
        ends: the readings of the good and the bad end, as far as they are there.
        ranges: the session's axis, then those inside its steps.
        pair: the good and the bad end; a run by itself where there is but one; None where no recording is left.
        runs: those of `pair`, over time.
        steps: the sides of the named steps, the one the headline names first; a few at most.
        what_ifs: as `replay --json`, of the run of `pair` that needs more.
        config_changes: how the resolved configs of the ends differ; None: not known.
        environments: of each end what it ran in, by name.
        reproduce: command lines.
        probes: as `show --json`, all of the session.
        missing: why a part is not there, in words.
    """

    session: Mapping[str, Any]
    report: Mapping[str, Any] | None
    headline: str
    notes: tuple[str, ...]
    simulated: bool | None
    limit_bytes: int | None
    ends: Mapping[str, Mapping[str, Any] | None]
    ranges: tuple[Range, ...]
    pair: Pair | None
    runs: tuple[Run, ...]
    steps: tuple[Pair, ...]
    what_ifs: Mapping[str, Any] | None
    config_changes: Sequence[Mapping[str, Any]] | None
    environments: Mapping[str, Mapping[str, str]]
    reproduce: tuple[str, ...]
    probes: Sequence[Mapping[str, Any]]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def provenance(self) -> str:
        """`simulated` or `measured`; empty where nothing was measured yet."""
        return {True: "simulated", False: "measured", None: ""}[self.simulated]

    @property
    def label(self) -> str:
        """What follows a size."""
        return " (simulated)" if self.simulated else ""

    def positions(self) -> list[tuple[float, ...]]:
        """Where the moments of each run's timeline lie on their common axis."""
        return aligned(run.timeline for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """The contract of `report --json` (docs/json.md)."""
        return {
            "schema": SCHEMA,
            "session": dict(self.session),
            "headline": self.headline,
            "provenance": self.provenance or None,
            "limit_bytes": self.limit_bytes,
            "report": None if self.report is None else dict(self.report),
            "notes": list(self.notes),
            "ends": dict(self.ends),
            "ranges": [asdict(one) for one in self.ranges],
            "pair": None if self.pair is None else self.pair.to_json(),
            "runs": [run.to_json() for run in self.runs],
            "steps": [pair.to_json() for pair in self.steps],
            "what_ifs": self.what_ifs,
            "config_changes": self.config_changes,
            "environments": {end: dict(told) for end, told in self.environments.items()},
            "reproduce": list(self.reproduce),
            "probes": list(self.probes),
            "missing": dict(self.missing),
        }
