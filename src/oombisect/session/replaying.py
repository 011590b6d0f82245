"""Recorded histories, replayed: whether a run would survive under another limit, and how much it needs.

An answer counts only if the model first reproduces the recorded history itself, every address of it, and the peaks the
allocator's own counters told. Where it does not, nothing is answered here, and a probe must tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from oombisect.history.records import ReplayRecord
from oombisect.history.store import Store
from oombisect.memory.allocator.rules import Rules, guess_rules, rules_for
from oombisect.memory.allocator.settings import Settings, SettingsError
from oombisect.memory.replay import NOWHERE, Fidelity, Replay, check, learn, needed, replay
from oombisect.memory.requests import Op, Requests
from oombisect.memory.snapshots import SnapshotError, load, requests_of
from oombisect.memory.stacks import Places, place_text, sites
from oombisect.memory.trace import Snapshot
from oombisect.readings import RankReading, Reading

MODEL = 2
"""The version of the model of the allocator: replays of another one are not reused.

Raise it whenever a replay may answer otherwise than before: a rule of the allocator, what is read out of a snapshot,
the search for the needed capacity. One raise covers all changes since the last release
(tests/session/test_histories.py notices).
"""

_KEPT = 2  # histories held in memory: the two sides of a step
_MOST_FRAMES = 8


class CannotReplay(Exception):
    """The snapshot holds no history, or one the model does not reproduce; the message says which."""


@dataclass(frozen=True)
class History:
    """The recorded history of one device, ready to be replayed.

    `fraction` is what the run set by torch.cuda.set_per_process_memory_fraction, which no snapshot tells.
    """

    path: Path
    snapshot: Snapshot
    requests: Requests
    settings: Settings
    rules: Rules
    device_bytes: int
    imported: tuple[str, ...] = ()
    device: int = 0
    fraction: float | None = None

    @property
    def several(self) -> bool:
        """The snapshot has histories of other devices, too."""
        return sum(bool(len(memory.trace)) for memory in self.snapshot.devices) > 1

    @cached_property
    def _places(self) -> Places:
        files = {frame.file for stack in self.snapshot.stacks for frame in stack}
        return Places(files, self.imported)

    def frames(self, stack: int) -> list[str]:
        """The frames of a call stack that say what was allocated, innermost first; none where none was recorded."""
        if stack < 0:
            return []
        found = sites(self.snapshot.stacks[stack], self._places)
        return [f"{site.function} ({place_text(site)})" for site in found[:_MOST_FRAMES]]

    @property
    def complete(self) -> bool:
        """Whether it is the history of the whole run; if not, the run needed at least what a replay says."""
        return not self.died and not self.begins_late

    @cached_property
    def died(self) -> bool:
        """The last request failed when it was recorded: what would have been asked for next is not known."""
        last = self.requests.ops.rfind(Op.ALLOC)
        return last >= 0 and self.requests.addresses[self.requests.blocks[last]] == NOWHERE

    @property
    def begins_late(self) -> bool:
        """There was memory before the first recorded event: how much there once was is not known.

        The recording was begun in the middle of the run, or kept its last events only (`max_entries`).
        """
        return bool(self.requests.initial) or self.requests.unmatched_frees > 0

    @cached_property
    def peak_requested(self) -> int:
        """What no allocator can go under: the most bytes asked for and not freed at a time; see `Requests`."""
        return self.requests.peak_requested()

    @cached_property
    def fidelity(self) -> Fidelity:
        """How well the model reproduces what was recorded."""
        return check(self.requests, self.settings, self.rules, device_bytes=self.device_bytes, fraction=self.fraction)

    @cached_property
    def whole(self) -> Replay:
        """The replay with as much memory as it asks for, under the settings it was recorded under."""
        return self._replay(None)

    def replay(self, limit: int | None = None) -> Replay:
        """The replay under the settings it was recorded under."""
        return self.whole if limit is None else self._replay(limit)

    def _replay(self, limit: int | None) -> Replay:
        return replay(
            self.requests,
            self.settings,
            self.rules,
            device_bytes=self.device_bytes,
            limit=limit,
            fraction=self.fraction,
        )

    def needed(self) -> int:
        """The smallest limit it survives under the settings it was recorded under, bytes of the allocator alone."""
        return needed(
            self.requests,
            self.settings,
            self.rules,
            device_bytes=self.device_bytes,
            fraction=self.fraction,
            unlimited=self.whole,
        )


def open_history(
    path: Path, *, device_bytes: int, torch_version: str | None = None, imported: tuple[str, ...] = ()
) -> History:
    """The longest of `open_histories`, whose arguments and errors it has: a probe's rank uses one device."""
    return open_histories(path, device_bytes=device_bytes, torch_version=torch_version, imported=imported)[0]


def open_histories(
    path: Path,
    *,
    device_bytes: int,
    torch_version: str | None = None,
    imported: tuple[str, ...] = (),
    device: int | None = None,
    fraction: float | None = None,
) -> tuple[History, ...]:
    """Read the histories in a snapshot file: of each device that allocations were recorded of, the longest first.

    Args:
        device_bytes: the memory of a device as CUDA reports it.
        torch_version: the release that wrote it; None: inferred from what it says of its settings.
        imported: project files the run imported, as `project:path`; they shorten the names of files.
        device: of this one only.
        fraction: torch.cuda.set_per_process_memory_fraction of the run; None: it was not called.

    Raises:
        SnapshotError: the file is no snapshot.
        CannotReplay: it holds no allocations, or none of `device`.
    """
    snapshot = load(path)
    rules = rules_for(torch_version) if torch_version else guess_rules(snapshot.settings)
    try:
        settings = Settings.of_snapshot(snapshot.settings, rules)
    except SettingsError as error:
        raise CannotReplay(f"its allocator settings: {error}") from error
    recorded = [memory for memory in snapshot.devices if len(memory.trace) and device in (None, memory.device)]
    found = []
    for memory in sorted(recorded, key=lambda memory: -len(memory.trace)):
        told = requests_of(memory, snapshot)
        requests = learn(told, settings, rules, device_bytes=device_bytes, fraction=fraction)
        if requests.sizes:
            found.append(
                History(path, snapshot, requests, settings, rules, device_bytes, imported, memory.device, fraction)
            )
    if not found:
        others = sorted(memory.device for memory in snapshot.devices if len(memory.trace))
        if device is not None and others:
            which = ", ".join(map(str, others))
            raise CannotReplay(f"it holds no history of allocations of device {device}, but of {which} (--device)")
        raise CannotReplay(
            "it holds no history of allocations: record one with torch.cuda.memory._record_memory_history"
        )
    return tuple(found)


@dataclass
class Replays:
    """Answers about the ranks of stored probes; every answer is a row of the store before it is used.

    `device_bytes` is the memory of the device the probes ran on, as CUDA reports it.
    """

    store: Store
    device_bytes: int
    _histories: dict[tuple[int, int], History | None] = field(default_factory=dict)
    _died: dict[tuple[int, int], int | None] = field(default_factory=dict)

    def survives(self, probe: int, rank: RankReading, limit: int) -> bool | None:
        """Whether a rank survives on a device of `limit` bytes, external memory included; None: no replay tells."""
        found = self._answer(probe, rank, limit - rank.external)
        return None if found is None else found.survived

    def needed(self, probe: int, rank: RankReading) -> int | None:
        """The smallest device a rank survives on, bytes, external memory included; None: no replay tells."""
        found = self._answer(probe, rank, None)
        return None if found is None or found.needed_bytes is None else found.needed_bytes + rank.external

    def peak_requested(self, probe: int, rank: RankReading) -> int | None:
        """What no allocator can go under, bytes of the allocator alone; None: not counted, and no history tells.

        The counters of a rank that ran out of memory end before the request that failed: its history has that, too.
        """
        if rank.oom is None:
            return rank.peak_requested
        if (probe, rank.rank) not in self._died:
            history = self._read(probe, rank)
            self._died[probe, rank.rank] = None if history is None else history.peak_requested
        found = self._died[probe, rank.rank]
        return rank.peak_requested if found is None else max(found, rank.peak_requested or 0)

    def history(self, probe: int, rank: RankReading) -> History | None:
        """The rank's history, if the model reproduces it."""
        key = (probe, rank.rank)
        if key not in self._histories:
            while len(self._histories) >= _KEPT:
                del self._histories[next(iter(self._histories))]
            self._histories[key] = self._open(probe, rank)
        return self._histories[key]

    def _answer(self, probe: int, rank: RankReading, limit: int | None) -> ReplayRecord | None:
        if rank.trace is None:
            return None
        stored = self.store.probe(probe)
        reading = stored.reading
        assert reading is not None
        model = f"{rules_for(_torch(reading)).name}, {MODEL}"
        known = self.store.find_replay(rank.trace, stored.allocator_settings, model, limit)
        if known is not None:
            return known
        history = self.history(probe, rank)
        if history is None:
            return None
        told = history.replay(limit=limit)
        record = ReplayRecord(
            probe,
            rank.rank,
            stored.allocator_settings,
            model,
            limit,
            told.first_oom is None,
            told.peak_allocated,
            told.peak_reserved,
            history.needed() if limit is None else None,
        )
        self.store.add_replay(record)
        return record

    def _open(self, probe: int, rank: RankReading) -> History | None:
        """The rank's history; None where the model does not reproduce it."""
        history = self._read(probe, rank)
        if history is None or not history.fidelity.exact:
            return None
        peaks = (history.whole.peak_allocated, history.whole.peak_reserved)
        return history if peaks == (rank.peak_allocated, rank.peak_reserved) else None

    def _read(self, probe: int, rank: RankReading) -> History | None:
        """The rank's history, replayed by nobody yet; None where there is none to be read."""
        path = self.store.snapshot(probe, rank.rank)
        stored = self.store.probe(probe)
        if path is None or stored.reading is None:
            return None
        try:
            return open_history(
                path,
                device_bytes=self.device_bytes,
                torch_version=_torch(stored.reading),
                imported=stored.reading.imported,
            )
        except (OSError, SnapshotError, CannotReplay):
            return None


def _torch(reading: Reading) -> str | None:
    versions: Mapping[str, str] = reading.versions
    return versions.get("torch")
