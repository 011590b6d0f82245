"""The distinct errors of a log: one error is printed many times, and many ranks die of one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from oombisect.memory.oom_messages.records import Certainty, Found, LookAlike, OomRecord, Source

_MOST = 2000
_ENOUGH_SIZES = 3


@dataclass(slots=True)
class Distinct:
    """One error, and how often it was printed."""

    record: OomRecord
    printed: int = 1
    last_line: int = 0


@dataclass(slots=True)
class Summary:
    """What a log holds.

    Args:
        errors: in the order they begin; `omitted` counts printings beyond the largest number that is kept.
    """

    errors: list[Distinct] = field(default_factory=list)
    look_alikes: list[LookAlike] = field(default_factory=list)
    omitted: int = 0

    @property
    def first(self) -> Distinct | None:
        """The first error that is certain; the first at all where none is."""
        certain = (error for error in self.errors if error.record.certainty is not Certainty.POSSIBLE)
        return next(certain, self.errors[0] if self.errors else None)

    def by_rank(self) -> dict[int | None, list[Distinct]]:
        """In the order in which the ranks first ran out of memory."""
        found: dict[int | None, list[Distinct]] = {}
        for error in self.errors:
            found.setdefault(error.record.rank, []).append(error)
        return found


def summarize(found: Iterable[Found]) -> Summary:
    """The distinct errors of a log, in order, with bounded memory."""
    summary = Summary()
    known: dict[tuple[object, ...], list[Distinct]] = {}
    for item in found:
        if isinstance(item, LookAlike):
            if len(summary.look_alikes) < _MOST and not any(_same(item, other) for other in summary.look_alikes[-8:]):
                summary.look_alikes.append(item)
            continue
        key = replace(item, rank=None).key
        alike = known.get(key, [])
        seen = next((error for error in alike if _may_be(error.record, item)), None)
        if seen is not None:
            seen.printed += 1
            seen.last_line = item.line
            if seen.record.rank is None:
                seen.record = replace(seen.record, rank=item.rank)
        elif len(summary.errors) < _MOST:
            error = Distinct(item, last_line=item.line)
            known.setdefault(key, []).append(error)
            summary.errors.append(error)
        else:
            summary.omitted += 1
    killed = any(e.record.source is Source.OOM_KILLER and e.record.process for e in summary.errors)
    if killed:  # the kernel's first line of the same event, which names no process
        summary.errors = [e for e in summary.errors if e.record.wording != "kernel invoked"]
    return summary


def _may_be(known: OomRecord, again: OomRecord) -> bool:
    """Printed again, perhaps by a launcher without the rank: three equal sizes are no accident."""
    if known.rank == again.rank:
        return True
    return None in (known.rank, again.rank) and sum(1 for _ in again.sizes()) >= _ENOUGH_SIZES


def _same(a: LookAlike, b: LookAlike) -> bool:
    return (a.wording, a.rank, a.text) == (b.wording, b.rank, b.text)
