"""The GPUs that can be simulated, with their true figures and where each figure comes from."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from oombisect.errors import OombisectError
from oombisect.units import KIB, MIB


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

_H100 = GpuProfile(
    "h100-80gb",
    "NVIDIA H100 80GB HBM3",
    81008 * MIB,
    81559 * MIB,
    132,
    (9, 0),
    512 * MIB,
    50 * MIB,
    5120,
    1980000,
    2619000,
    "TODO",
)
PROFILES: dict[str, GpuProfile] = {profile.name: profile for profile in (_H100,)}


def parse_gpu(text: str) -> GpuProfile:
    """`virtual:h100-80gb` or `virtual:81559MiB` -> the profile; an arbitrary size takes the H100's other properties.

    Raises:
        OombisectError: no such profile, naming those there are and the nearest ones.
    """
    name = text.removeprefix("virtual:")
    if name in PROFILES:
        return PROFILES[name]
    size = re.fullmatch(r"(\d+)MiB", name)
    if size and int(size[1]) > 0:
        total = int(size[1]) * MIB
        return replace(_H100, name=name, total_bytes=total, nvml_total_bytes=total)
    near = difflib.get_close_matches(name, PROFILES, n=2)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    raise OombisectError(f"{text!r} is no virtual GPU", f"{hint}There are {', '.join(PROFILES)}, or virtual:NNNNNMiB.")
