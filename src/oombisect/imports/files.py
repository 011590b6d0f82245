"""Reading the files of an import: regular ones, of a bounded size, each once."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from oombisect.errors import OombisectError
from oombisect.files import irregular
from oombisect.units import format_bytes

MAX_FILE = 1 << 30
_GZIP = b"\x1f\x8b"
_UNPACKS_TO = 200  # times its size
_LEAST_UNPACKED = 16 << 20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file's content, unpacked if it was gzipped; `sha256` is of the file as it lies there."""

    path: Path
    data: bytes
    sha256: str
    changed: datetime

    @property
    def stem(self) -> str:
        """Its name without what tells its format."""
        name = self.path.name
        for suffix in (".gz", ".log", ".txt", ".out", ".err", ".csv", ".jsonl", ".json", ".pickle", ".pkl"):
            name = name.removesuffix(suffix) or name
        return name


def look(path: Path) -> None:
    """See that there is a file to read.

    Raises:
        OombisectError: there is none.
    """
    try:
        kind = irregular(path)
    except (OSError, ValueError) as error:  # a ValueError: a name with a NUL byte
        why = getattr(error, "strerror", None) or error
        raise OombisectError(f"{str(path)!r} cannot be read: {why}", "Name a file that is there.") from error
    if kind:
        raise OombisectError(f"{str(path)!r} is {kind}, not a file", "Name the files themselves.")


def read_file(path: Path, most: int = MAX_FILE) -> SourceFile:
    """All of a file.

    Raises:
        OombisectError: there is none, it is too large, or it cannot be unpacked.
    """
    look(path)
    try:
        size = path.stat().st_size
        if size > most:
            raise too_large(path, most)
        data = path.read_bytes()
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        raise OombisectError(f"{str(path)!r} cannot be read: {error.strerror}", "Check its permissions.") from error
    sha256 = hashlib.sha256(data).hexdigest()
    if data.startswith(_GZIP):
        data = _unpacked(path, data, min(most, max(_LEAST_UNPACKED, _UNPACKS_TO * size)))
    return SourceFile(path, data, sha256, changed)


def too_large(path: Path, most: int) -> OombisectError:
    """What is said of a file that holds more than `most` bytes."""
    return OombisectError(
        f"{str(path)!r} holds more than {format_bytes(most)}", "Cut it into parts, or leave out what has no memory."
    )


def _unpacked(path: Path, data: bytes, most: int) -> bytes:
    unpack = zlib.decompressobj(wbits=31)
    parts, room = [], most
    try:
        while data and room >= 0:
            part = unpack.decompress(data, room + 1)
            parts.append(part)
            room -= len(part)
            data = unpack.unconsumed_tail
            if unpack.eof:  # logs that were packed piece by piece are several members, one after the other
                data, unpack = unpack.unused_data, zlib.decompressobj(wbits=31)
    except zlib.error as error:
        raise OombisectError(f"{str(path)!r} cannot be unpacked: {error}", "Copy it again.") from error
    if room < 0:
        raise too_large(path, most)
    return b"".join(parts)
