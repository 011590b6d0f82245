"""Bytes to plain values (dict, list, tuple, str, int, ...), never to anything else.

A snapshot is a pickle that may come from anywhere. Its opcodes are looked through first (`opcodes`), and the unpickler
that then runs it knows no class, no function, no persistent id, no extension and no buffer.
"""

from __future__ import annotations

import copyreg
import gc
import io
import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Never

from oombisect.memory.snapshots.errors import SnapshotError, named
from oombisect.memory.snapshots.opcodes import check_opcodes

_FRAME_KEYS = {"filename", "line", "name"}


class _Plain(pickle.Unpickler):
    """Plain values only: whatever names a class or a function is refused before it is looked up."""

    def find_class(self, module: str, name: str, /) -> Never:
        raise SnapshotError("it wants to call something: this is no memory snapshot, and nothing of it was run")

    def persistent_load(self, pid: Any, /) -> Never:
        raise SnapshotError("it refers to objects outside the file: this is no memory snapshot")


def unpickle(data: bytes) -> Any:
    """The plain value that `data` pickles.

    Raises:
        SnapshotError: it is no pickle, is cut off, or holds more than plain values.
    """
    check_opcodes(data)
    copyreg.clear_extension_cache()  # what an extension stands for is asked of `find_class`, unless it is cached
    try:
        return _Plain(io.BufferedReader(io.BytesIO(data))).load()
    except (SnapshotError, MemoryError):
        raise
    except EOFError:
        raise SnapshotError("it is cut off: copy it again, or dump it again") from None
    except Exception as error:  # noqa: BLE001  # an unpickler that is fed anything can raise anything
        raise SnapshotError(
            f"it is no pickle of a snapshot ({named(error)}); if it is yours, write it with"
            " torch.cuda.memory._dump_snapshot"
        ) from None


def parse_json(data: bytes) -> Any:
    """The value of a JSON document.

    Raises:
        SnapshotError: it is none, is cut off, or nested too deeply.
    """
    frames: dict[tuple[Any, ...], dict[str, Any]] = {}

    def shared(value: dict[str, Any]) -> dict[str, Any]:
        """Frames that are equal become one: a pickle shares them, JSON writes them over and over."""
        if value.keys() != _FRAME_KEYS:
            return value
        return frames.setdefault((value["filename"], value["line"], value["name"]), value)

    try:
        return json.loads(data, parse_constant=_no_constant, object_hook=shared)
    except SnapshotError:
        raise
    except RecursionError:
        raise SnapshotError("it is nested too deeply to be a memory snapshot") from None
    except TypeError:
        raise SnapshotError("it has frames of call stacks that are none: this is no memory snapshot") from None
    except (json.JSONDecodeError, UnicodeError) as error:
        raise SnapshotError(f"it is no JSON ({named(error)}): copy it again, or write it again") from None
    except ValueError:  # Python reads no more than some thousand digits
        raise SnapshotError(
            "it holds a number that is too large to be a size or an address: this is no memory snapshot"
        ) from None


def _no_constant(name: str) -> Never:
    raise SnapshotError(f"it holds {name}, which is no number of a snapshot")


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without garbage collection: millions of new values are none, and looking for it takes longer than reading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
