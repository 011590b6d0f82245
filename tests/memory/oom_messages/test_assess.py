"""What numbers prove, and where they do not."""

from __future__ import annotations

import pytest

from oombisect.memory.oom_messages import OomRecord, parse_message
from oombisect.memory.oom_messages.assess import Assessment, assess


def allocator(
    requested: str, capacity: str, free: str, allocated: str, unallocated: str, *, process: str = "", allowed: str = "",
    private: str = "",
) -> OomRecord:  # fmt: skip
    private = f", with {private} allocated in private pools (e.g., CUDA Graphs)" if private else ""
    found = parse_message(
        f"CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total capacity of {capacity} of which {free} "
        f"is free. {process}{allowed}Of the allocated memory {allocated} is allocated by PyTorch{private}, and "
        f"{unallocated} is reserved by PyTorch but unallocated."
    )
    assert isinstance(found, OomRecord)
    return found


def judged(text: str) -> Assessment:
    found = parse_message(text)
    assert isinstance(found, OomRecord)
    return assess(found)


OWN = "Including non-PyTorch memory, this process has {} memory in use. "


def test_a_request_no_allocator_could_serve_is_capacity() -> None:
    told = assess(
        allocator("2.00 GiB", "80.00 GiB", "0.50 GiB", "78.00 GiB", "1.00 GiB", process=OWN.format("79.50 GiB"))
    )
    assert (told.verdict, told.proven) == ("capacity", True)
    assert "0.50 GiB short" in told.says[0]


def test_within_rounding_nothing_is_proven() -> None:
    """Short by 0.01 GiB, and the three sizes are rounded by as much together."""
    told = assess(allocator("1.51 GiB", "80.00 GiB", "0.50 GiB", "78.00 GiB", "1.00 GiB"))
    assert (told.verdict, told.proven) == ("fragmentation-possible", False)


def test_room_in_pieces_makes_fragmentation_possible_and_proves_nothing() -> None:
    told = assess(allocator("2.00 GiB", "80.00 GiB", "0.50 GiB", "60.00 GiB", "18.00 GiB"))
    assert (told.verdict, told.proven) == ("fragmentation-possible", False)
    assert "proof is a replay" in " ".join(told.says)


def test_free_blocks_of_private_pools_are_not_counted_as_alive() -> None:
    """PyTorch adds them to what it prints as allocated: what is alive at least is 76 GiB, which leaves room."""
    short = ("2.00 GiB", "80.00 GiB", "0.50 GiB", "78.00 GiB", "1.00 GiB")
    assert assess(allocator(*short)).verdict == "capacity"
    told = assess(allocator(*short, private="2.00 GiB"))
    assert told.verdict == "fragmentation-possible" and "private pools" in told.says[-1]


def test_another_process_that_takes_what_is_missing() -> None:
    told = assess(
        allocator("2.00 GiB", "80.00 GiB", "0.50 GiB", "58.00 GiB", "1.00 GiB",
                  process="Process 12 has 20.00 GiB memory in use. " + OWN.format("59.50 GiB"))
    )  # fmt: skip
    assert (told.verdict, told.proven) == ("outside", True)
    assert "Another process uses" in told.says[1]


def test_another_process_too_small_to_matter() -> None:
    told = assess(
        allocator("2.00 GiB", "80.00 GiB", "0.50 GiB", "78.00 GiB", "0.20 GiB",
                  process="Process 12 has 5.09 MiB memory in use. " + OWN.format("79.40 GiB"))
    )  # fmt: skip
    assert told.verdict == "capacity"


def test_much_memory_of_this_process_outside_pytorch() -> None:
    told = assess(
        allocator("2.00 GiB", "80.00 GiB", "0.50 GiB", "65.00 GiB", "0.20 GiB", process=OWN.format("79.40 GiB"))
    )
    assert (told.verdict, told.proven) == ("outside", False)
    assert "14.20 GiB outside PyTorch" in told.says[1]


def test_a_device_that_is_full_of_what_nobody_listed() -> None:
    told = assess(allocator("52.00 MiB", "23.70 GiB", "8.56 MiB", "343.74 MiB", "64.26 MiB"))
    assert (told.verdict, told.proven) == ("outside", False)
    assert "23.2" in told.says[0] and "fragmentation is possible" in " ".join(told.says)


def test_a_limit_below_the_device() -> None:
    told = assess(
        allocator("2.00 GiB", "80.00 GiB", "69.00 GiB", "9.00 GiB", "1.00 GiB", allowed="10.00 GiB allowed; ")
    )
    assert (told.verdict, told.proven) == ("limit", True)
    assert "10.00 GiB" in told.says[0]


def test_a_request_larger_than_the_device() -> None:
    told = assess(allocator("90.00 GiB", "80.00 GiB", "79.00 GiB", "0 bytes", "0 bytes"))
    assert (told.verdict, told.proven) == ("capacity", True)


def test_free_memory_that_was_refused_is_no_proof_of_anything() -> None:
    told = assess(allocator("4.00 GiB", "80.00 GiB", "5.65 GiB", "60.00 GiB", "1.00 GiB"))
    assert told.verdict == "unknown" and "more free memory than the request" in told.says[0]


MPS = (
    "MPS backend out of memory (MPS allocated: {}, other allocations: {}, max allowed: 10.00 GB). Tried to allocate {}"
)


@pytest.mark.parametrize(
    ("allocated", "other", "requested", "verdict"),
    [
        ("5.00 GB", "4.00 GB", "3.00 GB", "outside"),
        ("8.00 GB", "1.00 GB", "3.00 GB", "limit"),
        ("6.00 GB", "1.00 GB", "3.00 GB", "outside"),
    ],
)
def test_mps(allocated: str, other: str, requested: str, verdict: str) -> None:
    assert judged(MPS.format(allocated, other, requested)).verdict == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("NCCL WARN Cuda failure 2 'out of memory'", "unknown"),
        ("RuntimeError: CUDA error: out of memory", "unknown"),
        ("XPU out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 15.11 GiB.", "unknown"),
        ("failed (exitcode: -9) local_rank: 0 (pid: 178)", "host"),
        ("MemoryError", "host"),
    ],
)
def test_messages_without_numbers_prove_nothing(text: str, verdict: str) -> None:
    told = judged(text)
    assert (told.verdict, told.proven) == (verdict, False) and told.says


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (allocator("11.00 GiB", "1.00 GiB", "10.00 GiB", "1.00 GiB", "0 bytes", process=OWN.format("15.89 GiB")),
         "Free memory (10.00 GiB) is more than the device has (1.00 GiB)"),
        (allocator("2.00 GiB", "8.00 GiB", "0.10 GiB", "1.00 GiB", "0 bytes", process=OWN.format("15.89 GiB")),
         "What this process uses (15.89 GiB) is more than the device has"),
        (allocator("2.00 GiB", "8.00 GiB", "0.10 GiB", "9.00 GiB", "1.00 GiB"), "Reserved memory (10.00 GiB)"),
        (allocator("2.00 GiB", "8.00 GiB", "0.10 GiB", "1.00 GiB", "0 bytes", private="2.00 GiB"),
         "Memory in private pools (2.00 GiB) is more than is allocated"),
        (allocator("2.00 GiB", "8.00 GiB", "0.10 GiB", "1.00 GiB", "0 bytes",
                   process="Process 12 has 9.00 GiB memory in use. " + OWN.format("2.00 GiB")),
         "A process that is listed uses more (9.00 GiB)"),
        (allocator("9.00 GiB", "8.00 GiB", "3.00 GiB", "5.00 GiB", "0 bytes", process=OWN.format("5.50 GiB")),
         "sum up to 8.49 GiB, more than the device has (8.00 GiB)"),
    ],
)  # fmt: skip
def test_numbers_that_contradict_each_other_prove_nothing(record: OomRecord, why: str) -> None:
    told = assess(record)
    assert (told.verdict, told.proven) == ("contradictory", False)
    assert any(why in sentence for sentence in told.says), told.says


def test_more_allocated_than_reserved_contradicts_itself() -> None:
    told = judged(
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 5.00 GiB already allocated; "
        "0.50 GiB free; 4.00 GiB reserved in total by PyTorch)"
    )
    assert (told.verdict, told.proven) == ("contradictory", False)


def test_a_sum_that_is_off_by_rounding_contradicts_nothing() -> None:
    told = assess(allocator("2.00 GiB", "8.00 GiB", "0.50 GiB", "7.00 GiB", "0 bytes", process=OWN.format("7.51 GiB")))
    assert (told.verdict, told.proven) == ("capacity", True)


@pytest.mark.parametrize("size", ["-2.00 GiB", "nan GiB", "inf GiB", "123456789012345678901234567890 GiB", "? GiB"])
def test_a_request_that_no_size_can_be_is_an_error_all_the_same(size: str) -> None:
    found = parse_message(
        f"CUDA out of memory. Tried to allocate {size}. GPU 0 has a total capacity of 8.00 GiB of which 0.50 GiB is "
        "free. Of the allocated memory 7.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
        "unallocated."
    )
    assert isinstance(found, OomRecord)
    assert (found.requested, assess(found).verdict) == (None, "unknown")
    assert found.capacity is not None


@pytest.mark.parametrize("size", ["-2.00 GiB", "nan GiB", "123456789012345678901234567890 GiB"])
def test_such_a_request_needs_no_other_numbers(size: str) -> None:
    found = parse_message(f"CUDA out of memory. Tried to allocate {size}. GPU 9999...")
    assert isinstance(found, OomRecord)
    assert found.requested is None


def test_a_negative_number_is_not_read_as_a_positive_one() -> None:
    found = parse_message(
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 5.00 GiB already allocated; "
        "-3.00 GiB free; 6.00 GiB reserved in total by PyTorch)"
    )
    assert isinstance(found, OomRecord)
    assert found.free is None
