"""How a probe ends: the exceptions that decide it, and what an out-of-memory error says in numbers."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Any

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_NUMBERS = {
    "requested": re.compile(rf"Tried to allocate {_SIZE}"),
    "capacity": re.compile(rf"total capacity of {_SIZE}"),
    "free": re.compile(rf"of which {_SIZE} is free"),
    "allocated": re.compile(rf"{_SIZE} is allocated by PyTorch"),
    "unused": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
}
# Texts of errors that mean "no device memory" although they are no torch.OutOfMemoryError.
_OOM_TEXTS = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "cudaErrorMemoryAllocation",
    "NCCL Error 1: unhandled cuda error (run with NCCL_DEBUG=INFO for details) 'out of memory'",
)


class Unresolved(Exception):
    """This point cannot be measured: it does not import, rejects its configuration, or needs what is missing."""


def oom_numbers(message: str) -> dict[str, int | None]:
    """The sizes of an out-of-memory message in bytes; None where it names none.

    The message rounds to 0.01 of its unit, so these are no exact figures.
    """
    found: dict[str, int | None] = {}
    for name, pattern in _NUMBERS.items():
        match = pattern.search(message)
        found[name] = round(float(match[1]) * _UNITS[match[2]]) if match else None
    unused = found.pop("unused")
    allocated = found["allocated"]
    found["reserved"] = allocated + unused if allocated is not None and unused is not None else None
    return found


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error, or one it was raised from, says that device memory ran out."""
    for current in chain(error):
        if type(current).__name__ == "OutOfMemoryError" and type(current).__module__.startswith("torch"):
            return True
        if isinstance(current, RuntimeError) and any(text in str(current) for text in _OOM_TEXTS):
            return True
    return False


def one_line(error: BaseException, limit: int = 300) -> str:
    """`Type: first line`, the sentence a person reads; the whole traceback is kept beside it.

    Where the probe itself refused and a project wrapped that in an error of its own, the probe's sentence says more.
    """
    error = next((cause for cause in chain(error) if isinstance(cause, Unresolved)), error)
    text = " ".join(str(error).split())
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if isinstance(error, Unresolved):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def traceback_text(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def oom_record(error: BaseException, phase: str, exact: dict[str, int] | None = None) -> dict[str, Any]:
    """The result's `oom`: the message's numbers, overruled by `exact` ones the allocator gave at the instant itself."""
    message = str(error)
    return {"phase": phase, "message": message, **oom_numbers(message), **(exact or {})}
