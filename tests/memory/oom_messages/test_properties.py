"""Any bytes are read without failing, and what PyTorch would print comes back as the numbers it was printed from."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oombisect.memory.oom_messages import OomRecord, Size, parse_message, read_messages
from oombisect.memory.oom_messages.lines import LONGEST, read_lines

_PIECES = [
    "CUDA out of memory. ", "Tried to allocate ", "1.00 GiB", "GPU 0 has a total capacity of ", "of which ", "\n", "\r",
    "is free. ", "Process 12 has ", " memory in use. ", "[rank3]: ", "\x1b[31m", "exit code ", "-9", "137", "{",
    "Killed", "Of the allocated memory ", " is allocated by PyTorch", "CUDA error: out of memory",
    "MPS backend out of memory (", "9" * 40, "0.0000000000000000001 GiB", "out of resource: shared memory",
    "NCCL WARN Cuda failure 'out of memory'",
]  # fmt: skip


def printed(size: int) -> str:
    """As PyTorch's format_size prints it."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size > factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size} bytes"


def chopped(data: bytes, at: Iterable[int]) -> list[bytes]:
    cuts = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[start:end] for start, end in pairwise(cuts)]


@given(st.binary(max_size=3000))
def test_any_bytes(data: bytes) -> None:
    for found in read_messages([data]):
        found.to_json()


@given(st.lists(st.sampled_from(_PIECES) | st.text(max_size=5), max_size=60))
def test_any_text_of_the_words_messages_consist_of(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = list(read_messages([text.encode(errors="replace")]))
    assert [record.line for record in found] == sorted(record.line for record in found)
    for record in found:
        assert 1 <= record.line <= text.count("\n") + 1 and len(record.text) <= 1000
        assert record.to_json()["text"] == record.text


@given(st.lists(st.sampled_from(_PIECES), max_size=60), st.lists(st.integers(0, 5000), max_size=8))
def test_where_a_log_is_cut_into_chunks_does_not_matter(pieces: list[str], cuts: list[int]) -> None:
    data = "".join(pieces).encode()
    assert list(read_messages(chopped(data, cuts))) == list(read_messages([data]))


@given(st.binary(max_size=3 * LONGEST), st.lists(st.integers(0, 3 * LONGEST), max_size=5))
def test_lines_are_counted(data: bytes, cuts: list[int]) -> None:
    lines = list(read_lines(chopped(data, cuts)))
    assert all(1 <= line.number <= data.count(b"\n") + 1 for line in lines)
    assert all(len(line.text) <= LONGEST for line in lines)


_SIZES = st.integers(0, 300 << 30) | st.integers(0, 1 << 20)
_PIDS = st.integers(1, 4_000_000)


@st.composite
def messages(draw: st.DrawFn) -> tuple[str, dict[str, int], list[tuple[int, int]]]:
    """A message as releases print it, the sizes in it and the other processes."""
    sizes = {name: draw(_SIZES) for name in ("requested", "capacity", "free", "allocated", "unallocated")}
    others: list[tuple[int, int]] = []
    backend = draw(st.sampled_from(["CUDA", "HIP"]))
    device = draw(st.integers(0, 31))
    start = f"{backend} out of memory. Tried to allocate {printed(sizes['requested'])}"
    if draw(st.booleans()):
        sizes["reserved"] = draw(_SIZES)
        del sizes["unallocated"]
        text = (
            f"{start} (GPU {device}; {printed(sizes['capacity'])} total capacity; {printed(sizes['allocated'])} "
            f"already allocated; {printed(sizes['free'])} free; "
            f"{printed(sizes['reserved'])} reserved in total by PyTorch)"
        )
        return text, sizes, others
    text = (
        f"{start}. GPU {device} has a total {draw(st.sampled_from(['capacity', 'capacty']))} of "
        f"{printed(sizes['capacity'])} of which {printed(sizes['free'])} is free. "
    )
    others = draw(st.lists(st.tuples(_PIDS, _SIZES), max_size=3, unique_by=lambda use: use[0]))
    text += "".join(f"Process {pid} has {printed(use)} memory in use. " for pid, use in others)
    sizes["in_use"] = draw(_SIZES)
    text += f"Including non-PyTorch memory, this process has {printed(sizes['in_use'])} memory in use. "
    if draw(st.booleans()):
        sizes["allowed"] = draw(st.integers(0, sizes["capacity"]))
        text += f"{printed(sizes['allowed'])} allowed; "
    text += f"Of the allocated memory {printed(sizes['allocated'])} is allocated by PyTorch, "
    if draw(st.booleans()):
        sizes["private_pools"] = draw(_SIZES)
        text += f"with {printed(sizes['private_pools'])} allocated in private pools (e.g., {backend} Graphs), "
    text += f"and {printed(sizes['unallocated'])} is reserved by PyTorch but unallocated. If reserved but"
    return text, sizes, others


def agrees(found: object, sizes: dict[str, int], others: list[tuple[int, int]]) -> OomRecord:
    assert isinstance(found, OomRecord)
    for name, size in sizes.items():
        read = getattr(found, name)
        assert isinstance(read, Size) and read.low <= size <= read.high, name
    assert [use.pid for use in found.others] == [pid for pid, _ in others]
    assert all(use.in_use.low <= size <= use.in_use.high for use, (_, size) in zip(found.others, others, strict=True))
    return found


@given(messages())
def test_what_pytorch_prints_comes_back(message: tuple[str, dict[str, int], list[tuple[int, int]]]) -> None:
    text, sizes, others = message
    found = agrees(parse_message(text), sizes, others)
    assert "allowed" in sizes or found.allowed is None
    assert "private_pools" in sizes or found.private_pools is None
    if "reserved" not in sizes:
        assert found.reserved and found.reserved.low <= sizes["allocated"] + sizes["unallocated"] <= found.reserved.high


_LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=60) | st.sampled_from(
    ["INFO step 12 loss 3.1 memory allocated 12.00 GiB", "raise RuntimeError(message)", "exit code 1", "WARN memory"]
)
_NOISE = st.lists(_LINES.filter(lambda line: parse_message(line) is None), max_size=40)


@given(messages(), _NOISE, _NOISE, st.integers(0, 5), st.lists(st.integers(0, 4000), max_size=4))
def test_in_a_noisy_log_a_message_is_found_once(
    message: tuple[str, dict[str, int], list[tuple[int, int]]], before: list[str], after: list[str], rank: int,
    cuts: list[int],
) -> None:  # fmt: skip
    text, sizes, others = message
    lines = [*before, f"[rank{rank}]: torch.OutOfMemoryError: {text}", *after]
    (found,) = read_messages(chopped("\n".join(lines).encode(), cuts))
    record = agrees(found, sizes, others)
    assert (record.rank, record.line) == (rank, len(before) + 1)


_HOSTILE = [
    b"CUDA out of memory. ", b"Tried to allocate ", b"1", b"a", b"(", b"\x1b[", b"\n", b" ", b"exit code ", b"Killed ",
    b"1.00 GiB of which ", b"CUDA Error: out of memory at ", b"Job ", b"ibv_a ", b"oom-kill:constraint=", b"[rank1]: ",
    b"Of the allocated memory 1.00 GiB is allocated by PyTorch\n", b"MemoryError: ", b"non-zero status: 2", b"\xff",
]  # fmt: skip


@pytest.mark.parametrize("piece", _HOSTILE)
def test_time_is_linear(piece: bytes) -> None:
    """A quarter of a megabyte takes a fraction of a second; anything quadratic in it would take minutes."""
    data = piece * (250_000 // len(piece))
    began = time.process_time()
    for _ in read_messages([data]):
        pass
    assert time.process_time() - began < 10
