"""What a session concluded; `Report.to_json` is the contract of `run --json` (docs/json.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oombisect.errors import ExitCode
from oombisect.readings import Reading

SCHEMA = 1

EXIT_OF_KIND = {
    "culprit": ExitCode.CULPRIT,
    "none": ExitCode.NO_REGRESSION,
    "blurred": ExitCode.BLURRED,
    "creep": ExitCode.CREEP,
    "budget": ExitCode.BUDGET,
    "infra": ExitCode.INFRASTRUCTURE,
}


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """One change and its size. `delta` is bytes by metric (allocated, reserved, external), signed bad minus good.

    `kind` is capacity, fragmentation, external, mixed or unknown; `confirmed` is yes, superseded, conflict, refuted
    or not-tried; `evidence` holds what proves both. `named`: the evidence carries a name. `blurred` lists the points
    that may have brought it, where some between parent and point cannot be probed. `change`: bytes of the metric that
    was followed; None in what was stored before there were several.
    """

    point: str
    parent: str
    subject: str
    repo: str
    delta: Mapping[str, int]
    kind: str
    confirmed: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    named: bool = True
    crosses_limit: bool = False
    blurred: tuple[str, ...] = ()
    change: int | None = None

    @property
    def inside(self) -> tuple[StepVerdict, ...]:
        """The steps that were found inside a roll; none where this is no roll, or nothing was walked."""
        return tuple(map(StepVerdict.from_json, self.evidence.get("descent", {}).get("steps", ())))

    @property
    def main_inside(self) -> StepVerdict | None:
        """The commit of Megatron-LM to name a roll by, if Megatron-LM did most of it: the one that crosses the limit,
        else the largest named one.
        """
        descent = self.evidence.get("descent", {})
        shares, changes = descent.get("shares_bytes") or {}, descent.get("shares_change")
        sizes = {part: max(map(abs, share.values()), default=0) for part, share in shares.items()}
        if changes is not None:  # one quantity was followed alone
            sizes = {part: abs(change) for part, change in changes.items()}
        named = [step for step in self.inside if step.named]
        if sizes and sizes.pop("megatron-lm", 0) < sum(sizes.values()):
            return None
        crossing = next((step for step in named if step.crosses_limit), None)
        if changes is not None:
            return crossing or max(named, key=lambda step: abs(step.change or 0), default=None)
        return crossing or max(named, key=lambda step: max(map(abs, step.delta.values())), default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain values; the contract in docs/json.md."""
        return {
            "point": self.point,
            "parent": self.parent,
            "subject": self.subject,
            "repo": self.repo,
            "delta_bytes": dict(self.delta),
            "change": self.change,
            "class": self.kind,
            "confirmed": self.confirmed,
            "named": self.named,
            "crosses_limit": self.crosses_limit,
            "blurred": list(self.blurred),
            "evidence": dict(self.evidence),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepVerdict:
        """A stored step again, as `to_json` wrote it."""
        return cls(
            point=data["point"],
            parent=data["parent"],
            subject=data["subject"],
            repo=data["repo"],
            delta=data["delta_bytes"],
            kind=data["class"],
            confirmed=data["confirmed"],
            evidence=data["evidence"],
            named=data["named"],
            crosses_limit=data["crosses_limit"],
            blurred=tuple(data["blurred"]),
            change=data.get("change"),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusion. `growth_bytes` is peak allocated of the bad end minus that of the good one.

    `unresolved` and `skipped` are stretches of points, first and last, that could not be probed and that were skipped
    by hand. `metric` is what was followed, `change` its growth in bytes, `threshold_bytes` the value of it whose
    crossing was looked for; None: that of the limit.
    """

    kind: str
    limit_bytes: int
    crossing: str | None
    steps: tuple[StepVerdict, ...]
    growth: Mapping[str, int]
    explained: float
    unresolved: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    metric: str = "memory"
    change: int | None = None
    threshold_bytes: int | None = None
    skipped: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values; the contract in docs/json.md."""
        return {
            "kind": self.kind,
            "limit_bytes": self.limit_bytes,
            "metric": self.metric,
            "change": self.change,
            "threshold_bytes": self.threshold_bytes,
            "crossing": self.crossing,
            "steps": [step.to_json() for step in self.steps],
            "growth_bytes": self.growth.get("allocated", 0),
            "growth": dict(self.growth),
            "explained": round(self.explained, 4),
            "unresolved": [list(pair) for pair in self.unresolved],
            "skipped": [list(pair) for pair in self.skipped],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """A stored verdict again, as `to_json` wrote it."""
        return cls(
            kind=data["kind"],
            limit_bytes=data["limit_bytes"],
            crossing=data["crossing"],
            steps=tuple(StepVerdict.from_json(step) for step in data["steps"]),
            growth=data["growth"],
            explained=data["explained"],
            unresolved=tuple((first, last) for first, last in data["unresolved"]),
            notes=tuple(data["notes"]),
            metric=data.get("metric", "memory"),
            change=data.get("change"),
            threshold_bytes=data.get("threshold_bytes"),
            skipped=tuple((first, last) for first, last in data.get("skipped", ())),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a finished session has to say.

    `rank_findings`: the ranks of the `good` and the `bad` end beside each other, as docs/json.md has them; None where
    fewer than two were measured. `config`: what a config diff has to say besides.
    """

    session: str
    verdict: Verdict
    good: Reading
    bad: Reading
    probes: int
    probes_cached: int
    points: int
    workload: Mapping[str, Any]
    reproduce: tuple[str, ...]
    rank_findings: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None

    @property
    def exit_code(self) -> ExitCode:
        """The process's, by the kind of the verdict."""
        return EXIT_OF_KIND[self.verdict.kind]

    def to_json(self) -> dict[str, Any]:
        """The contract of `run --json` (docs/json.md)."""
        return {
            "schema": SCHEMA,
            "session": self.session,
            "exit": int(self.exit_code),
            "verdict": self.verdict.to_json(),
            "good": self.good.to_json(),
            "bad": self.bad.to_json(),
            "rank_findings": {end: self.rank_findings.get(end) for end in ("good", "bad")},
            "points": self.points,
            "probes": self.probes,
            "probes_cached": self.probes_cached,
            "workload": dict(self.workload),
            "reproduce": list(self.reproduce),
            **({} if self.config is None else {"config": dict(self.config)}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """A stored report again, as `to_json` wrote it."""
        return cls(
            session=data["session"],
            verdict=Verdict.from_json(data["verdict"]),
            good=Reading.from_json(data["good"]),
            bad=Reading.from_json(data["bad"]),
            probes=data["probes"],
            probes_cached=data["probes_cached"],
            points=data["points"],
            workload=data["workload"],
            reproduce=tuple(data["reproduce"]),
            rank_findings=data.get("rank_findings", {}),
            config=data.get("config"),
        )
