"""The store: what the driver learns becomes a row here before it acts on it.

Only the driver writes. Several sessions may write to one database at once; a session itself belongs to one process,
the one that created or resumed it, until that process ends. After kill -9 at any instant every finished probe and every
event is there in full, and a probe that was running is a row without a result, which answers no request.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from oombisect import __version__, hints
from oombisect.errors import OombisectError
from oombisect.history import locks, rows
from oombisect.history.connection import Connection
from oombisect.history.faults import explain, make_folder
from oombisect.history.imported import ImportedReading, ImportKind, ImportSpec, add_import, imported_from
from oombisect.history.records import (
    Event,
    ProbeSpec,
    ReplayRecord,
    SessionSpec,
    SessionState,
    StoredProbe,
    StoredSession,
)
from oombisect.history.signature import canonical_json, finite, json_hash
from oombisect.history.sqlite import Database, Table
from oombisect.readings import Outcome, Reading

REOPENED = "reopened"

# Day, then counter: 20261130-9 comes before 20261130-10.
_NEWEST_FIRST = "created DESC, length(id) DESC, id DESC"


def open_store(
    path: Path, *, clock: Callable[[], datetime], readonly: bool = False, busy_timeout: float = 30.0
) -> Store:
    """Open the database, creating it or bringing it to this version's schema where needed.

    Args:
        path: the database file; artifacts go to the folder beside it whose name ends in `.artifacts`.
        clock: the time now, aware.
        readonly: only look; nothing is created, SQLite refuses to write.
        busy_timeout: seconds to wait for other processes' transactions.

    Raises:
        OombisectError: not a database, not ours, from a newer version, damaged, locked, read-only, disk full.
    """
    return Store(path, clock=clock, readonly=readonly, busy_timeout=busy_timeout)


class Store:
    """See `open_store`. A context manager; usable from several threads. Every method may raise OombisectError."""

    def __init__(self, path: Path, *, clock: Callable[[], datetime], readonly: bool, busy_timeout: float) -> None:
        self._clock = clock
        self._locks: dict[str, locks.SessionLock] = {}
        self._connection = Connection(path, self._now, busy_timeout, readonly)
        self.path = self._connection.path
        self.artifacts = self.path.with_suffix(".artifacts")

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and let go of this process's sessions."""
        for session in list(self._locks):
            self._release(session)
        self._connection.close()

    def _now(self) -> str:
        return rows.time_text(self._clock())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the calls inside one: all of them are stored, or, if the process dies or one raises, none."""
        with self._connection.transaction():
            yield

    # Sessions

    def create_session(self, spec: SessionSpec) -> StoredSession:
        """Start a session; it belongs to this process. Its id is the day (UTC) and a counter."""
        with self._connection.transaction() as db:
            now = self._now()
            day = now[:10].replace("-", "") + "-"
            latest = "SELECT coalesce(max(CAST(substr(id, 10) AS INTEGER)), 0) FROM sessions WHERE substr(id, 1, 9) = ?"
            numbers = itertools.count(db.execute(latest, [day]).fetchone()[0] + 1)
            # A folder may remain from a database that was deleted; its files must not pass for this session's.
            session = next(id_ for n in numbers if not (self.artifacts / (id_ := f"{day}{n}")).exists())
            _table(db, "sessions").insert(
                {
                    "id": session,
                    "created": now,
                    "changed": now,
                    "kind": spec.kind,
                    "command": canonical_json(list(spec.command)),
                    "arguments": canonical_json(finite(spec.arguments)),
                    "repo": rows.text(spec.repo),
                    "recipe": rows.text(spec.recipe),
                    "device": spec.device,
                    "limit_bytes": spec.limit_bytes,
                    "good": spec.good,
                    "bad": spec.bad,
                    "oombisect_version": __version__,
                    "state": SessionState.RUNNING,
                }
            )
            self._hold(session)
            return self._session(db, session)

    def resume_session(self, name: str) -> StoredSession:
        """Take over an unfinished session; it belongs to this process from now on.

        Args:
            name: as for `session`.

        Raises:
            OombisectError: it is finished, or another process works on it.
        """
        with self._connection.transaction() as db:
            found = self._session(db, name)
            if found.state is SessionState.FINISHED:
                raise OombisectError(
                    f"Session {found.id} is finished", f"See its result with `{hints.command('show', found.id)}`."
                )
            self._hold(found.id)
            self._update_session(db, found.id, SessionState.RUNNING, None, None)
            return self._session(db, found.id)

    def reopen_session(self, name: str) -> StoredSession:
        """Take over a session, even a finished one: its verdict moves into an event, `reopened`.

        Raises:
            OombisectError: another process works on it.
        """
        with self._connection.transaction() as db:
            found = self._session(db, name)
            self._hold(found.id)
            if found.state is SessionState.FINISHED:
                self.append_event(found.id, REOPENED, {"exit_code": found.exit_code, "verdict": found.verdict})
            self._update_session(db, found.id, SessionState.RUNNING, None, None)
            return self._session(db, found.id)

    def finish_session(self, session: str, exit_code: int, verdict: Mapping[str, Any]) -> None:
        """Record how a session ended; only `reopen_session` changes that."""
        self._end_session(session, SessionState.FINISHED, exit_code, verdict)

    def interrupt_session(self, session: str, exit_code: int, verdict: Mapping[str, Any] | None = None) -> None:
        """Record that a session stopped early (Ctrl-C, budget spent); it can be resumed."""
        self._end_session(session, SessionState.INTERRUPTED, exit_code, verdict)

    def sessions(self, limit: int = 20) -> list[StoredSession]:
        """The newest sessions, newest first. One whose process died is shown as interrupted."""
        with self._connection.reading() as db:
            found = [rows.session_of(row) for row in db["sessions"].rows_where(order_by=_NEWEST_FIRST, limit=limit)]
        return [self._as_it_is(session) for session in found]

    def session(self, name: str) -> StoredSession:
        """One session.

        Args:
            name: its id, a beginning of the id that no other session shares, or `last`.
        """
        with self._connection.reading() as db:
            return self._as_it_is(self._session(db, name))

    def _session(self, db: Database, name: str) -> StoredSession:
        if name == "last":
            found = list(db["sessions"].rows_where(order_by=_NEWEST_FIRST, limit=1))
            if not found:
                raise OombisectError(
                    f"{self.path} holds no session yet", f"Start one with `{hints.command('run', 'GOOD..BAD')}`."
                )
        else:
            found = list(db["sessions"].rows_where("id = ?", [name])) or list(
                db["sessions"].rows_where("substr(id, 1, ?) = ?", [len(name), name], order_by=_NEWEST_FIRST)
            )
        if not name or not found:
            raise OombisectError(
                f"There is no session {name!r} in {self.path}", f"List them with `{hints.command('sessions')}`."
            )
        if len(found) > 1:
            some = ", ".join(row["id"] for row in found[:5]) + (", ..." if len(found) > 5 else "")
            raise OombisectError(f"{name!r} begins the ids of {len(found)} sessions: {some}", "Write more of the id.")
        return rows.session_of(found[0])

    def _as_it_is(self, session: StoredSession) -> StoredSession:
        """A process that was killed could not write down that it stopped."""
        ours = session.id in self._locks
        if session.state is SessionState.RUNNING and not ours and not locks.is_held(self.artifacts / session.id):
            return replace(session, state=SessionState.INTERRUPTED)
        return session

    def _hold(self, session: str) -> None:
        if session in self._locks:
            return
        try:
            self._locks[session] = locks.SessionLock(self.artifacts_dir(session))
        except BlockingIOError:
            raise OombisectError(
                f"Another process works on session {session}",
                "Wait until it ends, or end it; then resume the session.",
            ) from None
        except OSError as error:
            raise explain(error, self.path) from error

    def _release(self, session: str) -> None:
        if lock := self._locks.pop(session, None):
            lock.release()

    def _must_hold(self, session: str) -> None:
        if session not in self._locks:
            raise ValueError(f"session {session} belongs to no one here: create or resume it first")

    def _end_session(
        self, session: str, state: SessionState, exit_code: int, verdict: Mapping[str, Any] | None
    ) -> None:
        self._must_hold(session)
        with self._connection.transaction() as db:
            self._update_session(db, session, state, exit_code, verdict)
        self._release(session)

    def _update_session(
        self,
        db: Database,
        session: str,
        state: SessionState,
        exit_code: int | None,
        verdict: Mapping[str, Any] | None,
    ) -> None:
        _table(db, "sessions").update(
            session,
            {
                "state": state,
                "changed": self._now(),
                "exit_code": None if exit_code is None else int(exit_code),
                "verdict": None if verdict is None else canonical_json(finite(verdict)),
            },
        )

    def append_event(self, session: str, kind: str, payload: Mapping[str, Any]) -> Event:
        """Add to the session's log; replaying the log resumes the session."""
        self._must_hold(session)
        with self._connection.transaction() as db:
            following = "SELECT coalesce(max(seq) + 1, 0) FROM events WHERE session = ?"
            row = {
                "session": session,
                "seq": db.execute(following, [session]).fetchone()[0],
                "recorded": self._now(),
                "kind": kind,
                "payload": canonical_json(finite(payload)),
            }
            _table(db, "events").insert(row)
            return rows.event_of(row)

    def events(self, session: str) -> list[Event]:
        """The session's log, in order."""
        with self._connection.reading() as db:
            return [rows.event_of(row) for row in db["events"].rows_where("session = ?", [session], order_by="seq")]

    # Probes

    def begin_probe(self, spec: ProbeSpec) -> int:
        """Record that a probe is about to be launched, and what it will run.

        Returns:
            its id; its files belong into `artifacts_dir(session, id)`.
        """
        self._must_hold(spec.session)
        with self._connection.transaction() as db:
            workload = {
                "recipe": rows.text(spec.recipe),
                "device": spec.device,
                "simulated": int(spec.simulated),
                "settings": canonical_json(finite(spec.settings)),
            }
            about = {
                "subject": rows.text(spec.subject),
                "committed": None if spec.committed is None else rows.time_text(spec.committed),
            }
            probe = _insert(
                db,
                "probes",
                {
                    "session": spec.session,
                    "workload": _table(db, "workloads").lookup(workload),
                    "point": _table(db, "points").lookup({"repo": spec.repo, "key": spec.point}, about),
                    "request": spec.request,
                    "signature": spec.signature,
                    "probe_version": spec.probe_version,
                    "capacity_bytes": spec.capacity_bytes,
                    "started": self._now(),
                },
            )
            _table(db, "jobs").insert({"probe": probe, "job": canonical_json(finite(spec.job))})
            return probe

    def finish_probe(
        self,
        probe: int,
        reading: Reading,
        config: Mapping[str, Any] | None = None,
        *,
        allocator_settings: str = "",
        reusable: bool | None = None,
    ) -> StoredProbe:
        """Record what a probe read: all of it, once and for good.

        Args:
            reading: its `fits` is not stored, for that depends on the limit someone asks about. Its snapshots are named
                relative to the probe's artifacts folder. A device it leaves empty is the one the probe was begun with.
            config: the resolved configuration; needed the first time its hash is seen.
            allocator_settings: PYTORCH_CUDA_ALLOC_CONF as the probe saw it.
            reusable: whether it may answer later requests of its signature. Default: unless it is an infrastructure
                error. False is for what the signature does not determine, such as a time limit.
        """
        if reusable is None:
            reusable = reading.outcome is not Outcome.INFRA
        elif reusable and reading.outcome is Outcome.INFRA:
            raise ValueError("an infrastructure error says nothing about the code: it is never reusable")
        begun = self.probe(probe)
        self._must_hold(begun.spec.session)
        if begun.finished:
            raise ValueError(f"probe {probe} is finished already")
        if reading.device and (reading.device, reading.simulated) != (begun.spec.device, begun.spec.simulated):
            raise ValueError(f"probe {probe} was begun on {begun.spec.device}, its reading is of {reading.device}")
        # Hashing may take a while: done before others are kept waiting.
        snapshots = self._snapshot_rows(begun, reading)
        with self._connection.transaction() as db:
            references = {
                "config": self._config_id(db, reading.config_hash, config),
                "environment": _once(db, "environments", "versions", dict(reading.versions)),
                "import_set": _once(db, "import_sets", "files", list(reading.imported)),
            }
            _table(db, "rank_readings").insert_all(rows.rank_rows(probe, reading))
            _table(db, "phase_metrics").insert_all(rows.phase_rows(probe, reading))
            _table(db, "ooms").insert_all(rows.oom_rows(probe, reading))
            _table(db, "snapshots").insert_all(snapshots)
            ending = {
                "finished": self._now(),
                "reusable": int(reusable),
                "allocator_settings": rows.text(allocator_settings),
            }
            _table(db, "probes").update(probe, {**rows.summary(reading), **references, **ending})
            return self._probe(db, probe)

    def find_measurement(self, signature: str, *, after: int = 0, besides: Collection[int] = ()) -> StoredProbe | None:
        """The newest finished, reusable probe of this signature, of any session; None: it must be measured.

        Args:
            after: only of the probes after this one.
            besides: probes that are not to answer.
        """
        with self._connection.reading() as db:
            newest = (
                "SELECT max(id) FROM probes WHERE signature = :signature AND reusable = 1 AND id > :after "
                "AND id NOT IN (SELECT value FROM json_each(:besides))"
            )
            given = {"signature": signature, "after": after, "besides": json.dumps(list(besides))}
            found = rows.load_probes(db, f"probes.id = ({newest})", given)
            return found[0] if found else None

    def probe(self, probe: int) -> StoredProbe:
        """One probe, finished or not."""
        with self._connection.reading() as db:
            return self._probe(db, probe)

    def probes(self, session: str) -> list[StoredProbe]:
        """The probes that a session launched, in order, unfinished ones included."""
        with self._connection.reading() as db:
            return rows.load_probes(db, "probes.session = :session ORDER BY probes.id", {"session": session})

    def probes_like(self, recipe: str, device: str, limit: int) -> list[StoredProbe]:
        """The newest finished probes of a recipe on a device, of any session, newest first."""
        with self._connection.reading() as db:
            where = "workloads.recipe = :recipe AND workloads.device = :device AND probes.finished IS NOT NULL"
            given = {"recipe": rows.text(recipe), "device": device, "limit": limit}
            return rows.load_probes(db, f"{where} ORDER BY probes.id DESC LIMIT :limit", given)

    def reading(self, probe: int) -> Reading:
        """What a finished probe read, equal to the reading that was stored (but for `fits`, which is None)."""
        found = self.probe(probe)
        if found.reading is None:
            raise OombisectError(f"Probe {probe} did not finish", f"Resume its session {found.spec.session}.")
        return found.reading

    def config(self, config_hash: str) -> dict[str, Any] | None:
        """A resolved configuration by its hash; None: not stored."""
        with self._connection.reading() as db:
            for row in db["configs"].rows_where("hash = ?", [config_hash]):
                return cast(dict[str, Any], json.loads(row["config"]))
        return None

    def _probe(self, db: Database, probe: int) -> StoredProbe:
        found = rows.load_probes(db, "probes.id = :id", {"id": probe})
        if not found:
            raise OombisectError(
                f"There is no probe {probe} in {self.path}", f"List a session's with `{hints.command('show')}`."
            )
        return found[0]

    def _config_id(self, db: Database, config_hash: str, config: Mapping[str, Any] | None) -> int | None:
        if not config_hash:
            return None
        for row in db["configs"].rows_where("hash = ?", [config_hash], select="id"):
            return cast(int, row["id"])
        if config is None:
            raise ValueError(f"configuration {config_hash} is not stored yet, and was not given")
        return _insert(db, "configs", {"hash": config_hash, "config": canonical_json(finite(config))})

    def _snapshot_rows(self, begun: StoredProbe, reading: Reading) -> list[dict[str, Any]]:
        folder = rows.probe_folder(begun.spec.session, begun.id)
        try:
            return rows.snapshot_rows(begun.id, reading, self.artifacts, folder)
        except OSError as error:
            raise explain(error, self.path) from error

    # Replays

    def add_replay(self, replay: ReplayRecord) -> None:
        """Record what a replay showed; one that is known already is left as it is."""
        row = {**asdict(replay), "survived": int(replay.survived), "recorded": self._now()}
        with self._connection.transaction() as db:
            _table(db, "replays").insert(row, ignore=True)

    def find_replay(self, trace: str, alloc_conf: str, model: str, limit_bytes: int | None) -> ReplayRecord | None:
        """What a replay showed of any rank with this `trace` (`RankReading.trace`); None: none was made."""
        with self._connection.reading() as db:
            query = """
                SELECT replays.* FROM rank_readings JOIN replays USING (probe, rank)
                WHERE trace = ? AND alloc_conf = ? AND model = ? AND limit_bytes IS ? ORDER BY replays.id LIMIT 1"""
            for row in db.query(query, [trace, alloc_conf, model, limit_bytes]):
                del row["id"], row["recorded"]
                return ReplayRecord(**{**row, "survived": bool(row["survived"])})
        return None

    # Imports

    def add_import(self, spec: ImportSpec, readings: Sequence[ImportedReading]) -> int:
        """Record what a source tells, all of it or nothing; how many of the readings were not there yet."""
        with self._connection.transaction() as db:
            return add_import(db, spec, readings, self._now())

    def imported_from(self, kind: ImportKind) -> dict[str, tuple[str, str, dict[str, Any]]]:
        """By origin, the recipe, device and settings that readings of that kind were imported under."""
        with self._connection.reading() as db:
            return imported_from(db, kind)

    # Artifacts

    def artifacts_dir(self, session: str, probe: int | None = None) -> Path:
        """The folder for files of a session, or of one of its probes; created."""
        folder = self.artifacts / (session if probe is None else rows.probe_folder(session, probe))
        make_folder(folder, self.path)
        return folder

    def snapshot(self, probe: int, rank: int) -> Path | None:
        """Where a rank's allocation history lies; None: it kept none. The file may be gone."""
        with self._connection.reading() as db:
            for row in db["snapshots"].rows_where("probe = ? AND rank = ?", [probe, rank]):
                return self.artifacts / cast(str, row["path"])
        return None


def _table(db: Database, name: str) -> Table:
    return cast(Table, db[name])


def _insert(db: Database, table: str, row: dict[str, Any]) -> int:
    """Insert a row; its integer primary key."""
    return cast(int, _table(db, table).insert(row, pk="id").last_pk)


def _once(db: Database, table: str, column: str, value: Any) -> int | None:
    """The id of `value` in a table that stores each value once; None for an empty one."""
    if not value:
        return None
    return cast(int, _table(db, table).lookup({"hash": json_hash(value)}, {column: canonical_json(value)}))
