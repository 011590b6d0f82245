"""From the files a probe process left, or from the way it died, to a reading."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oombisect.printable import printable
from oombisect.probing.devices import Device
from oombisect.probing.guard import Ended, Killed, Limits
from oombisect.probing.result_file import ProbeResult, ResultError, parse_result
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
    result: ProbeResult | None = None

    @property
    def reading(self) -> RankReading | None:
        return self.result.reading if self.result else None

    @property
    def suggested_ranks(self) -> tuple[int, ...]:
        return (self.result.suggested_ranks if self.result else ()) or (self.rank,)

    @property
    def ended_by(self) -> str:
        """What ended the process of a command, where its hook told: `iterations`, `exit`, `error` or `signal`."""
        return self.result.ended if self.result else ""

    @property
    def cold_compile(self) -> bool:
        return self.result is not None and self.result.cold_compile


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """What a probe brought: its reading, the resolved config (None if it got none), and what the run itself cost.

    `lasting` is false where the reading is of this machine's state, not of the code: it answers no later request.
    """

    reading: Reading
    config: Mapping[str, Any] | None = None
    allocator_settings: str = ""
    seconds: float = 0.0
    peak_host_bytes: int = 0
    suggested_ranks: tuple[int, ...] = ()
    snapshots: Mapping[int, Path] = field(default_factory=dict)
    lasting: bool = True


def read_result(out: Path, rank: int, ended: Ended) -> RankResult | None:
    """The result file of `rank`; None where there is none, so that the way the process ended must tell.

    A file that is there but is no valid result is a broken probe: Unresolved, with the field named.
    """
    path = out / f"result-{rank}.json"
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _RESULT_LIMIT:
            raise ResultError(f"larger than {format_bytes(_RESULT_LIMIT)}")
        result = parse_result(json.loads(path.read_text(encoding="utf-8")), rank)
        snapshot = result.reading.snapshot if result.reading else None
        if snapshot and ((out / snapshot).is_symlink() or not (out / snapshot).is_file()):
            raise ResultError(f"snapshot: {snapshot} is not there")
    except (OSError, ValueError, RecursionError) as error:
        reason = f"the probe wrote an unreadable {path.name}: {printable(str(error))}"
        return RankResult(rank, Outcome.UNRESOLVED, reason, ended)
    return RankResult(rank, result.outcome, result.reason, ended, result)


def peak_host_bytes(out: Path) -> tuple[int, ...]:
    """The most host memory that each rank of a probe says it held; none where the files are gone or do not tell."""
    told = []
    for path in sorted(out.glob("result-*.json")):
        try:
            size = json.loads(path.read_bytes()).get("host_peak_rss") if path.stat().st_size <= _RESULT_LIMIT else None
        except (OSError, ValueError, RecursionError, AttributeError):
            continue
        if type(size) is int and size > 0:
            told.append(size)
    return tuple(told)


def classify_death(out: Path, rank: int, ended: Ended, limits: Limits) -> RankResult:
    """What a process that left no result says by the way it ended."""
    abort = out / f"abort-{rank}.txt"
    missing = abort.read_text(errors="replace").strip() if abort.is_file() else ""
    log = f"{out.name}/log-{rank}.txt"
    if missing:
        function = printable(missing.splitlines()[0])[:300]
        return RankResult(rank, Outcome.UNRESOLVED, f"the virtual GPU has no {function} (docs/virtual-gpu.md)", ended)
    if ended.killed is Killed.TIME:
        reason = f"the probe hung: ended after its time limit of {limits.seconds:.0f} s (--time-limit)"
        return RankResult(rank, Outcome.INFRA, reason, ended)
    if ended.killed is Killed.HOST_MEMORY:
        reason = f"the probe passed {format_bytes(limits.host_bytes)} of host memory (--host-memory) and was ended"
        return RankResult(rank, Outcome.INFRA, reason, ended)
    if ended.killed is Killed.LOG:
        reason = f"the probe wrote more than {format_bytes(limits.log_bytes)} to {log} and was ended"
        return RankResult(rank, Outcome.UNRESOLVED, reason, ended)
    if ended.exit_code == -signal.SIGKILL:
        reason = "something outside killed the probe (SIGKILL): the host's out-of-memory killer, or a person"
        return RankResult(rank, Outcome.INFRA, reason, ended)
    if ended.exit_code < 0:
        name = _signal_name(-ended.exit_code)
        return RankResult(rank, Outcome.UNRESOLVED, f"the probe died of {name}: see {log}", ended)
    tail = last_line(out / f"log-{rank}.txt")
    return RankResult(rank, Outcome.UNRESOLVED, f"the probe ended with exit code {ended.exit_code}: {tail}", ended)


def last_line(log: Path, size: int = 8192) -> str:
    """The last line of a log, printable; `no output` where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "no output"
    return printable(lines[-1])[:300] if lines else "no output"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal: only the first and last of them have names
        return f"signal {number}"


def merge(results: Sequence[RankResult], device: Device, out: Path) -> ProbeRun:
    """One reading of all ranks: as bad as the worst of them, the reason naming the rank.

    Where one rank of a launch runs out of memory, the launcher ends the others: that they left no result says nothing
    of them.
    """
    out_of_memory = [result for result in results if result.outcome is Outcome.CENSORED]
    ended = [
        result
        for result in results
        if result.result is None and any(result.ended is dead.ended for dead in out_of_memory)
    ]
    worst = min(
        (result for result in results if result not in ended), key=lambda result: _SEVERITY.index(result.outcome)
    )
    told = [result.result for result in results if result.result]
    first = told[0] if told else ProbeResult(worst.outcome)
    reason = worst.reason
    if reason and len(results) > 1:
        reason = f"rank {worst.rank}: {reason}"
    readings = tuple(result.reading for result in told if result.reading)
    notes = [note for result in told for note in result.notes]
    if ended:
        names = ", ".join(str(result.rank) for result in ended)
        notes.append(f"ranks that left no result, ended when another ran out of memory: {names}")
    reading = Reading(
        outcome=worst.outcome,
        reason=reason,
        device=device.name,
        simulated=device.simulated,
        ranks=readings,
        recipe_function=first.recipe_function,
        config_hash=first.config_hash,
        versions=first.versions,
        world_size=first.world_size,
        attention_backend=first.attention_backend,
        imported=tuple(sorted({name for result in told for name in result.imported})),
        notes=tuple(dict.fromkeys(notes)),
    )
    return ProbeRun(
        reading=reading,
        config=first.config,
        allocator_settings=first.allocator_settings,
        seconds=sum(result.ended.seconds for result in results),
        peak_host_bytes=max(result.ended.peak_host_bytes for result in results),
        suggested_ranks=results[0].suggested_ranks,
        snapshots={r.rank: out / r.snapshot for r in readings if r.snapshot},
    )
