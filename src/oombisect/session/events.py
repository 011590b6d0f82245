"""A session's log of events: the kinds that decide what its search knows, and which of them still stand."""

from __future__ import annotations

from collections.abc import Sequence

from oombisect.history.records import Event

START = "start"
OBSERVATION = "observation"
SKIP = "skip"
UNDO = "undo"


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


def taken_back(events: Sequence[Event]) -> list[tuple[str, int]]:
    """The answers that were taken back, each with what was asked and the probe that answered."""
    gone = undone(events)
    answers = [event.payload for event in events if event.seq in gone and event.kind == OBSERVATION]
    return [(answer["request"]["kind"], answer["probe"]) for answer in answers if answer["probe"] is not None]
