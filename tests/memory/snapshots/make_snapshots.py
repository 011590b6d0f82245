"""Snapshots as torch.cuda.memory._snapshot() gives them, of random programs, and what the allocator had at each moment.

    python tests/memory/snapshots/make_snapshots.py FILE [EVENTS]

An allocator model stands in for the real one: what it does is recorded as PyTorch does it.
"""

from __future__ import annotations

import pickle
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

from oombisect.memory.allocator import Block, CachingAllocator, Rules, Settings, VirtualDevice
from oombisect.memory.allocator.blocks import FREE, PENDING
from oombisect.memory.allocator.rules import TORCH_2_9

MIB, GIB = 1 << 20, 1 << 30
PAGE = 2 * MIB
STREAMS = (0, 4256, 94_000_000_000_032)
Plain = dict[str, Any]


class Piece(NamedTuple):
    """A block of a segment; `requested` is -1 where it is free."""

    address: int
    size: int
    requested: int
    pending: bool


class Part(NamedTuple):
    """A segment, or a mapped stretch of an expandable one."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    pool: tuple[int, int]
    pieces: tuple[Piece, ...]


class Moment(NamedTuple):
    """Before the event of that index: what the allocator had, and how many requests came before."""

    event: int
    requests: int
    parts: tuple[Part, ...]


class _Device(VirtualDevice):
    """Tells of every segment event."""

    def __init__(self, recording: Recording, total: int, capacity: int | None) -> None:
        super().__init__(total, capacity)
        self._recording = recording

    def malloc(self, size: int) -> int | None:
        address = super().malloc(size)
        if address is not None:
            self._recording.segment_event("segment_alloc", address, size)
        return address

    def free(self, address: int, size: int) -> None:
        super().free(address, size)
        self._recording.segment_event("segment_free", address, size)

    def map(self, address: int, size: int) -> bool:
        mapped = super().map(address, size)
        if mapped:
            self._recording.segment_event("segment_map", address, size)
        return mapped

    def unmap(self, address: int, size: int) -> None:
        super().unmap(address, size)
        self._recording.segment_event("segment_unmap", address, size)


class Recording:
    """A program, its trace, and what the allocator had before one request of it.

    Args:
        settings: the allocator's; a snapshot's `allocator_settings` follow from them.
        capacity: what there is for the allocator, bytes.
        depth: frames of a call stack besides the innermost.
        keep: before which request to look at the allocator's state, counted from 0.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        capacity: int | None = None,
        *,
        rules: Rules = TORCH_2_9,
        depth: int = 3,
        keep: int = -1,
        total: int = 8 * GIB,
    ) -> None:
        self.settings = settings or Settings()
        self.allocator = CachingAllocator(self.settings, rules, device=_Device(self, total, capacity))
        self.events: list[Plain] = []
        self.requests: list[tuple[str, int, int]] = []
        self.moment: Moment | None = None
        self.live: dict[int, tuple[Block, int, list[Plain]]] = {}
        self._until_kept = keep
        self._made = 0
        self._depth = depth
        self._frames: dict[str, Plain] = {}
        self._owners: dict[int, tuple[int, tuple[int, int], list[Plain]]] = {}
        self._asking: tuple[int, tuple[int, int], list[Plain]] | None = None
        self._releasing: list[Plain] | None = None
        self._waited: list[tuple[int, int]] = []
        self._time = 1_700_000_000_000_000

    # ---- what the program does ----

    def alloc(self, size: int, stream: int = 0, pool: int = 0, function: str = "forward") -> int | None:
        """The number of the block; None if it was out of memory."""
        self._remember()
        frames = self.stack(function)
        owner = (STREAMS[stream], (0, pool), frames)
        self._asking = owner
        block = self.allocator.alloc(size, stream, pool)
        self._asking = None
        if block is None:
            self._complete_waited()
            self._put("oom", self.allocator.device.total, size, owner, place="device_free")
            self.requests.append(("ALLOC", 0, size))
            self._put_waited()
            return None
        self._put("alloc", block.address, size, owner)
        self.requests.append(("ALLOC", block.address, size))
        self._put_waited()
        self._made += 1
        self.live[self._made] = (block, size, frames)
        return self._made

    def free(self, number: int, *, pending: bool = False) -> None:
        self._remember()
        block, size, frames = self.live[number]
        address, owner = block.address, self._owner(block, frames)
        self._put("free_requested", address, size, owner)
        if not pending:
            self._put("free_completed", address, size, owner)
            del self.live[number]
        self.allocator.free(block, pending=pending)
        self.requests.append(("FREE" if pending else "RELEASE", address, size))

    def complete(self, number: int) -> None:
        self._remember()
        block, size, frames = self.live.pop(number)
        self._put("free_completed", block.address, size, self._owner(block, frames))
        self.requests.append(("COMPLETE", block.address, size))
        self.allocator.complete(block)

    def empty_cache(self, function: str | None = "empty_cache") -> None:
        """`function`: whose call stack is recorded; None: that of each segment, as where only allocations have one."""
        self._remember()
        before = len(self.events)
        self._releasing = None if function is None else self.stack(function)
        self.allocator.empty_cache()
        self._complete_waited()
        self._releasing = None
        released = any(event["action"] in ("segment_free", "segment_unmap") for event in self.events[before:])
        self._put_waited("COMPLETE")
        if released:
            self.requests.append(("EMPTY_CACHE", -1, -1))

    def _complete_waited(self) -> None:
        """The frees that a release of memory waited for are recorded before what is released."""
        for number in [number for number, (block, _, _) in self.live.items() if block.state == FREE]:
            block, size, frames = self.live.pop(number)
            self._put("free_completed", block.address, size, self._owner(block, frames))
            self._waited.append((block.address, size))

    def _put_waited(self, name: str = "WAITED") -> None:
        self.requests += [(name, address, size) for address, size in self._waited]
        self._waited.clear()

    # ---- what is recorded of it ----

    def stack(self, function: str) -> list[Plain]:
        """A list of its own, of frames that all events share."""
        names = [function, *(f"caller_{level}" for level in range(self._depth))] if function else []
        made = self._frames
        return [made.setdefault(name, {"name": name, "filename": "model.py", "line": len(made) + 1}) for name in names]

    def segment_event(self, action: str, address: int, size: int) -> None:
        pages = range(address, address + size, PAGE)
        if action in ("segment_alloc", "segment_map"):
            assert self._asking is not None
            self._owners.update(dict.fromkeys(pages, self._asking))
        stream, pool, frames = self._owners[address]
        if action in ("segment_free", "segment_unmap"):
            self._complete_waited()
            if self._asking is not None:
                frames = self._asking[2]
            elif self._releasing is not None:
                frames = self._releasing
            for page in pages:
                del self._owners[page]
        self._put(action, address, size, (stream, pool, frames))

    def _put(
        self, action: str, address: int, size: int, owner: tuple[int, tuple[int, int], list[Plain]], place: str = "addr"
    ) -> None:
        stream, pool, frames = owner
        self._time += 7
        event = {"action": action, place: address, "size": size, "stream": stream, "time_us": self._time}
        self.events.append(event | {"pool_id": pool, "frames": frames})

    def _owner(self, block: Block, frames: list[Plain]) -> tuple[int, tuple[int, int], list[Plain]]:
        return STREAMS[block.home.stream], (0, block.home.kind.pool.number), frames

    def _remember(self) -> None:
        if self._until_kept == 0:
            self.moment = Moment(len(self.events), len(self.requests), self.parts())
        self._until_kept -= 1

    def parts(self) -> tuple[Part, ...]:
        numbers = {block: number for number, (block, _, _) in self.live.items() if block.state != FREE}
        return tuple(
            Part(
                segment.address,
                segment.size,
                STREAMS[segment.stream],
                segment.small,
                segment.expandable,
                (0, segment.pool),
                tuple(
                    Piece(
                        piece.address,
                        piece.size,
                        self.live[piece.block][1] if piece.block >= 0 else -1,
                        piece.pending,
                    )
                    for piece in segment.blocks
                ),
            )
            for segment in self.allocator.segments(numbers)
        )

    def snapshot(self, start: int = 0) -> Plain:
        """What torch.cuda.memory._snapshot() would give now, of the events from `start` on."""
        return {
            "segments": [_segment(part) for part in self.parts()],
            "device_traces": [self.events[start:]],
            "allocator_settings": allocator_settings(self.settings),
            "external_annotations": [],
        }


def _segment(part: Part) -> Plain:
    blocks = []
    for piece in part.pieces:
        state = "active_pending_free" if piece.pending else "active_allocated" if piece.requested >= 0 else "inactive"
        requested = max(piece.requested, 0)
        blocks.append({"address": piece.address, "size": piece.size, "requested_size": requested, "state": state})
    return {
        "device": 0,
        "address": part.address,
        "total_size": part.size,
        "stream": part.stream,
        "segment_type": "small" if part.small else "large",
        "segment_pool_id": part.pool,
        "is_expandable": part.expandable,
        "frames": [],
        "blocks": blocks,
    }


def allocator_settings(settings: Settings) -> Plain:
    divisions = settings.roundup or (0,) * 16
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.text,
        "max_split_size": -1 if settings.max_split_size >= 1 << 63 else settings.max_split_size,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {str(1 << power): divisions[power] for power in range(16)},
    }


def random_recording(
    settings: Settings, seed: int, count: int = 150, capacity: int | None = 2 * GIB, pools: int = 3, **more: Any
) -> Recording:
    """At least `count` requests, of three streams and some pools; it goes on where memory is short."""
    chance = random.Random(seed)
    run = Recording(settings, capacity, **more)
    pending: list[int] = []
    for step in range(count):
        choice = chance.random()
        pending = [number for number in pending if number in run.live and run.live[number][0].state == PENDING]
        idle = [number for number, (block, _, _) in run.live.items() if block.state != PENDING]
        if choice < 0.03:
            run.empty_cache()
        elif choice < 0.1 and pending:
            run.complete(pending.pop(0))
        elif choice < 0.5 and idle:
            number = chance.choice(idle)
            late = chance.random() < 0.2
            run.free(number, pending=late)
            if late:
                pending.append(number)
        else:
            size = chance.choice((chance.randrange(1, MIB), chance.randrange(1, 60 * MIB)))
            pool = chance.choice((0, 0, 0, *range(pools)))
            if pool and step > count * 2 // 3 and not settings.expandable_segments:
                run.allocator.release_pool(pool)
                pool = 0
            run.alloc(size, chance.randrange(3), pool, f"layer_{chance.randrange(20)}")
    return run


def main() -> None:
    run = random_recording(Settings(), 1, int(sys.argv[2]) if sys.argv[2:] else 1000)
    Path(sys.argv[1]).write_bytes(pickle.dumps(run.snapshot()))


if __name__ == "__main__":
    main()
