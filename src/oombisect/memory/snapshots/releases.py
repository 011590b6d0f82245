"""Why cached memory was given back: no event tells, but their order and their call stacks do.

A request that finds no memory releases some and asks again: first old or oversize segments, if settings say so; then
it waits for all streams, which completes frees; then it releases all that is free. What it then gets, or that it ran
out of memory, is recorded next, and all of these events have its call stack. What empty_cache releases has that call's
stack or, where only allocations have one, that of the allocation each segment was made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from oombisect.memory.trace import EventKind, Stack, Trace

_FREED, _OOM = int(EventKind.FREE_COMPLETED), int(EventKind.OOM)
_RELEASES = frozenset(map(int, (EventKind.SEGMENT_FREE, EventKind.SEGMENT_UNMAP)))
_GROWTH = frozenset(map(int, (EventKind.SEGMENT_ALLOC, EventKind.SEGMENT_MAP)))
_ONE_RELEASE = 2  # waits: after it and before it
_EMPTY_CACHE = frozenset({"empty_cache", "emptyCache"})


@dataclass(slots=True)
class Releases:
    """Where cached memory was given back, as indices of events.

    Args:
        empty_cache: the first event of each release by empty_cache.
        in_vain: the same of each release by a request that ran out of memory all the same.
        waited: completed frees that the request which comes next waited for.
        doubtful: releases without a call stack that a request may have caused, or empty_cache just before it: the
            request is taken for the reason.
    """

    empty_cache: set[int] = field(default_factory=set)
    in_vain: set[int] = field(default_factory=set)
    waited: set[int] = field(default_factory=set)
    doubtful: int = 0


def releases_of(trace: Trace, stacks: Sequence[Stack]) -> Releases:
    """All releases of a trace."""
    kinds, found, event = trace.kinds, Releases(), 0
    count = len(kinds)
    while event < count:
        if kinds[event] not in _RELEASES and kinds[event] != _OOM:
            event += 1
            continue
        start = event
        while start and kinds[start - 1] == _FREED:
            start -= 1
        while event < count and (kinds[event] in _RELEASES or kinds[event] == _FREED):
            event += 1
        _judge(trace, stacks, start, event, found)
        event += event < count and kinds[event] == _OOM
    return found


def _judge(trace: Trace, stacks: Sequence[Stack], start: int, end: int, found: Releases) -> None:
    """Tell the reasons of the releases from `start` to `end`, between which nothing but completed frees lies."""
    kinds = trace.kinds
    following = kinds[end] if end < len(kinds) else -1
    wanted = {trace.stacks[end]} if following in _GROWTH or following == _OOM else None
    first = None  # of the releases that the request caused
    waits: list[range] = []  # completed frees after, between and before those releases; from the end
    at = end
    while True:
        last = at
        while at > start and kinds[at - 1] == _FREED:
            at -= 1
        if wanted is not None:
            waits.append(range(at, last))
        if at == start:
            break
        last = at
        while at > start and kinds[at - 1] in _RELEASES:
            at -= 1
        told = set(trace.stacks[at:last])
        named = any(stack >= 0 and _EMPTY_CACHE & {frame.function for frame in stacks[stack]} for stack in told)
        if wanted == told and not named:
            first = at
        else:
            found.empty_cache.add(at)
            wanted = None
    if first is None and following != _OOM:
        return
    if len(waits) > _ONE_RELEASE:
        waits.pop()  # found to be complete before the request began to search
    for wait in waits:
        found.waited.update(wait)
    if first is not None:
        if following == _OOM:
            found.in_vain.add(first)
        found.doubtful += trace.stacks[first] < 0
