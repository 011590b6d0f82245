"""What a probe runs on: the machine's own GPUs, or a virtual one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from oombisect.errors import ExitCode, OombisectError
from oombisect.probing.interpreter import Interpreter
from oombisect.virtual_gpu.build import VirtualGpu, prepare
from oombisect.virtual_gpu.profiles import GpuProfile, parse_gpu

DEFAULT_VIRTUAL = "virtual:h100-80gb"
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


class Device(Protocol):
    """A device that probes run on. `capacity` is its total memory in bytes; `identity` goes into signatures."""

    @property
    def name(self) -> str: ...
    @property
    def simulated(self) -> bool: ...
    @property
    def capacity(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def process_group(self) -> str: ...
    @property
    def identity(self) -> Mapping[str, Any]: ...
    def environment(self, limit_bytes: int | None) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class VirtualDevice:
    """A virtual GPU: a probe process for each rank, each with the whole device to itself."""

    profile: GpuProfile
    gpu: VirtualGpu
    name: str
    simulated: bool = True
    count: int = 1
    process_group: str = "fake"

    @property
    def capacity(self) -> int:
        return self.profile.total_bytes

    @property
    def identity(self) -> Mapping[str, Any]:
        profile = {name: value for name, value in asdict(self.profile).items() if name != "source"}
        return {"kind": "virtual", "build": self.gpu.directory.name, "profile": profile}

    def environment(self, limit_bytes: int | None) -> dict[str, str]:
        return self.gpu.environment(self.profile, limit_bytes=limit_bytes)


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """The machine's own GPUs, all of one model, as NVML describes them; `count` of them may be used."""

    model: str
    capacity: int
    count: int
    driver: str
    name: str = "cuda"
    simulated: bool = False
    process_group: str = "nccl"

    @property
    def identity(self) -> Mapping[str, Any]:
        return {
            "kind": "cuda",
            "model": self.model,
            "capacity": self.capacity,
            "driver": self.driver,
            "simulated": self.simulated,
        }

    def environment(self, limit_bytes: int | None) -> dict[str, str]:
        return {}  # the probe itself caps PyTorch at the job's limit


def find_cuda() -> CudaDevice | None:
    """The GPUs that NVML shows and processes may use, or None where there is no NVIDIA driver or no such GPU."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        count = len(visible_gpus(pynvml.nvmlDeviceGetCount()))
        if count == 0:
            return None
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return CudaDevice(
            model=pynvml.nvmlDeviceGetName(handle),
            capacity=_cuda_total(handle),
            count=count,
            driver=pynvml.nvmlSystemGetDriverVersion(),
            simulated=_is_simulated(),
        )
    except pynvml.NVMLError as error:
        raise OombisectError(
            f"the NVIDIA driver answers, but not about its GPUs: {error}",
            "See nvidia-smi, or probe on a virtual GPU: --gpu virtual:h100-80gb.",
            ExitCode.INFRASTRUCTURE,
        ) from error
    finally:
        pynvml.nvmlShutdown()


def visible_gpus(count: int) -> list[str]:
    """What a process may use of a machine's `count` GPUs, as CUDA reads its variable: up to the first that is none."""
    told = os.environ.get(VISIBLE_VARIABLE)
    if told is None:
        return [str(index) for index in range(count)]
    names = [name.strip() for name in told.split(",")]
    return list(takewhile(lambda n: n.startswith(("GPU-", "MIG-")) or (n.isdecimal() and int(n) < count), names))


def _is_simulated() -> bool:
    """Whether this very process runs on a virtual GPU: its numbers must not pass for a real card's."""
    return hasattr(ctypes.CDLL(None), "oombisect_vgpu_used")


def _cuda_total(handle: object) -> int:
    """The memory CUDA programs see: the card's, less what the driver keeps for itself."""
    import pynvml

    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return int(memory.total) - int(memory.reserved)


def open_device(
    text: str | None, interpreter: Interpreter, cache: Path, say: Callable[[str], None] = lambda _: None
) -> Device:
    """`cuda`, `virtual:<profile>`, `virtual:<size>`; None takes the real GPUs where there are any. `say` is told what
    takes long.

    Raises:
        OombisectError: no such profile, no GPU, or the virtual GPU cannot be built.
    """
    if text in (None, "cuda"):
        cuda = find_cuda()
        if cuda:
            return cuda
        if text == "cuda":
            raise OombisectError(
                f"there is no NVIDIA GPU on this machine (NVML finds none, or {VISIBLE_VARIABLE} hides them)",
                f"Probe on a virtual one: --gpu {DEFAULT_VIRTUAL}.",
            )
    profile = parse_gpu(text or DEFAULT_VIRTUAL)
    return VirtualDevice(profile, prepare(interpreter.path, cache, say), f"virtual:{profile.name}")
