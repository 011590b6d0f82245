"""Run a session over a range of commits, new or resumed, from the request to the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from oombisect.axes.commits import commit_range, points_to_skip, range_ends
from oombisect.errors import OombisectError
from oombisect.history.records import SessionSpec
from oombisect.repo.bridge import BridgeRepository
from oombisect.search.options import Options
from oombisect.session.bisection import Bisection
from oombisect.session.commit_line import CommitLine, CommitTargets
from oombisect.session.events import SKIP
from oombisect.session.frozen import freeze_config
from oombisect.session.measuring import CannotProbe, Measurer, Watcher
from oombisect.session.merge import MergeDescent
from oombisect.session.opening import Workshop, open_places, open_workshop, targets_of
from oombisect.session.package_descent import PackageDescent
from oombisect.session.reproduce import reproduce_commands
from oombisect.session.request import BisectRequest
from oombisect.session.roll import RollDescent
from oombisect.session.stopping import interrupted_unless_finished
from oombisect.session.verdict import Report

if TYPE_CHECKING:
    from oombisect.history.store import Store


def bisect_range(
    store: Store,
    request: BisectRequest,
    *,
    watcher: Watcher,
    cwd: Path,
    cache: Path,
    command: tuple[str, ...],
    kind: str = "run",
    session: str | None = None,
    on_session: Callable[[str], None],
) -> Report:
    """Bisect `request.range`; `session` names the one to go on with, None starts a new one.

    `on_session` is told the session's id as soon as there is one. The session is finished when this returns, and
    interrupted, to be resumed, if this raises.

    Raises:
        OombisectError: the range, an end of it, or the machine is not as it must be.
    """

    def look(repository: BridgeRepository) -> None:
        good, bad, _ = range_ends(repository, request.range)
        for end in (good, bad):
            repository.require_bridge(end)

    with (
        open_workshop(request.probe, cwd=cwd, cache=cache, watcher=watcher, look=look) as workshop,
        open_places(store, workshop, request.jobs, watcher) as places,
    ):
        request = replace(request, probe=workshop.request)
        good, bad, note_on_range = range_ends(workshop.repository, request.range)
        axis = commit_range(
            workshop.repository,
            good,
            bad,
            first_parent=request.first_parent,
            paths=request.paths,
            per_lock=request.probe.per_lock,
        )
        for note in (note_on_range, *axis.notes, workshop.repository.note_on_checkout()):
            if note:
                watcher.say(note)
        if request.freeze_config:
            end = axis.points[0 if request.freeze_config == "good" else -1].key
            request = replace(request, probe=replace(request.probe, config_of=end))
        make = targets_of(workshop, request.probe, cache)
        line = CommitLine(axis, make)
        _require_hotfixes(line)
        _require_recipe(line, request.probe.label)
        if session is None:
            skip = points_to_skip(axis, request.skip)
            with store.transaction():
                session = _create(store, request, workshop, axis.points[0].key, axis.points[-1].key, command, kind)
                if skip:
                    store.append_event(session, SKIP, {"points": list(skip)})
        on_session(session)
        with interrupted_unless_finished(store, session):
            if request.probe.config_of and isinstance(make, CommitTargets):
                freeze_config(store, session, workshop, make, request.probe.config_of)
            watcher.say(f"session {session}: {len(axis.points)} points, {len(set(axis.groups()))} of them different")
            measurer = Measurer(store, session, workshop.prober, watcher, places)
            options = search_options(request, workshop.device.simulated)
            limit = workshop.limit
            bisection = Bisection(store, session, line, measurer, options, limit)
            conclusion = bisection.run()
            verdict = bisection.verdict(conclusion)
            if request.descend and isinstance(make, CommitTargets):
                verdict = RollDescent(store, session, line, make, measurer, options, limit, conclusion).descend(verdict)
            if request.descend and request.first_parent:
                merges = MergeDescent(store, session, line, measurer, options, limit, conclusion)
                verdict = merges.descend(verdict)
            if isinstance(make, CommitTargets) and make.locks:
                packages = PackageDescent(store, session, line, make.locks, measurer, options, limit, conclusion)
                verdict = packages.descend(verdict)
            report = bisection.report(
                replace(verdict, notes=(*verdict.notes, *_altered(request))),
                workload=workshop.prober.workload.to_json() | {"device": workshop.device.name},
                reproduce=reproduce_commands(conclusion, verdict, line, request, workshop),
            )
            store.finish_session(session, int(report.exit_code), report.to_json())
            return report


def search_options(request: BisectRequest, simulated: bool) -> Options:
    """What the request asks of the search; the readings of a simulated device have no noise."""
    return Options(
        find=request.find,  # type: ignore[arg-type]  # checked by Options itself
        metric=request.metric,  # type: ignore[arg-type]  # checked by the request
        threshold_bytes=request.threshold_bytes,
        noise_bytes=0 if simulated else None,
        min_step_bytes=request.min_step_bytes,
        budget=request.budget,
        exhaustive=request.exhaustive,
        grid=request.grid,
    )


def _altered(request: BisectRequest) -> list[str]:
    """What was not as the commits themselves have it, a sentence each."""
    found = [f"every commit was probed with the hotfix {hotfix.name} on top" for hotfix in request.probe.hotfixes]
    if request.probe.config_of:
        which = f"the {request.freeze_config} end {request.probe.config_of[:10]}"
        found.append(f"every commit ran with the config of {which}: what recipes changed is in no step")
    return found


def _require_hotfixes(line: CommitLine) -> None:
    """Fail before any probe where an end does not take the hotfixes."""
    for name, end in (("good", line.axis.points[0]), ("bad", line.axis.points[-1])):
        try:
            line.make.hotfixes.on(end.key)
        except CannotProbe as error:
            raise OombisectError(
                f"The {name} end {end.short} cannot be probed: {error}",
                f"Mend the patch, or choose another {name} end.",
            ) from error


def _require_recipe(line: CommitLine, recipe: str) -> None:
    """Fail before any probe where the recipe's name means nothing at one of the ends."""
    missing = []
    for end in (line.targets[0], line.targets[-1]):
        try:
            end.call()
        except CannotProbe as error:
            missing.append(str(error))
    if missing:
        which = "neither end of the range" if len(missing) == 2 else "only one end of the range"
        raise OombisectError(f"Recipe {recipe!r} exists at {which}. {missing[0]}", "Name a recipe that both ends have.")


def _create(
    store: Store,
    request: BisectRequest,
    workshop: Workshop,
    good: str,
    bad: str,
    command: tuple[str, ...],
    kind: str,
) -> str:
    return store.create_session(
        SessionSpec(
            kind=kind,
            command=command,
            # Skips are events from here on, so that they can be taken back.
            arguments=replace(request, range=f"{good}..{bad}", skip=()).to_json(),
            repo=workshop.repository.name,
            recipe=request.probe.label,
            device=workshop.device.name,
            good=good,
            bad=bad,
            limit_bytes=workshop.limit,
        )
    ).id
