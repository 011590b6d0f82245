"""An exact model of PyTorch's caching allocator: settings, rules of its releases, and the allocator itself."""

from oombisect.memory.allocator.blocks import Block
from oombisect.memory.allocator.device import Device, VirtualDevice
from oombisect.memory.allocator.model import CachingAllocator
from oombisect.memory.allocator.rules import Rules, guess_rules, rules_for
from oombisect.memory.allocator.settings import Settings, SettingsError

__all__ = [
    "Block",
    "CachingAllocator",
    "Device",
    "Rules",
    "Settings",
    "SettingsError",
    "VirtualDevice",
    "guess_rules",
    "rules_for",
]
