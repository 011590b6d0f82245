"""The GPUs that can be simulated, with their true figures and where each figure comes from."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from oombisect.errors import OombisectError
from oombisect.units import KIB, MIB, format_bytes, parse_bytes


@dataclass(frozen=True)
class GpuProfile:
    """A GPU as CUDA and NVML describe it. Sizes in bytes.

    Attributes:
        name: the name after `virtual:`, e.g. `h100-80gb`.
        marketing_name: what the driver calls it.
        total_bytes: memory that CUDA programs see (`cudaDeviceProp.totalGlobalMem`, `cudaMemGetInfo`).
        nvml_total_bytes: memory that nvidia-smi shows: `total_bytes` plus what the driver keeps for itself.
        sm_count: multiprocessors.
        compute_capability: (major, minor).
        context_bytes: what a CUDA context takes by itself, before any library loads kernels.
        l2_bytes: second-level cache.
        memory_bus_bits, clock_khz, memory_clock_khz: as `cudaDeviceProp` gives them.
        source: where the figures come from.
    """

    name: str
    marketing_name: str
    total_bytes: int
    nvml_total_bytes: int
    sm_count: int
    compute_capability: tuple[int, int]
    context_bytes: int
    l2_bytes: int
    memory_bus_bits: int
    clock_khz: int
    memory_clock_khz: int
    source: str


@dataclass(frozen=True)
class CapabilityLimits:
    """Per-multiprocessor limits of a compute capability (CUDA C++ Programming Guide, "Technical Specifications per
    Compute Capability"): shared memory per SM and per block with opt-in in bytes, resident threads and blocks."""

    shared_per_sm_bytes: int
    shared_optin_bytes: int
    threads_per_sm: int
    blocks_per_sm: int


CAPABILITY_LIMITS = {
    (8, 0): CapabilityLimits(164 * KIB, 163 * KIB, 2048, 32),
    (8, 9): CapabilityLimits(100 * KIB, 99 * KIB, 1536, 24),
    (9, 0): CapabilityLimits(228 * KIB, 227 * KIB, 2048, 32),
    (10, 0): CapabilityLimits(228 * KIB, 227 * KIB, 2048, 32),
}

# Memory that CUDA sees: what a driver of the generation named reports; it moves by some tens of MiB between drivers.
# Memory that nvidia-smi shows: `nvidia-smi --query-gpu=name,memory.total`, driver 580.
# Context: published OutOfMemoryError texts of single processes, "memory in use" less what PyTorch allocated and
# reserved, in GiB; so it holds the kernels that a simple run loads, and is good to about 0.01 GiB.
_H100 = GpuProfile(
    name="h100-80gb",
    marketing_name="NVIDIA H100 80GB HBM3",
    total_bytes=85_017_755_648,
    nvml_total_bytes=81559 * MIB,
    sm_count=132,
    compute_capability=(9, 0),
    context_bytes=522 * MIB,
    l2_bytes=52_428_800,
    memory_bus_bits=5120,
    clock_khz=1_980_000,
    memory_clock_khz=2_619_000,
    source="deviceQuery, driver of CUDA 13.0: 81079 MBytes (85017755648 bytes), 132 SMs, L2 52428800, 5120-bit, 1980"
    " and 2619 MHz; nvidia-smi: 81559 MiB; context: as on the H200, which is the same chip",
)
_H200 = GpuProfile(
    name="h200-141gb",
    marketing_name="NVIDIA H200",
    total_bytes=143156 * MIB,
    nvml_total_bytes=143771 * MIB,
    sm_count=132,
    compute_capability=(9, 0),
    context_bytes=522 * MIB,
    l2_bytes=60 * MIB,
    memory_bus_bits=6144,
    clock_khz=1_980_000,
    memory_clock_khz=3_201_000,
    source="torch.cuda.get_device_properties: 143156 MB, 132 SMs, L2 60 MB (OutOfMemoryError texts: 139.80 GiB);"
    " nvidia-smi: 143771 MiB; context: 139.20 - 2.05 - 136.64 GiB; bus and clocks: NVIDIA H200 data sheet (4.8 TB/s)",
)
_A100_80 = GpuProfile(
    name="a100-80gb",
    marketing_name="NVIDIA A100-SXM4-80GB",
    total_bytes=85_100_068_864,
    nvml_total_bytes=81920 * MIB,
    sm_count=108,
    compute_capability=(8, 0),
    context_bytes=492 * MIB,
    l2_bytes=41_943_040,
    memory_bus_bits=5120,
    clock_khz=1_410_000,
    memory_clock_khz=1_593_000,
    source="deviceQuery, driver of CUDA 12.5: 81158 MBytes (85100068864 bytes), 108 SMs, L2 41943040, 5120-bit, 1410"
    " and 1593 MHz; nvidia-smi: 81920 MiB; context: as on the 40 GB model, the same chip (here 66.91 - 39.50 - 26.91)",
)
_A100_40 = GpuProfile(
    name="a100-40gb",
    marketing_name="NVIDIA A100-SXM4-40GB",
    total_bytes=42_298_834_944,
    nvml_total_bytes=40960 * MIB,
    sm_count=108,
    compute_capability=(8, 0),
    context_bytes=492 * MIB,
    l2_bytes=41_943_040,
    memory_bus_bits=5120,
    clock_khz=1_410_000,
    memory_clock_khz=1_215_000,
    source="deviceQuery, driver of CUDA 12.2: 40339 MBytes (42298834944 bytes)"
    " (github.com/bottlerocket-os/bottlerocket/pull/3873); nvidia-smi: 40960 MiB; context: 39.19 - 38.61 - 0.10 GiB",
)
_B200 = GpuProfile(
    name="b200-180gb",
    marketing_name="NVIDIA B200",
    total_bytes=182631 * MIB,
    nvml_total_bytes=183359 * MIB,
    sm_count=148,
    compute_capability=(10, 0),
    context_bytes=712 * MIB,
    l2_bytes=132_644_864,
    memory_bus_bits=7680,
    clock_khz=1_965_000,
    memory_clock_khz=3_996_000,
    source="torch.cuda.get_device_properties: 182631 MB, 148 SMs (OutOfMemoryError texts: 178.35 GiB); L2 126.50 MB,"
    " 7680-bit, 3996 MHz: github.com/pytorch/ao/pull/4002; nvidia-smi: 183359 MiB; context: 168.34 - 167.64 - 0.00 GiB",
)
_L40S = GpuProfile(
    name="l40s-48gb",
    marketing_name="NVIDIA L40S",
    total_bytes=47_576_711_168,
    nvml_total_bytes=46068 * MIB,
    sm_count=142,
    compute_capability=(8, 9),
    context_bytes=522 * MIB,
    l2_bytes=100_663_296,
    memory_bus_bits=384,
    clock_khz=2_520_000,
    memory_clock_khz=9_001_000,
    source="deviceQuery, driver of CUDA 12.4: 45373 MBytes (47576711168 bytes), 142 SMs, L2 100663296, 384-bit, 2520"
    " and 9001 MHz (README of the crate cuda-device-query); nvidia-smi: 46068 MiB; context: 44.34 - 43.42 - 0.41 GiB",
)
PROFILES: dict[str, GpuProfile] = {p.name: p for p in (_H100, _H200, _A100_80, _A100_40, _B200, _L40S)}
# A card must hold its context, and stay well below what "overcommit" allows.
MINIMUM_BYTES, MAXIMUM_BYTES = 1024 * MIB, 512 * 1024 * MIB


def parse_gpu(text: str) -> GpuProfile:
    """`virtual:h100-80gb` or `virtual:79.6GiB` -> the profile; an arbitrary size takes the H100's other properties.

    A size is what CUDA programs see, and nvidia-smi shows the same.

    Raises:
        OombisectError: no such profile, naming those there are and the nearest ones.
    """
    name = text.removeprefix("virtual:")
    if name in PROFILES:
        return PROFILES[name]
    if not name[:1].isdecimal():
        near = difflib.get_close_matches(name.lower(), PROFILES, n=2)
        hint = f"Did you mean {' or '.join(f'virtual:{match}' for match in near)}? " if near else ""
        raise OombisectError(
            f"{text!r} is no virtual GPU", f"{hint}There are {', '.join(PROFILES)}, or a size such as virtual:79.6GiB."
        )
    total = parse_bytes(name)
    if not MINIMUM_BYTES <= total <= MAXIMUM_BYTES:
        raise OombisectError(
            f"A virtual GPU of {name} is out of range",
            f"Choose a size from {format_bytes(MINIMUM_BYTES)} to {format_bytes(MAXIMUM_BYTES)}.",
        )
    # One size is one device, however it is written.
    name = f"{total}B" if total % MIB else f"{total // MIB}MiB"
    return replace(
        _H100,
        name=name,
        marketing_name=f"Virtual GPU {name}",
        total_bytes=total,
        nvml_total_bytes=total,
        source=f"memory: as asked for; everything else: {_H100.name}",
    )
