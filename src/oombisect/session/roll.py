"""Into a roll: a step that moves the Megatron-LM submodule is split into Bridge's part and Megatron-LM's.

The latter is searched for the commit of Megatron-LM that brought it. Each part is probed with the other one as before:
the *corners* old Bridge with new Megatron-LM, new Bridge with old Megatron-LM. Either may not build. Where each commit
is probed in the environment of its own lock, what the roll changes there is a third part; else it adds nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

from oombisect.axes.submodule import RollRange, roll_range
from oombisect.errors import OombisectError
from oombisect.readings import Outcome, Reading
from oombisect.repo.revert import RevertConflict
from oombisect.repo.submodule import MissingCommit
from oombisect.search.conclusion import Conclusion, Step
from oombisect.search.observation import NOTHING, Delta, Infra, Observation, Unresolved
from oombisect.search.options import Options
from oombisect.search.shares import Corner, share_out
from oombisect.session.bisection import Bisection, CannotRevert
from oombisect.session.commit_line import CommitTargets
from oombisect.session.corners import ROLL, gain, metrics_told, observed, to_probe
from oombisect.session.measuring import Measured, Measurer, Target
from oombisect.session.steps import Targets
from oombisect.session.verdict import StepVerdict, Verdict
from oombisect.units import format_delta

if TYPE_CHECKING:
    from oombisect.history.store import Store

BRIDGE, MEGATRON, DEPENDENCIES = "bridge", "megatron-lm", "dependencies"
_OLD: Corner = frozenset()
_NEW_MEGATRON: Corner = frozenset({MEGATRON})


@dataclass
class RollLine:
    """A roll's commits of Megatron-LM under one Bridge commit, ready for a search."""

    axis: RollRange
    make: CommitTargets
    imported: frozenset[str] | None = None

    @cached_property
    def targets(self) -> Sequence[Target]:
        """See `Line.targets`."""
        return [
            self.make.of(
                self.axis.bridge,
                point.subject,
                trees,
                date=point.author_date,
                megatron=point.key,
                repo=point.repo,
            )
            for point, trees in zip(self.axis.points, self.axis.trees, strict=True)
        ]

    @cached_property
    def weights(self) -> Sequence[float]:
        """See `Line.weights`."""
        return self.axis.weights(self.imported)

    def lump(self, index: int) -> tuple[str, ...]:
        """See `Line.lump`."""
        return self.axis.lumps.get(index, ())

    def reverted(self, index: int) -> Target:
        """The new pin without the change of one commit; see `Line.reverted`."""
        if index in self.axis.lumps:
            raise CannotRevert(f"the point stands for {len(self.axis.lumps[index])} commits")
        tip, culprit = self.axis.points[-1], self.axis.points[index]
        repository, bridge = self.make.repository, self.axis.bridge
        try:
            done = repository.reverted_megatron(bridge, tip.key, culprit.key)
        except RevertConflict as error:
            raise CannotRevert(error.cause) from error
        return self.make.of(
            bridge,
            f"without {culprit.subject}",
            repository.relevant_trees(bridge, megatron=done.commit),
            key=f"{bridge}+{tip.key}-{culprit.key}",
            megatron=done.commit,
            repo=tip.repo,
        )


@dataclass(frozen=True)
class _Roll:
    """One step that moves the submodule: its parts, the targets of its corners, what was measured there."""

    parts: tuple[str, ...]
    targets: Mapping[Corner, Target]
    measured: Mapping[Corner, Measured]
    seen: Mapping[Corner, Observation]
    lock_changed: bool

    @property
    def new(self) -> Corner:
        """All of it: the step's own point."""
        return frozenset(self.parts)

    @property
    def new_bridge(self) -> Corner:
        """All of it but Megatron-LM."""
        return self.new - {MEGATRON}

    @property
    def between(self) -> tuple[Corner, ...]:
        """The corners that are neither side of the step."""
        return tuple(corner for corner in self.targets if corner not in (_OLD, self.new))

    def reading(self, corner: Corner) -> Reading:
        return self.measured[corner].reading


@dataclass(frozen=True)
class RollDescent:
    """Goes on into the rolls among the steps of one search, `conclusion` over `line`.

    `options` are those of that search; what it left of a budget is spent here.
    """

    store: Store
    session: str
    line: Targets
    make: CommitTargets
    measurer: Measurer
    options: Options
    limit: int
    conclusion: Conclusion

    def descend(self, verdict: Verdict) -> Verdict:
        """The verdict, with `descent` in the evidence of every named step that moves the submodule.

        Raises:
            OombisectError: no probe can be started.
        """
        room = None if self.options.budget is None else max(0, self.options.budget - self.conclusion.probes)
        steps = []
        for step, judged in zip(self.conclusion.steps, verdict.steps, strict=True):
            if judged.named and self._moves(step):
                descent = self._into(step, room)
                room = None if room is None else max(0, room - descent["probes"])
                judged = replace(judged, evidence={**judged.evidence, "descent": descent})
            steps.append(judged)
        return replace(verdict, steps=tuple(steps))

    def _moves(self, step: Step) -> bool:
        return self.line.targets[step.parent].submodule != self.line.targets[step.index].submodule

    def _into(self, step: Step, room: int | None) -> dict[str, Any]:
        """The descent into one roll, as docs/json.md has it."""
        before, after = self.line.targets[step.parent], self.line.targets[step.index]
        descent: dict[str, Any] = {
            "into": MEGATRON,
            "pins": {"before": before.submodule, "after": after.submodule},
            "probes": 0,
        }
        if not (before.submodule and after.submodule):
            which = "before" if after.submodule else "after"
            return descent | _told("not-possible", f"Megatron-LM is no submodule {which} this step")
        say = self.measurer.watcher.say
        say(f"{after.key[:10]} moves Megatron-LM {before.submodule[:10]} -> {after.submodule[:10]}: going on into that")
        locks = [self.make.repository.relevant_trees(side.key).env_lock for side in (before, after)]
        parts = self._parts(*locks)
        targets = self._corners(parts, before, after)
        scope = f"{ROLL}:{after.key}"
        descent["probes"] = corners = to_probe(self.store, self.session, self.measurer, scope, targets.values())
        if room is not None and room < corners:
            return descent | _told("budget", "the probe budget was spent before the roll could be split")
        measured = {corner: self.measurer.measure(target, "corner") for corner, target in targets.items()}
        told = {
            corner: observed(self.measurer, one, self.measurer.fits(targets[corner], one, self.limit), self.options)
            for corner, one in measured.items()
        }
        roll = _Roll(parts, targets, measured, told, locks[0] != locks[1])
        descent |= self._split(roll)
        base, kind, note = self._base(roll, step)
        descent["notes"] += [note] if note else []
        if base is None:
            return descent | {"kind": kind}
        bridge = roll.targets[base].key.partition("+")[0]
        descent["base"] = {"bridge": bridge}
        try:
            axis = roll_range(self.make.repository, bridge, before.submodule, after.submodule)
        except OombisectError as error:
            descent["notes"].append(f"{error.cause}. {error.way_out}")
            return descent | {"kind": "not-possible"}
        descent["pins"] |= {"move": axis.move, "merge_base": axis.fork, "commits": len(axis.points) - 1}
        say(f"{len(axis.points) - 1} commits of Megatron-LM under Bridge {bridge[:10]}")
        found, probes = self._walk(axis, roll, scope, None if room is None else room - corners)
        descent["notes"] += [*axis.notes, *found.notes]
        return descent | _walked(found) | {"probes": corners + probes}

    # -- corners

    def _parts(self, before: str, after: str) -> tuple[str, ...]:
        """What may have brought the step; the dependencies only where probes see each commit's own."""
        locks = self.make.locks
        seen = locks is not None and locks.of(before).trees != locks.of(after).trees
        return (MEGATRON, DEPENDENCIES, BRIDGE) if seen else (MEGATRON, BRIDGE)

    def _corners(self, parts: Sequence[str], before: Target, after: Target) -> dict[Corner, Target]:
        """The step with some of its parts new and the others old, none and all of them included."""
        subsets = (frozenset(c) for n in range(len(parts) + 1) for c in combinations(parts, n))
        return {corner: self._corner_target(corner, parts, before, after) for corner in subsets}

    def _corner_target(self, corner: Corner, parts: Sequence[str], before: Target, after: Target) -> Target:
        if not corner or len(corner) == len(parts):
            return after if corner else before
        repository = self.make.repository
        bridge, megatron, environment = (
            (after if part in corner else before) for part in (BRIDGE, MEGATRON, DEPENDENCIES)
        )
        pin = repository.pin(bridge.key)
        assert pin is not None
        with contextlib.suppress(MissingCommit):  # laying it out will say so, and the corner is unresolved
            repository.store.ensure(replace(pin, sha=megatron.submodule))
        trees = repository.relevant_trees(bridge.key, megatron=megatron.submodule)
        key = f"{bridge.key}+{megatron.submodule}"
        subject = f"{bridge.subject}, with the Megatron-LM of {megatron.key[:9]}"
        if DEPENDENCIES in parts:
            trees = replace(trees, env_lock=repository.relevant_trees(environment.key).env_lock)
            key, subject = f"{key}@{environment.key}", f"{subject}, in the environment of {environment.key[:9]}"
        return self.make.of(bridge.key, subject, trees, key=key, megatron=megatron.submodule)

    def _split(self, roll: _Roll) -> dict[str, Any]:
        """The corners, and the shares of Bridge's source, the dependencies and Megatron-LM as far as they are known."""
        ends = (_OLD, roll.new)
        known = {
            corner: metrics
            for corner in roll.targets
            if (metrics := metrics_told(roll.seen[corner], self.options))
            and (corner in ends or roll.reading(corner).outcome is Outcome.EXACT)
        }
        found = share_out(roll.parts, known, self.options.metric)
        notes = [
            f"{_named(corner)} tells nothing: {_reason(roll.seen[corner])}"
            for corner in roll.between
            if corner not in known
        ]
        if found is not None and notes:
            notes.append(
                "the shares rest on the other corners alone: what the parts add together counts for one of them"
            )
        if found is not None and any(roll.reading(end).outcome is Outcome.CENSORED for end in ends):
            notes.append("a side of the roll ran out of memory, so the shares are bounds")
        fixed = self.make.locks is None
        if fixed and roll.lock_changed:
            notes.append("the Python environment is held fixed, so the dependencies that the roll changes add nothing")
        return {
            "corners": [self._corner(roll, corner) for corner in roll.between],
            "shares_bytes": None
            if found is None
            else {part: _bytes(found.shares.get(part, NOTHING)) for part in (BRIDGE, DEPENDENCIES, MEGATRON)},
            "shares_change": None
            if found is None or self.options.metric == "memory"
            else {part: found.changes.get(part, 0) for part in (BRIDGE, DEPENDENCIES, MEGATRON)},
            "interaction_bytes": None if found is None or found.interaction is None else _bytes(found.interaction),
            "environment": {"held_fixed": fixed, "lock_changed": roll.lock_changed},
            "base": None,
            "notes": notes,
        }

    def _corner(self, roll: _Roll, corner: Corner) -> dict[str, Any]:
        target, measured = roll.targets[corner], roll.measured[corner]
        bridge, _, rest = target.key.partition("+")
        megatron, _, environment = rest.partition("@")
        reading = measured.reading
        told = reading.outcome in (Outcome.EXACT, Outcome.CENSORED)
        return {
            BRIDGE: bridge,
            MEGATRON: megatron,
            "environment": environment or None,
            "outcome": str(reading.outcome),
            "reason": reading.reason or None,
            "peak_allocated": reading.peak_allocated if told else None,
            "peak_reserved": reading.peak_reserved if told else None,
            "external": reading.external if told else None,
            "fits": self.measurer.fits(target, measured, self.limit) if told else None,
        }

    # -- the walk

    def _base(self, roll: _Roll, step: Step) -> tuple[Corner | None, str, str]:
        """Where to walk: the side of Bridge under which Megatron-LM's part shows, the new one rather than the old.

        None where it shows under neither, with the kind of descent that this makes. The last is a note.
        """
        least = max(1, min(self.conclusion.min_step, self.options.wanted(step.change)))
        under_new = self._gain(roll, roll.new_bridge, roll.new)
        under_old = self._gain(roll, _OLD, _NEW_MEGATRON)
        if under_new is not None and under_new >= least:
            return roll.new_bridge, "", ""
        if under_old is not None and under_old >= least:
            hidden = "under the new Bridge Megatron-LM's part does not show, so the old one is walked under"
            return _NEW_MEGATRON, "", "" if under_new is None else hidden
        if under_new is None and under_old is None:
            machine = any(roll.reading(corner).outcome is Outcome.INFRA for corner in roll.between)
            why = "what Megatron-LM added cannot be told from what Bridge added: blurred to the roll"
            return None, "infra" if machine else "blurred", why
        size = max(gain for gain in (under_new, under_old) if gain is not None)
        part = f"adds {format_delta(size)} at most" if self.options.metric != "step-time" else "adds too little"
        return None, "not-needed", f"Megatron-LM {part}: the roll's other parts brought it, no descent is needed"

    def _gain(self, roll: _Roll, low: Corner, high: Corner) -> int | None:
        """What Megatron-LM adds under one Bridge, of what is sought; None where that cannot be told."""
        return gain(roll.seen[low], roll.seen[high], self.options, self.conclusion.min_step)

    def _walk(self, axis: RollRange, roll: _Roll, scope: str, room: int | None) -> tuple[Verdict, int]:
        imported = frozenset(roll.reading(roll.new).imported)
        bisection = Bisection(
            store=self.store,
            session=self.session,
            line=RollLine(axis, self.make, imported or None),
            measurer=self.measurer,
            options=replace(self.options, budget=room),
            limit=self.limit,
            scope=scope,
        )
        conclusion = bisection.run()
        return bisection.verdict(conclusion), conclusion.probes


def _reason(seen: Observation) -> str:
    """Why an answer tells nothing."""
    return seen.reason if isinstance(seen, Unresolved | Infra) else "it ran out of memory"


def _named(corner: Corner) -> str:
    """A corner in words."""
    new = " and ".join(_WORDS[part] for part in (BRIDGE, DEPENDENCIES, MEGATRON) if part in corner)
    return f"the roll with its {new} alone"


_WORDS = {BRIDGE: "Bridge source", DEPENDENCIES: "dependencies", MEGATRON: "Megatron-LM"}


def _told(kind: str, note: str) -> dict[str, Any]:
    """A descent that came to nothing before anything was measured."""
    return {
        "kind": kind,
        "corners": [],
        "shares_bytes": None,
        "shares_change": None,
        "interaction_bytes": None,
        "base": None,
        "notes": [note],
    }


def _walked(found: Verdict) -> dict[str, Any]:
    """What the walk concluded; its points are commits of Megatron-LM."""
    return {
        "kind": found.kind,
        "crossing": found.crossing and _megatron(found.crossing),
        "growth": dict(found.growth),
        "explained": round(found.explained, 4),
        "unresolved": [[_megatron(first), _megatron(last)] for first, last in found.unresolved],
        "skipped": [[_megatron(first), _megatron(last)] for first, last in found.skipped],
        "steps": [_step(step).to_json() for step in found.steps],
    }


def _step(step: StepVerdict) -> StepVerdict:
    return replace(
        step,
        point=_megatron(step.point),
        parent=_megatron(step.parent),
        blurred=tuple(map(_megatron, step.blurred)),
    )


def _megatron(key: str) -> str:
    """The commit of Megatron-LM in a target's key; a bare commit stays as it is."""
    return key.rpartition("+")[2]


def _bytes(delta: Delta) -> dict[str, int]:
    return {"allocated": delta.allocated, "reserved": delta.reserved, "external": delta.external}
