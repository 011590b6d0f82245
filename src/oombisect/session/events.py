"""A session's log of events: the kinds that decide what its search knows, and which of them still stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oombisect.history.records import Event

START = "start"
OBSERVATION = "observation"
SKIP = "skip"
UNDO = "undo"
BUDGET = "budget"
STOPPED = "stopped"


def undone(events: Sequence[Event]) -> frozenset[int]:
    """The events (`seq`) that an undo took back."""
    return frozenset(seq for event in events if event.kind == UNDO for seq in event.payload["events"])


def standing(events: Sequence[Event]) -> list[Event]:
    """The events that no undo took back, in order."""
    gone = undone(events)
    return [event for event in events if event.seq not in gone]


def skipped(events: Sequence[Event]) -> frozenset[str]:
    """The keys of the points that are not to be probed."""
    return frozenset(key for event in standing(events) if event.kind == SKIP for key in event.payload["points"])


def budget_of(kind: str, arguments: Mapping[str, Any]) -> int | None:
    """The budget that the stored arguments of a session of that kind name."""
    found: int | None = (arguments["search"] if kind == "releases" else arguments).get("budget")
    return found


def with_budget(kind: str, arguments: Mapping[str, Any], budget: int | None) -> dict[str, Any]:
    """The arguments, with that budget in the place of their own; None: as they are."""
    given = {} if budget is None else {"budget": budget}
    if kind == "releases":
        return {**arguments, "search": {**arguments["search"], **given}}
    return {**arguments, **given}


def given_since(events: Sequence[Event]) -> int | None:
    """The budget that a session was given after it began; None: none was."""
    return next((event.payload["budget"] for event in reversed(events) if event.kind == BUDGET), None)


def why_stopped(events: Sequence[Event]) -> tuple[str, str] | None:
    """The cause and the way out of the error that stopped a session last; None: none did, or it went on since."""
    last = events[-1] if events else None
    return (last.payload["cause"], last.payload["way_out"]) if last and last.kind == STOPPED else None


def taken_back(events: Sequence[Event]) -> list[tuple[str, int]]:
    """The answers that were taken back, each with what was asked and the probe that answered."""
    gone = undone(events)
    answers = [event.payload for event in events if event.seq in gone and event.kind == OBSERVATION]
    return [(answer["request"]["kind"], answer["probe"]) for answer in answers if answer["probe"] is not None]
