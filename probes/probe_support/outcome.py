"""How a probe ends: the exceptions that decide it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

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
    """The result's `oom`: the message, which the driver reads, and the sizes the allocator gave at that instant."""
    return {"phase": phase, "message": str(error), **(exact or {})}
