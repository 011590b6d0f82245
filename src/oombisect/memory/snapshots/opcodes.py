"""Which pickles are read: those whose every opcode builds plain values of a snapshot's kind.

A pickle is a program. Before it is run it is looked through from end to end, and one opcode outside of a short list
ends that: nothing that names a class, a function, an outside object, an extension or a buffer is ever given to an
unpickler. What is on the list is harmless in amount too: numbers have 64 bits, the memo has no more places than the
file bytes, and a tuple is two numbers (a dict that has deeply nested tuples for keys would hash them for ever, or
crash). A byte that makes an empty list or dict costs 88 bytes of memory, all else 27 or less for each byte: with few
enough of the former a value takes at most `MEMORY_PER_BYTE` times the room of its pickle. So no process has to be put
under a limit, which would hit its other threads too, and the programs that they start.
"""

from __future__ import annotations

import pickletools
import re
from functools import lru_cache
from typing import Final

from oombisect.memory.snapshots.errors import SnapshotError

MEMORY_PER_BYTE: Final = 40
_MOST_CONTAINERS: Final = 4  # one per so many bytes; the events of a trace take 15 and more
_FEW_CONTAINERS: Final = 4096
_LONGEST_TEXT: Final = 1 << 20
_NAMES: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_STOP: Final = ord(".")
_TEXTS: Final = {ord("\x8c"): 1, ord("X"): 4, ord("\x8d"): 8}
"""The opcodes of texts (SHORT_BINUNICODE, BINUNICODE, BINUNICODE8), and how many bytes tell their length."""
_OLD: Final = frozenset(map(ord, "0124FILSVdglpt"))
"""Opcodes of protocols 0 and 1, without those that call or name things: these are what a hostile file has."""
_WAY_OUT: Final = "if it is yours, write it with torch.cuda.memory._dump_snapshot"


def check_opcodes(data: bytes) -> None:
    """See that `data` pickles plain values only (protocols 2 to 5).

    Raises:
        SnapshotError: it does not, or it is cut off.
    """
    if not data.startswith(b"\x80"):
        raise SnapshotError(f"it is neither a binary pickle nor JSON; {_WAY_OUT}")
    if data.count(b"]") + data.count(b"}") > max(_FEW_CONTAINERS, len(data) // _MOST_CONTAINERS):
        raise SnapshotError(f"it holds little but empty lists: this is no memory snapshot; {_WAY_OUT}")
    run = _harmless(len(data)).match
    at, end = 0, len(data)
    while True:
        found = run(data, at)
        assert found is not None  # it matches the empty text
        at = found.end()
        if at >= end:
            raise SnapshotError("it is cut off: copy it again, or dump it again")
        opcode = data[at]
        if opcode == _STOP:
            return
        width = _TEXTS.get(opcode)
        if width is None:
            _refuse(data, at)
            return
        length = int.from_bytes(data[at + 1 : at + 1 + width], "little")
        if length > _LONGEST_TEXT:
            raise SnapshotError(f"it holds a text of {length} characters: this is no memory snapshot; {_WAY_OUT}")
        at += 1 + width + length


@lru_cache(maxsize=8)
def _harmless(size: int) -> re.Pattern[bytes]:
    """A run of opcodes without texts, in a pickle of `size` bytes."""
    number = (
        rb"(?:K.|M..|J....|\x8a(?:\x00|\x01.|\x02..|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{9}))"
    )
    frame = rb"(?:\x95.{8})?+"  # pickles come in frames, which may begin anywhere
    return re.compile(
        rb"(?:"
        rb"j....|[hq]."  # LONG_BINGET (most are this: they come first), BINGET, BINPUT
        rb"|[\x94(\]}aesuN\x88\x89)]"  # MEMOIZE, MARK, lists, dicts, None, True, False, the empty tuple
        rb"|" + number + rb"(?:" + frame + number + frame + rb"\x86)?+"  # numbers, TUPLE2 of them
        rb"|G.{8}|\x95.{8}|\x80[\x02-\x05]"  # BINFLOAT, FRAME, PROTO
        rb"|r" + _at_most(size) + rb")*+",  # LONG_BINPUT
        re.DOTALL,
    )


def _at_most(size: int) -> bytes:
    """Four bytes, the lowest first: a number of about `size` at most."""
    digits = size.bit_length() + 7 >> 3
    if digits > 4:
        return rb".{4}"
    top = size >> 8 * (digits - 1)
    return b"." * (digits - 1) + rb"[\x00-\x%02x]" % top + rb"\x00" * (4 - digits)


def _refuse(data: bytes, at: int) -> None:
    """Say what the opcode at `at` is."""
    opcode = data[at]
    if len(data) - at < 10 and opcode in b"hqjKMJ\x8aGr\x95\x80":
        raise SnapshotError("it is cut off: copy it again, or dump it again")
    if opcode in b"\x8a\x8b":
        raise SnapshotError(
            f"it holds a number at byte {at} that is too large to be a size or an address: this is no memory snapshot;"
            f" {_WAY_OUT}"
        )
    if opcode in _OLD:
        raise SnapshotError(f"it is a pickle of protocol 0 or 1, or none; {_WAY_OUT}")
    name = _NAMES.get(opcode, f"byte {opcode:#04x}")
    raise SnapshotError(
        f"it holds more than plain values ({name} at byte {at}): this is no memory snapshot, and nothing of it was run;"
        f" {_WAY_OUT}"
    )
