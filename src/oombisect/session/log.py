"""A session as text: one event per line, for people to read and for `replay-log` to begin the session again.

A line is a word and a JSON object; `#` begins a comment. Reading one executes nothing.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oombisect import hints
from oombisect.errors import ExitCode, OombisectError
from oombisect.files import irregular
from oombisect.history.records import Event, SessionState, StoredSession
from oombisect.printable import printable, quoted
from oombisect.readings import Outcome
from oombisect.session.config_request import ConfigRequest
from oombisect.session.events import BUDGET, SKIP, START, UNDO, undone, with_budget
from oombisect.session.point_names import PointNames
from oombisect.session.releases_request import ReleasesRequest
from oombisect.session.request import BisectRequest
from oombisect.units import format_bytes

if TYPE_CHECKING:
    from oombisect.history.store import Store

VERSION = 1
SESSION, ANSWER, VERDICT = "session", "answer", "verdict"
_HEADER = f"# oombisect log, version {VERSION}"
_MOST_BYTES = 64 << 20
_REQUESTS: Mapping[str, type[BisectRequest] | type[ConfigRequest] | type[ReleasesRequest]] = {
    "run": BisectRequest,
    "demo": BisectRequest,
    "config": ConfigRequest,
    "releases": ReleasesRequest,
}
Request = BisectRequest | ConfigRequest | ReleasesRequest


@dataclass(frozen=True, slots=True)
class Logged:
    """What `replay-log` takes from a log: the request, as `kind` and arguments, and the points that are skipped.

    `request` has the budget that the session was given last, `arguments` are those it began with.
    """

    kind: str
    arguments: Mapping[str, Any]
    request: Request
    skipped: tuple[str, ...]
    command: tuple[str, ...]


def entries(store: Store, session: StoredSession) -> list[dict[str, Any]]:
    """The session's log: its request, every event in order, its verdict if it has one."""
    spec = session.spec
    events = store.events(session.id)
    gone = undone(events)
    points: dict[str, Sequence[str]] = {}
    told: list[dict[str, Any]] = [
        {
            "entry": SESSION,
            "version": VERSION,
            "session": session.id,
            "kind": spec.kind,
            "command": ["oombisect", *spec.command[1:]],
            "arguments": dict(spec.arguments),
            "limit_bytes": spec.limit_bytes,
            "device": spec.device,
        }
    ]
    for event in events:
        scope = str(event.payload.get("scope", ""))
        if event.kind == START:
            points[scope] = event.payload.get("points", ())
        told.append({**_entry(store, event, points.get(scope, ())), "undone": event.seq in gone})
    if session.state is SessionState.FINISHED:
        told.append({"entry": VERDICT, "exit": session.exit_code, "kind": _verdict_kind(session.verdict)})
    return told


def _entry(store: Store, event: Event, points: Sequence[str]) -> dict[str, Any]:
    payload = event.payload
    common = {"entry": event.kind, "seq": event.seq}
    match event.kind:
        case "start":
            scope = payload.get("scope", "")
            return common | {"scope": scope, "points": list(points), "known": len(payload.get("known", ()))}
        case "observation":
            return common | {"entry": ANSWER, "scope": payload.get("scope", "")} | _answer(store, payload, points)
        case "skip":
            return common | {"points": list(payload["points"])}
        case "undo":
            return common | {"events": list(payload["events"])}
        case "stopped":
            return common | {"cause": payload["cause"], "way_out": payload["way_out"]}
        case "budget":
            return common | {"budget": payload["budget"]}
        case "reopened":
            return common | {"exit": payload["exit_code"], "kind": _verdict_kind(payload["verdict"])}
    return common | {"scope": payload.get("scope", "")}


def _answer(store: Store, payload: Mapping[str, Any], points: Sequence[str]) -> dict[str, Any]:
    request, probe = payload["request"], payload["probe"]
    index = request["index"]
    told: dict[str, Any] = {
        "request": request["kind"],
        "point": points[index] if index < len(points) else None,
        "index": index,
        "probe": probe,
        "cached": payload["cached"],
        "fits": payload["fits"],
        "conflict": payload["conflict"],
        "outcome": None,
        "reason": None,
        "simulated": None,
        "peak_allocated": None,
        "peak_reserved": None,
        "external": None,
    }
    if probe is None:
        return told
    stored = store.probe(probe)
    reading = stored.reading
    assert reading is not None
    if told["point"] is None and request["kind"] != "revert":
        told["point"] = stored.spec.point
    told |= {"outcome": str(reading.outcome), "reason": reading.reason or None, "simulated": reading.simulated}
    if reading.outcome in (Outcome.EXACT, Outcome.CENSORED):
        told |= {name: getattr(reading, name) for name in ("peak_allocated", "peak_reserved", "external")}
    return told


def _verdict_kind(report: Mapping[str, Any] | None) -> str | None:
    verdict = (report or {}).get("verdict")
    return verdict.get("kind") if isinstance(verdict, Mapping) else None


def to_text(log: Sequence[Mapping[str, Any]]) -> str:
    """The log as lines, each event's before it said for people in a comment."""
    lines = [_HEADER]
    for entry in log:
        lines.append(f"# {printable(_words(entry))}")
        rest = {name: value for name, value in entry.items() if name != "entry"}
        lines.append(f"{entry['entry']} {json.dumps(rest)}")
    return "\n".join(lines) + "\n"


def _words(entry: Mapping[str, Any]) -> str:
    taken_back = " (taken back)" if entry.get("undone") else ""
    match entry["entry"]:
        case "session":
            return f"session {entry['session']}: {shlex.join(entry['command'])}"
        case "start":
            over = f" over {len(entry['points'])} points" if entry["points"] else ""
            return f"search{_inside(entry)}{over}, {entry['known']} readings known"
        case "answer":
            return f"{entry['request']} {entry['point'] or entry['index']}{_inside(entry)}: {_told(entry)}{taken_back}"
        case "skip":
            return f"skip {', '.join(entry['points'])}{taken_back}"
        case "undo":
            return f"undo events {', '.join(map(str, entry['events']))}"
        case "stopped":
            return f"stopped: {entry['cause']}"
        case "budget":
            return f"go on with a budget of {entry['budget']} probes"
        case "reopened":
            return f"reopened: the verdict {entry['kind']} (exit code {entry['exit']}) is superseded"
        case "verdict":
            return f"verdict {entry['kind']}, exit code {entry['exit']}"
    return f"{entry['entry']}{_inside(entry)}"


def _inside(entry: Mapping[str, Any]) -> str:
    return f" in {entry['scope']}" if entry.get("scope") else ""


def _told(entry: Mapping[str, Any]) -> str:
    if entry["conflict"] is not None:
        return f"conflict: {entry['conflict']}"
    cached = ", from the database" if entry["cached"] else ""
    if entry["peak_allocated"] is None:
        return f"{entry['outcome']}: {entry['reason']} (probe {entry['probe']}{cached})"
    fits = {True: "fits", False: "does not fit", None: "fits or not, not known"}[entry["fits"]]
    simulated = ", simulated" if entry["simulated"] else ""
    return (
        f"{entry['outcome']}, {format_bytes(entry['peak_allocated'])} allocated, "
        f"{format_bytes(entry['peak_reserved'])} reserved, {fits} (probe {entry['probe']}{cached}{simulated})"
    )


# -- reading


def read(path: Path) -> Logged:
    """The session that a log tells of; `-` is standard input.

    Raises:
        OombisectError: no such file, no log of ours, or one that says what no session can be.
    """
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            if (kind := irregular(path)) and kind != "a pipe":
                raise OombisectError(f"{path} is {kind}, not a log", f"Name what `{hints.command('log')}` wrote.")
            with path.open("rb") as stream:
                data = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise OombisectError(
            f"{path} cannot be read: {error.strerror or error}", "Name a log.", ExitCode.INFRASTRUCTURE
        ) from error
    if len(data) > _MOST_BYTES:
        raise _bad(f"it is larger than {format_bytes(_MOST_BYTES)}")
    try:
        return parse(data.decode())
    except UnicodeDecodeError as error:
        raise _bad("it is not UTF-8") from error


def parse(text: str) -> Logged:
    """As `read`, of the text."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != _HEADER:
        raise _bad(f"the first line is not {_HEADER!r}")
    log = [_line(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    if [word for word, _ in log].count(SESSION) != 1 or log[0][0] != SESSION:
        raise _bad("it does not begin with its one session")
    session = log[0][1]
    kind, arguments, command = session.get("kind"), session.get("arguments"), session.get("command")
    if not isinstance(kind, str) or kind not in _REQUESTS or not isinstance(arguments, dict) or not _texts(command):
        raise _bad(f"a session of kind {quoted(kind)} cannot be begun again")
    gone = {seq for word, rest in log if word == UNDO for seq in _checked(rest, "events", int)}
    skips = [_checked(rest, "points", str) for word, rest in log if word == SKIP and rest.get("seq") not in gone]
    searches = [_checked(rest, "points", str) for word, rest in log if word == START]
    skipped = _skipped([name for names in skips for name in names], searches)
    request = _request(kind, arguments)
    for word, rest in log:
        if word == BUDGET:
            request = _request(kind, with_budget(kind, request.to_json(), rest.get("budget")))
    return Logged(kind, arguments, request, skipped, tuple(typing.cast(list[str], command)))


def _skipped(names: Sequence[str], searches: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The keys of the points that are skipped; a person may have written a beginning of one into the log."""
    if not any(searches):  # it was logged before it began, or by a version that kept no points
        return tuple(dict.fromkeys(names))
    points = PointNames(searches)
    return tuple(dict.fromkeys(key for name in names for key in points.named(name)))


def _bad(why: str) -> OombisectError:
    return OombisectError(
        f"This is no log that can be replayed: {why}", f"Write one with `{hints.command('log', 'SESSION')}`."
    )


def _line(number: int, line: str) -> tuple[str, dict[str, Any]]:
    word, _, rest = line.partition(" ")
    try:
        data = json.loads(rest)
    except (ValueError, RecursionError):
        data = None
    if not word.isidentifier() or not isinstance(data, dict):
        raise _bad(f"line {number} is no word with a JSON object: {quoted(line)}")
    return word, data


def _checked(entry: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    values = entry.get(name)
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise _bad(f"{name} is {quoted(values)}")
    return values


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _request(kind: str, arguments: Mapping[str, Any]) -> Request:
    try:
        request = _REQUESTS[kind].from_json(arguments)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise _bad(f"its arguments are no request of this version ({quoted(str(error))})") from error
    if wrong := _misfit(request, type(request)):
        raise _bad(f"its argument {wrong} is of the wrong type")
    return request


def _misfit(value: Any, hint: Any, name: str = "") -> str:
    """The name of the first field whose value is not of the type that the request declares; empty if all are."""
    if dataclasses.is_dataclass(hint):
        if type(value) is not hint:
            return name
        hints = typing.get_type_hints(hint)
        found = (_misfit(getattr(value, f.name), hints[f.name], f.name) for f in dataclasses.fields(value))
        return next((wrong for wrong in found if wrong), "")
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return name if all(_misfit(value, one, name) for one in inner) else ""
    if origin is tuple:
        right = isinstance(value, tuple) and not any(_misfit(item, inner[0], name) for item in value)
    elif origin is Mapping:
        right = isinstance(value, dict) and all(
            not _misfit(item, part, name) for pair in value.items() for item, part in zip(pair, inner, strict=True)
        )
    elif hint is float:
        right = type(value) in (int, float)
    else:
        right = type(value) is hint
    return "" if right else name
