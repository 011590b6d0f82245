"""From what a user names to a comparison: which two snapshots are meant, and the repository their commits are in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from oombisect import hints
from oombisect.errors import OombisectError
from oombisect.history.records import StoredProbe, StoredSession
from oombisect.history.store import Store, open_store
from oombisect.probing.workload import as_given
from oombisect.readings import Outcome
from oombisect.recipes.megatron_ci import PREFIX
from oombisect.repo.bridge import BridgeRepository, open_repository
from oombisect.repo.line_map import bridge_of
from oombisect.repo.mirror import Say
from oombisect.repo.whole import open_whole
from oombisect.session.comparing import Comparison, SessionStep, compare
from oombisect.session.request import ProbeRequest
from oombisect.session.snapshots_of import Located, database_for, names_probe, resolve_snapshot, snapshot_of_probe
from oombisect.session.verdict import Report, StepVerdict

_PLAIN = ("measure", "remeasure")
_MANY = 10_000


def compare_named(
    first: str,
    second: str | None,
    *,
    database: Path | None,
    default: Path,
    clock: Callable[[], datetime],
    rank: int | None,
    ends: bool,
    step: str | None = None,
    cache: Path,
    say: Say,
    device: int | None = None,
    repo: Path | None = None,
    megatron: Path | None = None,
) -> Comparison:
    """Compare two snapshots, or without `second` the two sides of session `first`.

    Args:
        database: as named by the user; None: `default`, if anything needs one (bare files do not).
        rank: None: that with the second's largest peak.
        device: of a snapshot of several devices, which one; None: the one with the longest history.
        ends: of a session, its good and bad ends, not its largest step.
        step: of a session, the named step to compare: its commit or the beginning of it; None: the largest.
        repo, megatron: used in the place of what the session was told.

    Raises:
        OombisectError: something named does not exist or cannot be read.
    """
    if second is None and (names_probe(first) or Path(first).is_file()):
        raise OombisectError(f"There is nothing to compare {first} with", "Name two snapshots, or one session.")
    path = (database or default) if second is None else database_for([first, second], database, default)
    with contextlib.ExitStack() as stack:
        told: SessionStep | None = None
        store = None if path is None else stack.enter_context(open_store(path, clock=clock, readonly=True))
        if second is not None:
            sides = _named(first, second, store, rank)
        else:
            assert store is not None
            session = _session(store, first)
            if ends:
                sides = _ends(store, session, rank)
            else:
                chosen, told = _choose(session, step)
                sides = _sides(store, session, chosen, rank)
        repository = _repository(sides, store, cache, say, repo, megatron)
        return replace(compare(*sides, store, repository, device=device), step=told)


def _named(first: str, second: str, store: Store | None, rank: int | None) -> tuple[Located, Located]:
    """Two snapshots. Beside a probe, a bare file has no rank to be chosen."""
    mixed = names_probe(first) != names_probe(second)
    here, there = (rank if names_probe(text) or not mixed else None for text in (first, second))
    other = resolve_snapshot(second, store, there)
    return resolve_snapshot(first, store, here if here is not None else _also(first, store, other.rank)), other


def _also(text: str, store: Store | None, rank: int | None) -> int | None:
    """`rank`, if the probe that `text` names has measured it."""
    if store is None or not names_probe(text):
        return None
    reading = store.probe(int(text.rpartition("/")[2])).reading
    return rank if reading and rank in {found.rank for found in reading.ranks} else None


def _session(store: Store, name: str) -> StoredSession:
    if name == "last":
        newest = (session for session in store.sessions(_MANY) if session.spec.kind not in ("probe", "watch"))
        return next(newest, None) or store.session(name)
    return store.session(name)


def _ends(store: Store, session: StoredSession, rank: int | None) -> tuple[Located, Located]:
    if session.spec.good == session.spec.bad:
        raise OombisectError(f"Session {session.id} is a single probe", "Name two probes, or a bisection.")
    return probes_of(store, session, *_end_points(session), rank)


def _end_points(session: StoredSession) -> tuple[str, str]:
    """What the probes of a session's ends are stored under, which is not always what the ends are called."""
    if session.spec.kind == "config":
        told = (session.verdict or {}).get("config", {}).get("ends")
        if not told:
            raise OombisectError(f"Session {session.id} tells no probes of its ends", "Resume it, or name two probes.")
        ends = told
        return ends["good"], ends["bad"]
    if session.spec.kind == "releases":
        versions = session.spec.arguments["versions"]
        return versions[0], versions[-1]
    return session.spec.good, session.spec.bad


def _repository(
    sides: tuple[Located, Located], store: Store | None, cache: Path, say: Say, repo: Path | None, megatron: Path | None
) -> BridgeRepository | None:
    """The repository both points are in; without one stacks are compared all the same."""
    probes = [side.probe for side in sides if side.probe]
    if store is None or len(probes) < 2:
        return None
    session = store.session(probes[1].spec.session)
    if repo is not None:
        return repository_of(session, cache, say, repo, megatron)
    try:
        found = repository_of(session, cache, say, repo, megatron)
        for side in sides:
            for commit in bridge_of(side.sources or "").split("-"):
                found.resolve(commit)
    except OombisectError as error:
        say(f"{error.cause}: no sources are shown. Name a repository with --repo PATH.")
        return None
    return found


@dataclass(frozen=True, slots=True)
class _Choice:
    """A named step and, of a roll, the commit inside that stands for it."""

    step: StepVerdict
    inside: StepVerdict | None

    @property
    def named(self) -> StepVerdict:
        return self.inside or self.step


def _choose(session: StoredSession, wanted: str | None) -> tuple[_Choice, SessionStep]:
    """The named step of a session that `wanted` begins the name of; None: the largest."""
    ends = "Compare its ends with --ends, or name two probes."
    if not session.verdict or "verdict" not in session.verdict:
        raise OombisectError(f"Session {session.id} has no verdict", ends)
    steps = [step for step in Report.from_json(session.verdict).verdict.steps if step.named]
    if not steps:
        raise OombisectError(f"Session {session.id} named no single change", ends)
    choices = [_Choice(step, step.main_inside) for step in steps]
    largest = max(choices, key=lambda choice: _size(choice.step))
    chosen, why = largest, "the largest"
    if wanted is not None:
        found = [c for c in choices if wanted and any(s.point.startswith(wanted) for s in (c.step, c.named))]
        if len(found) != 1:
            known = ", ".join(choice.named.point for choice in choices)
            what = "names several steps" if found else "is no named step"
            raise OombisectError(f"{wanted!r} {what} of session {session.id}", f"It has {known}.")
        chosen, why = found[0], ""
    elif chosen.step.crosses_limit:
        why = "the largest, and the one that crosses the limit"
    return chosen, SessionStep(
        session.id,
        chosen.named.point,
        chosen.named.kind,
        choices.index(chosen) + 1,
        len(choices),
        why,
        tuple(choice.named.point for choice in choices if choice is not chosen),
        next((choice.named.point for choice in choices if choice.step.crosses_limit), None),
        _needed(chosen.named),
    )


def _needed(step: StepVerdict) -> tuple[int, int] | None:
    """Needed capacity before a step and with it, bytes."""
    needed = step.evidence.get("needed_capacity") or {}
    smaller, larger = needed.get("smaller_bytes"), needed.get("larger_bytes")
    if smaller is None or larger is None:
        return None
    grew = step.delta.get("reserved", 0) + step.delta.get("external", 0) >= 0
    return (smaller, larger) if grew else (larger, smaller)


def _sides(store: Store, session: StoredSession, choice: _Choice, rank: int | None) -> tuple[Located, Located]:
    """The probes of a step, its parent and itself; of a roll or merge those of the commit inside."""
    step = choice.step
    if (inside := choice.inside) is not None and inside.repo != "megatron-lm":
        return probes_of(store, session, inside.parent, inside.point, rank)
    if inside is not None:
        bridge = step.evidence["descent"]["base"]["bridge"]
        return probes_of(store, session, f"{bridge}+{inside.parent}", f"{bridge}+{inside.point}", rank)
    states = step.evidence.get("points") or {"parent": step.parent, "point": step.point}  # a key's are told apart
    return probes_of(store, session, states["parent"], states["point"], rank)


def _size(step: StepVerdict) -> int:
    return abs(step.delta.get("allocated", 0))


def probes_of(
    store: Store, session: StoredSession, first: str, second: str, rank: int | None = None
) -> tuple[Located, Located]:
    """The snapshots of two points of a session; without a `rank`, that with the second's largest peak allocated.

    Raises:
        OombisectError: one of them has none.
    """
    there = _snapshot_at(store, session, second, rank)
    return _snapshot_at(store, session, first, there.rank), there


def _snapshot_at(store: Store, session: StoredSession, point: str, rank: int | None) -> Located:
    """Of a plain probe of the point: the session's newest, else the newest of an earlier session it may have reused."""
    failure: OombisectError | None = None
    for probe in _plain_probes(store, session, point):
        try:
            return snapshot_of_probe(probe, store, rank)
        except OombisectError as error:
            failure = failure or error
    given = as_given(session.spec.recipe, _asked(session))
    alone = session.spec.kind not in ("config", "releases")  # a point of theirs is no commit
    raise failure or OombisectError(
        f"No probe of {point[:12] if alone else point} in session {session.id} measured memory",
        f"Probe it: {hints.command('probe', point[:12])} {given}."
        if alone
        else f"Run `{hints.command('resume', session.id)}`.",
    )


def _plain_probes(store: Store, session: StoredSession, point: str) -> Iterator[StoredProbe]:
    for own in (True, False):
        sessions = [session] if own else [s for s in store.sessions(_MANY) if _alike(s, session)]
        for found in sessions:
            for probe in reversed(store.probes(found.id)):
                plain = probe.spec.request in _PLAIN and probe.spec.capacity_bytes is None
                measured = probe.reading is not None and probe.reading.outcome in (Outcome.EXACT, Outcome.CENSORED)
                if probe.spec.point == point and plain and measured:
                    yield probe


def _alike(other: StoredSession, session: StoredSession) -> bool:
    """Whether probes of another session may stand for this one's: all but the range, the search and the limit agree."""
    return (
        other.id != session.id
        and other.spec.device == session.spec.device
        and replace(ProbeRequest.from_json(_asked(other)), limit_bytes=None)
        == replace(ProbeRequest.from_json(_asked(session)), limit_bytes=None)
        and _around(other) == _around(session)
    )


def _asked(session: StoredSession) -> Mapping[str, Any]:
    """How its probes were asked for: a `ProbeRequest` as JSON."""
    arguments = session.spec.arguments
    found: Mapping[str, Any] = arguments.get("search", arguments).get("probe", {})
    return found


def _around(session: StoredSession) -> tuple[Any, ...]:
    """What gives its points their meaning: a version is one of a package, under a commit."""
    if session.spec.kind != "releases":
        return ()
    return session.spec.arguments["package"], session.spec.arguments["at"]


def repository_of(
    session: StoredSession, cache: Path, say: Say, repo: Path | None = None, megatron: Path | None = None
) -> BridgeRepository:
    """The repository that a session probed; `repo` and `megatron` replace what it was told.

    Raises:
        OombisectError: it is no longer there.
    """
    asked = _asked(session)
    named = Path(session.spec.repo) if session.spec.repo.startswith("/") else None
    clone = Path(asked["megatron"]) if asked.get("megatron") else None
    if clone is not None and not clone.is_dir():
        clone = None  # the commits may also be in the cache
    # Outside of any checkout no path means the cached clone, as it did for the session.
    command = asked.get("command") or str(asked.get("recipe", "")).startswith(PREFIX)
    opened = open_whole if command else open_repository
    return opened(repo or named, cache, cache, say, megatron or clone)
