"""Runs in the target interpreter on the freshly built virtual GPU and prints one JSON object as its last line.

Standard library and torch only. `failed` is None, or says which check failed and what it saw.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import time
from typing import Any

MIB = 1 << 20


class MemoryV2(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def nvml_used() -> int:
    """Bytes that NVML says are in use on device 0."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    device = ctypes.c_void_p()
    memory = MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
    calls = [
        nvml.nvmlInit_v2(),
        nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)),
        nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory)),
    ]
    return int(memory.used) if not any(calls) else -1


def run() -> dict[str, object]:
    """Every check, in order; the first that fails is reported."""
    started = time.perf_counter()
    checks: list[str] = []
    failures: list[str] = []
    torch: Any = importlib.import_module("torch")

    def check(name: str, condition: object, seen: object = "") -> None:
        checks.append(name)
        if not condition:
            failures.append(f"{name} (saw: {seen})")

    properties = torch.cuda.get_device_properties(0)
    check("one device is there", torch.cuda.device_count() == 1, torch.cuda.device_count())

    def block(mib: int) -> object:
        return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")

    before = torch.cuda.memory_allocated()
    tensor = block(100)
    counted = torch.cuda.memory_allocated() - before
    check("an allocation is counted", counted == 100 * MIB, counted)
    check("memory_stats sees it", torch.cuda.memory_stats()["allocated_bytes.all.peak"] >= 100 * MIB)
    del tensor
    check("a free is counted", torch.cuda.memory_allocated() == before, torch.cuda.memory_allocated())

    weight = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    loss = (weight @ weight).float().sum()
    loss.backward()
    check("a product and its gradient run", weight.grad is not None and weight.grad.shape == weight.shape)
    check("a result copied to the host is zero", loss.item() == 0, loss.item())
    check("a value the host wrote is read back", torch.tensor([7], device="cuda").item() == 7)

    free, total = torch.cuda.mem_get_info()
    check("the total is the device's", total == properties.total_memory, (total, properties.total_memory))
    check("NVML agrees with CUDA", nvml_used() == total - free, (nvml_used(), total - free))

    def out_of_memory() -> str:
        try:
            block(total // MIB)
        except torch.cuda.OutOfMemoryError as error:
            return str(error)
        return "no error"

    text = out_of_memory()
    check("too large an allocation fails as on a card", "Tried to allocate" in text and "total capacity" in text, text)

    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    reserved = torch.cuda.memory_reserved()
    tensor = block(1000)
    kinds = [segment["is_expandable"] for segment in torch.cuda.memory_snapshot()]
    check("expandable segments are used", any(kinds), kinds)
    del tensor
    torch.cuda.empty_cache()
    check("and are given back", torch.cuda.memory_reserved() == reserved, (torch.cuda.memory_reserved(), reserved))
    text = out_of_memory()
    check("and fail as on a card", "Tried to allocate" in text, text)
    return {
        "failed": failures[0] if failures else None,
        "checks": checks,
        "seconds": round(time.perf_counter() - started, 3),
    }


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(run())}\n")
    sys.stdout.flush()
    os._exit(0)  # torch's threads can abort an interpreter that ends right after a backward pass
