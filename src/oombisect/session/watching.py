"""`oombisect watch`: the new commits of a branch are probed; where memory grew between two of them, `run` finds why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oombisect.axes.commits import CommitRange, commit_range
from oombisect.errors import ExitCode, OombisectError
from oombisect.history.records import SessionSpec, SessionState
from oombisect.readings import Outcome, Reading
from oombisect.repo.bridge import BridgeRepository
from oombisect.repo.mirror import update
from oombisect.session.commit_line import CommitLine
from oombisect.session.gate import WatchRequest, chosen, growth, measured
from oombisect.session.measuring import Measured, Measurer, Question, Watcher
from oombisect.session.opening import Workshop, open_places, open_workshop, targets_of
from oombisect.session.request import BisectRequest
from oombisect.session.running import bisect_range
from oombisect.session.stopping import interrupted_unless_finished
from oombisect.session.verdict import Report

if TYPE_CHECKING:
    from oombisect.history.store import Store

SCHEMA = 1
KIND = "watch"
_MANY = 10_000


@dataclass(frozen=True, slots=True)
class Seen:
    """A commit that was probed."""

    point: str
    subject: str
    reading: Reading

    def to_json(self) -> dict[str, Any]:
        reading = self.reading
        told = measured(reading)
        return {
            "point": self.point,
            "subject": self.subject,
            "outcome": str(reading.outcome),
            "reason": reading.reason or None,
            "simulated": reading.simulated,
            "fits": reading.fits,
            "peak_allocated": reading.peak_allocated if told else None,
            "peak_reserved": reading.peak_reserved if told else None,
            "peak_device": reading.peak_device if told else None,
        }


@dataclass(frozen=True, slots=True)
class Landed:
    """Memory grew by `grew` bytes from one probed commit to a later one; `report` is of the search between them."""

    before: Seen
    after: Seen
    grew: int
    report: Report

    def to_json(self) -> dict[str, Any]:
        return {
            "from": self.before.point,
            "to": self.after.point,
            "grew_bytes": self.grew,
            "report": self.report.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Watched:
    """What came of one look at a branch.

    Args:
        session: None where there was no new commit.
        begin, end: the commits looked at, the first of them by an earlier look.
        commits: how many are new.
        seen: those that were probed, oldest first.
    """

    branch: str
    session: str | None
    begin: str
    end: str
    commits: int
    min_step: int
    limit: int
    recipe: str
    device: str
    seen: tuple[Seen, ...] = ()
    landed: tuple[Landed, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def told(self) -> bool:
        """Whether the newest commit could be measured, so that nothing can have landed unseen."""
        return not self.seen or measured(self.seen[-1].reading)

    @property
    def next_begin(self) -> str:
        """Where the next look begins: at the newest commit that was measured."""
        return next((one.point for one in reversed(self.seen) if measured(one.reading)), self.begin)

    @property
    def exit_code(self) -> ExitCode:
        """The process's: GREW where something landed, BLURRED where the newest commit could not be measured, else 0."""
        if self.landed:
            return ExitCode.GREW
        return ExitCode(0) if self.told else ExitCode.BLURRED

    def to_json(self) -> dict[str, Any]:
        """The contract of `watch --json` (docs/json.md)."""
        return {
            "schema": SCHEMA,
            "session": self.session,
            "exit": int(self.exit_code),
            "branch": self.branch,
            "from": self.begin,
            "to": self.end,
            "next": self.next_begin,
            "commits": self.commits,
            "recipe": self.recipe,
            "device": self.device,
            "limit_bytes": self.limit,
            "min_step_bytes": self.min_step,
            "seen": [one.to_json() for one in self.seen],
            "landed": [one.to_json() for one in self.landed],
            "notes": list(self.notes),
        }


def watch_once(
    store: Store,
    request: WatchRequest,
    *,
    watcher: Watcher,
    cwd: Path,
    cache: Path,
    command: tuple[str, ...],
    on_session: Callable[[str], None] = lambda _: None,
) -> Watched:
    """Look at what is new on the branch since the last finished look of the same watch, or since the newest commit that
    it could measure.

    One that is stopped leaves no trace but its measurements: the next begins where it began, and probes none again.

    Raises:
        OombisectError: no such branch, no device, or the machine failed.
    """

    def look(repository: BridgeRepository) -> None:
        if repository.checkout is None:
            watcher.say("updating the cached clone")
            update(repository.mirror)
        repository.require_bridge(request.branch)

    with (
        open_workshop(request.probe, cwd=cwd, cache=cache, watcher=watcher, look=look) as workshop,
        open_places(store, workshop, request.jobs, watcher) as places,
    ):
        request = replace(request, probe=workshop.request)
        repository = workshop.repository
        tip = repository.resolve(request.branch)
        begin, notes = _begin(repository, _last(store, request, repository.name), request, tip)
        found = Watched(
            request.branch, None, begin, tip, 0, request.min_step_bytes, workshop.limit, request.probe.label,
            workshop.device.name, notes=notes,
        )  # fmt: skip
        if begin == tip:
            return found
        for note in notes:
            watcher.say(note)
        axis = commit_range(repository, begin, tip, per_lock=request.probe.per_lock)
        session = _create(store, request, workshop, begin, tip, command)
        on_session(session)
        with interrupted_unless_finished(store, session):
            indices = chosen(len(axis.points), request.every)
            watcher.say(f"session {session}: {len(axis.points) - 1} new commits, {len(indices)} points to look at")
            line = CommitLine(axis, targets_of(workshop, request.probe, cache))
            measurer = Measurer(store, session, workshop.prober, watcher, places)
            seen = _look(axis, line, measurer, workshop.limit, indices)
    with interrupted_unless_finished(store, session):
        landed = []
        for before, after, grew in _grown(seen, request.min_step_bytes):
            watcher.say(f"memory grew from {before.point[:10]} to {after.point[:10]}: looking for the commit")
            search = BisectRequest(
                range=f"{before.point}..{after.point}",
                probe=request.probe,
                min_step_bytes=request.min_step_bytes,
                jobs=request.jobs,
            )
            report = bisect_range(
                store, search, watcher=watcher, cwd=cwd, cache=cache, command=command, on_session=lambda _: None
            )
            landed.append(Landed(before, after, grew, report))
        watched = replace(found, session=session, commits=len(axis.points) - 1, seen=tuple(seen), landed=tuple(landed))
        store.finish_session(session, int(watched.exit_code), watched.to_json())
        return watched


def _last(store: Store, request: WatchRequest, repo: str) -> str | None:
    """Where the last finished look of the same watch ended."""
    for session in store.sessions(_MANY):
        spec = session.spec
        same = spec.kind == KIND and spec.repo == repo and spec.arguments.get("watched") == _plain(request.watched())
        if same and session.state is SessionState.FINISHED:
            return str((session.verdict or {})["next"])
    return None


def _plain(value: Mapping[str, Any]) -> Any:
    """As it comes back from the database."""
    import json

    return json.loads(json.dumps(value))


def _begin(
    repository: BridgeRepository, last: str | None, request: WatchRequest, tip: str
) -> tuple[str, tuple[str, ...]]:
    """Where to begin, and what to say of it."""
    if last is None:
        return _first(repository, request, tip), ()
    known = repository.mirror.has_commit(last)
    if known and repository.is_ancestor(last, tip):
        return last, ()
    note = f"{request.branch} was rewritten: {last[:10]}, the last one seen, is no part of it"
    fork = repository.merge_base(last, tip) if known else None
    if fork is not None:
        return fork, (f"{note}; this look begins at {fork[:10]}",)
    begin = _first(repository, request, tip)  # nothing tells where it parted
    return begin, (f"{note}; this look begins at {begin[:10]}, as a first one does",)


def _first(repository: BridgeRepository, request: WatchRequest, tip: str) -> str:
    """Where the first look begins."""
    if request.since is not None:
        return repository.resolve(request.since)
    return repository.log("--first-parent", f"--max-count={request.every + 1}", tip)[-1].sha


def _look(axis: CommitRange, line: CommitLine, measurer: Measurer, limit: int, indices: Sequence[int]) -> list[Seen]:
    """The commits at `indices`, probed."""
    targets = [line.targets[index] for index in indices]
    answers: list[Measured] = []
    at_once = max(1, len(measurer.places))
    for start in range(0, len(targets), at_once):
        answers += measurer.measure_all([Question(t, "measure", False) for t in targets[start : start + at_once]])
        measurer.watcher.progress(f"{len(answers)} of {len(targets)} points")
    seen = []
    for index, target, answer in zip(indices, targets, answers, strict=True):
        reading = answer.reading
        if reading.outcome is Outcome.INFRA:
            raise OombisectError(
                f"{target.key[:10]} could not be measured: {reading.reason}",
                "Mend the machine and watch again: what was measured is kept.",
                ExitCode.INFRASTRUCTURE,
            )
        fits = measurer.fits(target, answer, limit) if measured(reading) else None
        seen.append(Seen(target.key, axis.points[index].subject, reading.with_fits(fits)))
    return seen


def _grown(seen: Sequence[Seen], least: int) -> list[tuple[Seen, Seen, int]]:
    """Neighbours between which memory grew by `least` or more; else the whole, if it crept so far.

    What cannot be probed is passed over: the growth is then between those around it.
    """
    told = [one for one in seen if measured(one.reading)]
    found = [
        (before, after, grew)
        for before, after in pairwise(told)
        if (grew := growth(before.reading, after.reading)) >= least or _over(before.reading, after.reading)
    ]
    if not found and len(told) > 2 and (grew := growth(told[0].reading, told[-1].reading)) >= least:
        return [(told[0], told[-1], grew)]
    return found


def _over(before: Reading, after: Reading) -> bool:
    return after.fits is False and before.fits is not False


def _create(
    store: Store, request: WatchRequest, workshop: Workshop, begin: str, tip: str, command: tuple[str, ...]
) -> str:
    return store.create_session(
        SessionSpec(
            kind=KIND,
            command=command,
            arguments={**request.to_json(), "watched": request.watched()},
            repo=workshop.repository.name,
            recipe=request.probe.label,
            device=workshop.device.name,
            good=begin,
            bad=tip,
            limit_bytes=workshop.limit,
        )
    ).id
