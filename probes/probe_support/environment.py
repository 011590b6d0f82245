"""What the run was made of: package versions, the allocator's settings, the project files it imported."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch

_DISTRIBUTIONS = (
    *("transformers", "huggingface_hub", "omegaconf", "hydra-core", "numpy", "triton", "flash-attn", "apex"),
    *("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cublas", "nvidia-cublas-cu12"),
    *("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
)


def versions(stand_in: bool) -> dict[str, str]:
    """Package -> version. `stand_in`: Transformer Engine's compiled part is a stand-in."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
    }
    with contextlib.suppress(RuntimeError):
        found["cudnn"] = str(torch.backends.cudnn.version())
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    transformer_engine = sys.modules.get("transformer_engine")
    if transformer_engine is not None:
        suffix = " (Python package over a stand-in for its compiled module)" if stand_in else ""
        found["transformer_engine"] = f"{getattr(transformer_engine, '__version__', '?')}{suffix}"
    for module in ("megatron.core", "megatron.bridge"):
        version = getattr(sys.modules.get(module), "__version__", None)
        if version is not None:
            found[module] = str(version)
    with contextlib.suppress(Exception):
        found["gpu"] = torch.cuda.get_device_name()
    return dict(sorted(found.items()))


def allocator_settings() -> str:
    """The settings in force in PyTorch's caching allocator, as it reports them; else what the environment asks."""
    with contextlib.suppress(Exception):
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        return " ".join(f"{name}={value}" for name, value in sorted(settings.items()))
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    return " ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)


def cap_memory(limit: int) -> None:
    """Makes this GPU look as small as `limit` bytes to PyTorch; what others (the context included) hold counts.

    A virtual GPU enforces its limit itself.
    """
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction(min(1.0, max(0, limit - others) / total))


# Variables that are read when CUDA, its allocator or NCCL start, not when a module is imported.
_READ_LATE = ("NCCL_", "TORCH_NCCL_", "CUDA_", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def apply_variables(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Sets the recipe's environment variables as Bridge does: what is set already wins. Returns those it set."""
    applied = {name: str(value) for name, value in recipe.items() if name not in os.environ}
    os.environ.update(applied)
    return applied


def read_at_import(names: Iterable[str]) -> bool:
    """Whether one of the variables may have been read by the imports that already happened (NVTE_* and the like)."""
    return any(not name.startswith(_READ_LATE) for name in names)


def in_bad_fork() -> bool:
    """Whether the process this was forked off asked CUDA something: older torch then refuses the GPU here."""
    return bool(torch.cuda._is_in_bad_fork())


def imported(roots: Mapping[str, str]) -> list[str]:
    """The files of each root that this process has imported, as `name:relative/path`, sorted. The deepest root wins."""
    bases = []
    for name, root in roots.items():
        for spelling in {os.path.abspath(root), os.path.realpath(root)}:
            bases.append((os.path.join(spelling, ""), name))
    bases.sort(key=lambda base: -len(base[0]))
    found = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        for base, name in bases:
            if file.startswith(base):
                found.add(f"{name}:{file[len(base) :].replace(os.sep, '/')}")
                break
    return sorted(found)


def compiled_cold() -> bool:
    """Whether torch.compile compiled something in this process that no cache held."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return False
    return bool(dynamo.counters["inductor"].get("fxgraph_cache_miss", 0))


def peak_host_bytes() -> int:
    """The most host memory this program has held (of this image: a restart begins anew)."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
