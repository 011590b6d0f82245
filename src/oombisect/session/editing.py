"""Correcting a session by hand: points that are not to be probed, answers that are taken back, another budget.

Nothing is deleted: a correction is an event, and the search is told what stands. The readings stay in the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oombisect import hints
from oombisect.errors import ExitCode, OombisectError
from oombisect.history.records import RUN_AGAIN, Event, SessionState, StoredSession
from oombisect.session.events import (
    BUDGET,
    OBSERVATION,
    SKIP,
    START,
    UNDO,
    budget_of,
    given_since,
    skipped,
    standing,
    with_budget,
)
from oombisect.session.point_names import PointNames, Resolve

if TYPE_CHECKING:
    from oombisect.history.store import Store


@dataclass(frozen=True, slots=True)
class Undone:
    """An event that was taken back: an answer about a point, with what was asked, or a skip (None) of some."""

    seq: int
    kind: str
    request: str | None
    points: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edited:
    """A session after a correction, ready to be resumed.

    `reopened`: it was finished, and its verdict is superseded. `skipped`: all that it skips now; `added`: those of them
    that it did not skip before. `undone`: what was taken back.
    """

    session: str
    reopened: bool
    skipped: tuple[str, ...]
    added: tuple[str, ...] = ()
    undone: tuple[Undone, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "session": self.session,
            "reopened": self.reopened,
            "skipped": list(self.skipped),
            "added": list(self.added),
            "undone": [
                {"seq": one.seq, "kind": one.kind, "request": one.request, "points": list(one.points)}
                for one in self.undone
            ],
        }


def skip(store: Store, session: StoredSession, names: Sequence[str], resolve: Resolve) -> Edited:
    """Mark points of a session as never to be probed; it is interrupted then.

    Args:
        names: each a point's key, a beginning of it (4 characters or more), or what `resolve` makes a key of.
        resolve: the commit that a revision names.

    Raises:
        OombisectError: no such point, an end of the range, another process works on the session.
    """
    _require_search(session)
    with store.transaction():
        events = store.events(session.id)
        points, already = PointNames(_searches(store, session, events)), skipped(events)
        wanted = dict.fromkeys(key for name in names for key in points.named(name, resolve))
        new = [key for key in wanted if key not in already]
        if not new:
            raise OombisectError(
                f"Session {session.id} skips that already", f"Go on with it: `{hints.command('resume', session.id)}`."
            )
        store.reopen_session(session.id)
        store.append_event(session.id, SKIP, {"points": new})
        return _left(store, session, added=new)


def undo(store: Store, session: StoredSession, count: int) -> Edited:
    """Take back the last `count` answers and skips that stand; the session is interrupted then.

    Raises:
        OombisectError: there are not so many, another process works on the session.
    """
    _require_search(session)
    if count < 1:
        raise OombisectError(f"{count} answers cannot be taken back", "Use 1 or more.")
    with store.transaction():
        events = store.events(session.id)
        answers = [event for event in standing(events) if event.kind in (OBSERVATION, SKIP)]
        if count > len(answers):
            raise OombisectError(
                f"Session {session.id} has {len(answers)} answers and skips to take back, not {count}",
                f"See them with `{hints.command('log', session.id)}`.",
            )
        gone = answers[-count:]
        store.reopen_session(session.id)
        store.append_event(session.id, UNDO, {"events": [event.seq for event in gone]})
        return _left(store, session, [_undone(events, event) for event in gone])


def arguments_of(store: Store, session: StoredSession, budget: int | None = None) -> Mapping[str, Any]:
    """What was asked of a session, with the budget that it was given since, or with `budget`."""
    given = given_since(store.events(session.id)) if budget is None else budget
    return with_budget(session.spec.kind, session.spec.arguments, given)


def give_budget(store: Store, session: StoredSession, budget: int) -> StoredSession:
    """Take a session over with another budget, a finished one too if its own was smaller.

    Raises:
        OombisectError: it is finished, and not for want of probes; another process works on it.
    """
    with store.transaction():
        own = budget_of(session.spec.kind, arguments_of(store, session))
        if session.state is SessionState.FINISHED and (own is None or budget <= own):
            had = "had no --budget" if own is None else f"had a --budget of {own}, and {budget} is no larger"
            raise OombisectError(
                f"Session {session.id} is finished: it {had}",
                f"See its result with `{hints.command('show', session.id)}`.",
            )
        found = store.reopen_session(session.id)
        store.append_event(session.id, BUDGET, {"budget": budget})
        return found


def _left(store: Store, session: StoredSession, gone: Sequence[Undone] = (), added: Sequence[str] = ()) -> Edited:
    store.interrupt_session(session.id, ExitCode.INTERRUPTED)
    keys = tuple(sorted(skipped(store.events(session.id))))
    return Edited(session.id, session.state is SessionState.FINISHED, keys, tuple(added), tuple(gone))


def _undone(events: Sequence[Event], event: Event) -> Undone:
    """The event, with the points it is about: those of the last search of its scope that began before it."""
    payload = event.payload
    if event.kind == SKIP:
        return Undone(event.seq, event.kind, None, tuple(payload["points"]))
    begun = (e for e in reversed(events) if e.kind == START and e.seq < event.seq)
    mine = next((e for e in begun if e.payload.get("scope", "") == payload.get("scope", "")), None)
    points, index = (mine.payload.get("points", ()) if mine else ()), payload["request"]["index"]
    return Undone(event.seq, event.kind, payload["request"]["kind"], tuple(points[index : index + 1]))


def _require_search(session: StoredSession) -> None:
    if session.spec.kind in RUN_AGAIN:
        raise OombisectError(
            f"Session {session.id} is a single {session.spec.kind}: it has no search to correct",
            f"Name a bisection; `{hints.command('sessions')}` lists them.",
        )


def _searches(store: Store, session: StoredSession, events: Sequence[Event]) -> list[list[str]]:
    """The points of each of a session's searches; one of before they were recorded has those that it probed."""
    told = [list(event.payload["points"]) for event in events if event.kind == START and "points" in event.payload]
    if told or not any(event.kind == START for event in events):
        return told
    probed = [probe.spec.point for probe in store.probes(session.id) if probe.spec.request == "measure"]
    between = [key for key in dict.fromkeys(probed) if key not in (session.spec.good, session.spec.bad)]
    return [[session.spec.good, *between, session.spec.bad]]
