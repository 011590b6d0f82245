"""Into a dependency bump: of a step that changed the environment, what the packages brought, and which of them.

Code and packages are told apart by probing each with the other as before. Where the packages brought most of it, they
move from the old version to the new one by one, and the same search runs over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from oombisect.axes.releases import REPO, Moved, arrange, moved, weight
from oombisect.probing.installed import survey
from oombisect.search.conclusion import Conclusion, Step
from oombisect.search.observation import Delta, Metrics
from oombisect.search.options import Options
from oombisect.search.shares import Corner, Shares, share_out
from oombisect.session.bisection import Bisection
from oombisect.session.commit_line import CommitLine
from oombisect.session.corners import metrics_told, observed
from oombisect.session.dependencies import versions_of
from oombisect.session.environment_line import EnvironmentLine
from oombisect.session.measuring import ENVIRONMENT, Measurer, Target
from oombisect.session.point_environment import LockEnvironments, PointEnvironment, changed
from oombisect.session.verdict import StepVerdict, Verdict

if TYPE_CHECKING:
    from oombisect.history.store import Store

CODE, DEPENDENCIES = "code", "dependencies"
_OLD, _NEW_CODE, _NEW_PACKAGES = Corner(), Corner({CODE}), Corner({DEPENDENCIES})
_NEW = _NEW_CODE | _NEW_PACKAGES


@dataclass(frozen=True)
class PackageDescent:
    """Goes on into the environments among the steps of one search, `conclusion` over `line`.

    `options` are those of that search; what the session left of a budget is spent here.
    """

    store: Store
    session: str
    line: CommitLine
    locks: LockEnvironments
    measurer: Measurer
    options: Options
    limit: int
    conclusion: Conclusion

    def descend(self, verdict: Verdict) -> Verdict:
        """The verdict, with every named step that changed packages said to be those packages' or the code's.

        Raises:
            OombisectError: no probe can be started.
        """
        pairs = zip(self.conclusion.steps, verdict.steps, strict=True)
        return replace(verdict, steps=tuple(self._told(step, judged) for step, judged in pairs))

    def _told(self, step: Step, judged: StepVerdict) -> StepVerdict:
        if not judged.named or DEPENDENCIES not in judged.evidence:
            return judged
        bump = _Bump(self, step)
        evidence = {**judged.evidence, "packages": bump.to_json()}
        return replace(judged, repo=REPO if bump.is_dependencies else judged.repo, evidence=evidence)


class _Bump:
    """One step that changed the environment."""

    def __init__(self, descent: PackageDescent, step: Step) -> None:
        self._all = descent
        self._step = step
        self._before, self._after = (descent.line.targets[index] for index in (step.parent, step.index))
        trees = (descent.line.axis.trees[index] for index in (step.parent, step.index))
        self._old, self._new = (descent.locks.of(tree.env_lock) for tree in trees)

    @cached_property
    def _corners(self) -> dict[Corner, Target]:
        """Both sides, and each with only its code or only its packages new; two where the code is the same."""
        ends = {_OLD: self._before, _NEW: self._after}
        if self._same_code:
            return ends
        mixed = {
            _NEW_CODE: _named(self._after, self._old, f"{self._after.key}@{self._before.key}"),
            _NEW_PACKAGES: _named(self._before, self._new, f"{self._before.key}@{self._after.key}"),
        }
        return ends | mixed

    @property
    def _same_code(self) -> bool:
        return _code(self._before) == _code(self._after)

    @cached_property
    def _known(self) -> dict[Corner, Metrics]:
        """What was measured at the corners; those that could not be are left out."""
        measurer, options = self._all.measurer, self._all.options
        measured = {corner: measurer.measure(target, "corner") for corner, target in self._corners.items()}
        told = {c: metrics_told(observed(measurer, m, True, options), options) for c, m in measured.items()}
        return {corner: metrics for corner, metrics in told.items() if metrics is not None}

    @cached_property
    def _shares(self) -> Shares | None:
        """What the code and the packages brought; None: not known."""
        parts = (DEPENDENCIES,) if self._same_code else (CODE, DEPENDENCIES)
        corners = {frozenset({*parts} & {*corner}): metrics for corner, metrics in self._known.items()}
        return share_out(parts, corners, self._all.options.metric)

    @property
    def part(self) -> Delta | None:
        """What the packages brought; None: not known."""
        return self._shares.shares[DEPENDENCIES] if self._shares else None

    @cached_property
    def is_dependencies(self) -> bool:
        """Whether the packages brought more of the step than the code did, of what is followed (memory: moved most)."""
        if self._shares is None or self.part is None:
            return False
        if self._all.options.metric != "memory":
            change, theirs = sum(self._shares.changes.values()), self._shares.changes[DEPENDENCIES]
            return bool(2 * theirs * change > change**2)
        whole = Delta.between(self._known[_OLD], self._known[_NEW])
        moved_most, theirs = max(zip(whole.channels, self.part.channels, strict=True), key=lambda pair: abs(pair[0]))
        return 2 * theirs * moved_most > moved_most**2

    @property
    def _base(self) -> Target | None:
        """The code under which both environments were measured: the old one rather than the new."""
        if self._same_code or _NEW_PACKAGES in self._known:
            return self._before
        return self._after if _NEW_CODE in self._known else None

    @cached_property
    def chain(self) -> tuple[tuple[Moved, ...], ...]:
        """The packages in the order in which they move, those that only go together at once."""
        interpreters = [side.interpreter() for side in (self._old, self._new)]
        changes = moved(*map(versions_of, interpreters))
        asked = set(changed(self._old.pins, self._new.pins))
        needs = [{n: p.requires for n, p in survey(python).packages.items()} for python in interpreters]
        return arrange([change for change in changes if change.package in asked], *needs)

    def to_json(self) -> dict[str, Any]:
        """As docs/json.md has it."""
        part = self.part
        told: dict[str, Any] = {
            "same_code": self._same_code,
            "part_bytes": None if part is None else _bytes(part),
            "verdict": None,
            "notes": list(dict.fromkeys((*self._old.notes, *self._new.notes))),
        }
        if part is None:
            return _with_note(told, "what the packages brought cannot be told from what the code did")
        if not self.is_dependencies or len(self.chain) < 2:
            return told
        base, room = self._base, self._room()
        assert base is not None  # there is no part without it
        if room is not None and room <= 0:
            return _with_note(told, "the probe budget was spent before the packages could be told apart")
        search = self._search(base, room)
        return told | {"verdict": search.verdict(search.run()).to_json()}

    def _room(self) -> int | None:
        budget = self._all.options.budget
        return None if budget is None else budget - len(self._all.store.probes(self._all.session))

    def _search(self, base: Target, room: int | None) -> Bisection:
        options = replace(self._all.options, budget=room, grid=0)
        scope = f"packages:{self._after.key}"
        return Bisection(
            self._all.store, self._all.session, self._line(base), self._all.measurer, options, self._all.limit, scope
        )

    def _line(self, base: Target) -> EnvironmentLine:
        """The chain as a line: point k has the first k groups at their new versions."""
        places = range(len(self.chain) + 1)
        targets = [self._state(base, {c.package for group in self.chain[:k] for c in group}, k) for k in places]
        weights = [0.0, *(weight([c.package for c in group]) for group in self.chain)]
        return EnvironmentLine(targets, weights, lambda index: self._without(base, index))

    def _state(self, base: Target, new: set[str], place: int) -> Target:
        group = self.chain[place - 1] if place else ()
        target = self._mixed(new).around(base)
        subject = "; ".join(map(str, group)) or "the packages before"
        return replace(target, key=_key(group) or "before", subject=subject, repo=REPO)

    def _without(self, base: Target, index: int) -> Target:
        """All packages new but those of one group."""
        group = self.chain[index - 1]
        new = {change.package for other in self.chain for change in other if other != group}
        target = self._mixed(new).around(base)
        return replace(target, key=f"without {_key(group)}", subject=f"without {_key(group)}", repo=REPO)

    def _mixed(self, new: set[str]) -> PointEnvironment:
        pins: Mapping[str, str] = {n: v for n, v in self._old.pins.items() if n not in new}
        return self._new.with_pins({**pins, **{n: v for n, v in self._new.pins.items() if n in new}})


def _code(target: Target) -> dict[str, Any]:
    return {name: tree for name, tree in target.trees.items() if name != ENVIRONMENT}


def _named(target: Target, environment: PointEnvironment, key: str) -> Target:
    return replace(environment.around(target), key=key)


def _key(group: tuple[Moved, ...]) -> str:
    return "+".join(f"{change.package}=={change.after}" if change.after else f"no {change.package}" for change in group)


def _bytes(delta: Delta) -> dict[str, int]:
    return {"allocated": delta.allocated, "reserved": delta.reserved, "external": delta.external}


def _with_note(told: dict[str, Any], note: str) -> dict[str, Any]:
    return told | {"notes": [*told["notes"], note]}
