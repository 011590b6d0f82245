"""The numbers in an allocator's message; `body` is the message without blanks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from oombisect.memory.oom_messages.records import ProcessUse
from oombisect.memory.oom_messages.sizes import SIZE, Size


def _size(before: str = "", after: str = "") -> str:
    """A size with these words around it. The end of another number (a negative one, a longer one) is none."""
    return rf"{before}(?<![-\d])(?<!\d\.)({SIZE}){after}".replace(" ", "")


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.ASCII)


_PATTERNS = {
    "requested": _any(_size("[Tt]ried to allocate "), _size("Requested(?:size)?: ")),
    "capacity": _any(
        _size("total capac(?:i)?ty of "), _size(after="total capacity[;)]"), _size("Device limit: "),
        _size(after="of which"),
    ),
    "free": _any(_size("of which ", " is free"), _size(after=" free[;)]"), _size(r"Free\(according to CUDA\): ")),
    "allocated": _any(
        _size(after="(?: is allocated by PyTorch| already allocated)"), _size("MPS allocated: "),
        _size("Currently allocated: "),
    ),
    "unallocated": _any(_size(after="(?: is)? reserved(?: by PyTorch)? but unallocated")),
    "reserved": _any(_size(after=" reserved in total by PyTorch")),
    "cached": _any(_size(after=r" cached\)")),
    "private_pools": _any(_size(after=" allocated in private pools")),
    "allowed": _any(_size(after=" allowed;"), _size("max allowed: "), _size(r"user-supplied memory fraction\): ")),
    "in_use": _any(_size("this process has ", " memory in use")),
    "non_pytorch": _any(_size("other allocations: ")),
}  # fmt: skip

_PROCESS = re.compile(rf"Process(\d{{1,10}})has({SIZE})memoryinuse", re.ASCII)
_DEVICE = re.compile(r"[GN]PU(\d{1,4})(?:hasa|;|\.\.\.)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a message names.

    Args:
        sizes: by the name of the record's field.
        end: where in the body the last of it ends.
    """

    sizes: dict[str, Size]
    others: tuple[ProcessUse, ...]
    process: int | None
    device: int | None
    end: int


def read_numbers(body: str) -> Numbers:
    """Every number; what is derived from others (reserved, non-PyTorch) is filled in."""
    sizes: dict[str, Size] = {}
    end = 0
    for name, pattern in _PATTERNS.items():
        match = pattern.search(body)
        size = Size.parse(match[match.lastindex or 0]) if match else None
        if match and size:
            sizes[name] = size
            end = max(end, match.end())
    uses = []
    for match in _PROCESS.finditer(body):
        if size := Size.parse(match[2]):
            uses.append(ProcessUse(int(match[1]), size))
            end = max(end, match.end())
    device = _DEVICE.search(body)
    _total_reserved(sizes)
    process = _own_process(sizes, uses)
    if "in_use" in sizes and "reserved" in sizes and "non_pytorch" not in sizes:
        sizes["non_pytorch"] = sizes["in_use"] - sizes["reserved"]
    if "allowed" in sizes and "capacity" in sizes and sizes["allowed"].bytes > sizes["capacity"].bytes:
        del sizes["allowed"]  # cudaMallocAsync prints a number without meaning where no limit is set
    others = tuple(use for use in uses if use.pid != process)
    return Numbers(sizes, others, process, int(device[1]) if device else None, end)


def _total_reserved(sizes: dict[str, Size]) -> None:
    """Reserved in total, and what of it is not allocated; releases differ in which they print."""
    allocated, cached = sizes.get("allocated"), sizes.pop("cached", None)
    if allocated is None:
        return
    if cached is not None:
        # Up to PyTorch 1.3 `cached` leaves out what is allocated, in 1.4 it is all that is reserved.
        known = [sizes[name] for name in ("capacity", "free") if name in sizes]
        apart = len(known) == 2 and allocated.low + cached.low + known[1].low <= known[0].high
        sizes["unallocated" if apart or cached.high < allocated.low else "reserved"] = cached
    if "unallocated" in sizes:
        sizes.setdefault("reserved", allocated + sizes["unallocated"])
    elif "reserved" in sizes:
        sizes["unallocated"] = sizes["reserved"] - allocated


def _own_process(sizes: dict[str, Size], uses: list[ProcessUse]) -> int | None:
    """Which listed process is the one that failed, where the message does not say `this process`.

    In a container PyTorch does not find its own number among the device's, and lists itself as any other. If it is
    listed, it uses at least what it has reserved; where only one does, that is it.
    """
    reserved = sizes.get("reserved")
    if "in_use" in sizes or reserved is None or reserved.low == 0:
        return None
    able = [use for use in uses if use.in_use.high >= reserved.low]
    if len(able) != 1:
        return None
    capacity = sizes.get("capacity")
    if capacity and able[0].in_use.low + reserved.low > capacity.high:
        sizes["in_use"] = able[0].in_use  # besides it there is no room for a second process with as much
        return able[0].pid
    return None
