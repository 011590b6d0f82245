"""Allocator counters per phase of a run: set-up, model, optimizer, step_1, step_2, ...

A phase is closed where the thing it is named after returns; its peak covers everything since the previous phase was
closed. So no allocation between two phases is lost, and the peaks of all phases together are the peak of the process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch

_PEAKS = {
    "allocated": "allocated_bytes.all",
    "reserved": "reserved_bytes.all",
    "active": "active_bytes.all",
    "requested": "requested_bytes.all",
    "inactive_split": "inactive_split_bytes.all",
}
_ENDS = ("allocated", "reserved", "inactive_split")
_COUNTS = {"allocations": "allocation.all.allocated", "alloc_retries": "num_alloc_retries", "ooms": "num_ooms"}


class DeviceMemory:
    """What NVML says about one device of this process; silent (None) where pynvml or NVML is missing."""

    def __init__(self, device: int) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
            try:
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
            except Exception:
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(device)
            self._nvml = pynvml
        except Exception:
            self._nvml = None

    def used(self) -> int | None:
        """Bytes in use on the whole device, by whomever, without the driver's own reserve (nor has CUDA's total).

        The first version of the call counts that reserve as used; it is asked only where the second is unknown.
        """
        if self._nvml is None:
            return None
        for version in (getattr(self._nvml, "nvmlMemory_v2", None), None):
            with contextlib.suppress(Exception):
                return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle, version).used)
        return None


class Phases:
    """Records the phases of one run, in order, of the device that `device` names whenever a phase ends."""

    def __init__(self, device: Callable[[], int] = torch.cuda.current_device) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self.external = 0
        self.current = "setup"
        self._device = device
        self._memories: dict[int, DeviceMemory] = {}
        self._started = time.monotonic()
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._forget_peaks()

    def close(self, name: str, following: str) -> None:
        """Ends phase `name`; what happens from now on belongs to `following`."""
        torch.cuda.synchronize(self._device())
        self.records[name] = self._read()
        self._forget_peaks()
        self._started = time.monotonic()
        self.current = following

    def close_failed(self) -> None:
        """Ends the phase the run died in. No synchronisation: the device may be out of order."""
        self.records[self.current] = self._read()

    def _forget_peaks(self) -> None:
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)

    def _read(self) -> dict[str, Any]:
        device = self._device()
        if device not in self._memories:
            self._memories[device] = DeviceMemory(device)
        stats = torch.cuda.memory_stats(device)
        counts = {name: int(stats.get(key, 0)) for name, key in _COUNTS.items()}
        record: dict[str, Any] = {f"{name}_peak": int(stats.get(f"{key}.peak", 0)) for name, key in _PEAKS.items()}
        record |= {f"{name}_end": int(stats.get(f"{_PEAKS[name]}.current", 0)) for name in _ENDS}
        record |= {name: value - self._counts[name] for name, value in counts.items()}
        record["device_used"] = self._memories[device].used()
        record["seconds"] = round(time.monotonic() - self._started, 4)
        self._counts = counts
        if record["device_used"] is not None:
            self.external = max(self.external, record["device_used"] - record["reserved_end"])
        return record
