"""The GPUs by name and by size."""

from __future__ import annotations

import pytest

from oombisect.errors import OombisectError
from oombisect.units import MIB
from oombisect.virtual_gpu.profiles import CAPABILITY_LIMITS, PROFILES, parse_gpu

# `nvidia-smi --query-gpu=name,memory.total` of real machines.
NVIDIA_SMI = {
    "NVIDIA H100 80GB HBM3": 81559,
    "NVIDIA H200": 143771,
    "NVIDIA A100-SXM4-80GB": 81920,
    "NVIDIA A100-SXM4-40GB": 40960,
    "NVIDIA B200": 183359,
    "NVIDIA L40S": 46068,
}
# "GPU 0 has a total capacity of ..." in published OutOfMemoryError texts, GiB.
TOTAL_CAPACITY = {
    "h100-80gb": {79.18, 79.19},
    "h200-141gb": {139.80, 139.81},
    "a100-80gb": {79.25, 79.26},
    "a100-40gb": {39.39},
    "b200-180gb": {178.35, 178.36},
    "l40s-48gb": {44.31, 44.34, 44.39, 44.40},
}


def test_the_six_profiles_are_there() -> None:
    assert set(PROFILES) == set(TOTAL_CAPACITY)
    assert {p.marketing_name: p.nvml_total_bytes for p in PROFILES.values()} == {
        name: mib * MIB for name, mib in NVIDIA_SMI.items()
    }


@pytest.mark.parametrize("name", sorted(TOTAL_CAPACITY))
def test_totals_are_those_of_published_error_texts(name: str) -> None:
    profile = PROFILES[name]
    assert round(profile.total_bytes / 2**30, 2) in TOTAL_CAPACITY[name]
    assert 0 < profile.nvml_total_bytes - profile.total_bytes < 1024 * MIB
    assert profile.compute_capability in CAPABILITY_LIMITS
    assert 256 * MIB < profile.context_bytes < 1024 * MIB
    assert all(word in profile.source for word in ("context", "nvidia-smi"))


def test_names_with_and_without_prefix() -> None:
    assert parse_gpu("virtual:b200-180gb") is parse_gpu("b200-180gb") is PROFILES["b200-180gb"]


def test_a_size_takes_the_rest_from_the_h100() -> None:
    profile, h100 = parse_gpu("virtual:40000MiB"), PROFILES["h100-80gb"]
    assert profile.total_bytes == profile.nvml_total_bytes == 40000 * MIB
    assert (profile.sm_count, profile.compute_capability) == (h100.sm_count, h100.compute_capability)
    assert profile.context_bytes == h100.context_bytes
    assert "40000MiB" in profile.marketing_name


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("virtual:h100", "virtual:h100-80gb"),
        ("virtual:H200-141GB", "virtual:h200-141gb"),
        ("virtual:a100-80", "virtual:a100-80gb"),
        ("virtual:", "h100-80gb"),
        ("virtual:-5MiB", "79.6GiB"),
    ],
)
def test_an_unknown_name_lists_those_there_are(text: str, hint: str) -> None:
    with pytest.raises(OombisectError) as caught:
        parse_gpu(text)
    assert repr(text) in caught.value.cause
    assert hint in caught.value.way_out
    assert all(name in caught.value.way_out for name in PROFILES)


@pytest.mark.parametrize(
    ("text", "name", "size"),
    [
        ("virtual:8GiB", "8192MiB", 8192 * MIB),
        ("virtual:8192 mib", "8192MiB", 8192 * MIB),
        ("virtual:80GB", "80000000000B", 80 * 10**9),
    ],
)
def test_sizes_are_written_as_everywhere(text: str, name: str, size: int) -> None:
    profile = parse_gpu(text)
    assert (profile.name, profile.total_bytes) == (name, size)
    assert parse_gpu(profile.name) == profile, "the name of a session's device opens it again"


@pytest.mark.parametrize("text", ["virtual:8", "virtual:8XiB", "virtual:8GiBs"])
def test_what_begins_like_a_size_is_refused_as_one(text: str) -> None:
    with pytest.raises(OombisectError, match=r"no unit|not a memory size"):
        parse_gpu(text)


@pytest.mark.parametrize("text", ["virtual:1MiB", "virtual:900MiB", "virtual:99999999MiB"])
def test_a_size_out_of_range(text: str) -> None:
    with pytest.raises(OombisectError, match="out of range"):
        parse_gpu(text)
