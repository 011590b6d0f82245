"""What a user calls a snapshot: a file, a probe's number, or SESSION/PROBE as the artifacts are laid out."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oombisect import hints
from oombisect.errors import OombisectError
from oombisect.files import irregular
from oombisect.history.records import StoredProbe
from oombisect.probing.workload import as_given
from oombisect.readings import Outcome, RankReading, Reading

if TYPE_CHECKING:
    from oombisect.history.store import Store

_PROBE = re.compile(r"(?:(?P<session>[\w-]+)/)?(?P<probe>[0-9]{1,18})", re.ASCII)
_FILE = re.compile(r"snapshot-(?P<rank>[0-9]{1,9})\.", re.ASCII)


@dataclass(frozen=True, slots=True)
class Located:
    """A snapshot file, and the probe it belongs to if it is one of ours.

    `rank` is the rank whose memory it shows, None where nothing says so; `label` names it for people, `notes` are what
    a reader should know of the choice. `under` is the commit of Bridge that a release was probed under.
    """

    path: Path
    label: str
    rank: int | None = None
    probe: StoredProbe | None = None
    notes: tuple[str, ...] = ()
    under: str | None = None

    @property
    def sources(self) -> str | None:
        """The point whose sources it ran: that of the probe, or `under`; None for a bare file."""
        return self.under or self.point

    @property
    def reading(self) -> Reading | None:
        """What the probe read; None for a bare file."""
        return self.probe.reading if self.probe else None

    @property
    def rank_reading(self) -> RankReading | None:
        """What the rank of this snapshot read."""
        ranks = self.reading.ranks if self.reading else ()
        return next((found for found in ranks if found.rank == self.rank), None)

    @property
    def repo(self) -> str | None:
        """The axis that `point` lies on (`bridge`, ...); None for a bare file."""
        return self.probe.spec.repo if self.probe else None

    @property
    def point(self) -> str | None:
        """The commit the probe ran at, or what names its point; None for a bare file."""
        return self.probe.spec.point if self.probe else None


def names_probe(text: str) -> bool:
    """Whether `text` is a probe: its number (./NUMBER is a file of that name), or SESSION/PROBE that is no file."""
    return _PROBE.fullmatch(text) is not None and (text.isdecimal() or not Path(text).is_file())


def database_for(texts: Iterable[str], named: Path | None, default: Path) -> Path | None:
    """The database it takes to find what `texts` name; None: bare files need none, and do not depend on one.

    Args:
        named: what the user named; None: `default`, if anything needs it.
    """
    if named is not None:
        return named
    kept = Path(os.path.realpath(default.with_suffix(".artifacts")))
    needed = any(names_probe(text) or Path(os.path.realpath(text)).is_relative_to(kept) for text in texts)
    return default if needed and default.exists() else None


def resolve_snapshot(text: str, store: Store | None, rank: int | None = None) -> Located:
    """The snapshot that `text` names.

    Args:
        text: a probe's number, `SESSION/PROBE`, or the path of a snapshot file.
        store: the database; None: there is none, so that only files can be named.
        rank: which rank of a probe; None: the one with the largest peak allocated.

    Raises:
        OombisectError: there is no such file, probe or rank, or the probe kept no snapshot.
    """
    if not names_probe(text):
        return _file(text, store, rank)
    match = _PROBE.fullmatch(text)
    assert match is not None
    if store is None:
        raise OombisectError(
            f"There is no database to look probe {text} up in", "Name it with --db, or a snapshot file."
        )
    same = f"{text} is taken for a probe; the file of that name is ./{text}" if Path(text).exists() else ""
    try:
        found = _probe(match, store, rank)
    except OombisectError as error:
        hint = f" The file {text} is named ./{text}." if same else ""
        raise OombisectError(error.cause, f"{error.way_out}{hint}", error.exit_code) from error
    return replace(found, notes=(same,) if same else ())


def _probe(match: re.Match[str], store: Store, rank: int | None) -> Located:
    probe = store.probe(int(match["probe"]))
    if match["session"] and store.session(match["session"]).id != probe.spec.session:
        raise OombisectError(
            f"Session {match['session']} has no probe {match['probe']}: it belongs to {probe.spec.session}",
            f"Name it {probe.spec.session}/{probe.id}.",
        )
    return snapshot_of_probe(probe, store, rank)


def snapshot_of_probe(probe: StoredProbe, store: Store, rank: int | None = None) -> Located:
    """The snapshot of one rank of a probe; `rank` as for `resolve_snapshot`.

    Raises:
        OombisectError: it did not finish, measured no such rank, or its snapshot is gone.
    """
    name = f"{probe.spec.session}/{probe.id}"
    reading = probe.reading
    if reading is None:
        raise OombisectError(
            f"Probe {name} did not finish", f"Resume its session: {hints.command('resume', probe.spec.session)}"
        )
    chosen = _rank(name, reading, rank)
    given = as_given(probe.spec.recipe, probe.spec.settings)
    session = store.session(probe.spec.session).spec
    again = f"Probe the point again: {hints.command('probe', probe.spec.point[:12], '--fresh')} {given}."
    if session.kind in ("config", "releases"):  # a point of theirs is no commit, to be probed alone
        again = f"Ask again with an empty database: {shlex.join(['oombisect', *session.command[1:], '--db', 'FILE'])}"
    path = store.snapshot(probe.id, chosen.rank)
    if path is None:
        raise OombisectError(f"Probe {name} kept no snapshot of rank {chosen.rank}", again)
    if not path.is_file():
        raise OombisectError(
            f"The snapshot of probe {name}, rank {chosen.rank}, is gone "
            f"(`{hints.command('gc')}` deletes old ones): {path}",
            again,
        )
    under = session.arguments["at"] if session.kind == "releases" else None
    return Located(path, f"probe {name}", chosen.rank, probe, under=under)


def _rank(name: str, reading: Reading, rank: int | None) -> RankReading:
    if not reading.ranks:
        why = f": {reading.reason}" if reading.reason else ""
        raise OombisectError(
            f"Probe {name} measured no rank; it is {reading.outcome}{why}",
            "Name a probe that is exact"
            + (", or see what it lacks." if reading.outcome is Outcome.UNRESOLVED else ", or run it again."),
        )
    if rank is None:
        worst = reading.worst
        assert worst is not None
        return worst
    for found in reading.ranks:
        if found.rank == rank:
            return found
    measured = ", ".join(str(found.rank) for found in reading.ranks)
    raise OombisectError(f"Probe {name} measured no rank {rank}", f"It measured {measured}.")


def _file(text: str, store: Store | None, rank: int | None) -> Located:
    neither = OombisectError(
        f"{text!r} is neither a snapshot file nor a probe",
        f"Name a file, a probe's number or SESSION/PROBE; `{hints.command('show')}` lists a session's probes.",
    )
    if not text:
        raise neither
    path = Path(text)
    try:
        kind = irregular(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise neither from error
    except OSError as error:
        raise OombisectError(
            f"{text!r} cannot be read: {error.strerror or error}", "Name a snapshot file, or a probe."
        ) from error
    if kind:
        hint = "Write what it brings to a file, and name that." if kind == "a pipe" else "Name a file, or a probe."
        raise OombisectError(f"{text!r} is {kind}, not a snapshot file", hint)
    probe = _owner(path.resolve(), store)
    told = _FILE.match(path.name)
    of_file = int(told["rank"]) if told else None
    if rank is not None and rank != of_file:
        whose = "a bare file, of no known rank" if of_file is None else f"the snapshot of rank {of_file}"
        raise OombisectError(f"{text} is {whose}, not of rank {rank}", "Leave --rank out.")
    return Located(path, text, of_file, probe)


def _owner(path: Path, store: Store | None) -> StoredProbe | None:
    """The probe in whose folder the file lies, if it is the file the database knows."""
    if store is None or not path.parent.name.isdecimal():
        return None
    try:
        probe = store.probe(int(path.parent.name))
    except OombisectError:
        return None
    ranks = probe.reading.ranks if probe.reading else ()
    known = [store.snapshot(probe.id, rank.rank) for rank in ranks]
    return probe if any(one is not None and one.resolve() == path for one in known) else None
