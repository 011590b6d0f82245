"""From a file to a `Snapshot`: what kind of file it is is told by its content, never by its name."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

from oombisect.memory.snapshots.formats import snapshot_of
from oombisect.memory.snapshots.plain import SnapshotError, parse_json, unpickle
from oombisect.memory.trace import Snapshot

_GZIP = b"\x1f\x8b"
_ZIP = b"PK\x03\x04"
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a file may hold: bytes, and counts over all devices.

    Args:
        file_bytes: the file, and what it unpacks to.
        memory_bytes: what its values may take while they are read.
        events, blocks, stacks: events of traces, blocks of segments, different call stacks.
    """

    file_bytes: int = 8 << 30
    memory_bytes: int = 24 << 30
    events: int = 30_000_000
    blocks: int = 10_000_000
    stacks: int = 10_000_000


DEFAULT_LIMITS = Limits()
_LEAST_MEMORY = 1 << 30
_MEMORY_PER_BYTE = 24  # plain values take about ten times the room of their pickle


def load(path: Path, limits: Limits = DEFAULT_LIMITS) -> Snapshot:
    """Read a snapshot: a pickle or JSON of what torch.cuda.memory._snapshot() returns, of any release, also gzipped.

    Raises:
        SnapshotError: it is none, or holds more than `limits` allow. Nothing it holds was run.
        OSError: it cannot be read.
    """
    data = _content(path, limits)
    memory = min(limits.memory_bytes, _LEAST_MEMORY + _MEMORY_PER_BYTE * len(data))
    start = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if not data:
        raise SnapshotError("the file is empty")
    if start == b"<":
        raise SnapshotError("it is a web page: give the pickle it was made from (torch.cuda.memory._dump_snapshot)")
    if data.startswith(_ZIP):
        raise SnapshotError("it is a zip archive, such as torch.save writes: a snapshot is a plain pickle")
    plain = parse_json(data, memory) if start in (b"{", b"[") else unpickle(data, memory)
    return snapshot_of(plain, limits.events, limits.blocks, limits.stacks)


def _content(path: Path, limits: Limits) -> bytes:
    """The file's bytes, unpacked if it is gzipped (once: a snapshot is not packed twice)."""
    with path.open("rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not packed:
            data = file.read(limits.file_bytes + 1)
        else:
            try:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    data = _at_most(unpacked, limits.file_bytes)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise SnapshotError(f"it cannot be unpacked ({error}): copy it again, or dump it again") from None
    if len(data) > limits.file_bytes:
        raise SnapshotError(f"it holds more than {limits.file_bytes >> 20} MiB")
    return data


def _at_most(file: gzip.GzipFile, size: int) -> bytes:
    """What `file` holds, and no more than a chunk beyond `size` of it."""
    data = bytearray()
    while len(data) <= size and (chunk := file.read(_CHUNK)):
        data += chunk
    return bytes(data)
