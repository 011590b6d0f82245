"""Snapshots of PyTorch's CUDA allocator, read without running anything they hold."""

from oombisect.memory.snapshots.errors import SnapshotError
from oombisect.memory.snapshots.files import DEFAULT_LIMITS, Limits, load
from oombisect.memory.snapshots.pairing import requests_of

__all__ = ["DEFAULT_LIMITS", "Limits", "SnapshotError", "load", "requests_of"]
