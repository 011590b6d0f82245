"""The counters of torch.cuda.memory_stats.

The counters that move with every request are plain numbers, written by `CachingAllocator`: they are the hot path. What
PyTorch keeps as `current` is here the difference of two that only grow: what was allocated and what was freed.
"""

from __future__ import annotations


class Stat:
    """One quantity: its value now, its largest value, and the sums of what was added and taken away."""

    __slots__ = ("allocated", "current", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = 0

    @property
    def freed(self) -> int:
        """The sum of what was taken away."""
        return self.allocated - self.current

    def add(self, amount: int) -> None:
        """It grows by `amount`, and its peak with it."""
        self.current += amount
        self.allocated += amount
        if self.current > self.peak:
            self.peak = self.current

    def subtract(self, amount: int) -> None:
        """It shrinks by `amount`."""
        self.current -= amount


class Statistics:
    """All counters of one device, bytes and counts.

    `allocated`, `allocations` and `requested` are the sums ever allocated. `freed` and `frees` are those of what the
    program gave back, `completed`, `completions` and `completed_requested` those of what no stream uses any more:
    "active" memory is allocated - completed.
    """

    __slots__ = (
        "allocated",
        "allocations",
        "completed",
        "completed_requested",
        "completions",
        "device_allocs",
        "device_frees",
        "freed",
        "frees",
        "ooms",
        "oversize_allocations",
        "oversize_segments",
        "peak_active",
        "peak_actives",
        "peak_allocated",
        "peak_allocations",
        "peak_requested",
        "requested",
        "reserved",
        "reserved_small",
        "retries",
        "segments",
        "segments_small",
        "split_bytes",
        "splits",
        "synchronizations",
    )  # fmt: skip

    def __init__(self) -> None:
        self.allocated = self.allocations = self.requested = 0
        self.freed = self.frees = 0
        self.completed = self.completions = self.completed_requested = 0
        self.peak_allocated = self.peak_allocations = self.peak_active = self.peak_actives = self.peak_requested = 0
        self.reserved, self.segments = Stat(), Stat()
        self.reserved_small, self.segments_small = Stat(), Stat()
        self.split_bytes, self.splits = Stat(), Stat()
        self.oversize_allocations, self.oversize_segments = Stat(), Stat()
        self.retries = self.ooms = self.device_allocs = self.device_frees = self.synchronizations = 0

    def add_reserved(self, size: int, *, small: bool) -> None:
        """`size` bytes were taken from the device."""
        self.reserved.add(size)
        if small:
            self.reserved_small.add(size)

    def subtract_reserved(self, size: int, *, small: bool) -> None:
        """`size` bytes were given back to the device."""
        self.reserved.subtract(size)
        if small:
            self.reserved_small.subtract(size)

    def add_segment(self, *, small: bool) -> None:
        """A segment was made."""
        self.segments.add(1)
        if small:
            self.segments_small.add(1)

    def subtract_segment(self, *, small: bool) -> None:
        """A segment was given back."""
        self.segments.subtract(1)
        if small:
            self.segments_small.subtract(1)

    @property
    def current_allocated(self) -> int:
        """Bytes of blocks that the program has."""
        return self.allocated - self.freed

    @property
    def current_active(self) -> int:
        """Bytes of blocks that the program has or a stream still uses."""
        return self.allocated - self.completed

    @property
    def current_requested(self) -> int:
        """Bytes that were asked for, of blocks that are active."""
        return self.requested - self.completed_requested

    def memory_stats(self) -> dict[str, int]:
        """The counters under the names that torch.cuda.memory_stats gives them."""
        stats = {
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
            "num_sync_all_streams": self.synchronizations,
            "num_device_alloc": self.device_allocs,
            "num_device_free": self.device_frees,
        }
        for name, peak, allocated, freed in (
            ("allocation.all", self.peak_allocations, self.allocations, self.frees),
            ("allocated_bytes.all", self.peak_allocated, self.allocated, self.freed),
            ("active.all", self.peak_actives, self.allocations, self.completions),
            ("active_bytes.all", self.peak_active, self.allocated, self.completed),
            ("requested_bytes.all", self.peak_requested, self.requested, self.completed_requested),
        ):
            _put(stats, name, allocated - freed, peak, allocated, freed)
        for name, stat in (
            ("reserved_bytes.all", self.reserved),
            ("reserved_bytes.small_pool", self.reserved_small),
            ("segment.all", self.segments),
            ("segment.small_pool", self.segments_small),
            ("inactive_split.all", self.splits),
            ("inactive_split_bytes.all", self.split_bytes),
            ("oversize_allocations", self.oversize_allocations),
            ("oversize_segments", self.oversize_segments),
        ):
            _put(stats, name, stat.current, stat.peak, stat.allocated, stat.freed)
        return stats


def _put(stats: dict[str, int], name: str, current: int, peak: int, allocated: int, freed: int) -> None:
    stats[f"{name}.current"] = current
    stats[f"{name}.peak"] = peak
    stats[f"{name}.allocated"] = allocated
    stats[f"{name}.freed"] = freed
