"""Bytes to plain values (dict, list, tuple, str, int, ...), never to anything else.

A snapshot is a pickle that may come from anywhere. The unpickler here knows no class, no function, no persistent id, no
extension and no buffer; without those a pickle is a description of plain values. What remains is size: an unpickler can
be told to ask for any amount of memory, so it runs under a ceiling.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Never

import psutil

try:
    import resource
except ImportError:  # not on Windows: there an unpickler can ask for all the memory there is
    resource = None  # type: ignore[assignment]


class SnapshotError(ValueError):
    """The file is no snapshot that can be read; the message says why, and what to do."""


class _Plain(pickle.Unpickler):
    """Plain values only: whatever names a class or a function is refused before it is looked up."""

    def find_class(self, module: str, name: str, /) -> Never:
        raise SnapshotError(
            f"it wants to call {module}.{name}: this is no memory snapshot, and nothing of it was run"[:300]
        )

    def persistent_load(self, pid: Any, /) -> Never:
        raise SnapshotError("it refers to objects outside the file: this is no memory snapshot")


def unpickle(data: bytes, memory: int) -> Any:
    """The plain value that `data` pickles.

    Args:
        memory: how much the value may take, bytes (kept where the system can limit a process's memory).

    Raises:
        SnapshotError: it is no pickle, is cut off, holds more than plain values, or needs too much memory.
    """
    try:
        with _ceiling(memory):
            return _Plain(io.BytesIO(data)).load()
    except SnapshotError:
        raise
    except MemoryError:
        raise SnapshotError(f"it asks for more than {memory >> 20} MiB of memory to be read") from None
    except RecursionError:
        raise SnapshotError("it is nested too deeply to be a memory snapshot") from None
    except EOFError:
        raise SnapshotError("it is cut off: copy it again, or dump it again") from None
    except Exception as error:  # noqa: BLE001  # an unpickler that is fed anything can raise anything
        raise SnapshotError(f"it is no pickle of plain values ({type(error).__name__}: {error})"[:300]) from None


def parse_json(data: bytes, memory: int) -> Any:
    """The value of a JSON document; arguments and errors as for `unpickle`."""
    try:
        with _ceiling(memory):
            return json.loads(data, parse_constant=_no_constant)
    except MemoryError:
        raise SnapshotError(f"it asks for more than {memory >> 20} MiB of memory to be read") from None
    except RecursionError:
        raise SnapshotError("it is nested too deeply to be a memory snapshot") from None
    except ValueError as error:
        raise SnapshotError(f"it is no JSON: {error}"[:300]) from None


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is no number of a snapshot")


@contextmanager
def _ceiling(memory: int) -> Iterator[None]:
    """Let this process grow by at most `memory` bytes of address space; beyond that there is a MemoryError."""
    if resource is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = psutil.Process().memory_info().vms + memory
    known = [limit for limit in (wanted, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
