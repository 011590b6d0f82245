"""What an out-of-memory error says, and how an ending is told apart from another."""

from __future__ import annotations

import pytest

from probe_support.outcome import Unresolved, is_out_of_memory, one_line, oom_record

MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 512.00 MiB is "
    "free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 76.00 GiB "
    "is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory "
    "is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


class OutOfMemoryError(RuntimeError):
    """Named and placed as torch's."""


OutOfMemoryError.__module__ = "torch"


def test_the_record_keeps_the_message_and_the_exact_sizes() -> None:
    assert oom_record(RuntimeError(MESSAGE), "step_1") == {"phase": "step_1", "message": MESSAGE}
    record = oom_record(RuntimeError(MESSAGE), "step_1", {"requested": 7, "free": 3})
    assert record == {"phase": "step_1", "message": MESSAGE, "requested": 7, "free": 3}


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError(MESSAGE),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ],
)
def test_every_way_memory_runs_out_is_seen(error: Exception) -> None:
    assert is_out_of_memory(error)
    wrapped = ValueError("the step failed")
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped)


@pytest.mark.parametrize(
    "error", [ValueError("CUDA out of memory"), RuntimeError("invalid configuration"), MemoryError("host memory")]
)
def test_other_errors_are_not_out_of_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_the_sentence_people_read_is_one_short_line() -> None:
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert one_line(Unresolved("no such recipe")) == "no such recipe"
    assert len(one_line(ValueError("x" * 999))) < 330


def test_a_refusal_shows_through_what_a_project_wraps_it_in() -> None:
    wrapped = ValueError("Failed to load configuration after 4 attempts")
    wrapped.__cause__ = Unresolved("run `hf download a/b config.json`")
    assert one_line(wrapped) == "run `hf download a/b config.json`"
