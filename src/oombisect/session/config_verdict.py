"""From the search over a config diff to its verdict: names for points, and what the bad side says of single keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oombisect.axes.config import Chain, Group, Key, alike
from oombisect.axes.config_effects import NONE, Effects, Names
from oombisect.axes.config_rules import RULES
from oombisect.history.records import StoredProbe
from oombisect.readings import Outcome
from oombisect.recipes.config_diff import ABSENT
from oombisect.search.conclusion import Conclusion
from oombisect.search.observation import Conflict, Delta, Exact, Observation, Unresolved
from oombisect.search.survey import Survey
from oombisect.session.bisection import CannotRevert, observation_of
from oombisect.session.config_line import ConfigLine, name_in
from oombisect.session.measuring import Measured, Measurer, Target
from oombisect.session.verdict import StepVerdict, Verdict

Late = Callable[[Sequence[Group]], tuple[Chain, Conclusion]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the diff itself: all its keys, and those that do not move on their own."""

    revision: str
    keys: tuple[Key, ...]
    by_probe: tuple[Key, ...]
    fixed: tuple[Key, ...]
    bonds: tuple[frozenset[str], ...]
    rejected: tuple[tuple[str, str], ...]

    def key_json(self, key: Key, group: str) -> dict[str, Any]:
        """A key, the point that brings it, and why it has no point of its own."""
        told = key.to_json() | {"point": group}
        if key in self.by_probe:
            told["not_alone"] = "the probe sets it itself"
        elif key in self.fixed:
            told["not_alone"] = "no assignment makes it"
        return told


@dataclass
class BadSide:
    """Probes of the bad config with groups at the good side's values.

    `quiet` are groups that did nothing in the chain: where others are rejected alone, some of these return with them.
    `found` are the probes by what was to be returned, `partners` what returned with it.
    """

    line: ConfigLine
    measurer: Measurer
    limit: int
    quiet: tuple[Group, ...] = ()
    found: dict[Names, Measured] = field(default_factory=dict)
    partners: dict[Names, tuple[Group, ...]] = field(default_factory=dict)

    def end(self, index: int) -> Observation:
        """The reading of a point of the line."""
        return self._observe(self.line.targets[index])[1]

    def without(self, groups: Sequence[Group]) -> Observation:
        """The bad config with these at the good side's values."""
        names = frozenset(group.name for group in groups)
        try:
            needed = self.line.companions(groups)
        except CannotRevert as error:
            return Conflict(str(error))
        if loud := [group.name for group in needed if group not in self.quiet]:
            return Conflict(f"it only goes together with {' and '.join(loud)}")
        seen: Observation = Conflict("nothing was tried")
        for more in dict.fromkeys(((), alike(groups, self.quiet), self.quiet)):
            extra = tuple(group for group in (*needed, *more) if group not in groups)
            measured, seen = self._observe(self.line.returned([*groups, *dict.fromkeys(extra)]), "revert")
            if not isinstance(seen, Unresolved):
                self.found[names], self.partners[names] = measured, tuple(dict.fromkeys(extra))
                break
        return seen

    def _observe(self, target: Target, purpose: str = "measure") -> tuple[Measured, Observation]:
        measured = self.measurer.measure(target, purpose)
        return measured, observation_of(measured.reading, self.measurer.fits(target, measured, self.limit))


@dataclass(frozen=True, slots=True)
class Effected:
    """What the bad side told. `quiet`: whether the keys that did nothing in the chain do nothing there either: `yes`,
    `moved` (some do, and are among the effects), `rejected` (that state is none anybody accepts) or `not-tried`."""

    effects: Effects
    groups: Mapping[str, Group]
    quiet: str


def look_at_bad_side(bad_side: BadSide, conclusion: Conclusion, survey: Survey, late: Late) -> Effected | None:
    """Probe the bad side until nothing more is wanted; None where there is nothing to ask it.

    Args:
        late: searches among groups that did nothing in the chain, with all others at the bad side's values.
    """
    chain = bad_side.line.chain
    steps = {chain.groups[step.index - 1].name: step.delta for step in conclusion.steps if step.blurred_with is None}
    if conclusion.kind in ("budget", "infra") or not steps:
        return None
    groups = {group.name: group for group in chain.groups}
    bad_side.quiet = tuple(group for group in chain.groups if group.name not in steps)
    bad = bad_side.end(chain.count - 1)
    without: dict[Names, Observation] = {NONE: bad}
    answer, differs = "yes", False
    if bad_side.quiet:
        answer, before = "not-tried", bad_side.without(bad_side.quiet) if isinstance(bad, Exact) else None
        if isinstance(before, Unresolved | Conflict):
            answer = "rejected"
        elif isinstance(before, Exact) and isinstance(bad, Exact):
            answer, differs = "yes", not survey.agree(before, bad)
            if Delta.between(before.metrics, bad.metrics).size > conclusion.epsilon:
                answer = "moved"
    if differs:
        late_chain, found = late(bad_side.quiet)
        for step in found.steps:
            if step.blurred_with is None:
                group = late_chain.groups[step.index - 1]
                groups[group.name], steps[group.name], answer = group, Delta(), "moved"
                bad_side.quiet = tuple(other for other in bad_side.quiet if not other.names & group.names)
    good = bad_side.end(0)
    while True:
        effects = Effects(tuple(steps), steps, without, good, conclusion.epsilon, bad_side.limit)
        wanted = effects.next_probe()
        if wanted is None:
            return Effected(effects, groups, answer)
        without[wanted] = bad_side.without([groups[name] for name in sorted(wanted)])


def config_json(facts: Facts, line: ConfigLine, told: Effected | None, bad_side: BadSide) -> dict[str, Any]:
    """The report's part on the diff: `config` in docs/json.md."""
    chain = line.chain
    point = {key.name: group.name for group in chain.groups for key in group.keys}
    effects = None if told is None else told.effects
    return {
        "revision": facts.revision,
        "ends": {"good": line.targets[0].key, "bad": line.targets[-1].key},
        "keys": [facts.key_json(key, point[key.name]) for key in facts.keys],
        "moved_together": [
            _together(group, facts.bonds) for group in chain.groups if len(group.keys) > 1 and not group.rest
        ],
        "rejected": [{"point": name, "reason": reason} for name, reason in facts.rejected],
        "quiet_keys": "not-tried" if told is None else told.quiet,
        "effects": [] if effects is None else [_effect(effects, name, bad_side) for name in effects.names],
        "interactions": [] if effects is None else _interactions(effects),
        "minimal_revert": None if told is None else _minimal(told, bad_side),
    }


def _together(group: Group, bonds: Iterable[frozenset[str]]) -> dict[str, Any]:
    rules = [rule.text for rule in RULES if sum(map(rule.concerns, group.names)) > 1]
    learned = any(len(group.names & bond) > 1 for bond in bonds)
    return {"keys": sorted(group.names), "because": "states between were rejected" if learned else "; ".join(rules)}


def _bytes(delta: Delta | None) -> dict[str, int] | None:
    if delta is None:
        return None
    return {"allocated": delta.allocated, "reserved": delta.reserved, "external": delta.external}


def _effect(effects: Effects, name: str, bad_side: BadSide) -> dict[str, Any]:
    alone = effects.without.get(frozenset({name}))
    return {
        "point": name,
        "chain_bytes": _bytes(effects.forward[name]),
        "own_bytes": _bytes(effects.own(name)),
        "interacts": effects.interacts(name),
        "returned_with": [group.name for group in bad_side.partners.get(frozenset({name}), ())],
        "fits_without": alone.fits if isinstance(alone, Exact) else None,
        "rejected": alone.reason if isinstance(alone, Unresolved | Conflict) else None,
    }


def _interactions(effects: Effects) -> list[dict[str, Any]]:
    """The pairs that were probed and do interact."""
    told = []
    for pair in effects.pairs():
        found = effects.interaction(*sorted(pair))
        if found is not None and found.size > effects.epsilon:
            told.append({"points": sorted(pair), "bytes": _bytes(found)})
    return told


def _minimal(told: Effected, bad_side: BadSide) -> dict[str, Any] | None:
    smallest = told.effects.smallest()
    if smallest is None:
        return None
    measured, names = bad_side.found[smallest.names], sorted(smallest.names)
    groups = [*(told.groups[name] for name in names), *bad_side.partners[smallest.names]]
    keys = [key for group in groups for key in group.keys]
    return {
        "goal": "fits" if told.effects.wants_fit else "growth-gone",
        "points": names,
        "keys": [{"path": key.name} | ({} if key.before is ABSENT else {"value": key.before}) for key in keys],
        "smallest": smallest.proven,
        "ruled_out_by_size": smallest.by_size,
        "probe": measured.probe,
        "fits": told.effects.meets_limit(smallest.names),
        "peak_allocated": measured.reading.peak_allocated,
        "peak_reserved": measured.reading.peak_reserved,
        "external": measured.reading.external,
        "simulated": measured.reading.simulated,
    }


def named_by_key(verdict: Verdict, line: ConfigLine, told: Effected | None, bad_side: BadSide) -> Verdict:
    """The verdict with keys for points; where their probes are to be found goes into the evidence."""
    names = {line.targets[0].key: "good"}
    groups = {"good": Group(())}
    for target, group in zip(line.targets[1:], line.chain.groups, strict=True):
        names[target.key], groups[group.name] = group.name, group

    def step(found: StepVerdict) -> StepVerdict:
        name = names[found.point]
        evidence = dict(found.evidence) | {
            "keys": [key.to_json() for key in groups[name].keys],
            "points": {"parent": found.parent, "point": found.point},
        }
        if not evidence.get("config_changes"):  # a variable: that the configs are the same says nothing
            evidence.pop("config_changes", None)
        if told is not None and name in told.effects.names:
            evidence["own_effect"] = _effect(told.effects, name, bad_side)
        return replace(
            found,
            point=name,
            parent=names[found.parent],
            blurred=tuple(names[point] for point in found.blurred),
            evidence=evidence,
        )

    return replace(
        verdict,
        crossing=None if verdict.crossing is None else names[verdict.crossing],
        steps=tuple(step(found) for found in verdict.steps),
        unresolved=tuple((names[first], names[last]) for first, last in verdict.unresolved),
        skipped=tuple((names[first], names[last]) for first, last in verdict.skipped),
    )


def rejected_states(probes: Iterable[StoredProbe]) -> tuple[tuple[str, str], ...]:
    """The states of a session that were rejected, each once, and why."""
    told: dict[str, str] = {}
    for probe in probes:
        reading = probe.reading
        if reading is not None and reading.outcome is Outcome.UNRESOLVED:
            told.setdefault(name_in(probe.spec.point), reading.reason)
    return tuple(told.items())
