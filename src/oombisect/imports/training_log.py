"""The memory in a training log of Megatron-LM or Bridge: lines of `report_memory`, and out-of-memory errors. Pure.

[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.2 | max allocated: 3.4 | reserved: 5.6 | max reserved: 7.8
[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 1.2345 | mem-max-allocated-gigabytes: ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from oombisect.imports.content import Content, Problem, RunMemory, run_of
from oombisect.imports.metrics import LOG_UNITS, in_bytes, log_metric
from oombisect.memory.oom_messages import Certainty, Memory, OomRecord, Size, read_messages
from oombisect.memory.oom_messages.lines import Line, read_lines

_MARK = re.compile(r"memory \((MB|GB)\) *\|", re.ASCII)
_RANK = re.compile(r"\[Rank (?P<rank>[0-9]{1,6})\]", re.ASCII)
_ITERATION = re.compile(r"\((?:after|before)[^|()]{0,80}?([0-9]{1,9})[^|()]{0,20}\)", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,3})?", re.ASCII)
_WORLD = re.compile(r"using world size: ([0-9]{1,6})", re.ASCII)
_TIME = re.compile(rb"\[([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?\] iteration")
_NO_SIZES = ("mem-alloc-retires", "mem-alloc-retries", "mem-allocated-count")
_CHUNK = 1 << 20
_SHOWN = 60


@dataclass(slots=True)
class _Log:
    values: dict[int | None, dict[str, dict[int, int]]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    world_size: int | None = None

    def add(self, rank: int | None, iteration: int, metric: str, size: int) -> None:
        """The largest of an iteration counts: before and after a checkpoint it is reported twice."""
        of_metric = self.values.setdefault(rank, {}).setdefault(metric, {})
        of_metric[iteration] = max(size, of_metric.get(iteration, 0))


def parse_log(data: bytes) -> Content:
    """What a log tells of memory, by rank. Where a rank ran out of it, all sizes are lower bounds."""
    log = _Log()
    for line in read_lines(_chunks(data)):
        _read(line, log)
    errors = [found for found in read_messages(_chunks(data)) if _counts(found)]
    runs = {rank: run_of(values, rank=rank) for rank, values in log.values.items()}
    for error in errors:
        assert isinstance(error, OomRecord)
        runs[error.rank] = _at_least(runs.get(error.rank, RunMemory(rank=error.rank)), error)
    if errors:
        first = "a rank" if errors[0].rank is None else f"rank {errors[0].rank}"
        told = f"{first} ran out of memory"
        runs = {rank: run if run.reason else replace(run, reason=told) for rank, run in runs.items()}
    ordered = sorted(runs.values(), key=lambda run: (run.rank is not None, run.rank or 0))
    return Content(
        tuple(replace(run, world_size=log.world_size, where=_where(run)) for run in ordered),
        tuple(log.problems),
        _date(data),
    )


def _chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK):
        yield data[start : start + _CHUNK]


def _read(line: Line, log: _Log) -> None:
    text = line.text
    if log.world_size is None and (told := _WORLD.search(text)):
        log.world_size = int(told[1])
    if "memory (" not in text:
        return
    # Ranks write at once: two reports may share a line.
    starts = [match.start() for match in _RANK.finditer(text)] or [0]
    for start, end in zip(starts, [*starts[1:], len(text)]):
        report = text[start:end]
        if mark := _MARK.search(report):
            before, told_values = report[: mark.start()], report[mark.end() :]
            rank = _RANK.match(report)
            of = int(rank["rank"]) if rank else line.rank
            iteration = _ITERATION.search(before)
            _read_values(line.number, of, int(iteration[1]) if iteration else 0, mark[1], told_values, log)


def _read_values(line: int, rank: int | None, iteration: int, unit: str, text: str, log: _Log) -> None:
    for part in text.split("|"):
        name, colon, number = (word.strip() for word in part.partition(":"))
        metric = log_metric(name)
        number = number.split(" ")[0]
        size = in_bytes(float(number), LOG_UNITS[unit]) if _NUMBER.fullmatch(number) else None
        if metric and size is not None:
            log.add(rank, iteration, metric, size)
        elif name not in _NO_SIZES:
            what = f"{part.strip()[:_SHOWN]!r} is no size" if metric or not colon else f"{name[:_SHOWN]!r} is not known"
            log.problems.append(Problem(f"line {line}", what))


def _date(data: bytes) -> datetime | None:
    """The time of the first iteration; logs tell no time zone, it is taken for UTC."""
    told = _TIME.search(data)
    try:
        return datetime.fromisoformat(told[1].decode()).replace(tzinfo=UTC) if told else None
    except ValueError:
        return None


def _counts(found: object) -> bool:
    return isinstance(found, OomRecord) and found.memory is Memory.DEVICE and found.certainty is Certainty.CERTAIN


def _at_least(run: RunMemory, error: OomRecord) -> RunMemory:
    """`run`, whose peaks are at least what the error says was in use."""
    return replace(
        run,
        reason=f"out of memory (line {error.line})" if not run.reason else run.reason,
        peak_allocated=_larger(run.peak_allocated, error.live),
        peak_reserved=_larger(run.peak_reserved, error.reserved),
        peak_device=_larger(run.peak_device, error.in_use),
    )


def _larger(known: int | None, told: Size | None) -> int | None:
    sizes: Sequence[int | None] = (known, told.low if told else None)
    return max((size for size in sizes if size is not None), default=None)


def _where(run: RunMemory) -> str:
    return "" if run.rank is None else f"rank {run.rank}"
