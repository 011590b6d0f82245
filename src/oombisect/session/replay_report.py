"""What replays of one recorded history say: as recorded, under other settings, on a smaller device.

Sizes are bytes of a device: what the allocator needs and the external memory beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oombisect.errors import OombisectError
from oombisect.history.store import Store
from oombisect.memory.allocator.settings import Settings
from oombisect.memory.replay import Fidelity, ReplayError
from oombisect.memory.snapshots import SnapshotError
from oombisect.memory.whatif import STANDARD, WhatIf, under, what_if
from oombisect.session.needs import describe_stranded
from oombisect.session.replaying import CannotReplay, History, open_history
from oombisect.session.snapshots_of import Located
from oombisect.virtual_gpu.profiles import parse_gpu

SCHEMA = 1
AS_RECORDED = "as recorded"
_DEFAULT_DEVICE = "virtual:h100-80gb"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The answers. `rows[0]` is the run as it was recorded, the others are what-ifs.

    Args:
        label: what was replayed, for people. `simulated`: it was recorded on a virtual device.
        limit: the device it must fit in; None: not asked.
        external: what lies on the device beside the allocator's memory.
        failure: the first request that fails as recorded under the limit, and what is stranded then.
    """

    label: str
    simulated: bool
    rank: int | None
    history: History
    fidelity: Fidelity
    limit: int | None
    external: int
    rows: tuple[WhatIf, ...]
    failure: dict[str, Any] | None

    @property
    def perfect(self) -> int:
        """What a perfect allocator needs: peak allocated and external memory."""
        first = self.rows[0].unlimited
        assert first is not None
        return first.peak_allocated + self.external

    @property
    def fits(self) -> bool | None:
        """As recorded, under the limit."""
        return self.rows[0].fits

    def to_json(self) -> dict[str, Any]:
        """The contract of `replay --json` (docs/json.md)."""
        return {
            "schema": SCHEMA,
            "snapshot": self.label,
            "rank": self.rank,
            "simulated": self.simulated,
            "events": self.history.requests.trace_events,
            "allocations": self.fidelity.allocations,
            "rules": {"name": self.history.rules.name, "reason": self.history.rules.reason},
            "fidelity": {
                "exact": self.fidelity.exact,
                "addresses": self.fidelity.allocations,
                "segment_events": self.fidelity.segment_events,
                "mismatch": self.fidelity.mismatch or None,
            },
            "limit_bytes": self.limit,
            "external_bytes": self.external,
            "settings": [self._row_json(row, recorded=number == 0) for number, row in enumerate(self.rows)],
            "perfect": {
                "min_limit_bytes": self.perfect,
                "fits": None if self.limit is None else self.perfect <= self.limit,
            },
            "first_oom": self.failure,
            "notes": list(notes(self)),
        }

    def _row_json(self, row: WhatIf, *, recorded: bool) -> dict[str, Any]:
        shown = row.unlimited
        return {
            "alloc_conf": row.alloc_conf,
            "recorded": recorded,
            "refused": row.refused or None,
            "peak_allocated": shown.peak_allocated if shown else None,
            "peak_reserved": shown.peak_reserved if shown else None,
            "final_reserved": shown.final_reserved if shown else None,
            "fits": row.fits,
            "ooms": None if row.limited is None else row.limited.ooms,
            "retries": None if row.limited is None else row.limited.retries,
            "min_limit_bytes": None if row.needed is None else row.needed + self.external,
            "notes": list(shown.notes) if shown else [],
        }


def notes(report: ReplayReport) -> tuple[str, ...]:
    """What a reader should know of the history and of the replays, each said once."""
    told = [*report.history.snapshot.notes, *report.history.requests.notes]
    for row in report.rows:
        told += row.unlimited.notes if row.unlimited else ()
    return tuple(dict.fromkeys(note for note in told if note))


def limit_of(located: Located, store: Store | None) -> int | None:
    """The limit of the session that the probe belongs to, bytes; None for a bare file."""
    if located.probe is None or store is None:
        return None
    return store.session(located.probe.spec.session).spec.limit_bytes


def replay_snapshot(
    located: Located,
    *,
    limit: int | None,
    external: int | None,
    alloc_confs: Sequence[str],
    gpu: str | None,
    torch_version: str | None,
    progress: Callable[[str], None],
) -> ReplayReport:
    """Replay what `located` recorded.

    Args:
        limit: None: that of the probe's session, none for a bare file.
        external: None: what the probe measured, 0 for a bare file.
        alloc_confs: settings to try; none: `STANDARD`.
        gpu: the device whose memory is meant; None: the probe's own, or an H100.
        torch_version: whose rules; None: the probe's own, or inferred from the snapshot.
        progress: told what is being done.

    Raises:
        OombisectError: it is no snapshot, or holds no history.
    """
    device = gpu or (located.probe.spec.device if located.probe else _DEFAULT_DEVICE)
    profile = parse_gpu(device if device.startswith("virtual:") else _DEFAULT_DEVICE)
    reading, rank = located.reading, located.rank_reading
    outside = external if external is not None else rank.external if rank else 0
    progress(f"reading {located.label}")
    try:
        history = open_history(
            located.path,
            device_bytes=profile.total_bytes,
            torch_version=torch_version or (reading.versions.get("torch") if reading else None),
            imported=reading.imported if reading else (),
        )
        progress("replaying as recorded")
        fidelity = history.fidelity
        allowed = None if limit is None else limit - outside
        if allowed is not None and allowed <= 0:
            raise OombisectError("The memory outside PyTorch alone exceeds the limit", "Give a larger --limit.")
        rows = [under(history.requests, history.settings, history.settings, history.rules,
                      device_bytes=history.device_bytes, limit=allowed)]  # fmt: skip
        for conf in alloc_confs or STANDARD:
            if not alloc_confs and _is_recorded(conf, history.settings):
                continue
            progress(f"replaying under {conf or 'the defaults'}")
            rows += what_if(
                history.requests, [conf], history.settings, history.rules,
                device_bytes=history.device_bytes, limit=allowed,
            )  # fmt: skip
        failure = None if allowed is None or rows[0].fits else describe_stranded(history, allowed, rank)
    except SnapshotError as error:
        raise OombisectError(f"{located.label}: {error}", "See docs/snapshots.md for what can be read.") from error
    except (CannotReplay, ReplayError) as error:
        raise OombisectError(
            f"{located.label} cannot be replayed: {error}", "See docs/replay.md for what a replay needs."
        ) from error
    return ReplayReport(
        located.label,
        reading.simulated if reading else False,
        located.rank,
        history,
        fidelity,
        limit,
        outside,
        tuple(rows),
        failure,
    )


def _is_recorded(conf: str, recorded: Settings) -> bool:
    return conf == recorded.text
