"""The wordings of out-of-memory errors, and of what only sounds like one.

A message may be wrapped anywhere, so most wordings are looked for in text without blanks: the blanks in their patterns
are there for the reader and are taken out. Those marked `on_one_line` are short enough that text glued together would
match by accident (`exit code 1` and a `37` on the next line); they are looked for in one line as it stands.

Named groups are read: requested, host_used (sizes), process, device, rank (numbers).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from oombisect.memory.oom_messages.records import Certainty, Memory, Source
from oombisect.memory.oom_messages.sizes import SIZE

_CERTAIN, _LIKELY, _POSSIBLE = Certainty.CERTAIN, Certainty.LIKELY, Certainty.POSSIBLE


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to say it.

    Args:
        needle: text without which the pattern cannot match; looked for first, because that is fast.
        source: None: it is none, and `why` says what it is.
        has_numbers: it begins an allocator's message, whose numbers follow.
        part: it occurs within longer messages too, and is a message of its own only where none is open.
        on_one_line: see the module.
    """

    name: str
    needle: str
    pattern: re.Pattern[str]
    source: Source | None
    memory: Memory = Memory.DEVICE
    certainty: Certainty = _CERTAIN
    has_numbers: bool = False
    part: bool = False
    on_one_line: bool = False
    why: str = ""


def _wrapped(
    name: str, needle: str, pattern: str, source: Source | None, certainty: Certainty = _CERTAIN, *,
    has_numbers: bool = False, part: bool = False, why: str = "",
) -> Wording:  # fmt: skip
    compiled = re.compile(pattern.replace(" ?", "").replace(" ", ""), re.ASCII)
    return Wording(name, needle, compiled, source, Memory.DEVICE, certainty, has_numbers, part, why=why)


def _line(
    name: str, needle: str, pattern: str, source: Source | None, certainty: Certainty = _CERTAIN, *,
    part: bool = False, why: str = "",
) -> Wording:  # fmt: skip
    compiled = re.compile(pattern, re.ASCII)
    return Wording(name, needle, compiled, source, Memory.HOST, certainty, part=part, on_one_line=True, why=why)


_S = Source
_PYTORCH = {"CUDA": _S.PYTORCH_CUDA, "HIP": _S.PYTORCH_HIP, "XPU": _S.PYTORCH_XPU, "NPU": _S.PYTORCH_NPU}

_ALLOCATORS = [
    *(
        _wrapped(f"{name} out of memory", "outofmemory", rf"{name} out of memory", source, has_numbers=True)
        for name, source in _PYTORCH.items()
    ),
    _wrapped("tried to allocate", "Triedtoallocate", rf"Tried to allocate {SIZE} \(GPU", _S.PYTORCH_CUDA,
             has_numbers=True, part=True),
    _wrapped("this process has", "thisprocesshas", rf"Including non-PyTorch memory, this process has {SIZE}",
             _S.PYTORCH_CUDA, has_numbers=True, part=True),
    _wrapped("of the allocated memory", "Oftheallocated", rf"Of the allocated memory {SIZE} is allocated by PyTorch",
             _S.PYTORCH_CUDA, has_numbers=True, part=True),
    _wrapped("XPU block larger than 4 GB", "NOTallocate", r"can NOT allocate memory block with size larger than 4GB",
             _S.PYTORCH_XPU, has_numbers=True),
    _wrapped("MPS out of memory", "MPSbackend", r"MPS backend out of memory", _S.PYTORCH_MPS, has_numbers=True),
    _wrapped("cudaMallocAsync", "allowedmemory", r"(?:Allocation on device (?P<device>\d{1,4}) )?would exceed allowed"
             r" memory\. \(out of memory\)", _S.PYTORCH_CUDA, has_numbers=True),
    _wrapped("outside PyTorch", "outsidePyTorch", r"CUDA ran out of memory outside PyTorch's allocator", _S.CUDNN),
]  # fmt: skip

_CUDA = [
    _wrapped("CUDA error", "outofmemory", r"(?:CUDA|cuda|Cuda) ?(?:runtime ?|driver ?)?[Ee]rror(?: \(2\)| 2)? ?: ?"
             r"(?:out of memory)(?!\S{0,160}cumem_allocator)", _S.CUDA),
    _wrapped("cudaErrorMemoryAllocation", "cudaErrorMemory", r"cudaErrorMemoryAllocation", _S.CUDA, part=True),
    _wrapped("CUDA driver", "CUDA_ERROR_OUT", r"(?:failed to allocate \S{1,12} \( ?(?P<requested>\d{1,20}) bytes ?\)"
             r" ?from device: )?CUDA_ERROR_OUT_OF_MEMORY", _S.CUDA, part=True),
    _wrapped("HIP error", "outofmemory", r"HIP error: out of memory", _S.HIP),
    _wrapped("hipErrorOutOfMemory", "hipErrorOutOf", r"hipErrorOutOfMemory", _S.HIP, part=True),
    _wrapped("Triton", "outofmemory", r"Triton Error \[(?:CUDA|HIP)\]: out of memory", _S.TRITON),
    _wrapped("vLLM cumem", "cumem_allocator", r"CUDA Error: out of memory at \S{0,160}?cumem_allocator", _S.VLLM),
    _wrapped("vLLM cache blocks", "cacheblocks", r"No available memory for the cache blocks", _S.VLLM),
    _wrapped("vLLM start-up", "lessthandesired", r"Free memory on device \S{0,16}? ?\(\d{1,6}(?:\.\d{1,4})?/"
             r"\d{1,6}(?:\.\d{1,4})? GiB\) on startup is less than desired GPU memory utilization", _S.VLLM),
    _wrapped("NCCL Cuda failure", "failure", r"(?:Cuda|HIP) failure (?:\d{1,4} ?)?'out of memory'", _S.NCCL),
    _wrapped("NCCL alloc", "FailedtoCUDA", r"Failed to CUDA (?:calloc|malloc) (?:async)?(?P<requested>\d{1,20}) bytes",
             _S.NCCL),
    _wrapped("cuBLAS", "BLAS_STATUS_ALLOC", r"(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED (?:; ?GPU=(?P<device>\d{1,4}))?",
             _S.CUBLAS),
    _wrapped("cuBLAS of PyTorch 1", "cublasruntime", r"cublas runtime error ?: resource allocation failed", _S.CUBLAS),
    _wrapped("cuBLAS not initialized", "STATUS_NOT_INIT", r"CUBLAS_STATUS_NOT_INITIALIZED", _S.CUBLAS, _POSSIBLE),
    _wrapped("cuDNN", "CUDNN_STATUS_", r"CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)"
             r"(?:; ?GPU=(?P<device>\d{1,4}))?", _S.CUDNN),
    _wrapped("CUDA library", "_ALLOC", r"(?:CUSOLVER_STATUS|CUSPARSE_STATUS|CUFFT|CURAND_STATUS)_ALLOC(?:ATION)?"
             r"_FAILED", _S.CUDA_LIBRARY),
    _wrapped("NVSHMEM", "cuMemCreatefailed", r"(?:non-zero status: 2|error status: 2)\S{0,80}? cuMemCreate failed",
             _S.NVSHMEM),
    _wrapped("TensorFlow", "OOMwhenalloc", r"OOM when allocating tensor with shape"
             r"(?:\S{0,200}?device:GPU:(?P<device>\d{1,4}))?", _S.TENSORFLOW),
    _wrapped("XLA", "whiletryingtoalloc", r"(?:RESOURCE_EXHAUSTED|Resource exhausted): Out of memory (?:while )?"
             r"(?:trying to )?allocat(?:e|ing)\s?(?P<requested>\d{1,20}(?:\.\d{1,4})?(?:bytes|[KMGT]iB))", _S.XLA),
    _wrapped("XLA request", "toallocaterequest", rf"Failed to allocate request for {SIZE} "
             r"\((?P<requested>\d{1,20})B\) on device ordinal (?P<device>\d{1,4})", _S.XLA),
    _wrapped("CuPy", "Outofmemoryalloc", r"Out of memory allocating (?P<requested>[\d,]{1,27}) bytes", _S.CUPY),
    _wrapped("RMM", "bad_alloc:out", r"bad_alloc: out_of_memory", _S.RMM),
]  # fmt: skip

_HOST = [
    _line("kernel", "of memory: Kill", r"[Oo]ut of memory: Kill(?:ed)? process (?P<process>\d{1,10})"
          r"(?:.{0,120}?anon-rss:(?P<host_used>\d{1,15}kB))?", _S.OOM_KILLER),
    _line("kernel constraint", "oom-kill:", r"oom-kill:constraint=.{0,400}?pid=(?P<process>\d{1,10})", _S.OOM_KILLER),
    _line("kernel invoked", "oom-killer", r"invoked oom-killer:", _S.OOM_KILLER),
    _line("Slurm", "oom", r"[Dd]etected \d{1,9} oom[-_]kill event", _S.SLURM),
    _line("Slurm task", "Out Of Memory", r"(?:task (?P<rank>\d{1,7})|tasks [\d,-]{1,400}): Out Of Memory", _S.SLURM),
    _line("Slurm limit", "memory limit", r"(?:slurmstepd|srun|Job|Step).{0,80} ?[Ee]xceeded (?:job |step )?memory"
          r" limit", _S.SLURM),
    _line("Kubernetes", "OOMKilled", r"\bOOMKilled\b(?![\"']?\s{0,4}[:=]\s{0,4}[\"']?[Ff]alse)", _S.KUBERNETES),
    _line("torchrun", "exitcode", r"\(?exitcode {0,4}: -9\)?(?: local_rank: \d{1,6})?"
          r"(?: \(pid: (?P<process>\d{1,10})\))?", _S.SIGKILL, _POSSIBLE),
    _line("exit code", "", r"(?i:\b(?:exit(?:s|ed)?(?: with)?(?: (?:return|exit|status))?|return(?:ed)?)[ _]?"
          r"(?:code|status)s?)(?: is| ?[=:])? ?(?:-9|137)(?![\d.])", _S.SIGKILL, _POSSIBLE),
    _line("signal", "SIGKILL", r"(?i:signal)[ :=]{1,2}(?:9 \()?SIGKILL\)?(?: received by PID (?P<process>\d{1,10}))?"
          r"|died with <Signals\.SIGKILL", _S.SIGKILL, _POSSIBLE),
    _line("signal 9", "ignal", r"(?i:\b(?:killed by|exited on|terminated by|died (?:from|of|with)) signal) 9\b",
          _S.SIGKILL, _POSSIBLE),
    _line("shell", "Killed", r"^(?:\S{1,200}: line \d{1,7}: +)?(?:(?P<process>\d{2,10}) )?Killed(?: {2,}\S.*)?$",
          _S.SIGKILL, _POSSIBLE),
    _line("DataLoader", "DataLoader", r"DataLoader worker \(pid (?P<process>\d{1,10})\) is killed by signal: Killed",
          _S.DATALOADER, _LIKELY),
    _line("DataLoader shm", "shared memory", r"insufficient shared memory \(shm\)", _S.DATALOADER, _LIKELY),
    _line("DataLoader shm", "Bus error", r"DataLoader worker \(pid (?P<process>\d{1,10})\) is killed by signal:"
          r" Bus error", _S.DATALOADER, _LIKELY),
    _line("NCCL shm", "failed to extend", r"failed to extend /dev/shm/nccl-\S{1,40} to (?P<requested>\d{1,20}) bytes",
          _S.NCCL, _LIKELY),
    _line("Ray", "running low on memory", r"was killed due to the node running low on memory", _S.RAY),
    _line("PyTorch CPU", "DefaultCPUAllocator", r"DefaultCPUAllocator: (?:can't allocate|not enough) memory:"
          r"(?: you tried to allocate (?P<requested>\d{1,20}) bytes)?", _S.HOST_ALLOCATION),
    _line("Rust", "memory allocation", r"memory allocation of (?P<requested>\d{1,20}) bytes failed",
          _S.HOST_ALLOCATION),
    _line("NumPy", "Unable to allocate", r"MemoryError: Unable to allocate "
          r"(?P<requested>\d{1,9}(?:\.\d{1,4})? ?(?:[KMGTP]?i?B|bytes))", _S.HOST_ALLOCATION),
    _line("MemoryError", "MemoryError", r"^MemoryError(?:: (?!Unable to allocate|std::bad_alloc: out_of).*)?$",
          _S.HOST_ALLOCATION),
    _line("ENOMEM", "Cannot allocate memory", r"Cannot allocate memory", _S.HOST_ALLOCATION, _LIKELY,
          part=True),
    _line("bad_alloc", "bad_alloc", r"std::bad_alloc(?!\S*: ?out_of_memory)", _S.HOST_ALLOCATION, _LIKELY, part=True),
    _line("NCCL host", "Failed to CUDA host", r"Failed to CUDA host alloc (?P<requested>\d{1,20}) bytes", _S.NCCL),
]  # fmt: skip

_NONE = [
    _wrapped("Triton shared memory", "outofresource", r"out of resource: (?:shared|tensor) memory", None,
             why="a kernel wants more on-chip memory than one multiprocessor has; device memory is not short"),
    _wrapped("NVSHMEM teams", "Nomoreteams", r"\(NVSHMEMX_ERROR_OUT_OF_MEMORY\) No more teams available", None,
             why="NVSHMEM ran out of team slots (NVSHMEM_MAX_TEAMS); device memory is not short"),
    _wrapped("gRPC", "Receivedmessage", r"RESOURCE_EXHAUSTED: Received message larger than max", None,
             why="a message is larger than gRPC admits; memory is not short"),
    _line("locked memory", "ibv_", r"ibv_\w{1,40}.{0,120}Cannot allocate memory", None,
          why="the limit on locked memory (ulimit -l) is too low for InfiniBand; memory is not short"),
]  # fmt: skip

BOGUS = "the size asked for is garbage (over 1 EB), left by an earlier failure such as a communication timeout"
TEMPLATE = "a format string, not a message"


def _by_needle(*, on_one_line: bool) -> list[tuple[str, list[Wording]]]:
    found: dict[str, list[Wording]] = {}
    for wording in [*_NONE, *_ALLOCATORS, *_CUDA, *_HOST]:
        if wording.on_one_line is on_one_line:
            found.setdefault(wording.needle, []).append(wording)
    return list(found.items())


WRAPPED = _by_needle(on_one_line=False)
ON_ONE_LINE = _by_needle(on_one_line=True)
