"""A config diff whose truth is known: keys that add memory, some only together, and states that nobody accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from oombisect.axes.config import Chain, arrange, differing, lesson, moved
from oombisect.axes.config_effects import NONE, Effects
from oombisect.axes.config_rules import Settings
from oombisect.search import (
    Conclusion,
    Delta,
    Exact,
    Measure,
    Metrics,
    Observation,
    Options,
    Request,
    Revert,
    State,
    Unresolved,
    conclude,
    observe,
    plan,
    start,
)
from oombisect.search.survey import Survey

MIB, GIB = 1 << 20, 1 << 30
EVERYTHING = Options(min_step_bytes=2 * MIB)


def name(index: int) -> str:
    return f"model.k{index:02}"


@dataclass
class ConfigWorld:
    """`count` keys. `adds`: bytes of single keys; `together`: bytes of pairs once both are at bad's value.

    `needs`: a state with the first key at bad's value and the second at good's is rejected. `asked`: the states that
    were probed, each as the keys at bad's value; `rejected` those of them that were. `counts`: probes by request.
    """

    count: int
    adds: Mapping[int, int] = field(default_factory=dict)
    together: Mapping[tuple[int, int], int] = field(default_factory=dict)
    needs: Collection[tuple[int, int]] = ()
    limit: int = 80 * GIB
    base: int = 40 * GIB
    asked: list[frozenset[str]] = field(default_factory=list)
    rejected: list[frozenset[str]] = field(default_factory=list)
    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> Settings:
        return Settings({"model": {f"k{i:02}": "good" for i in range(self.count)}}, {})

    @property
    def bad(self) -> Settings:
        return Settings({"model": {f"k{i:02}": "bad" for i in range(self.count)}}, {})

    @property
    def culprits(self) -> set[str]:
        return {name(i) for i in (*self.adds, *(i for pair in self.together for i in pair))}

    def size(self, at_bad: Collection[str]) -> int:
        own = sum(size for i, size in self.adds.items() if name(i) in at_bad)
        return self.base + own + sum(s for (a, b), s in self.together.items() if {name(a), name(b)} <= set(at_bad))

    def read(self, settings: Settings) -> Observation:
        """What a probe would say; each state is probed once."""
        at_bad = frozenset(f"model.{key}" for key, value in settings.config["model"].items() if value == "bad")
        refused = any(name(a) in at_bad and name(b) not in at_bad for a, b in self.needs)
        if at_bad not in self.asked:
            self.asked.append(at_bad)
            if refused:
                self.rejected.append(at_bad)
        if refused:
            return Unresolved("these do not go together")
        size = self.size(at_bad)
        return Exact(Metrics(size, size, 0), size <= self.limit)

    def state_of(self, chain: Chain, point: int, good: Settings | None = None) -> Settings:
        return moved(good or self.good, self.bad, [key for group in chain.groups[:point] for key in group.keys])

    def without(self, chain: Chain, names: Collection[str]) -> Settings:
        return moved(self.bad, self.good, [k for group in chain.groups if group.name in names for k in group.keys])

    def search(self, options: Options | None = None, good: Settings | None = None) -> tuple[Chain, State, Conclusion]:
        """The rounds of a config diff: a search, and another after every lesson."""
        bonds: list[frozenset[str]] = []
        start_at = good or self.good
        keys = differing(start_at, self.bad)
        self.rounds = 0
        while True:
            self.rounds += 1
            assert self.rounds <= self.count + 1, "no round may teach nothing"
            chain = arrange(start_at, self.bad, keys, bonds=bonds)
            states = [self.state_of(chain, i, start_at) for i in range(chain.count)]
            known = [i for i, one in enumerate(states) if self._was_asked(one)]
            state = start(
                chain.count, options or Options(), weights=[1.0, *(g.weight for g in chain.groups)], known=known
            )
            learned = None
            while learned is None and (requests := plan(state)):
                request = requests[0]
                state = observe(state, request, self._answer(chain, states, request))
                learned = lesson(chain, state)
            if learned is None:
                return chain, state, conclude(state)
            bonds.append(learned)

    def effects(self, chain: Chain, state: State, conclusion: Conclusion) -> Effects:
        """The bad side, probed until nothing more is wanted."""
        steps = {chain.groups[step.index - 1].name: step.delta for step in conclusion.steps}
        parts = {group.name: group.names for group in chain.groups}
        quiet = [group.name for group in chain.groups if group.name not in steps]
        before = self.without(chain, quiet)
        if quiet and self.read(before) != self.read(self.bad):  # keys that only add something beside others
            late, _, found = self.search(EVERYTHING, before)
            for step in found.steps:
                group = late.groups[step.index - 1]
                steps[group.name], parts[group.name] = Delta(), group.names
        without = {NONE: self.read(self.bad)}
        while True:
            known = Effects(tuple(steps), steps, without, self.read(self.good), Survey(state).epsilon, self.limit)
            wanted = known.next_probe()
            if wanted is None:
                return known
            assert wanted not in without
            names = frozenset().union(*(parts[one] for one in wanted))
            without[wanted] = self.read(
                moved(self.bad, self.good, [k for k in differing(self.good, self.bad) if k.name in names])
            )

    def _was_asked(self, settings: Settings) -> bool:
        return frozenset(f"model.{k}" for k, v in settings.config["model"].items() if v == "bad") in self.asked

    def _answer(self, chain: Chain, states: Sequence[Settings], request: Request) -> Observation:
        if not (isinstance(request, Measure) and self._was_asked(states[request.index])):
            self.counts[type(request).__name__] += 1
        if isinstance(request, Revert):
            return self.read(self.without(chain, {chain.groups[request.index - 1].name}))
        return self.read(states[request.index])


def telescopes(conclusion: Conclusion) -> bool:
    """Whether the stretches join, and add up to the growth."""
    joined = all(a.last == b.first for a, b in pairwise(conclusion.stretches))
    total = Delta()
    for stretch in conclusion.stretches:
        total += stretch.delta
    return joined and total == conclusion.growth
