"""Why cached memory was given back: no event tells, but their order and their call stacks do.

A request that finds no memory releases some and asks again: first old or oversize segments, if settings say so; then
it waits for all streams, which completes frees; then it releases all that is free. What it then gets, or that it ran
out of memory, is recorded next, and all of these events have its call stack. What empty_cache releases has that call's
stack or, where only allocations have one, that of the allocation each segment was made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

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
        dropped: private pools of which a run of releases, by its first event, gave memory back for the first time: the
            graphs that used them are gone.
        closed: the same of a run that gave back nothing else: what a torch.cuda.MemPool does as it goes.
        served: pools other than graphs': a request for them released memory, as is never done during a capture.
        doubtful: releases without a call stack that a request may have caused, or empty_cache just before it: the
            request is taken for the reason.
    """

    empty_cache: set[int] = field(default_factory=set)
    in_vain: set[int] = field(default_factory=set)
    waited: set[int] = field(default_factory=set)
    dropped: dict[int, list[int]] = field(default_factory=dict)
    closed: dict[int, int] = field(default_factory=dict)
    served: set[int] = field(default_factory=set)
    doubtful: int = 0


def releases_of(trace: Trace, stacks: Sequence[Stack]) -> Releases:
    """All releases of a trace."""
    kinds, found, event = trace.kinds, Releases(), 0
    runs: list[range] = []
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
        runs += _judge(trace, stacks, start, event, found)
        event += event < count and kinds[event] == _OOM
    _judge_pools(trace, runs, found)
    return found


def _judge_pools(trace: Trace, runs: Sequence[range], found: Releases) -> None:
    """Tell which private pools were given up, by their memory that is given back.

    empty_cache and requests give back that of pools last: where it comes first, the pool itself was the reason.
    """
    gone: set[int] = set()
    for run in runs:
        at = run.start
        by_call = at in found.empty_cache
        found.empty_cache.discard(at)
        for pool, events in groupby(run, key=trace.pools.__getitem__):
            if not by_call or pool <= 0 or pool in gone:
                break
            gone.add(pool)
            found.closed[at] = pool
            at += len(list(events))
        if by_call and at < run.stop:
            found.empty_cache.add(at)
        new = [pool for pool in dict.fromkeys(trace.pools[at : run.stop]) if pool > 0 and pool not in gone]
        if new:
            gone.update(new)
            found.dropped[at] = new


def _judge(trace: Trace, stacks: Sequence[Stack], start: int, end: int, found: Releases) -> list[range]:
    """Tell the reasons of the releases from `start` to `end`, between which nothing but completed frees lies.

    Returns:
        The runs of releases without such frees between them.
    """
    kinds = trace.kinds
    following = kinds[end] if end < len(kinds) else -1
    wanted = {trace.stacks[end]} if following in _GROWTH or following == _OOM else None
    runs: list[range] = []
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
        runs.insert(0, range(at, last))
        told = set(trace.stacks[at:last])
        named = any(stack >= 0 and _EMPTY_CACHE & {frame.function for frame in stacks[stack]} for stack in told)
        if wanted == told and not named:
            first = at
        else:
            found.empty_cache.add(at)
            wanted = None
    if first is None and following != _OOM:
        return runs
    if len(waits) > _ONE_RELEASE:
        waits.pop()  # found to be complete before the request began to search
    for wait in waits:
        found.waited.update(wait)
    if first is not None:
        if following == _OOM:
            found.in_vain.add(first)
        if trace.pools[end] > 0:
            found.served.add(trace.pools[end])
        found.doubtful += trace.stacks[first] < 0
    return runs
