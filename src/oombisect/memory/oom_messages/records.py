"""What an out-of-memory message says, as a typed record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from oombisect.memory.oom_messages.sizes import Size


class Source(StrEnum):
    """Whose message it is."""

    PYTORCH_CUDA = "pytorch-cuda"
    PYTORCH_HIP = "pytorch-hip"
    PYTORCH_XPU = "pytorch-xpu"
    PYTORCH_MPS = "pytorch-mps"
    PYTORCH_NPU = "pytorch-npu"
    CUDA = "cuda"
    HIP = "hip"
    NCCL = "nccl"
    CUBLAS = "cublas"
    CUDNN = "cudnn"
    CUDA_LIBRARY = "cuda-library"
    TRITON = "triton"
    NVSHMEM = "nvshmem"
    VLLM = "vllm"
    TENSORFLOW = "tensorflow"
    XLA = "xla"
    CUPY = "cupy"
    RMM = "rmm"
    OOM_KILLER = "host-oom-killer"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    RAY = "ray"
    SIGKILL = "sigkill"
    DATALOADER = "dataloader"
    HOST_ALLOCATION = "host-allocation"

    @property
    def is_pytorch(self) -> bool:
        """One of PyTorch's own allocators."""
        return self.value.startswith("pytorch-")


class Memory(StrEnum):
    """Which memory ran out."""

    DEVICE = "device"
    HOST = "host"


class Certainty(StrEnum):
    """CERTAIN: it says so. LIKELY: nothing else usually says this. POSSIBLE: other causes end in the same words."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process the message lists, and the device memory it uses."""

    pid: int
    in_use: Size


@dataclass(frozen=True, slots=True)
class OomRecord:
    """One out-of-memory message; None where the message has no such number.

    Args:
        wording: the name of the wording it was recognised by.
        text: the message on one line, shortened; `line` is where it begins (from 1).
        rank: as the line's prefix or the message names it.
        device: the device's index as that process counts it.
        process: the process that ran out of memory, if it is named.
        requested, capacity, free: of the request and of the device. `free` is what the driver still had.
        allocated, reserved: of PyTorch's allocator, as printed. `unallocated` is printed as reserved but unallocated.
        private_pools: printed as allocated in private pools; see `live`.
        allowed: a limit below the capacity, set by set_per_process_memory_fraction or by MPS.
        in_use: all of this process, memory outside PyTorch included; `others` are the other processes listed.
        non_pytorch: memory of this process outside PyTorch's allocator: printed, or `in_use` minus `reserved`.
        host_used: host memory that a killed process used.
    """

    source: Source
    memory: Memory
    certainty: Certainty
    wording: str
    text: str
    line: int = 1
    rank: int | None = None
    device: int | None = None
    process: int | None = None
    requested: Size | None = None
    capacity: Size | None = None
    free: Size | None = None
    allocated: Size | None = None
    reserved: Size | None = None
    unallocated: Size | None = None
    private_pools: Size | None = None
    allowed: Size | None = None
    in_use: Size | None = None
    non_pytorch: Size | None = None
    host_used: Size | None = None
    others: tuple[ProcessUse, ...] = ()

    @property
    def live(self) -> Size | None:
        """What was allocated at least.

        PyTorch prints allocated plus `private_pools`, and what it adds up there is the free blocks of those pools
        (c10/cuda/CUDACachingAllocator.cpp), so they are taken off again.
        """
        if self.allocated is None or self.private_pools is None:
            return self.allocated
        return self.allocated - self.private_pools

    @property
    def outside(self) -> Size | None:
        """Device memory that is neither free nor in this process's allocator: the CUDA context, others' memory."""
        if self.capacity is None or self.free is None or self.reserved is None:
            return None
        return self.capacity - self.free - self.reserved

    def sizes(self) -> Iterator[tuple[str, Size]]:
        """Every size it has, by name."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Size):
                yield field.name, value

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two printings of the same error."""
        return (self.rank, self.source, self.device, self.process, *self.sizes(), self.others)

    def to_json(self) -> dict[str, Any]:
        """`<name>_bytes` and, where the message rounds, `<name>_precision_bytes`: how far it may be off."""
        told: dict[str, Any] = {
            "source": str(self.source),
            "memory": str(self.memory),
            "certainty": str(self.certainty),
            "wording": self.wording,
            "line": self.line,
            "rank": self.rank,
            "device": self.device,
            "process": self.process,
        }
        for name in _SIZES:
            size: Size | None = getattr(self, name)
            told[f"{name}_bytes"] = size.bytes if size else None
            if size and size.precision:
                told[f"{name}_precision_bytes"] = size.precision
        told["outside_bytes"] = self.outside.bytes if self.outside else None
        told["other_processes"] = [
            {"process": use.pid, "in_use_bytes": use.in_use.bytes, "in_use_precision_bytes": use.in_use.precision}
            for use in self.others
        ]
        told["text"] = self.text
        return told


_SIZES = (
    "requested", "capacity", "free", "allocated", "reserved", "unallocated", "private_pools", "allowed", "in_use",
    "non_pytorch", "host_used",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LookAlike:
    """Words of an out-of-memory error that are none; `why` is a sentence."""

    why: str
    wording: str
    text: str
    line: int = 1
    rank: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values, as `explain --json` lists them."""
        return {"line": self.line, "rank": self.rank, "wording": self.wording, "why": self.why, "text": self.text}


type Found = OomRecord | LookAlike
