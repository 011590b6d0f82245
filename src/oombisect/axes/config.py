"""The axis of a config diff: from the good config to the bad one, a key (or keys that go together) at a time.

Pure: it orders keys and says what each state is. Point 0 is the good config, point k has the first k groups at the bad
config's values, the last point is the bad config itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oombisect.axes.config_rules import ENV, RULES, Rule, Settings
from oombisect.printable import printable
from oombisect.recipes.config_diff import ABSENT, Path, pieces, same, value_at, with_value
from oombisect.search.observation import Unresolved
from oombisect.search.state import State
from oombisect.search.survey import Interval, Kind, Survey

REST = "(rest)"
_ENV_VARS = "env_vars"
_SHOWN = 60
# Sections that hardly ever touch device memory: looked into last, never left out.
_REMOTE = frozenset(
    {"checkpoint", "ft", "inprocess_restart", "logger", "nvrx_straggler", "profiling", "rerun_state_machine", "rng"}
    | {"scheduler", "straggler", "tensor_inspect", "tokenizer", "validation"}
)
_REMOTE_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class Key:
    """One thing that differs: its dotted path or `env:NAME`, and its values (`ABSENT` where it is not set)."""

    name: str
    path: Path
    before: Any
    after: Any

    def to_json(self) -> dict[str, Any]:
        """`{"path", "before", "after"}`, an absent side left out."""
        sides = {"before": self.before, "after": self.after}
        return {"path": self.name, **{side: value for side, value in sides.items() if value is not ABSENT}}

    def __str__(self) -> str:
        return f"{self.name}: {shown(self.before)} -> {shown(self.after)}"


def shown(value: Any) -> str:
    """A value for people: one line, cut where it is long."""
    if value is ABSENT:
        return "unset"
    text = printable(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


@dataclass(frozen=True, slots=True)
class Group:
    """Keys that move together; `rest`: whatever else makes the bad config, which no assignment can set."""

    keys: tuple[Key, ...]
    rest: bool = False

    @property
    def name(self) -> str:
        return REST if self.rest else "+".join(key.name for key in self.keys)

    @property
    def subject(self) -> str:
        """Its values on both sides, in a line."""
        if len(self.keys) == 1 and not self.rest:
            return f"{shown(self.keys[0].before)} -> {shown(self.keys[0].after)}"
        return "; ".join(map(str, self.keys))

    @property
    def names(self) -> frozenset[str]:
        """The names of its keys, `REST` among them if it is the rest."""
        return frozenset(key.name for key in self.keys) | ({REST} if self.rest else frozenset())

    @property
    def weight(self) -> float:
        """How likely it is to touch memory, against a plain key."""
        return sum(_REMOTE_WEIGHT if key.path[0] in _REMOTE else 1.0 for key in self.keys) if not self.rest else 1.0


@dataclass(frozen=True, slots=True)
class Chain:
    """The groups in the order in which they move to the bad side."""

    groups: tuple[Group, ...]

    @property
    def count(self) -> int:
        """Points, both ends included."""
        return len(self.groups) + 1

    def place(self, name: str) -> int:
        """The point that brings the group of this name."""
        return next(index for index, group in enumerate(self.groups, 1) if group.name == name)


def differing(good: Settings, bad: Settings) -> tuple[Key, ...]:
    """What differs, by name. A variable is one key, wherever it is set: the process's own wins over the config's."""
    one, two = ({k: v for k, v in side.config.items() if k != _ENV_VARS} for side in (good, bad))
    keys = [Key(".".join(piece.path), piece.path, piece.before, piece.after) for piece in pieces(one, two)]
    for name in sorted(_variables(good) | _variables(bad)):
        before, after = (_text(side.get(ENV + name)) for side in (good, bad))
        if not same(before, after):
            keys.append(Key(ENV + name, ("env", name), before, after))
    return tuple(keys)


def _variables(side: Settings) -> set[str]:
    return set(side.env) | set(side.config.get(_ENV_VARS) or {})


def _text(value: Any) -> Any:
    """A variable's value: whatever the config has, a process sees text."""
    return ABSENT if value is None else str(value)


def moved(base: Settings, side: Settings, keys: Iterable[Key]) -> Settings:
    """`base` with `keys` at the values they have in `side`."""
    config, env = base.config, dict(base.env)
    for key in keys:
        if not key.name.startswith(ENV):
            config = with_value(config, key.path, value_at(side.config, key.path))
            continue
        name = key.name.removeprefix(ENV)
        if not same(value_at(config, (_ENV_VARS, name)), value_at(side.config, (_ENV_VARS, name))):
            config = with_value(config, (_ENV_VARS, name), value_at(side.config, (_ENV_VARS, name)))
        env.pop(name, None)
        if name in side.env:
            env[name] = side.env[name]
    return Settings(config, env)


def arrange(
    good: Settings,
    bad: Settings,
    keys: Sequence[Key],
    *,
    rest: Sequence[Key] = (),
    has_rest: bool = False,
    bonds: Collection[frozenset[str]] = (),
    rules: Sequence[Rule] = RULES,
) -> Chain:
    """Order the keys so that no state on the way breaks a rule that both ends keep; join those that no order serves.

    Args:
        keys: what moves, in the order that is kept where nothing speaks against it.
        rest: what differs and cannot be set key by key: it moves last, with the bad config itself.
        has_rest: there is more to the bad config than its keys, even if `rest` is empty.
        bonds: names of keys that were learned to go together.
    """
    kept = [rule for rule in rules if rule.holds(good) and rule.holds(bad)]
    sets = _closed(bonds)
    with_rest = next((one for one in sets if REST in one), frozenset())
    last = [*rest, *(key for key in keys if key.name in with_rest)]
    remaining = _bonded([key for key in keys if key.name not in with_rest], sets)
    state, done = good, list[Group]()
    while remaining:
        group = _next(state, bad, remaining, kept)
        state = moved(state, bad, group.keys)
        done.append(group)
        remaining = [other for other in remaining if not other.names & group.names]
    if last or has_rest:
        done.append(Group(tuple(last), rest=True))
    return Chain(tuple(done))


def _closed(bonds: Collection[frozenset[str]]) -> list[frozenset[str]]:
    """The bonds, those that share a name made one."""
    sets: list[frozenset[str]] = []
    for bond in bonds:
        touched = [one for one in sets if one & bond]
        sets = [one for one in sets if one not in touched]
        sets.append(bond.union(*touched))
    return sets


def _bonded(keys: Sequence[Key], bonds: Sequence[frozenset[str]]) -> list[Group]:
    """The keys as groups, those of a bond together, at the place of its last."""
    groups: list[Group] = []
    for index, key in enumerate(keys):
        bond = next((one for one in bonds if key.name in one), frozenset({key.name}))
        if not any(later.name in bond for later in keys[index + 1 :]):
            groups.append(Group(tuple(one for one in keys if one.name in bond)))
    return groups


def _next(state: Settings, bad: Settings, remaining: Sequence[Group], rules: Sequence[Rule]) -> Group:
    """The first group that may move now; where none may, the fewest that may do so together."""
    for group in remaining:
        if not _broken(state, bad, group, rules):
            return group
    together = remaining[0]
    while broken := _broken(state, bad, together, rules):
        needed = [
            group
            for group in remaining
            if not group.names & together.names and any(_concerns(rule, group) for rule in broken)
        ]
        if not needed:  # a rule with keys that are the same on both sides, or were moved: it cannot be helped
            break
        together = Group(tuple(key for group in remaining for key in group.keys if _in(key, together, needed)))
    return together


def _in(key: Key, together: Group, needed: Sequence[Group]) -> bool:
    return key.name in together.names or any(key.name in group.names for group in needed)


def _broken(state: Settings, bad: Settings, group: Group, rules: Sequence[Rule]) -> list[Rule]:
    concerned = [rule for rule in rules if _concerns(rule, group)]
    if not concerned:
        return []
    then = moved(state, bad, group.keys)
    return [rule for rule in concerned if not rule.holds(then)]


def _concerns(rule: Rule, group: Group) -> bool:
    return any(map(rule.concerns, group.names))


def companions(
    good: Settings, bad: Settings, groups: Sequence[Group], others: Iterable[Group], rules: Sequence[Rule] = RULES
) -> tuple[Group, ...] | None:
    """What must return to the good side's values together with `groups`, so that no rule is broken that both ends keep.

    None: nothing of `others` helps.
    """
    together, spare = list(groups), [group for group in others if group not in groups and not group.rest]
    while broken := _broken_by(good, bad, together, rules):
        needed = [group for group in spare if group not in together and any(_concerns(rule, group) for rule in broken)]
        if not needed:
            return None
        together += needed
    return tuple(together[len(groups) :])


def _broken_by(good: Settings, bad: Settings, groups: Sequence[Group], rules: Sequence[Rule]) -> list[Rule]:
    state = moved(bad, good, [key for group in groups for key in group.keys])
    return [rule for rule in rules if rule.holds(good) and rule.holds(bad) and not rule.holds(state)]


def alike(groups: Sequence[Group], others: Iterable[Group]) -> tuple[Group, ...]:
    """Of `others`, those whose keys stand beside one of `groups` and begin with the same word, as `recompute_*` do."""
    stems = {stem for group in groups for stem in _stems(group)}
    return tuple(group for group in others if not group.rest and stems & _stems(group))


def _stems(group: Group) -> set[tuple[str, ...]]:
    return {(*key.path[:-1], key.path[-1].partition("_")[0]) for key in group.keys}


def broken_rules(good: Settings, bad: Settings, state: Settings, rules: Sequence[Rule] = RULES) -> tuple[str, ...]:
    """The rules that both ends keep and `state` does not, in words."""
    return tuple(r.text for r in rules if r.holds(good) and r.holds(bad) and not r.holds(state))


def lesson(chain: Chain, state: State) -> frozenset[str] | None:
    """Keys that a search's rejected states show to go together; None: there is nothing to learn, or not yet.

    Where memory moved across states that were all rejected, the key that brought the first rejection and the one that
    ended it go together: the keys between them may come before.
    """
    survey = Survey(state)
    for interval in survey.intervals:
        if not interval.broken or not _matters(survey, interval):
            continue
        if not all(isinstance(state.seen(run), Unresolved) for run in interval.broken):
            continue
        first, last = interval.low + 1, interval.high
        if interval.broken[0] == first and interval.broken[-1] == last - 1:
            return _names(chain, state, first) | _names(chain, state, last)
        if interval.kind is Kind.BLURRED:  # too long to find its edges: all of it
            return frozenset[str]().union(*(_names(chain, state, run) for run in range(first, last + 1)))
    return None


def _matters(survey: Survey, interval: Interval) -> bool:
    if interval.kind not in (Kind.OPEN, Kind.BLURRED):
        return False
    return interval == survey.crossing or survey.movement(interval) > survey.epsilon


def _names(chain: Chain, state: State, run: int) -> frozenset[str]:
    """The keys that a run's first point brought."""
    return chain.groups[state.line.first[run] - 1].names
