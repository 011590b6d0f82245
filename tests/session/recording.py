"""A program of allocations, recorded as torch would have recorded it: the allocator is the project's model of it.

That the model does what PyTorch does is proved in tests/memory/oracle; here only what is made of its answers is tested.
"""

from __future__ import annotations

import gzip
import hashlib
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oombisect.memory.allocator import CachingAllocator, Settings, VirtualDevice, rules_for

TORCH = "2.14.1"
DEVICE_BYTES = 80 << 30


class Recorder(VirtualDevice):
    """A device that notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__(DEVICE_BYTES, 1 << 50)
        self.events: list[dict[str, Any]] = []

    def malloc(self, size: int) -> int | None:
        address = super().malloc(size)
        assert address is not None
        self.events.append(event("segment_alloc", address, size))
        return address

    def map(self, address: int, size: int) -> bool:
        self.events.append(event("segment_map", address, size))
        return super().map(address, size)


def event(action: str, address: int, size: int, where: str = "") -> dict[str, Any]:
    frames = [{"filename": f"/slot/src/megatron/bridge/{where}.py", "line": 7, "name": where}] if where else []
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": frames}


@dataclass(frozen=True)
class Recording:
    """What a probe of the program leaves: a snapshot file, the peaks, and the hash of what was asked."""

    path: Path
    allocated: int
    requested: int
    reserved: int
    trace: str

    def told(self, **more: Any) -> dict[str, Any]:
        """As the toy history tells it."""
        return {
            "allocated": self.allocated,
            "requested": self.requested,
            "reserved": self.reserved,
            "snapshot": str(self.path),
            "trace": self.trace,
            **more,
        }


def record(path: Path, program: Iterable[tuple[str, str, int]], conf: str = "") -> Recording:
    """Run `program`, steps of ("alloc", block, bytes) and ("free", block, 0), and record it.

    The call stack of each block is one frame of the block's name, less its digits.
    """
    rules = rules_for(TORCH)
    device = Recorder()
    allocator = CachingAllocator(Settings.parse(conf, rules), rules, device=device)
    live, asked = {}, hashlib.sha256()
    for action, name, size in program:
        asked.update(f"{action} {name} {size};".encode())
        if action == "alloc":
            live[name] = block = allocator.alloc(size)
            assert block is not None
            device.events.append(event("alloc", block.address, size, name.rstrip("0123456789")))
        else:
            block = live.pop(name)
            device.events += [
                event(kind, block.address, block.requested) for kind in ("free_requested", "free_completed")
            ]
            allocator.free(block)
    numbers = {block: number for number, block in enumerate(live.values())}
    requested = [block.requested for block in live.values()]
    segments = [
        {
            "device": 0, "address": segment.address, "total_size": segment.size, "stream": 0,
            "segment_type": "small" if segment.small else "large", "segment_pool_id": (0, 0),
            "is_expandable": segment.expandable,
            "blocks": [
                {"address": piece.address, "size": piece.size,
                 "requested_size": requested[piece.block] if piece.block >= 0 else 0,
                 "state": "active_allocated" if piece.block >= 0 else "inactive", "frames": []}
                for piece in segment.blocks
            ],
        }
        for segment in allocator.segments(numbers)
    ]  # fmt: skip
    settings = {"PYTORCH_CUDA_ALLOC_CONF": conf, "max_round_threshold": -1}
    snapshot = {"segments": segments, "device_traces": [device.events], "allocator_settings": settings}
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        pickle.dump(snapshot, file, protocol=4)
    stats = allocator.statistics
    return Recording(path, stats.peak_allocated, stats.peak_requested, stats.reserved.peak, asked.hexdigest())
