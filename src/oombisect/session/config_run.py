"""Run a session over a config diff, new or resumed, from the request to the report.

Each side is described first (its config made, nothing trained), which tells the keys that differ. Then the search runs
over the chain of them, again with another chain after every lesson of rejected states, and at last the bad side is
probed with single keys returned: for their own effects, for interactions, and for the fewest keys to take back.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oombisect.axes.config import Chain, Group, Key, arrange, differing, lesson
from oombisect.axes.config_rules import Settings
from oombisect.errors import OombisectError
from oombisect.history.records import SessionSpec
from oombisect.probing.description import Description, NoDescription
from oombisect.probing.workload import ConfigCall, RecipeCall, Sources
from oombisect.recipes.config_diff import same, value_at
from oombisect.recipes.resolve import resolve
from oombisect.recipes.scan import RecipeScanner
from oombisect.search.conclusion import Conclusion
from oombisect.search.options import Options
from oombisect.search.state import State
from oombisect.search.survey import Survey
from oombisect.session.bisection import Bisection
from oombisect.session.config_line import Commit, ConfigLine, Side
from oombisect.session.config_request import ConfigRequest, Source, sources_of
from oombisect.session.config_verdict import (
    BadSide,
    Facts,
    config_json,
    look_at_bad_side,
    named_by_key,
    rejected_states,
)
from oombisect.session.measuring import Measurer, Place, Watcher
from oombisect.session.opening import Workshop, open_places, open_workshop
from oombisect.session.reproduce import probe_options
from oombisect.session.stopping import interrupted_unless_finished
from oombisect.session.verdict import Report

if TYPE_CHECKING:
    from oombisect.history.store import Store

DESCRIBED = "described"


@dataclass(frozen=True)
class Diff:
    """Both sides, and what differs.

    `settable`: the config that comes of laying the bad side's over the good side's recipe.
    """

    good: Side
    bad: Side
    settable: Mapping[str, Any]

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """All that differs."""
        return differing(self.good.settings, self.bad.settings)

    @cached_property
    def by_probe(self) -> tuple[Key, ...]:
        """What differs in the configs, and not in what a probe of them trains: the probe sets it itself."""
        one, two = self.good.described.settled, self.bad.described.settled
        return tuple(key for key in self._in_config if same(value_at(one, key.path), value_at(two, key.path)))

    @cached_property
    def fixed(self) -> tuple[Key, ...]:
        """What no assignment makes of the good side's recipe: classes, functions, objects."""
        wanted = self.bad.described.given
        missed = [k for k in self._in_config if not same(value_at(self.settable, k.path), value_at(wanted, k.path))]
        return tuple(key for key in missed if key not in self.by_probe)

    @property
    def _in_config(self) -> list[Key]:
        return [key for key in self.keys if not key.name.startswith("env:")]

    @property
    def rest(self) -> tuple[Key, ...]:
        """What moves last, with the bad side's own recipe."""
        return (*self.by_probe, *self.fixed)

    @property
    def has_rest(self) -> bool:
        return bool(self.rest) or self.good.call.recipe != self.bad.call.recipe

    def chain(self, bonds: Sequence[frozenset[str]]) -> Chain:
        """All of it, from the good side to the bad one."""
        keys = [key for key in self.keys if key not in self.rest]
        return arrange(self.good.settings, self.bad.settings, keys, rest=self.rest, has_rest=self.has_rest, bonds=bonds)

    def to_json(self) -> dict[str, Any]:
        return {"good": self.good.to_json(), "bad": self.bad.to_json(), "settable": dict(self.settable)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Diff:
        return cls(Side.from_json(data["good"]), Side.from_json(data["bad"]), data["settable"])


def bisect_config(
    store: Store,
    request: ConfigRequest,
    *,
    watcher: Watcher,
    cwd: Path,
    cache: Path,
    command: tuple[str, ...],
    session: str | None = None,
    on_session: Callable[[str], None],
) -> Report:
    """Bisect the difference of two configs; `session` names the one to go on with, None starts a new one.

    `on_session` is told the session's id as soon as there is one. The session is finished when this returns, and
    interrupted, to be resumed, if this raises.

    Raises:
        OombisectError: a side, the commit or the machine is not as it must be.
    """
    events = store.events(session) if session is not None else []
    told = next((event.payload for event in events if event.kind == DESCRIBED), None)
    if told is None:
        sources = sources_of(request, store)
        recipe = sources[0].recipe
    else:
        recipe = told["good"]["call"]["recipe"]["requested"]
    # What is set belongs to the sides: a state between them is complete by itself.
    plain = replace(request.probe, recipe=recipe, overrides=(), env={})
    with (
        open_workshop(
            plain, cwd=cwd, cache=cache, watcher=watcher, look=lambda known: known.require_bridge(request.at)
        ) as workshop,
        open_places(store, workshop, request.jobs, watcher) as places,
    ):
        commit = _commit(workshop, request.at)
        if told is None:
            calls = _calls(workshop, RecipeScanner(workshop.repository, cache), commit.sha, sources)
        if session is None:
            session = _create(store, request, workshop, commit.sha, recipe, command)
        on_session(session)
        with interrupted_unless_finished(store, session):
            if told is None:
                diff = _describe(store, session, workshop, commit.sources, calls, watcher)
            else:
                diff = Diff.from_json(told)
            run = _Run(store, session, request, workshop, watcher, commit, diff, places)
            report = run.report()
            store.finish_session(session, int(report.exit_code), report.to_json())
            return report


def _commit(workshop: Workshop, revision: str) -> Commit:
    repository = workshop.repository
    sha = repository.resolve(revision)
    repository.require_bridge(sha)
    laid = repository.materialise(sha, workshop.slot)
    sources = Sources(laid.source_paths, {name: Path(root) for name, root in laid.roots.items()})
    return Commit(sha, repository.relevant_trees(sha), repository.commit(sha).author_date, sources)


def _calls(
    workshop: Workshop, scanner: RecipeScanner, sha: str, sources: tuple[Source, Source]
) -> tuple[ConfigCall, ConfigCall]:
    """The calls that make the two sides at the commit."""
    table = scanner.table(sha)
    calls = []
    for source in sources:
        found = resolve(source.recipe, table)
        recipe = RecipeCall(source.recipe, found.module, found.function, found.kwargs)
        calls.append(ConfigCall(recipe, source.overrides, source.config, source.env))
    return calls[0], calls[1]


def _create(
    store: Store, request: ConfigRequest, workshop: Workshop, sha: str, recipe: str, command: tuple[str, ...]
) -> str:
    return store.create_session(
        SessionSpec(
            kind="config",
            command=command,
            arguments=replace(request, at=sha).to_json(),
            repo=workshop.repository.name,
            recipe=recipe,
            device=workshop.device.name,
            good=request.good.label,
            bad=request.bad.label,
            limit_bytes=workshop.limit,
        )
    ).id


def _describe(
    store: Store,
    session: str,
    workshop: Workshop,
    sources: Sources,
    calls: tuple[ConfigCall, ConfigCall],
    watcher: Watcher,
) -> Diff:
    """Have both configs made, nothing trained, and find out what of their difference can be set; recorded for good."""
    folder = store.artifacts_dir(session)

    def describe(call: ConfigCall, name: str) -> Description:
        watcher.say(f"making the {name} config")
        try:
            return workshop.prober.describe(call, sources, folder / name.replace(" ", "-"))
        except NoDescription as error:
            raise OombisectError(
                f"The {name} config cannot be made: {error}", "Mend what it says, or choose another commit with --at."
            ) from error

    good, bad = (Side(call, describe(call, name)) for call, name in zip(calls, ("good", "bad"), strict=True))
    for name, side in (("good", good), ("bad", bad)):
        for note in side.described.notes:
            if "frozen" in note or "follows" in note:
                watcher.say(f"{name}: {note}")
    if not differing(good.settings, bad.settings) and good.call.recipe == bad.call.recipe:
        raise OombisectError(
            "The two sides make the same config, down to the last key and variable",
            "Order and spelled-out defaults make no difference; name two sides that do differ.",
        )
    laid = describe(ConfigCall(good.call.recipe, (), bad.described.given), "bad over good")
    diff = Diff(good, bad, laid.given)
    store.append_event(session, DESCRIBED, diff.to_json())
    return diff


def _learned(chain: Chain, state: State) -> bool:
    return lesson(chain, state) is not None


@dataclass
class _Run:
    """One session under way."""

    store: Store
    session: str
    request: ConfigRequest
    workshop: Workshop
    watcher: Watcher
    commit: Commit
    diff: Diff
    places: Sequence[Place] = ()
    spent: int = 0
    bonds: list[frozenset[str]] = field(default_factory=list)

    @cached_property
    def measurer(self) -> Measurer:
        return Measurer(self.store, self.session, self.workshop.prober, self.watcher, self.places)

    def report(self) -> Report:
        """Search, look at the bad side, and say what was found."""
        chain = self.diff.chain(())
        kept = sum(len(group.keys) for group in chain.groups)
        self.watcher.say(f"session {self.session}: {kept} keys differ, {chain.count} states")
        bisection, conclusion = self._search(self.diff.chain, self.diff.good.settings, False, "", self._options())
        line, state = bisection.line, bisection.state
        assert isinstance(line, ConfigLine) and state is not None
        verdict = bisection.verdict(conclusion)
        bad_side = BadSide(line, self.measurer, self.workshop.limit)
        told = look_at_bad_side(bad_side, conclusion, Survey(state), lambda quiet: self._late(quiet, line))
        facts = Facts(
            self.commit.sha,
            self.diff.keys,
            self.diff.by_probe,
            self.diff.fixed,
            tuple(self.bonds),
            rejected_states(self.store.probes(self.session)),
        )
        report = bisection.report(
            named_by_key(verdict, line, told, bad_side),
            workload=self.workshop.prober.workload.to_json() | {"device": self.workshop.device.name},
            reproduce=[self._reproduce()],
        )
        return replace(report, config=config_json(facts, line, told, bad_side))

    def _options(self) -> Options:
        request = self.request
        return Options(
            find=request.find,  # type: ignore[arg-type]  # checked by Options itself
            noise_bytes=0 if self.workshop.device.simulated else None,
            min_step_bytes=request.min_step_bytes,
            budget=request.budget,
            exhaustive=request.exhaustive,
        )

    def _late(self, quiet: Sequence[Group], line: ConfigLine) -> tuple[Chain, Conclusion]:
        """Search among groups that did nothing in the chain, with all others at the bad side's values."""
        start, has_rest = line.settings_without(quiet), any(group.rest for group in quiet)
        keys = [key for group in quiet if not group.rest for key in group.keys]
        last = [key for group in quiet if group.rest for key in group.keys]

        def chain(bonds: Sequence[frozenset[str]]) -> Chain:
            return arrange(start, self.diff.bad.settings, keys, rest=last, has_rest=has_rest, bonds=bonds)

        options = replace(self._options(), find="any", confirm=False, budget=None)
        bisection, conclusion = self._search(chain, start, not has_rest, "late", options)
        assert isinstance(bisection.line, ConfigLine)
        return bisection.line.chain, conclusion

    def _search(
        self,
        chain: Callable[[Sequence[frozenset[str]]], Chain],
        start: Settings,
        rest_at_start: bool,
        scope: str,
        options: Options,
    ) -> tuple[Bisection, Conclusion]:
        """Search; where rejected states teach that keys go together, search again with these joined."""
        for number in range(len(self.diff.keys) + 2):
            line = ConfigLine(
                self.commit, self.diff.good, self.diff.bad, chain(self.bonds), start, self.diff.has_rest, rest_at_start
            )
            left = None if options.budget is None else max(0, options.budget - self.spent)
            bisection = Bisection(
                store=self.store,
                session=self.session,
                line=line,
                measurer=self.measurer,
                options=replace(options, budget=left),
                limit=self.workshop.limit,
                scope="-".join(filter(None, (scope, f"joined-{number}" if number else ""))),
                until=partial(_learned, line.chain),
            )
            conclusion = bisection.run()
            assert bisection.state is not None
            self.spent += bisection.state.probes
            learned = lesson(line.chain, bisection.state)
            if learned is None or left == 0:
                break
            self.watcher.say(f"states between were rejected: {' and '.join(sorted(learned))} move together from now on")
            self.bonds.append(learned)
        return bisection, conclusion

    def _reproduce(self) -> str:
        request = self.request
        words = ["oombisect", "config", request.good.text, request.bad.text, "--at", self.commit.sha[:12]]
        for name, side in (("good", request.good), ("bad", request.bad)):
            for override in side.overrides:
                words += [f"--{name}-set", override]
            for variable, value in side.env.items():
                words += [f"--{name}-env", f"{variable}={value}"]
        return shlex.join([*words, *probe_options(request.probe, self.workshop)])
