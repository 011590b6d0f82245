"""Sessions as the database has them: the list, and one of them with its verdict and every probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from oombisect import hints
from oombisect.errors import ExitCode
from oombisect.history.records import RUN_AGAIN, SessionState, StoredProbe, StoredSession
from oombisect.printable import printable
from oombisect.reports.points import short
from oombisect.reports.watch import summary
from oombisect.units import format_bytes


def session_json(session: StoredSession) -> dict[str, Any]:
    """One session of `sessions --json`."""
    spec = session.spec
    return {
        "id": session.id,
        "state": str(session.state),
        "kind": spec.kind,
        "created": session.created.isoformat(),
        "recipe": spec.recipe,
        "repo": spec.repo,
        "device": spec.device,
        "limit_bytes": spec.limit_bytes,
        "good": spec.good,
        "bad": spec.bad,
        "exit": session.exit_code,
        "verdict": _verdict_kind(session.verdict),
    }


def _verdict_kind(stored: Mapping[str, Any] | None) -> str | None:
    if not stored or "verdict" not in stored:
        return _probe_verdict(stored) if stored else None
    return str(stored["verdict"]["kind"])


def probe_row_json(probe: StoredProbe) -> dict[str, Any]:
    """One probe of `show --json`."""
    spec = probe.spec
    return {
        "id": probe.id,
        "point": spec.point,
        "subject": spec.subject,
        "request": spec.request,
        "capacity_bytes": spec.capacity_bytes,
        "settings": dict(spec.settings),
        "started": probe.started.isoformat(),
        "finished": probe.finished.isoformat() if probe.finished else None,
        "reading": probe.reading.to_json() if probe.reading else None,
    }


def render_sessions(sessions: Sequence[StoredSession], console: Console) -> None:
    """Two lines each, newest first: nothing is cut, whatever the width."""
    if not sessions:
        console.print(f"No sessions yet. `{hints.command('run', 'GOOD..BAD', '--recipe', 'NAME')}` starts one.")
        return
    for session in sessions:
        what = f"{session.id}  {session.state}  {_what(session)}"
        console.print(Text(what), soft_wrap=True)
        told = f"  {_ends(session)}  {printable(verdict_text(session.verdict))}".rstrip()
        console.print(Text(told, style="dim"), soft_wrap=True)


def _what(session: StoredSession) -> str:
    spec = session.spec
    return printable(f"{spec.kind} {spec.recipe} on {spec.device}")


def _ends(session: StoredSession) -> str:
    good, bad = session.spec.good, session.spec.bad
    return printable(short(good) if good == bad else f"{short(good)}..{short(bad)}")


def verdict_text(stored: Mapping[str, Any] | None) -> str:
    """What a session ended with, in a few words; nothing while it has not."""
    if not stored:
        return ""
    if "verdict" not in stored:
        return _probe_verdict(stored) or ""
    verdict = stored["verdict"]
    named = [f"{short(step['point'])} ({step['class']})" for step in verdict["steps"] if step["named"]]
    return f"{verdict['kind']}: {', '.join(named)}" if named else str(verdict["kind"])


def _probe_verdict(stored: Mapping[str, Any]) -> str | None:
    reading = stored.get("reading", {})
    if reading.get("fits") is None:
        outcome: str | None = reading.get("outcome")
        return outcome
    return "fits" if reading["fits"] else "does not fit"


def render_probes(
    session: StoredSession,
    probes: Sequence[StoredProbe],
    console: Console,
    stopped: tuple[str, str] | None = None,
) -> None:
    """The head of a session and each of its probes; `stopped`: the cause and the way out of the error that ended it."""
    spec = session.spec
    limit = f", limit {format_bytes(spec.limit_bytes)}" if spec.limit_bytes else ""
    console.print(Text(f"{session.id}  {session.state}  {_what(session)}{limit}"), soft_wrap=True)
    console.print(Text(f"  {printable(spec.repo)}  {_ends(session)}", style="dim"), soft_wrap=True)
    for probe in probes:
        took = _seconds(probe.started, probe.finished)
        what = summary(probe.reading) if probe.reading else "unfinished"
        at = f" at {format_bytes(probe.spec.capacity_bytes)}" if probe.spec.capacity_bytes else ""
        line = f"  {probe.id:>5}  {short(probe.spec.point):<10}  {probe.spec.request}{at}  {what}  {took}"
        console.print(Text(f"{line}  {printable(probe.spec.subject)[:60]}"), soft_wrap=True)
    if stopped:
        cause, way_out = map(printable, stopped)
        console.print(Text(f"Stopped: {cause}", style="yellow"), soft_wrap=True)
        console.print(Text(f"  {way_out}"), soft_wrap=True)
    curable = session.exit_code != ExitCode.USAGE
    if session.state is SessionState.INTERRUPTED and spec.kind not in RUN_AGAIN and curable:
        console.print(Text(f"Go on with: {hints.command('resume', session.id)}", style="bold"))


def _seconds(started: datetime, finished: datetime | None) -> str:
    return f"{(finished - started).total_seconds():.1f} s" if finished else ""
