"""From a file to a `Snapshot`: what kind of file it is is told by its content, never by its name."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from oombisect.memory.snapshots.errors import SnapshotError, named
from oombisect.memory.snapshots.formats import snapshot_of
from oombisect.memory.snapshots.plain import parse_json, undisturbed, unpickle
from oombisect.memory.trace import Snapshot
from oombisect.units import format_bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a file may hold: bytes, and counts over all devices.

    Args:
        file_bytes: the file, and what it unpacks to.
        memory_bytes: what its values may take while they are read; never more than the machine has to spare.
        events, blocks, stacks: events of traces, blocks of segments, different call stacks.
    """

    file_bytes: int = 4 << 30
    memory_bytes: int = 24 << 30
    events: int = 30_000_000
    blocks: int = 10_000_000
    stacks: int = 10_000_000


DEFAULT_LIMITS: Final = Limits()
_MEMORY_PER_BYTE: Final = 10  # what the values of a snapshot take, and more than they do; see also `opcodes`
_UNPACKS_TO: Final = 100  # times its size; traces unpack to 10 to 40 times
_LEAST_UNPACKED: Final = 16 << 20
_GZIP: Final = b"\x1f\x8b"
_PICKLE: Final = b"\x80"
_OLD_PICKLE: Final = re.compile(rb"\([dl]p[0-9]|[]}][qr]|[]}]\.|\([dl]\.")  # protocols 0 and 1: a dict or a list
_BLANK: Final = b"\xef\xbb\xbf \t\r\n"
_START: Final = 64
_CHUNK: Final = 1 << 20
_EVENT_BYTES, _BLOCK_BYTES = 12, 8
"""The least that an event and a block take in a file: what has more of them repeats itself."""
_MAGIC: Final = {
    b"PK\x03\x04": "a zip archive, such as torch.save writes",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it first",
    b"\xfd7zXZ": "packed with xz: unpack it first",
    b"BZh": "packed with bzip2: unpack it first",
    b"\x1f\x8b": "packed twice: unpack it first",
    b"SQLite": "a database",
    b"\x7fELF": "a program",
}


def load(path: Path, limits: Limits = DEFAULT_LIMITS) -> Snapshot:
    """Read a snapshot: a pickle or JSON of what torch.cuda.memory._snapshot() returns, of any release, also gzipped.

    Raises:
        SnapshotError: it cannot be read, is none, or holds more than `limits` allow. Nothing it holds was run.
    """
    try:
        data = _content(path, limits)
        _check_memory(len(data), limits)
        with undisturbed():
            plain = unpickle(data) if data.startswith(_PICKLE) else parse_json(data)
            return snapshot_of(
                plain,
                most_events=min(limits.events, len(data) // _EVENT_BYTES),
                most_blocks=min(limits.blocks, len(data) // _BLOCK_BYTES),
                most_stacks=limits.stacks,
            )
    except MemoryError:
        raise SnapshotError("there is not enough memory to read it: record fewer events (max_entries)") from None


def _recognize(start: bytes) -> None:
    """Say what a file is that begins like no snapshot."""
    way_out = "a snapshot is what torch.cuda.memory._dump_snapshot writes"
    if not start:
        raise SnapshotError("it is empty: dump it again")
    if start.startswith(_PICKLE) or start.lstrip(_BLANK)[:1] in (b"{", b"["):
        return
    if start.lstrip(_BLANK).startswith(b"<"):
        raise SnapshotError("it is a web page: give the pickle it was made from (torch.cuda.memory._dump_snapshot)")
    if _OLD_PICKLE.match(start):
        raise SnapshotError(
            "it is a pickle of protocol 0 or 1, which are not read: pickle it with protocol 2 or later"
            " (pickle.dump(snapshot, file, protocol=4)), or write it with torch.cuda.memory._dump_snapshot"
        )
    for magic, what in _MAGIC.items():
        if start.startswith(magic):
            raise SnapshotError(f"it is {what}; {way_out}")
    raise SnapshotError(f"it is neither a binary pickle nor JSON; {way_out}")


def _check_memory(size: int, limits: Limits) -> None:
    """See that there is memory for the values in `size` bytes: for as much as those of a snapshot take."""
    wanted, available = size * _MEMORY_PER_BYTE, psutil.virtual_memory().available
    if wanted > min(limits.memory_bytes, available):
        raise SnapshotError(
            f"reading it takes about {format_bytes(wanted)} of memory, of which there are {format_bytes(available)}"
            " and a snapshot may have no more than"
            f" {format_bytes(limits.memory_bytes)}: record fewer events (max_entries)"
        )


def _content(path: Path, limits: Limits) -> bytes:
    """The file's bytes, unpacked if it is gzipped (once: a snapshot is not packed twice)."""
    try:
        if path.exists() and not path.is_file():
            raise SnapshotError("it is not a regular file: name the snapshot itself")
        with path.open("rb") as file:
            size = path.stat().st_size
            if file.peek(_START)[: len(_GZIP)] != _GZIP:
                _recognize(file.peek(_START)[:_START])
                return _at_most(file, limits.file_bytes)
            with gzip.GzipFile(fileobj=file) as unpacked:
                _recognize(unpacked.peek(_START)[:_START])
                most = max(_LEAST_UNPACKED, _UNPACKS_TO * size)
                if most < limits.file_bytes:
                    return _at_most(unpacked, most, "far more than its packed size; if it is yours, unpack it first")
                return _at_most(unpacked, limits.file_bytes)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SnapshotError(f"it cannot be unpacked ({named(error)}): copy it again, or dump it again") from None
    except OSError as error:
        raise SnapshotError(f"it cannot be read ({error.strerror or error}): check its name and permissions") from None


def _at_most(
    file: gzip.GzipFile | io.BufferedReader, size: int, way_out: str = "record fewer events (max_entries)"
) -> bytes:
    """What `file` holds, if that is no more than `size` bytes; of more, hardly more than that is read."""
    chunks, room = [], size
    while chunk := file.read(_CHUNK):
        chunks.append(chunk)
        room -= len(chunk)
        if room < 0:
            raise SnapshotError(f"it holds more than {format_bytes(size)}: {way_out}")
    return b"".join(chunks)
