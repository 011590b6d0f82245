"""Every line of a collection of real messages, against what a person reads in it.

The collection lies outside of the repository; `texts.py` has messages of all these wordings and more.

Sizes are written as the messages print them, `reserved` where it is printed in total; what is derived is tested below.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oombisect.memory.oom_messages import OomRecord, Size, parse_message, read_messages
from tests.memory.oom_messages.expected import Expected, check, check_none

_FILE = Path(__file__).parents[4] / "shared" / "data" / "oom_messages.jsonl"
_POSSIBLE = "possible"

# line: source, then what it names
EXPECTED: dict[int, tuple[str, dict[str, str | int]]] = {
    1: ("pytorch-cuda", {"requested": "25.00 MiB", "device": 0, "capacity": "3.94 GiB", "allocated": "3.14 GiB",
                         "free": "21.56 MiB", "unallocated": "634.00 KiB"}),
    2: ("pytorch-cuda", {"requested": "294.00 MiB", "device": 0, "capacity": "7.79 GiB", "allocated": "6.27 GiB",
                         "free": "61.62 MiB", "unallocated": "617.88 MiB"}),
    3: ("pytorch-cuda", {"requested": "1024.00 MiB", "device": 0, "capacity": "15.90 GiB", "allocated": "14.25 GiB",
                         "free": "991.56 MiB", "unallocated": "607.00 KiB"}),
    4: ("pytorch-cuda", {"requested": "10.84 GiB", "device": 0, "capacity": "23.65 GiB", "allocated": "1.06 GiB",
                         "free": "10.26 GiB", "reserved": "12.53 GiB"}),
    5: ("pytorch-cuda", {"requested": "128.00 MiB", "device": 0, "capacity": "11.17 GiB", "allocated": "10.85 GiB",
                         "free": "24.81 MiB", "reserved": "10.86 GiB"}),
    6: ("pytorch-cuda", {"requested": "264.00 MiB", "device": 0, "capacity": "2.00 GiB", "allocated": "788.51 MiB",
                         "free": "145.93 MiB", "reserved": "1.02 GiB"}),
    7: ("pytorch-cuda", {"requested": "4.02 GiB", "device": 0, "capacity": "12.00 GiB", "allocated": "6.06 GiB",
                         "free": "2.27 GiB", "reserved": "7.45 GiB"}),
    8: ("pytorch-cuda", {"requested": "824.00 MiB", "device": 0, "capacity": "7.93 GiB", "allocated": "4.71 GiB",
                         "free": "362.38 MiB", "reserved": "5.77 GiB"}),
    9: ("pytorch-cuda", {"requested": "786.00 MiB", "device": 0, "capacity": "31.74 GiB", "allocated": "28.82 GiB",
                         "free": "577.12 MiB", "reserved": "29.97 GiB"}),
    10: ("pytorch-cuda", {"requested": "1.63 GiB", "device": 0, "capacity": "44.56 GiB", "allocated": "27.91 GiB",
                          "free": "565.31 MiB", "reserved": "27.93 GiB"}),
    11: ("pytorch-cuda", {"requested": "52.00 MiB", "device": 0, "capacity": "23.70 GiB", "allocated": "343.74 MiB",
                          "free": "8.56 MiB", "reserved": "408.00 MiB"}),
    12: ("pytorch-cuda", {"requested": "496.00 MiB", "device": 0, "capacity": "14.75 GiB", "free": "235.06 MiB",
                          "process": 20398, "in_use": "14.52 GiB", "allocated": "14.06 GiB",
                          "unallocated": "330.42 MiB"}),
    13: ("pytorch-cuda", {"requested": "35.60 GiB", "device": 0, "capacity": "79.33 GiB", "free": "26.16 GiB",
                          "process": 76883, "in_use": "53.16 GiB", "allocated": "11.97 GiB",
                          "unallocated": "40.69 GiB"}),
    14: ("pytorch-cuda", {"requested": "5.06 GiB", "device": 0, "capacity": "15.56 GiB", "free": "2.74 GiB",
                          "in_use": "12.37 GiB", "allocated": "6.55 GiB", "unallocated": "5.53 GiB"}),
    15: ("pytorch-cuda", {"requested": "372.00 MiB", "device": 0, "capacity": "7.69 GiB", "free": "355.06 MiB",
                          "other 5248": "5.09 MiB", "in_use": "7.29 GiB", "allocated": "5.26 GiB",
                          "unallocated": "1.85 GiB"}),
    16: ("pytorch-cuda", {"requested": "170.00 MiB", "device": 0, "capacity": "22.30 GiB", "free": "14.69 MiB",
                          "process": 3979209, "in_use": "22.28 GiB", "allocated": "22.04 GiB",
                          "unallocated": "1.32 MiB"}),
    17: ("pytorch-cuda", {"rank": 19, "requested": "1002.00 MiB", "device": 3, "capacity": "276.50 GiB",
                          "free": "676.62 MiB", "in_use": "275.82 GiB", "allocated": "210.08 GiB",
                          "private_pools": "3.87 GiB", "unallocated": "59.51 GiB"}),
    18: ("pytorch-cuda", {"requested": "1.12 GiB", "device": 0, "capacity": "139.80 GiB", "free": "713.00 MiB",
                          "other 3011507": "139.10 GiB"}),
    19: ("pytorch-cuda", {"requested": "198.00 MiB", "device": 0, "capacity": "79.25 GiB", "free": "55.19 MiB",
                          "allocated": "77.25 GiB", "private_pools": "156.00 MiB", "unallocated": "1014.25 MiB"}),
    20: ("pytorch-cuda", {"requested": "720.00 MiB", "device": 0, "capacity": "184.31 GiB", "free": "443.94 MiB",
                          "allocated": "171.63 GiB", "unallocated": "2.00 GiB"}),
    22: ("pytorch-cuda", {"in_use": "139.32 GiB", "allocated": "135.53 GiB", "private_pools": "572.00 MiB",
                          "unallocated": "265.53 MiB"}),
    23: ("pytorch-hip", {"requested": "2.00 MiB", "device": 0, "capacity": "255.98 GiB", "free": "244.65 GiB",
                         "allowed": "1.05 GiB", "allocated": "1017.01 MiB", "private_pools": "17.00 MiB",
                         "unallocated": "54.99 MiB"}),
    24: ("pytorch-hip", {"requested": "16.00 GiB", "device": 0, "capacity": "15.24 GiB", "free": "15.09 GiB",
                         "allocated": "0 bytes", "unallocated": "0 bytes"}),
    25: ("pytorch-hip", {"requested": "1.88 GiB", "device": 0, "capacity": "23.98 GiB", "free": "1.70 GiB",
                         "allocated": "21.65 GiB", "unallocated": "279.78 MiB"}),
    26: ("pytorch-hip", {"requested": "3.31 GiB", "device": 0, "capacity": "128.00 GiB", "free": "780.24 MiB",
                         "allocated": "57.70 GiB", "unallocated": "75.82 MiB"}),
    27: ("pytorch-xpu", {"requested": "1.71 GiB", "device": 0, "capacity": "15.56 GiB", "allocated": "176.00 MiB",
                         "reserved": "176.00 MiB"}),
    28: ("pytorch-xpu", {"requested": "6.85 GiB", "device": 0, "capacity": "15.56 GiB", "allocated": "0 bytes",
                         "reserved": "0 bytes"}),
    29: ("pytorch-xpu", {"requested": "4.00 GiB", "device": 0, "capacity": "15.11 GiB"}),
    30: ("pytorch-xpu", {"requested": "4.66 GiB", "device": 0, "capacity": "5.65 GiB", "free": "5.65 GiB",
                         "allocated": "195.50 KiB", "unallocated": "1.81 MiB"}),
    31: ("pytorch-mps", {"allocated": "6.04 GB", "non_pytorch": "1.04 GB", "allowed": "6.77 GB",
                         "requested": "459.07 MB"}),
    32: ("pytorch-mps", {"allocated": "7.43 GB", "non_pytorch": "24.46 GB", "allowed": "32.00 GB",
                         "requested": "129.21 MB"}),
    33: ("pytorch-mps", {"allocated": "8.89 GB", "non_pytorch": "172.98 MB", "allowed": "9.07 GB",
                         "requested": "6.25 MB"}),
    34: ("nccl", {"process": 2999605, "device": 0}),
    35: ("nccl", {"process": 47604, "device": 0}),
    36: ("nccl", {"process": 3063028, "device": 3, "requested": "6291456"}),
    37: ("nccl", {"process": 392, "device": 2}),
    38: ("cublas", {}),
    39: ("cublas", {}),
    40: ("cublas", {"certainty": _POSSIBLE}),
    41: ("cublas", {"device": 0}),
    42: ("cudnn", {"device": 0}),
    43: ("cudnn", {}),
    44: ("cuda", {}),
    45: ("cuda", {}),
    46: ("cuda", {}),
    47: ("triton", {}),
    48: ("vllm", {}),
    49: ("nvshmem", {}),
    51: ("cuda", {}),
    52: ("tensorflow", {"device": 0}),
    54: ("sigkill", {"process": 178, "certainty": _POSSIBLE}),
    55: ("sigkill", {"certainty": _POSSIBLE}),
    56: ("sigkill", {"certainty": _POSSIBLE}),
    57: ("host-allocation", {"requested": "2097152"}),
}  # fmt: skip
NONE = {21: "1 EB", 50: "NVSHMEM_MAX_TEAMS", 53: "", 58: "", 59: "format string", 60: "format string"}
_HOST = {54, 55, 56, 57}


@pytest.fixture(scope="module")
def messages() -> list[str]:
    if not _FILE.is_file():
        pytest.skip("the collection of real messages lies outside the repository")
    return [json.loads(line)["text"] for line in _FILE.read_text().splitlines()]


def test_every_line_is_expected_to_be_something(messages: list[str]) -> None:
    assert set(EXPECTED) | set(NONE) == set(range(1, len(messages) + 1))


@pytest.mark.parametrize("number", EXPECTED)
def test_a_message(messages: list[str], number: int) -> None:
    source, named = EXPECTED[number]
    check(Expected(messages[number - 1], source, named, "host" if number in _HOST else "device"))


@pytest.mark.parametrize("number", NONE)
def test_a_look_alike(messages: list[str], number: int) -> None:
    check_none(messages[number - 1], NONE[number])


@pytest.mark.parametrize(
    ("number", "reserved", "non_pytorch"),
    [
        (1, "3.1406 GiB", None),  # 1.0's `cached` leaves out what is allocated
        (12, "14.3827 GiB", "0.1373 GiB"),
        (17, "269.59 GiB", "6.23 GiB"),  # the free blocks of private pools are counted in what is printed as allocated
        (22, "135.7893 GiB", "3.5307 GiB"),
    ],
)
def test_what_is_derived(messages: list[str], number: int, reserved: str, non_pytorch: str | None) -> None:
    found = parse_message(messages[number - 1])
    assert isinstance(found, OomRecord) and found.reserved
    assert _near(found.reserved, reserved)
    assert (
        found.non_pytorch is None
        if non_pytorch is None
        else found.non_pytorch and _near(found.non_pytorch, non_pytorch)
    )


def _near(size: Size, text: str) -> bool:
    """Equal to the four decimals `text` has."""
    other = Size.parse(text)
    return other is not None and abs(size.bytes - other.bytes) <= (1 << 30) // 10_000


def test_all_of_them_in_one_log(messages: list[str]) -> None:
    """Each from a rank of its own, and the ranks take turns line by line."""
    waiting = [[f"[rank{number}]: {line}" for line in text.split("\n")] for number, text in enumerate(messages, 1)]
    log = []
    while any(waiting):
        log += [lines.pop(0) for lines in waiting if lines]
    found = [record for record in read_messages(["\n".join(log).encode()]) if isinstance(record, OomRecord)]
    assert [(record.rank, record.source) for record in found] == [
        (named.get("rank", number), source) for number, (source, named) in EXPECTED.items()
    ]
