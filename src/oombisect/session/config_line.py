"""The states of a config diff as probe targets, all at one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from oombisect.axes.config import Chain, Group, broken_rules, companions, moved
from oombisect.axes.config_rules import Settings
from oombisect.history.signature import finite, json_hash
from oombisect.probing.description import Description
from oombisect.probing.workload import ConfigCall, Sources
from oombisect.repo.trees import RelevantTrees
from oombisect.session.bisection import CannotRevert
from oombisect.session.measuring import Target


@dataclass(frozen=True, slots=True)
class Side:
    """One end: the call that makes it, as it was asked for, and the config that comes of it."""

    call: ConfigCall
    described: Description

    @property
    def settings(self) -> Settings:
        return Settings(self.described.given, self.call.env)

    def to_json(self) -> dict[str, Any]:
        return {"call": self.call.to_json(), "described": self.described.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Side:
        return cls(ConfigCall.from_json(data["call"]), Description.from_json(data["described"]))


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit that every state runs at, laid out once."""

    sha: str
    trees: RelevantTrees
    date: str
    sources: Sources

    def target(self, name: str, subject: str, call: ConfigCall) -> Target:
        """A state as a target. Its key, `commit@name #hash`, tells it from other states that bring the same key."""
        made = json_hash(finite(call.to_json()))
        return Target(
            key=f"{self.sha}@{name.replace('+', ',')} #{made[:8]}",
            subject=subject,
            trees={"bridge": self.trees.bridge, "megatron-lm": self.trees.megatron, "config": made},
            submodule=self.trees.gitlink,
            committed=datetime.fromisoformat(self.date) if self.date else None,
            call=lambda: call,
            lay_out=lambda _=None: self.sources,
            repo="config",
        )


def name_in(key: str) -> str:
    """The name of a state, out of the key of its target."""
    return key.partition("@")[2].rpartition(" #")[0].replace(",", "+")


@dataclass
class ConfigLine:
    """A chain of states that ends at the bad side.

    `start` is the good side, or another state between the two. `has_rest`: the sides differ in something that no
    assignment sets; `rest_at_start`: the start has that of the bad side.
    """

    commit: Commit
    good: Side
    bad: Side
    chain: Chain
    start: Settings
    has_rest: bool
    rest_at_start: bool = False

    @cached_property
    def targets(self) -> Sequence[Target]:
        """The start, then a state per group."""
        name = "good" if self.start == self.good.settings else "start"
        first = self.commit.target(name, f"the {name} config", self._call(self.start, self.rest_at_start))
        later = [
            self.commit.target(group.name, group.subject, self._state(place))
            for place, group in enumerate(self.chain.groups, 1)
        ]
        return [first, *later]

    @property
    def weights(self) -> Sequence[float]:
        """How likely each group is to touch memory."""
        return [1.0, *(group.weight for group in self.chain.groups)]

    def lump(self, index: int) -> tuple[str, ...]:
        """None: keys that go together are one change."""
        return ()

    def reverted(self, index: int) -> Target:
        """See `Line.reverted`; what must return with it does."""
        groups = [self.chain.groups[index - 1]]
        return self.returned([*groups, *self.companions(groups)])

    def companions(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """What must return to the good side's values together with `groups`.

        Raises:
            CannotRevert: known rules allow no such state.
        """
        found = companions(self.good.settings, self.bad.settings, groups, self.chain.groups)
        if found is None:
            raise CannotRevert(
                "; ".join(broken_rules(self.good.settings, self.bad.settings, self.settings_without(groups)))
            )
        return found

    def returned(self, groups: Sequence[Group]) -> Target:
        """The bad config with these groups at the good side's values."""
        name = " and ".join(group.name for group in groups)
        call = self._call(self.settings_without(groups), not any(group.rest for group in groups))
        return self.commit.target(f"bad without {name}", f"the bad config without {name}", call)

    def settings_without(self, groups: Sequence[Group]) -> Settings:
        """The bad side's settings with these groups at the good side's values."""
        return moved(self.bad.settings, self.good.settings, [key for group in groups for key in group.keys])

    def _state(self, place: int) -> ConfigCall:
        """The call at a point."""
        groups = self.chain.groups[:place]
        keys = [key for group in groups for key in group.keys]
        settings = moved(self.start, self.bad.settings, keys) if place < len(self.chain.groups) else self.bad.settings
        return self._call(settings, self.rest_at_start or any(group.rest for group in groups))

    def _call(self, settings: Settings, rest: bool) -> ConfigCall:
        """The call that makes a state, `rest` being the bad side's; an end is made as it was asked for."""
        if settings == self.bad.settings and (rest or not self.has_rest):
            return self.bad.call
        if settings == self.good.settings and not (rest and self.has_rest):
            return self.good.call
        base = self.bad.call.recipe if rest and self.has_rest else self.good.call.recipe
        return ConfigCall(base, (), settings.config, settings.env)
