"""One reading of one commit, as `oombisect probe` gives it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oombisect.errors import ProbeExit
from oombisect.history.records import SessionSpec
from oombisect.readings import Outcome, Reading
from oombisect.recipes.scan import RecipeScanner
from oombisect.session.commit_line import CommitTargets
from oombisect.session.measuring import Measurer, Watcher
from oombisect.session.opening import open_workshop
from oombisect.session.request import ProbeRequest
from oombisect.session.stopping import interrupted_unless_finished

if TYPE_CHECKING:
    from oombisect.history.store import Store

SCHEMA = 1


def probe_commit(
    store: Store,
    revision: str,
    request: ProbeRequest,
    *,
    watcher: Watcher,
    cwd: Path,
    cache: Path,
    command: tuple[str, ...],
    fresh: bool = False,
) -> tuple[str, str, int, Reading]:
    """The session, the commit, its limit in bytes, and its reading, `fits` answered.

    Raises:
        OombisectError: no such revision, no repository, no device.
    """
    with open_workshop(request, cwd=cwd, cache=cache, watcher=watcher) as workshop:
        sha = workshop.repository.resolve(revision)
        workshop.repository.require_bridge(sha)
        targets = CommitTargets(
            workshop.repository, workshop.slot, RecipeScanner(workshop.repository, cache), request.recipe
        )
        session = store.create_session(
            SessionSpec(
                kind="probe",
                command=command,
                arguments={"revision": sha, "probe": request.to_json()},
                repo=workshop.repository.name,
                recipe=request.recipe,
                device=workshop.device.name,
                good=sha,
                bad=sha,
                limit_bytes=workshop.limit,
            )
        ).id
        with interrupted_unless_finished(store, session):
            commit = workshop.repository.commit(sha)
            trees = workshop.repository.relevant_trees(sha)
            target = targets.of(sha, commit.subject, trees, date=commit.author_date)
            measurer = Measurer(store, session, workshop.prober, watcher)
            measured = measurer.measure(target, "remeasure" if fresh else "measure", fresh=fresh)
            reading = measured.reading
            if reading.outcome in (Outcome.EXACT, Outcome.CENSORED):
                reading = reading.with_fits(measurer.fits(target, measured, workshop.limit))
            store.finish_session(session, exit_code(reading), probe_json(sha, workshop.limit, reading))
        return session, sha, workshop.limit, reading


def exit_code(reading: Reading) -> ProbeExit:
    """What `git bisect run` should hear."""
    if reading.outcome is Outcome.UNRESOLVED:
        return ProbeExit.UNRESOLVED
    if reading.outcome is Outcome.INFRA or reading.fits is None:
        return ProbeExit.INFRASTRUCTURE
    return ProbeExit.FITS if reading.fits else ProbeExit.DOES_NOT_FIT


def probe_json(point: str, limit: int, reading: Reading) -> dict[str, object]:
    """The contract of `probe --json` (docs/json.md)."""
    return {"schema": SCHEMA, "point": point, "limit_bytes": limit, "reading": reading.to_json()}
