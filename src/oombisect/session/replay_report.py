"""What replays of recorded histories say: as recorded, under other settings, on a smaller device.

Sizes are bytes of a device: what the allocator needs and the external memory beside it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.store import Store
from oombisect.memory.allocator.settings import Settings, SettingsError
from oombisect.memory.replay import ReplayError
from oombisect.memory.snapshots import SnapshotError
from oombisect.memory.whatif import STANDARD, WhatIf, under, what_if
from oombisect.printable import quoted
from oombisect.resources import docs_dir
from oombisect.session.needs import describe_stranded
from oombisect.session.replaying import CannotReplay, History, open_histories
from oombisect.session.snapshots_of import Located
from oombisect.units import format_bytes
from oombisect.virtual_gpu.profiles import PROFILES, GpuProfile, parse_gpu

SCHEMA = 1
LATE = (
    "the recording begins when there is memory already: what the run took before is not known, so sizes are at least"
    " what the whole run needed (_record_memory_history before the first allocation tells more)"
)
DIED = "the run died of an out-of-memory error: sizes are at least what it needed, and include the request that failed"
UNEXPLAINED = (
    "what failed when it was recorded fits here: memory outside PyTorch is not counted (--external SIZE counts it), or"
    " the run had less memory than this limit"
)
_DEFAULT_GPU = "virtual:h100-80gb"
_MOST_REASONS = 5
_TORCH = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}([.+a-z].*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Row:
    """One setting, replayed on one device. `recorded`: it is the run as it was recorded."""

    history: History
    answer: WhatIf
    recorded: bool

    @property
    def fits(self) -> bool | None:
        """Under the limit; None: no limit, it is refused, or more may have been asked for than was recorded."""
        fits = self.answer.fits
        return None if fits and not self.history.complete else fits

    @property
    def is_lower_bound(self) -> bool:
        """The sizes are those of a part of the run: what was recorded, or what a memory fraction let it get to."""
        shown = self.answer.unlimited
        return not self.history.complete or (shown is not None and not shown.survived)

    @property
    def approximate(self) -> bool:
        """What was there before the trace is placed as if it were asked for anew."""
        return not self.recorded and bool(self.history.requests.initial) and self.answer.unlimited is not None


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The answers.

    Args:
        label: what was replayed, for people. `simulated`: it was recorded on a virtual device.
        devices: every device with a history, as it was recorded; the first is the one that needs most.
        what_ifs: that one under other settings.
        limit: what each device must fit in; None: not asked.
        external: what lies on each beside the allocator's memory.
        failure: the first request of the first device that fails as recorded, and what is stranded then.
        chosen: notes on the choice of what is replayed.
    """

    label: str
    simulated: bool
    rank: int | None
    devices: tuple[Row, ...]
    what_ifs: tuple[Row, ...]
    limit: int | None
    external: int
    failure: dict[str, Any] | None
    chosen: tuple[str, ...] = ()

    @property
    def history(self) -> History:
        """That of the device that needs most."""
        return self.devices[0].history

    @property
    def rows(self) -> tuple[Row, ...]:
        """All that is known of the device that needs most: as recorded, then the what-ifs."""
        return (self.devices[0], *self.what_ifs)

    @property
    def perfect(self) -> int:
        """What a perfect allocator needs there: what was asked for at the peak, and external memory."""
        return self.history.peak_requested + self.external

    @property
    def perfect_fits(self) -> bool | None:
        """Whether a perfect allocator fits the limit; None: no limit, or not all that was asked for is recorded."""
        if self.limit is None or (self.perfect <= self.limit and not self.history.complete):
            return None
        return self.perfect <= self.limit

    @property
    def fits(self) -> bool | None:
        """Whether every device fits as recorded; None: no limit, or one is not known to its ends."""
        answers = {row.fits for row in self.devices}
        return next((answer for answer in (False, None) if answer in answers), True)

    def needs(self, row: Row) -> int | None:
        """The smallest device it survives on, external memory included; None: refused, or forbidden by a fraction."""
        return None if row.answer.needed is None else row.answer.needed + self.external

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of the histories and of the replays, each said once."""
        told = [*self.chosen, *self.history.snapshot.notes]
        for row in self.devices:
            told += [DIED] if row.history.died else []
            told += [UNEXPLAINED] if row.history.died and row.answer.fits and not self.external else []
            told += [LATE] if row.history.begins_late else []
            told += row.history.requests.notes
        for row in self.rows:
            told += row.answer.unlimited.notes if row.answer.unlimited else ()
        return tuple(dict.fromkeys(note for note in told if note))

    def to_json(self) -> dict[str, Any]:
        """The contract of `replay --json` (docs/json.md)."""
        first = self.devices[0].history
        return {
            "schema": SCHEMA,
            "snapshot": self.label,
            "rank": self.rank,
            "simulated": self.simulated,
            "fits": self.fits,
            "exit": self.exit_code,
            "device": first.device,
            "events": first.requests.trace_events,
            "allocations": first.fidelity.allocations,
            "complete": first.complete,
            "rules": {"name": first.rules.name, "reason": first.rules.reason},
            "fidelity": _fidelity_json(first),
            "limit_bytes": self.limit,
            "external_bytes": self.external,
            "memory_fraction": first.fraction,
            "settings": [self._row_json(row) for row in self.rows],
            "perfect": {"min_limit_bytes": self.perfect, "fits": self.perfect_fits},
            "first_oom": self.failure,
            "devices": [
                {
                    "device": row.history.device,
                    "events": row.history.requests.trace_events,
                    "fidelity": _fidelity_json(row.history),
                    "complete": row.history.complete,
                    **self._row_json(row),
                }
                for row in self.devices
            ],
            "notes": list(self.notes),
        }

    @property
    def exit_code(self) -> int:
        """1: a device does not fit as recorded."""
        return 1 if self.fits is False else 0

    def _row_json(self, row: Row) -> dict[str, Any]:
        shown, limited = row.answer.unlimited, row.answer.limited
        return {
            "alloc_conf": row.answer.alloc_conf,
            "recorded": row.recorded,
            "refused": row.answer.refused or None,
            "approximate": row.approximate,
            "is_lower_bound": row.is_lower_bound,
            "peak_allocated": shown.peak_allocated if shown else None,
            "peak_reserved": shown.peak_reserved if shown else None,
            "final_reserved": shown.final_reserved if shown else None,
            "fits": row.fits,
            "ooms": None if limited is None else limited.ooms,
            "retries": None if limited is None else limited.retries,
            "min_limit_bytes": self.needs(row),
            "notes": list(shown.notes) if shown else [],
        }


def _fidelity_json(history: History) -> dict[str, Any]:
    told = history.fidelity
    return {
        "exact": told.exact,
        "addresses": told.allocations,
        "segment_events": told.segment_events,
        "mismatch": told.mismatch or None,
    }


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a snapshot; sizes are bytes.

    Args:
        limit: what a device must fit in; None: the memory of `gpu` if that is named, else the limit of the probe's
            session, none for a bare file.
        external: what lies outside PyTorch; None: what the probe measured, 0 for a bare file.
        alloc_confs: settings to try; none: `STANDARD`.
        device: of a snapshot of several devices, this one only; None: all.
        gpu: the kind of device, `virtual:PROFILE`; None: the probe's own, or an H100.
        torch_version: whose rules; None: the probe's own, or inferred from the snapshot.
        fraction: torch.cuda.set_per_process_memory_fraction of the run; None: it was not called.
    """

    limit: int | None = None
    external: int | None = None
    alloc_confs: Sequence[str] = ()
    device: int | None = None
    gpu: str | None = None
    torch_version: str | None = None
    fraction: float | None = None

    def check(self) -> None:
        """Refuse what makes no sense, before anything is read.

        Raises:
            OombisectError: a value that is none of its kind.
        """
        if self.gpu is not None and not self.gpu.startswith("virtual:"):
            raise OombisectError(
                f"--gpu {self.gpu!r} is no device whose memory is known here",
                f"Name one of {', '.join(f'virtual:{name}' for name in PROFILES)}, or a size such as virtual:79.6GiB.",
            )
        if self.gpu is not None:
            parse_gpu(self.gpu)
        if self.torch_version is not None and not _TORCH.fullmatch(self.torch_version):
            raise OombisectError(
                f"--torch {self.torch_version!r} is no release of PyTorch", "Write it like 2.9 or 2.14.1."
            )
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise OombisectError(f"--fraction {self.fraction:g} is out of range", "Use more than 0, at most 1.")
        if self.device is not None and self.device < 0:
            raise OombisectError(f"--device {self.device} is out of range", "Devices are numbered from 0.")


def replay_snapshot(
    located: Located, store: Store | None, asked: Question, progress: Callable[[str], None]
) -> ReplayReport:
    """Replay what `located` recorded.

    Args:
        progress: told what is being done.

    Raises:
        OombisectError: it is no snapshot, or holds no allocations; what is asked makes no sense.
    """
    asked.check()
    reading, rank = located.reading, located.rank_reading
    profile = _profile(located, asked)
    outside = asked.external if asked.external is not None else rank.external if rank else 0
    limit = asked.limit if asked.limit is not None else profile.total_bytes if asked.gpu else _limit_of(located, store)
    if limit is not None and outside >= limit:
        raise OombisectError(
            f"{format_bytes(outside)} outside PyTorch leave nothing of the limit of {format_bytes(limit)}",
            "Give a larger --limit, or a smaller --external.",
        )
    allowed = None if limit is None else limit - outside
    progress(f"reading {located.label}")
    try:
        histories = open_histories(
            located.path,
            device_bytes=profile.total_bytes,
            torch_version=asked.torch_version or (reading.versions.get("torch") if reading else None),
            imported=reading.imported if reading else (),
            device=asked.device,
            fraction=asked.fraction,
        )
        _refuse_if_all_are(asked.alloc_confs, histories[0])
        chosen = (*located.notes, *_left_out(histories[0], asked.device))
        devices = sorted(_as_recorded(histories, allowed, progress), key=_need, reverse=True)
        history = devices[0].history
        chosen += _covered(asked.alloc_confs, history)
        what_ifs = tuple(_what_ifs(history, asked.alloc_confs, allowed, progress))
        failure = describe_stranded(history, allowed, rank) if devices[0].answer.fits is False else None
    except SnapshotError as error:
        raise OombisectError(
            f"{located.label}: {error}", f"See {docs_dir() / 'snapshots.md'} for what can be read."
        ) from error
    except (CannotReplay, ReplayError) as error:
        raise OombisectError(
            f"{located.label} cannot be replayed: {error}", f"See {docs_dir() / 'replay.md'} for what a replay needs."
        ) from error
    except OSError as error:
        raise OombisectError(
            f"{located.label} cannot be read: {error.strerror or error}",
            "Check the file's permissions and the disk.",
            ExitCode.INFRASTRUCTURE,
        ) from error
    return ReplayReport(
        located.label,
        reading.simulated if reading else False,
        located.rank,
        tuple(devices),
        what_ifs,
        limit,
        outside,
        failure,
        chosen,
    )


def _profile(located: Located, asked: Question) -> GpuProfile:
    """The device whose memory is meant. It matters to what is a share of it; to the rest any one will do."""
    own = located.probe.spec.device if located.probe else ""
    if asked.gpu is not None:
        return parse_gpu(asked.gpu)
    if own.startswith("virtual:"):
        with contextlib.suppress(OombisectError):  # a profile that another version has
            return parse_gpu(own)
    if asked.fraction is not None:
        raise OombisectError(
            f"--fraction {asked.fraction:g} is a share of a device that is not known",
            "Name it, e.g. --gpu virtual:h100-80gb.",
        )
    return parse_gpu(_DEFAULT_GPU)


def _left_out(history: History, device: int | None) -> tuple[str, ...]:
    others = [memory.device for memory in history.snapshot.devices if len(memory.trace) and memory.device != device]
    if device is None or not others:
        return ()
    return (f"only device {device} is replayed; there is a history of {', '.join(map(str, others))}, too",)


def _limit_of(located: Located, store: Store | None) -> int | None:
    """The limit of the session that the probe belongs to, bytes; None for a bare file."""
    if located.probe is None or store is None:
        return None
    return store.session(located.probe.spec.session).spec.limit_bytes


def _need(row: Row) -> tuple[bool, int, int]:
    """Orders devices: one that cannot be satisfied by any device, then by need, then the lower number."""
    return row.answer.needed is None, row.answer.needed or 0, -row.history.device


def _as_recorded(histories: Sequence[History], allowed: int | None, progress: Callable[[str], None]) -> Iterator[Row]:
    for history in histories:
        where = f" device {history.device}" if len(histories) > 1 else ""
        progress(f"replaying{where} as recorded ({history.requests.trace_events:,} events)")
        answer = under(
            history.requests, history.settings, history.settings, history.rules,
            device_bytes=history.device_bytes, limit=allowed, fraction=history.fraction,
        )  # fmt: skip
        yield Row(history, answer, recorded=True)


def _what_ifs(
    history: History, confs: Sequence[str], allowed: int | None, progress: Callable[[str], None]
) -> Iterator[Row]:
    """Each setting once; the one it was recorded under has been replayed."""
    wanted = [conf for conf in dict.fromkeys(confs or STANDARD) if not _is_recorded(conf, history)]
    for number, conf in enumerate(wanted, start=1):
        progress(f"replaying under {conf or 'the defaults'} ({number} of {len(wanted)})")
        for answer in what_if(
            history.requests, [conf], history.settings, history.rules,
            device_bytes=history.device_bytes, limit=allowed, fraction=history.fraction,
        ):  # fmt: skip
            yield Row(history, answer, recorded=False)


def _refuse_if_all_are(confs: Sequence[str], history: History) -> None:
    """Nothing of what was asked would be answered: no script must take that for success."""
    reasons = []
    for conf in dict.fromkeys(confs):
        try:
            Settings.parse(conf, history.rules)
            return
        except SettingsError as error:
            reasons.append(f"{quoted(conf)}: {error}")
    if reasons:
        more = f"; and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
        raise OombisectError(
            f"PyTorch refuses every --alloc-conf given: {'; '.join(reasons[:_MOST_REASONS])}{more}",
            "Write one like expandable_segments:True or max_split_size_mb:256; --torch names the release it is for.",
        )


def _covered(confs: Sequence[str], history: History) -> tuple[str, ...]:
    """Settings that were asked for and get no row of their own."""
    same = [quoted(conf) for conf in dict.fromkeys(confs) if _is_recorded(conf, history)]
    return (f"--alloc-conf {', '.join(same)}: recorded so, told by the row `as recorded`",) if same else ()


def _is_recorded(conf: str, history: History) -> bool:
    try:
        settings = Settings.parse(conf, history.rules)
    except SettingsError:
        return False
    return replace(settings, text="") == replace(history.settings, text="")
