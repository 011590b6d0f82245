"""The values that go into the store and come out of it. Sizes are bytes, times are aware datetimes (UTC when read)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from oombisect.readings import Reading

RUN_AGAIN = ("probe", "check", "watch")
"""Kinds of sessions with no search to go on with: where one was stopped, its command line is run again."""


class SessionState(StrEnum):
    """RUNNING: a process works on it. INTERRUPTED: it can be resumed. FINISHED: it has its verdict for good."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a session is started with.

    Args:
        kind: the command: `run`, `config`, `releases`, `demo`, `probe`, `check`, `watch`.
        command: the command line as typed.
        arguments: the parsed arguments, plain JSON: all that `resume` needs.
        repo: path or address of the repository.
        limit_bytes: the memory the run must fit in; None: the device's capacity.
        good, bad: the endpoints, resolved.
    """

    kind: str
    command: tuple[str, ...]
    arguments: Mapping[str, Any]
    repo: str
    recipe: str
    device: str
    good: str
    bad: str
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as the store has it; `exit_code` and `verdict` are None until it ended."""

    id: str
    spec: SessionSpec
    state: SessionState
    created: datetime
    changed: datetime
    oombisect_version: str
    exit_code: int | None = None
    verdict: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a session's log; `seq` counts from 0 without gaps."""

    session: str
    seq: int
    kind: str
    payload: Mapping[str, Any]
    recorded: datetime


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """What a probe is started with.

    Args:
        session: the session's id.
        signature: see `oombisect.history.signature`.
        repo: `bridge`, `megatron-lm`, `config` or `package`.
        point: commit hash, or what identifies the point on its axis; with `repo` it names the point.
        recipe: as asked for. With device, simulated and settings it names a series of comparable readings.
        settings: all else that a series holds fixed (overrides, iterations, ranks, environment): plain JSON.
        job: the job file without what only this run has (its output folder): plain JSON.
        request: `measure`, `remeasure`, `revert`, ...
        capacity_bytes: device memory that is enforced; None: the device's own, or none on a virtual one.
        committed: when the commit or release was made, if it was.
    """

    session: str
    signature: str
    repo: str
    point: str
    recipe: str
    device: str
    simulated: bool
    probe_version: str
    subject: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    request: str = "measure"
    capacity_bytes: int | None = None
    committed: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoredProbe:
    """A probe as the store has it. Until it finished, `reading` is None and it answers no request.

    `reusable`: it answers later requests of the same signature. `allocator_settings`: as the probe saw them.
    """

    id: int
    spec: ProbeSpec
    started: datetime
    finished: datetime | None = None
    reading: Reading | None = None
    reusable: bool = False
    allocator_settings: str = ""


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """What one replay of a rank's allocation history showed. All sizes are bytes of PyTorch's allocator alone.

    Args:
        alloc_conf: the settings it was replayed under, as the allocator reported them to the probe.
        model: the rules it was replayed by, and their version.
        limit_bytes: what the allocator could take from the device; None: as much as it asked for.
        survived: it did not run out of memory; where it did, the peaks are those up to there.
        needed_bytes: the smallest limit it survives; None: not looked for.
    """

    probe: int
    rank: int
    alloc_conf: str
    model: str
    limit_bytes: int | None
    survived: bool
    peak_allocated: int
    peak_reserved: int
    needed_bytes: int | None = None
