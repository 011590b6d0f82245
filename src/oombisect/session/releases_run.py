"""Run a session over the releases of a package, new or resumed, from the request to the report."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oombisect.axes.point import Point
from oombisect.axes.releases import package_name, parse_releases, release_points
from oombisect.errors import OombisectError
from oombisect.history.records import SessionSpec
from oombisect.probing.environments import CannotBuild, releases
from oombisect.probing.workload import Sources
from oombisect.repo.slots import Slot
from oombisect.search.conclusion import Conclusion
from oombisect.session.bisection import Bisection
from oombisect.session.commit_line import CommitTargets
from oombisect.session.environment_line import EnvironmentLine
from oombisect.session.measuring import CannotProbe, Measurer, Target, Watcher
from oombisect.session.opening import Workshop, open_places, open_workshop, targets_of
from oombisect.session.point_environment import PointEnvironment
from oombisect.session.releases_request import ReleasesRequest
from oombisect.session.reproduce import probe_options
from oombisect.session.running import search_options
from oombisect.session.stopping import interrupted_unless_finished
from oombisect.session.verdict import Report

if TYPE_CHECKING:
    from oombisect.history.store import Store

MEGATRON_CORE = "megatron-core"  # Bridge brings its source in a submodule: the release must stand in its place
_SUBMODULE = "megatron-lm"


def bisect_releases(
    store: Store,
    request: ReleasesRequest,
    *,
    watcher: Watcher,
    cwd: Path,
    cache: Path,
    command: tuple[str, ...],
    session: str | None = None,
    on_session: Callable[[str], None],
) -> Report:
    """Bisect releases of a package; `session` names the one to go on with, None starts a new one.

    `on_session` is told the session's id as soon as there is one. The session is finished when this returns, and
    interrupted, to be resumed, if this raises.

    Raises:
        OombisectError: no such release or commit, or the machine is not as it must be.
    """
    with (
        open_workshop(
            request.search.probe,
            cwd=cwd,
            cache=cache,
            watcher=watcher,
            look=lambda known: known.require_bridge(request.at),
        ) as workshop,
        open_places(store, workshop, request.search.jobs, watcher) as places,
    ):
        commit = workshop.repository.commit(request.at)
        workshop.repository.require_bridge(commit.sha)
        if session is None:
            versions = _versions(workshop, request)
            request = replace(request, at=commit.sha, versions=versions)
            make = _Maker(workshop, request, cache)
            session = _create(store, request, workshop, command)
        else:
            make = _Maker(workshop, request, cache)
        on_session(session)
        with interrupted_unless_finished(store, session):
            line = make.line()
            watcher.say(f"session {session}: {len(line.targets)} releases of {request.package} at {commit.sha[:9]}")
            measurer = Measurer(store, session, workshop.prober, watcher, places)
            options = search_options(request.search, workshop.device.simulated)
            bisection = Bisection(store, session, line, measurer, options, workshop.limit)
            conclusion = bisection.run()
            report = bisection.report(
                bisection.verdict(conclusion),
                workload=workshop.prober.workload.to_json()
                | {"device": workshop.device.name, "package": request.package, "at": request.at},
                reproduce=_reproduce(conclusion, request, workshop),
            )
            store.finish_session(session, int(report.exit_code), report.to_json())
            return report


def _versions(workshop: Workshop, request: ReleasesRequest) -> tuple[str, ...]:
    """All points of the range, from the package index that uv is set to.

    Raises:
        OombisectError: an end is no release that can be installed here, or the index cannot be asked.
    """
    good, bad = parse_releases(request.search.range)
    package = package_name(request.package)
    try:
        return releases(workshop.environments, package, good, bad)
    except CannotBuild as error:
        raise OombisectError(
            f"The releases of {package} from {good} to {bad} cannot be had: {error}",
            "Name two releases that the package index has for the Python of the probes.",
        ) from error


@dataclass(frozen=True)
class _Maker:
    """Makes targets of the releases."""

    workshop: Workshop
    request: ReleasesRequest
    cache: Path

    def line(self) -> EnvironmentLine:
        """All releases as a line.

        Raises:
            OombisectError: the commit has no such recipe.
        """
        points = release_points(package_name(self.request.package), self.request.versions)
        targets = [self._target(point) for point in points]
        try:
            targets[0].call()
        except CannotProbe as error:
            recipe = self.request.search.probe.recipe
            raise OombisectError(f"Recipe {recipe!r} does not exist at {self.request.at[:9]}. {error}") from error
        return EnvironmentLine(targets, [0.0, *(1.0 for _ in targets[1:])])

    def _target(self, point: Point) -> Target:
        repository, package = self.workshop.repository, package_name(self.request.package)
        commit = repository.commit(self.request.at)
        make = targets_of(self.workshop, self.request.search.probe, self.cache)
        assert isinstance(make, CommitTargets)
        target = make.of(commit.sha, point.subject, repository.relevant_trees(commit.sha), key=point.key)
        target = replace(target, repo=point.repo, submodule="", committed=None)
        if package == MEGATRON_CORE:
            target = _without_submodule(target)
        return self._environment(package, point.key).around(target)

    def _environment(self, package: str, version: str) -> PointEnvironment:
        there = self.workshop.environments.installed.packages.get(package)
        pins = {} if there and there.version == version else {package: f"{package}=={version}"}
        return PointEnvironment(self.workshop.environments, pins, dependencies=True)


def _without_submodule(target: Target) -> Target:
    """`target` with the Megatron-LM that is installed, not the commit that Bridge pins."""

    def lay_out(slot: Slot | None = None, /) -> Sources:
        laid = target.lay_out(slot)
        root = laid.roots.get(_SUBMODULE)
        paths = tuple(path for path in laid.paths if path != root)
        return Sources(paths, {name: path for name, path in laid.roots.items() if name != _SUBMODULE})

    trees = {name: tree for name, tree in target.trees.items() if name != _SUBMODULE}
    return replace(target, trees=trees, lay_out=lay_out)


def _reproduce(conclusion: Conclusion, request: ReleasesRequest, workshop: Workshop) -> tuple[str, ...]:
    """The command over both sides of every named step alone, or over the ends where none is named."""
    options = ["--at", request.at[:12], *probe_options(request.search.probe, workshop)]
    if request.search.find != "regression":
        options += ["--find", request.search.find]
    sides = [(step.parent, step.index) for step in conclusion.steps if step.named] or [(0, len(request.versions) - 1)]
    names = (f"{request.versions[one]}..{request.versions[two]}" for one, two in sides)
    return tuple(shlex.join(["oombisect", "releases", request.package, name, *options]) for name in names)


def _create(store: Store, request: ReleasesRequest, workshop: Workshop, command: tuple[str, ...]) -> str:
    return store.create_session(
        SessionSpec(
            kind="releases",
            command=command,
            arguments=request.to_json(),
            repo=workshop.repository.name,
            recipe=request.search.probe.recipe,
            device=workshop.device.name,
            good=f"{request.package} {request.versions[0]}",
            bad=f"{request.package} {request.versions[-1]}",
            limit_bytes=workshop.limit,
        )
    ).id
