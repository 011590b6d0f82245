"""The outcome of a probe: what one short training run told about memory at one point.

A probe runs one process per chosen rank; each leaves a `RankReading`, the probe as a whole a `Reading`.
All sizes are bytes. `to_json` of a reading is the contract documented in docs/json.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """EXACT: it ran to the end. CENSORED: it ran out of memory, so peaks are lower bounds.

    UNRESOLVED: it does not build, import or accept the config. INFRA: the machine failed, not the code.
    """

    EXACT = "exact"
    CENSORED = "censored"
    UNRESOLVED = "unresolved"
    INFRA = "infra"


@dataclass(frozen=True, slots=True)
class PhaseMetrics:
    """Allocator counters over one phase of a probe (set-up, model, optimizer, step_1, step_2, ...); bytes.

    `*_peak` is the maximum during the phase, `*_end` the value when it ended, counts are those of the phase.
    `device_used` is what NVML reports for the whole device when the phase ended (None: not known).
    """

    allocated_peak: int = 0
    allocated_end: int = 0
    reserved_peak: int = 0
    reserved_end: int = 0
    active_peak: int = 0
    requested_peak: int = 0
    inactive_split_peak: int = 0
    inactive_split_end: int = 0
    allocations: int = 0
    alloc_retries: int = 0
    ooms: int = 0
    device_used: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Oom:
    """The out-of-memory error a rank died of; sizes in bytes, None where the message has no such number."""

    phase: str
    message: str
    requested: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    reserved: int | None = None


@dataclass(frozen=True, slots=True)
class RankReading:
    """What one rank measured. `external` is memory of this device outside PyTorch's allocator.

    `trace` is a hash of all the rank asked of the allocator, in order: equal traces behave alike under any limit.
    """

    rank: int
    phases: Mapping[str, PhaseMetrics] = field(default_factory=dict)
    external: int = 0
    oom: Oom | None = None
    snapshot: str | None = None
    trace: str | None = None

    def peak(self, name: str) -> int:
        """The largest `<name>_peak` of all phases, bytes; e.g. `peak("allocated")`."""
        return max((getattr(p, f"{name}_peak") for p in self.phases.values()), default=0)

    @property
    def peak_allocated(self) -> int:
        """Most bytes of blocks that held tensors at a time: what was asked for, rounded up, and rests left uncut."""
        return self.peak("allocated")

    @property
    def peak_reserved(self) -> int:
        """Most bytes the allocator had from the device at a time."""
        return self.peak("reserved")

    @property
    def peak_requested(self) -> int | None:
        """Most bytes that tensors asked for and held at a time: the same for every allocator. None: not counted.

        PyTorch counts memory that a stream still uses after its tensor is gone as requested, and not as allocated: the
        smaller of the two peaks leaves that out.
        """
        requested = self.peak("requested")
        return min(requested, self.peak_allocated) if requested or not self.peak_allocated else None

    @property
    def floor(self) -> int | None:
        """What no allocator can go under: `peak_requested` and external memory, bytes. None: not counted."""
        return None if self.peak_requested is None else self.peak_requested + self.external

    @property
    def peak_device(self) -> int:
        """Most memory taken from the device: reserved segments and what lies outside PyTorch."""
        return self.peak_reserved + self.external

    @property
    def allocations(self) -> int:
        """How many blocks were asked for."""
        return sum(p.allocations for p in self.phases.values())

    def to_json(self) -> dict[str, Any]:
        """Plain values; the contract in docs/json.md."""
        return {
            "rank": self.rank,
            "peak_allocated": self.peak_allocated,
            "peak_reserved": self.peak_reserved,
            "peak_active": self.peak("active"),
            "peak_requested": self.peak("requested"),
            "peak_inactive_split": self.peak("inactive_split"),
            "peak_device": self.peak_device,
            "external": self.external,
            "allocations": self.allocations,
            "alloc_retries": sum(p.alloc_retries for p in self.phases.values()),
            "ooms": sum(p.ooms for p in self.phases.values()),
            "oom": asdict(self.oom) if self.oom else None,
            "phases": {name: asdict(p) for name, p in self.phases.items()},
            "snapshot": self.snapshot,
            "trace": self.trace,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RankReading:
        """A stored reading again, as `to_json` wrote it."""
        return cls(
            rank=data["rank"],
            phases={name: PhaseMetrics(**p) for name, p in data["phases"].items()},
            external=data.get("external", 0),
            oom=Oom(**data["oom"]) if data.get("oom") else None,
            snapshot=data.get("snapshot"),
            trace=data.get("trace"),
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """The outcome of one probe at one point; `fits` is None until somebody asked about a limit."""

    outcome: Outcome
    reason: str = ""
    device: str = ""
    simulated: bool = False
    ranks: tuple[RankReading, ...] = ()
    fits: bool | None = None
    recipe_function: str = ""
    config_hash: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    world_size: int | None = None
    attention_backend: str = ""
    imported: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> RankReading | None:
        """The rank with the largest peak allocated (ties: the lowest rank); None if no rank measured."""
        return max(self.ranks, key=lambda r: (r.peak_allocated, -r.rank), default=None)

    @property
    def peak_allocated(self) -> int:
        """The largest of all ranks, bytes; 0 if none measured."""
        return max((r.peak_allocated for r in self.ranks), default=0)

    @property
    def peak_reserved(self) -> int:
        """The largest of all ranks, bytes; 0 if none measured."""
        return max((r.peak_reserved for r in self.ranks), default=0)

    @property
    def peak_device(self) -> int:
        """The largest of all ranks, bytes; 0 if none measured."""
        return max((r.peak_device for r in self.ranks), default=0)

    @property
    def external(self) -> int:
        """The largest of all ranks, bytes; 0 if none measured."""
        return max((r.external for r in self.ranks), default=0)

    def with_fits(self, fits: bool | None) -> Reading:
        """The same, the question of the limit answered."""
        return replace(self, fits=fits)

    def to_json(self) -> dict[str, Any]:
        """Plain values; the contract in docs/json.md."""
        return {
            "outcome": str(self.outcome),
            "is_lower_bound": self.outcome is Outcome.CENSORED,
            "reason": self.reason or None,
            "device": self.device,
            "simulated": self.simulated,
            "ranks": [r.to_json() for r in self.ranks],
            "worst_rank": self.worst.rank if self.worst else None,
            "world_size": self.world_size,
            "peak_allocated": self.peak_allocated,
            "peak_reserved": self.peak_reserved,
            "peak_device": self.peak_device,
            "external": self.external,
            "fits": self.fits,
            "recipe_function": self.recipe_function,
            "config_hash": self.config_hash,
            "attention_backend": self.attention_backend,
            "versions": dict(self.versions),
            "imported": list(self.imported),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reading:
        """A stored reading again, as `to_json` wrote it."""
        return cls(
            outcome=Outcome(data["outcome"]),
            reason=data.get("reason") or "",
            device=data["device"],
            simulated=data["simulated"],
            ranks=tuple(RankReading.from_json(r) for r in data["ranks"]),
            fits=data.get("fits"),
            recipe_function=data.get("recipe_function", ""),
            config_hash=data.get("config_hash", ""),
            versions=data.get("versions", {}),
            world_size=data.get("world_size"),
            attention_backend=data.get("attention_backend", ""),
            imported=tuple(data.get("imported", ())),
            notes=tuple(data.get("notes", ())),
        )
