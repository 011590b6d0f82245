"""One error printed many times is one error; the first that is certain decides."""

from __future__ import annotations

from oombisect.memory.oom_messages import read_messages
from oombisect.memory.oom_messages.groups import Summary, summarize

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {} has a total capacity of 79.11 GiB "
    "of which 0.50 GiB is free. Of the allocated memory {} GiB is allocated by PyTorch, and 1.00 GiB is reserved by "
    "PyTorch but unallocated."
)


def summary(*lines: str) -> Summary:
    return summarize(read_messages(["\n".join(lines).encode()]))


def test_printed_again_without_its_rank() -> None:
    text = MESSAGE.format(3, "76.00")
    told = summary(f"[rank3]: {text}", "...", text, f"[rank3]: {text}")
    (error,) = told.errors
    assert (error.record.rank, error.record.line, error.printed, error.last_line) == (3, 1, 3, 4)
    (error,) = summary(text, f"[rank3]: {text}").errors
    assert (error.record.rank, error.record.line, error.printed) == (3, 1, 2)


def test_two_ranks_with_equal_numbers_are_two() -> None:
    text = MESSAGE.format(0, "76.00")
    told = summary(f"[rank8]: {text}", f"[rank0]: {text}")
    assert [error.record.rank for error in told.errors] == [8, 0]
    assert list(told.by_rank()) == [8, 0]


def test_messages_without_numbers_are_not_given_to_another_rank() -> None:
    told = summary("[rank1]: RuntimeError: CUDA error: out of memory", "RuntimeError: CUDA error: out of memory")
    assert [error.record.rank for error in told.errors] == [1, None]


def test_the_first_that_is_certain() -> None:
    told = summary("exit code 137", f"[rank5]: {MESSAGE.format(1, '70.00')}", f"[rank2]: {MESSAGE.format(0, '71.00')}")
    assert told.first is not None and told.first.record.rank == 5
    told = summary("exit code 137")
    assert told.first is not None and told.first.record.source == "sigkill"
    assert summary("all is well").first is None


def test_the_kernel_s_lines_of_one_event_are_one() -> None:
    told = summary(
        "[1.0] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0",
        "[1.1] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python,pid=42,uid=0",
        "[1.2] Out of memory: Killed process 42 (python) total-vm:9kB",
    )
    (error,) = told.errors
    assert (error.record.process, error.printed) == (42, 2)


def test_look_alikes_are_kept_apart_and_once() -> None:
    line = "out of resource: shared memory, Required: 262144, Hardware limit: 232448"
    told = summary(line, line)
    assert told.errors == [] and len(told.look_alikes) == 1


def test_what_is_kept_is_bounded() -> None:
    told = summary(*(f"Out of memory: Killed process {number} (python)" for number in range(10, 3000)))
    assert len(told.errors) == 2000 and told.omitted == 990
