"""The allocator's history, recorded from the first allocation and kept as a compressed snapshot.

A snapshot is what `torch.cuda.memory._snapshot()` returns, pickled: plain lists and dictionaries, readable with a
restricted unpickler. At an out-of-memory error it is taken inside the allocator's observer, before the error unwinds
and frees the very blocks in question.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

MAX_ENTRIES = 4_000_000
_LEVEL = 1  # Traces are repetitive: level 1 gets most of it at a fraction of the time.
_MOST_SNAPSHOTS_AT_OOM = 3  # A program that survives its OOMs could raise any number of them.

_REQUESTS = {"alloc": 0, "free_requested": 1, "free_completed": 2}


class History:
    """Records allocations if `record`, and in any case the exact numbers of an out-of-memory error."""

    def __init__(self, path: Path, record: bool) -> None:
        self.path = path
        self.record = record
        self.at_oom: dict[str, int] | None = None
        self.trace_hash: str | None = None
        self._saved_at_oom = 0
        self._saved = False
        if record:
            torch.cuda.memory._record_memory_history(
                enabled="all", context="alloc", stacks="python", max_entries=MAX_ENTRIES
            )
        with contextlib.suppress(AttributeError):
            torch._C._cuda_attach_out_of_memory_observer(self._observe)

    def _observe(self, device: int, requested: int, capacity: int, free: int) -> None:
        # Called by the allocator about to raise; anything raised here would hide the error itself.
        with contextlib.suppress(Exception):
            stats = torch.cuda.memory_stats(device)
            self.at_oom = {
                "requested": int(requested),
                "capacity": int(capacity),
                "free": int(free),
                "allocated": int(stats["allocated_bytes.all.current"]),
                "reserved": int(stats["reserved_bytes.all.current"]),
            }
            if self.record and self._saved_at_oom < _MOST_SNAPSHOTS_AT_OOM:
                self._saved_at_oom += 1
                self._write()

    def finish(self, died_of_oom: bool) -> str | None:
        """Stops recording and saves; the file's name, or None where nothing was recorded."""
        if not self.record:
            return None
        if not (died_of_oom and self._saved_at_oom):
            self._write()
        torch.cuda.memory._record_memory_history(enabled=None)
        return self.path.name if self._saved else None

    def _write(self) -> None:
        snapshot: Any = torch.cuda.memory._snapshot()
        temporary = self.path.with_name(self.path.name + ".part")
        with gzip.GzipFile(temporary, "wb", compresslevel=_LEVEL, mtime=0) as file:
            pickle.dump(snapshot, file, protocol=4)
        temporary.replace(self.path)
        self.trace_hash = hash_traces(snapshot["device_traces"])
        self._saved = True


def hash_traces(traces: Iterable[Iterable[Mapping[str, Any]]]) -> str:
    """A hash of what a program asked of the allocator: allocations and frees with sizes, streams and pools, in order.

    Programs with equal hashes ask for the same memory in the same order: the allocator treats them alike whatever its
    settings and limit. Blocks are numbered as they come, streams and pools too: addresses say nothing.
    """
    digest = hashlib.sha256()
    for trace in traces:
        streams: dict[int, int] = {}
        pools: dict[Any, int] = {}
        blocks: dict[int, int] = {}
        count = 0
        for event in trace:
            action = _REQUESTS.get(event["action"])
            if action is None:
                continue
            if action == 0:
                blocks[event["addr"]] = count
                count += 1
            stream = streams.setdefault(event["stream"], len(streams))
            pool = pools.setdefault(event.get("pool_id"), len(pools))  # torch tells it since 2.10 or so
            block = blocks.get(event["addr"], -1)
            digest.update(b"%d,%d,%d,%d,%d;" % (action, block, event["size"], stream, pool))
        digest.update(b"|")
    return digest.hexdigest()
