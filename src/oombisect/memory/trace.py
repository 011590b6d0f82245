"""What a CUDA memory snapshot tells, as plain values: segments, their blocks, and the trace of events, in columns.

The words are PyTorch's (torch.cuda.memory._snapshot). All sizes are bytes, all times microseconds since the epoch.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class EventKind(IntEnum):
    """What an event of the trace is; the names are those of PyTorch's `action`, in lower case there."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8


class Frame(NamedTuple):
    """One frame of a Python (or C++) call stack."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""Innermost frame first; empty where none was recorded."""


class PoolId(NamedTuple):
    """A memory pool; (0, 0) is the ordinary one, others belong to CUDA graphs or a `torch.cuda.MemPool`."""

    first: int = 0
    second: int = 0


DEFAULT_POOL = PoolId()


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a segment.

    `state` is active_allocated, active_pending_free (freed, a stream still uses it) or inactive.
    `stack` indexes `Snapshot.stacks`, -1 where none was recorded.
    """

    address: int
    size: int
    requested: int
    state: str
    stack: int = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory that the allocator took from the device and cuts into blocks, which cover it without gaps, in order.

    The blocks of an expandable segment cover its mapped part only: there may be gaps between them.
    """

    address: int
    size: int
    stream: int
    small: bool
    blocks: tuple[Block, ...]
    expandable: bool = False
    pool: PoolId = DEFAULT_POOL


@dataclass(slots=True)
class Trace:
    """The events of one device in columns of equal length, oldest first.

    `kinds` holds `EventKind`s. `addresses` and `sizes` are PyTorch's (the size of an alloc is what was requested; the
    address of an oom is what was free on the device). `stacks` and `pools` index those of the snapshot; -1: none told.
    """

    kinds: bytearray = field(default_factory=bytearray)
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    streams: array[int] = field(default_factory=lambda: array("Q"))
    stacks: array[int] = field(default_factory=lambda: array("i"))
    pools: array[int] = field(default_factory=lambda: array("i"))
    times: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device: its segments when the snapshot was taken, by address, and the events that led there."""

    device: int
    segments: tuple[Segment, ...]
    trace: Trace


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole snapshot.

    `settings` is its `allocator_settings` (empty in old formats), `notes` what a reader should know.
    `stacks` and `pools` are the tables that blocks and events index.
    """

    devices: tuple[DeviceMemory, ...]
    stacks: tuple[Stack, ...] = ()
    pools: tuple[PoolId, ...] = (DEFAULT_POOL,)
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
