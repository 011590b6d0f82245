"""From the files a probe process left, or from the way it died, to a reading."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oombisect.probing.devices import Device
from oombisect.probing.guard import Ended, Killed, Limits
from oombisect.readings import Outcome, RankReading, Reading
from oombisect.units import format_bytes

_RESULT_LIMIT = 64 << 20  # a result is some 200 kB; anything far larger was not written by the probe
_SEVERITY = (Outcome.INFRA, Outcome.UNRESOLVED, Outcome.CENSORED, Outcome.EXACT)


@dataclass(frozen=True, slots=True)
class RankResult:
    """One rank's share of a probe."""

    rank: int
    outcome: Outcome
    reason: str
    ended: Ended
    reading: RankReading | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def suggested_ranks(self) -> tuple[int, ...]:
        return tuple(self.raw.get("suggested_ranks") or (self.rank,))


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """What a probe brought: its reading, the resolved config (None if it got none), and what the run itself cost."""

    reading: Reading
    config: Mapping[str, Any] | None = None
    allocator_settings: str = ""
    seconds: float = 0.0
    peak_host_bytes: int = 0
    suggested_ranks: tuple[int, ...] = ()
    snapshots: Mapping[int, Path] = field(default_factory=dict)


def read_result(out: Path, rank: int, ended: Ended) -> RankResult | None:
    """The result file of `rank`; None where there is none, so that the way the process ended must tell.

    A file that is there but is no valid result is a broken probe: Unresolved, with the file named.
    """
    path = out / f"result-{rank}.json"
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _RESULT_LIMIT:
            raise ValueError(f"larger than {format_bytes(_RESULT_LIMIT)}")
        raw = json.loads(path.read_text())
        outcome = Outcome(raw["outcome"])
        reading = RankReading.from_json(raw | {"trace": raw.get("trace_hash")}) if raw.get("phases") else None
        if outcome in (Outcome.EXACT, Outcome.CENSORED) and reading is None:
            raise ValueError("no phases")
    except (ValueError, KeyError, TypeError) as error:
        return RankResult(rank, Outcome.UNRESOLVED, f"the probe wrote an unreadable {path.name}: {error}", ended)
    return RankResult(rank, outcome, raw.get("reason") or "", ended, reading, raw)


def classify_death(out: Path, rank: int, ended: Ended, limits: Limits) -> RankResult:
    """What a process that left no result says by the way it ended."""
    abort = out / f"abort-{rank}.txt"
    missing = abort.read_text(errors="replace").strip() if abort.is_file() else ""
    log = f"{out.name}/log-{rank}.txt"
    if missing:
        function = missing.splitlines()[0]
        return RankResult(rank, Outcome.UNRESOLVED, f"the virtual GPU has no {function} (docs/virtual-gpu.md)", ended)
    if ended.killed is Killed.TIME:
        reason = f"the probe hung: ended after its time limit of {limits.seconds:.0f} s (--time-limit)"
        return RankResult(rank, Outcome.INFRA, reason, ended)
    if ended.killed is Killed.HOST_MEMORY:
        reason = f"the probe passed {format_bytes(limits.host_bytes)} of host memory (--host-memory) and was ended"
        return RankResult(rank, Outcome.INFRA, reason, ended)
    if ended.exit_code == -signal.SIGKILL:
        reason = "something outside killed the probe (SIGKILL): the host's out-of-memory killer, or a person"
        return RankResult(rank, Outcome.INFRA, reason, ended)
    if ended.exit_code < 0:
        name = signal.Signals(-ended.exit_code).name
        return RankResult(rank, Outcome.UNRESOLVED, f"the probe died of {name}: see {log}", ended)
    tail = _last_line(out / f"log-{rank}.txt")
    return RankResult(rank, Outcome.UNRESOLVED, f"the probe ended with exit code {ended.exit_code}: {tail}", ended)


def _last_line(log: Path, size: int = 8192) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "no output"
    return lines[-1][:300] if lines else "no output"


def merge(results: Sequence[RankResult], device: Device, out: Path) -> ProbeRun:
    """One reading of all ranks: as bad as the worst of them, the reason naming the rank."""
    worst = min(results, key=lambda result: _SEVERITY.index(result.outcome))
    raw = next((result.raw for result in results if result.raw), {})
    reason = worst.reason
    if reason and len(results) > 1:
        reason = f"rank {worst.rank}: {reason}"
    reading = Reading(
        outcome=worst.outcome,
        reason=reason,
        device=device.name,
        simulated=bool(raw.get("simulated", device.simulated)),
        ranks=tuple(result.reading for result in results if result.reading),
        recipe_function=raw.get("recipe_function") or "",
        config_hash=raw.get("config_hash") or "",
        versions=raw.get("versions") or {},
        world_size=raw.get("world_size"),
        attention_backend=raw.get("attention_backend") or "",
        imported=tuple(sorted({name for result in results for name in result.raw.get("imported") or ()})),
        notes=tuple(dict.fromkeys(note for result in results for note in result.raw.get("notes") or ())),
    )
    return ProbeRun(
        reading=reading,
        config=raw.get("config"),
        allocator_settings=raw.get("allocator_settings") or "",
        seconds=sum(result.ended.seconds for result in results),
        peak_host_bytes=max(result.ended.peak_host_bytes for result in results),
        suggested_ranks=results[0].suggested_ranks,
        snapshots={r.rank: out / r.raw["snapshot"] for r in results if r.raw.get("snapshot")},
    )
