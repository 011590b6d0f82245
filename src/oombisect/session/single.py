"""One reading of one commit, as `oombisect probe` gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oombisect.errors import OombisectError, ProbeExit
from oombisect.history.records import SessionSpec
from oombisect.memory.ranks import RankFindings
from oombisect.readings import Outcome, Reading
from oombisect.repo.bridge import BridgeRepository
from oombisect.session.commit_line import CommitTargets
from oombisect.session.frozen import freeze_config
from oombisect.session.measuring import Measurer, Watcher
from oombisect.session.opening import open_workshop, targets_of
from oombisect.session.point_class import why_it_does_not_fit
from oombisect.session.rank_findings import rank_findings
from oombisect.session.request import ProbeRequest
from oombisect.session.stopping import interrupted_unless_finished

if TYPE_CHECKING:
    from oombisect.history.store import Store

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Probed:
    """What `probe` found: the session, the commit, the limit in bytes, its reading with `fits` answered.

    `classification`: why it does not fit, with evidence; None where it fits or nothing was measured. `ranks`: its ranks
    beside each other; None where fewer than two were measured.
    """

    session: str
    point: str
    limit: int
    reading: Reading
    classification: Mapping[str, Any] | None = None
    ranks: RankFindings | None = None

    @property
    def exit_code(self) -> ProbeExit:
        """What `git bisect run` should hear."""
        if self.reading.outcome is Outcome.UNRESOLVED:
            return ProbeExit.UNRESOLVED
        if self.reading.outcome is Outcome.INFRA or self.reading.fits is None:
            return ProbeExit.INFRASTRUCTURE
        return ProbeExit.FITS if self.reading.fits else ProbeExit.DOES_NOT_FIT

    def to_json(self) -> dict[str, Any]:
        """The contract of `probe --json` (docs/json.md)."""
        return {
            "schema": SCHEMA,
            "point": self.point,
            "limit_bytes": self.limit,
            "reading": self.reading.to_json(),
            "classification": None if self.classification is None else dict(self.classification),
            "rank_findings": None if self.ranks is None else self.ranks.to_json(),
        }


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
    megatron: str | None = None,
    config_of: str | None = None,
) -> Probed:
    """Measure one commit and, if it does not fit, say why.

    `megatron`: a commit of Megatron-LM to lay out in the place of the one it pins; `config_of`: the commit whose config
    it runs with.

    Raises:
        OombisectError: no such revision, no repository, no device.
    """

    def look(repository: BridgeRepository) -> None:
        repository.require_bridge(revision)
        for option, value in (("--megatron-commit", megatron), ("--freeze-config", config_of)):
            if value is not None and request.runs_command:
                raise OombisectError(f"{option} goes with a recipe of Bridge", "Leave it out.")
        if megatron is not None:
            repository.resolve_megatron(revision, megatron)
        if config_of is not None:
            repository.resolve(config_of)

    with open_workshop(request, cwd=cwd, cache=cache, watcher=watcher, look=look) as workshop:
        request = workshop.request
        sha = workshop.repository.resolve(revision)
        targets = targets_of(workshop, request, cache)
        if megatron is not None:
            megatron = workshop.repository.resolve_megatron(sha, megatron)
        if config_of is not None:
            config_of = workshop.repository.resolve(config_of)
            request = replace(request, config_of=config_of)
        session = store.create_session(
            SessionSpec(
                kind="probe",
                command=command,
                arguments={"revision": sha, "probe": request.to_json(), "megatron_commit": megatron},
                repo=workshop.repository.name,
                recipe=request.label,
                device=workshop.device.name,
                good=sha,
                bad=sha,
                limit_bytes=workshop.limit,
            )
        ).id
        with interrupted_unless_finished(store, session):
            if config_of is not None and isinstance(targets, CommitTargets):
                freeze_config(store, session, workshop, targets, config_of)
            commit = workshop.repository.commit(sha)
            trees = workshop.repository.relevant_trees(sha, megatron)
            if isinstance(targets, CommitTargets):
                target = targets.of(sha, commit.subject, trees, date=commit.author_date, megatron=megatron)
            else:
                target = targets.of(sha, commit.subject, trees, date=commit.author_date)
            measurer = Measurer(store, session, workshop.prober, watcher)
            measured = measurer.measure(target, "remeasure" if fresh else "measure", fresh=fresh)
            reading, found, ranks = measured.reading, None, None
            if reading.outcome in (Outcome.EXACT, Outcome.CENSORED):
                reading = reading.with_fits(measurer.fits(target, measured, workshop.limit))
                if reading.fits is False:
                    found = why_it_does_not_fit(measurer, target, measured, workshop.limit)
                ranks = rank_findings(measurer, measured, workshop.limit, reading.fits, found)
            probed = Probed(session, target.key, workshop.limit, reading, found, ranks)
            store.finish_session(session, probed.exit_code, probed.to_json())
        return probed
