"""Runs a program in the model and holds every answer against that of the real allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, zip_longest
from types import ModuleType
from typing import Any

from oombisect.memory import allocator as the_model
from oombisect.memory.allocator import Block, Device, Rules
from oombisect.memory.allocator.blocks import Pool
from oombisect.memory.requests import InitialSegment

from .program import Operation, Program

Answer = dict[str, Any]

COMPARED = frozenset(
    [
        *("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"),
        *(
            f"{name}.{field}"
            for name in (
                *("allocation.all", "allocated_bytes.all", "active.all", "active_bytes.all", "requested_bytes.all"),
                *("reserved_bytes.all", "reserved_bytes.small_pool", "segment.all", "segment.small_pool"),
                *("inactive_split.all", "inactive_split_bytes.all", "oversize_allocations", "oversize_segments"),
            )
            for field in ("current", "peak", "allocated", "freed")
        ),
    ]
)
"""The counters that must agree; the model may have more."""


@dataclass(frozen=True)
class Mismatch:
    """Where the model first differs: after operation `at` (-1: before the first), in `what`."""

    at: int
    what: str
    real: object
    model: object

    def __str__(self) -> str:
        return f"after operation {self.at}, {self.what}: PyTorch {self.real}, the model {self.model}"


class LoggedDevice:
    """A device that remembers what was asked of it, as PyTorch's traces do."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.total = device.total
        self.reserve, self.unreserve, self.adopt = device.reserve, device.unreserve, device.adopt
        self.log: list[list[Any]] = []

    def malloc(self, size: int) -> int | None:
        address = self._device.malloc(size)
        if address is not None:
            self.log.append(["alloc", address, size])
        return address

    def free(self, address: int, size: int) -> None:
        self._device.free(address, size)
        self.log.append(["free", address, size])

    def map(self, address: int, size: int) -> bool:
        done = self._device.map(address, size)
        if done:
            self.log.append(["map", address, size])
        return done

    def unmap(self, address: int, size: int) -> None:
        self._device.unmap(address, size)
        self.log.append(["unmap", address, size])


class Replay:
    """One program in the model, step by step, with the order in which waiting frees completed given from outside."""

    def __init__(self, program: Program, answer: Answer, rules: Rules, allocator: ModuleType) -> None:
        self.rules = rules
        self.parse = allocator.Settings.parse
        self.settings = self.parse(program.settings, rules)
        self.device = LoggedDevice(allocator.VirtualDevice(program.total, program.capacity))
        self.model: the_model.CachingAllocator = allocator.CachingAllocator(self.settings, rules, device=self.device)
        self.streams: list[int] = answer["streams"]
        self.blocks: dict[int, Block] = {}
        self.waits: dict[int, bool] = {}
        self.has_event: set[int] = set()
        self.waiting: dict[int, Block] = {}
        self.deferred: list[int] = []  # freed during a capture: PyTorch records their events after it
        self.unfinished: set[int] = set()
        self.holding = self.in_capture = False
        self.dropped: dict[int, Pool] = {}
        self.others = [self.model.alloc(8) for _ in range(answer["before"])]
        self.device.log.clear()

    def step(self, operation: Operation, completed: Sequence[int], *, waited: bool) -> int:
        """Do an operation; the address of the new block, 0 if out of memory, -1 if nothing was asked for.

        Args:
            completed: the blocks whose memory became free during it, in order.
            waited: PyTorch waited for the streams during it.
        """
        name, *arguments = operation
        if name == "alloc":
            self.events(completed, waited=waited)
        if name == "drop":  # no event was recorded for what only a capture used
            self.complete(number for number in completed if number in self.deferred)
        if name != "free":
            self.wait_in_order(completed)
        address: int | None = getattr(self, "change" if name == "settings" else name)(*arguments)
        return -1 if address is None else address

    def events(self, completed: Sequence[int], *, waited: bool) -> None:
        """Before it looks for memory PyTorch asks which events are over."""
        if self.in_capture:
            return
        if self.holding:
            self.unfinished.update(number for number in self.deferred if number in self.has_event)
        self.deferred.clear()
        self.complete(number for number in completed if not waited or number not in self.unfinished)

    def complete(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.model.complete(self.waiting.pop(number))

    def wait_in_order(self, completed: Sequence[int]) -> None:
        """If PyTorch waits for all streams, a hash table decides whose blocks come first: as it was recorded."""
        pending = self.model._pending
        for number in completed:
            block = self.waiting.pop(number, None)
            if block in pending:
                del pending[block]
                pending[block] = None

    def alloc(self, number: int, size: int, stream: int, pool: int) -> int:
        block = self.model.alloc(size, self.streams[stream], pool)
        if block is None:
            return 0
        self.blocks[number] = block
        self.waits[number] = False
        return block.address

    def free(self, number: int) -> None:
        block = self.blocks.pop(number, None)
        if block is None:
            return  # it could not be allocated
        pending = self.waits[number]
        self.model.free(block, pending=pending)
        if pending:
            self.waiting[number] = block
            if self.in_capture:
                self.deferred.append(number)
            elif self.holding:
                self.unfinished.add(number)

    def record(self, number: int, stream: int) -> None:
        if number in self.blocks and self.streams[stream] != self.blocks[number].home.stream:
            self.waits[number] = True
            if not self.in_capture:  # what a capture does is done when it is over
                self.has_event.add(number)

    def hold(self) -> None:
        self.holding = True

    def finish(self) -> None:
        self.unfinished.clear()

    def empty(self) -> None:
        self.model.empty_cache()

    def change(self, text: str) -> None:
        self.settings = self.parse(text, self.rules, before=self.settings)
        self.model.configure(self.settings)

    def fraction(self, value: float) -> None:
        self.model.set_fraction(value)

    def pool(self, number: int, split: bool) -> None:
        self.model.create_pool(number, graph=False, split=split)

    def capture(self, number: int, stream: int) -> None:
        self.model.pool(number)
        self.in_capture = True

    def enter(self, number: int) -> None:
        self.in_capture = not self.rules.private_pools_release  # older releases make no difference

    def leave(self, number: int) -> None:
        self.in_capture = False

    def captured(self, number: int, stream: int) -> None:
        self.in_capture = False

    def drop(self, number: int) -> None:
        self.dropped[number] = self.model.pool(number)
        self.model.release_pool(number)

    @property
    def has_broken_pytorch(self) -> bool:
        """A pool was forgotten that still has memory: PyTorch miscounts their expandable segments. What it then does
        depends on what lies where the pool lay."""
        blocks = {block.home.kind.pool for block in (*self.blocks.values(), *self.waiting.values())}
        return any(
            number not in self.model._pools and (pool in blocks or _has_memory(pool))
            for number, pool in self.dropped.items()
        )

    def segments(self) -> list[list[Any]]:
        """As the driver tells them."""
        held = {block: number for number, block in self.blocks.items()}
        held |= {block: -2 for block in self.others if block is not None}
        return [_told(segment) for segment in self.model.segments(held)]


def _has_memory(pool: Pool) -> bool:
    homes = [home for kind in (pool.small, pool.large) for home in kind.homes.values()]
    return any(home.blocks or home.unmapped for home in homes)


def _told(segment: InitialSegment) -> list[Any]:
    blocks = [
        [block.address, block.size, "pending" if block.pending else "live" if block.block != -1 else "free"]
        for block in segment.blocks
    ]
    return [segment.address, segment.size, segment.stream, segment.small, segment.expandable, blocks]


STATES = {
    "active_allocated": "live",
    "inactive": "free",
    "active_pending_free": "pending",
    "active_awaiting_free": "pending",
}


def compare(
    program: Program, answer: Answer, names: Sequence[str], rules: Rules, allocator: ModuleType = the_model
) -> Mismatch | None:
    """The first difference between the model and the real allocator, None if there is none.

    Args:
        names: those of the counters, as the driver told them.
        allocator: the package with the model.
    """
    if not answer["events"]:
        return None if program.may_break_pytorch else Mismatch(-1, "crash", answer["error"], None)
    real: dict[str, int] = dict.fromkeys(names, 0)
    try:
        replay = Replay(program, answer, rules, allocator)
    except ValueError as error:
        return Mismatch(-1, "settings", program.settings, error)
    stats: Callable[[], dict[str, int]] = replay.model.statistics.memory_stats
    missing = COMPARED - stats().keys()
    assert not missing and stats().keys() <= real.keys(), f"counters that are not compared: {missing}"
    completed = iter(answer.get("completed", ()))
    for at, event in enumerate(answer["events"], -1):
        freed, waits = real["active.all.freed"], real["num_sync_all_streams"]
        for index in range(1, len(event), 2):
            real[names[event[index]]] = event[index + 1]
        freed = real["active.all.freed"] - freed
        waited = real["num_sync_all_streams"] != waits
        try:
            done = [*islice(completed, freed)]
            address = -1 if at < 0 else replay.step(program.operations[at], done, waited=waited)
        except Exception as error:
            return Mismatch(at, "exception", event[0], f"{type(error).__name__}: {error}")
        if address != event[0]:
            return Mismatch(at, "address", hex(event[0]), hex(address))
        if program.may_break_pytorch and replay.has_broken_pytorch:
            return None
        model = stats()
        if model.items() <= real.items():
            continue
        name = next(name for name in model if model[name] != real[name])
        return Mismatch(at, name, real[name], model[name])
    if "error" in answer:
        return None if program.may_break_pytorch else Mismatch(at + 1, "internal error", answer["error"], None)
    if "device" in answer:
        several = sum(operation[0] == "drop" for operation in program.operations) > 1
        for each, asked in zip_longest(*(_in_order(log, several) for log in (answer["device"], replay.device.log))):
            if each != asked:
                return Mismatch(at, "device", each, asked)
    told = [[*segment[:5], [[*block[:2], STATES[block[2]]] for block in segment[5]]] for segment in answer["segments"]]
    if (found := replay.segments()) != told:
        return Mismatch(at, "segments", *_difference(told, found))
    return None


def _in_order(log: list[list[Any]], several_pools: bool) -> list[list[Any]]:
    """What was asked of the device; a hash table decides which of several dropped pools is released first."""
    runs = [[*run] for _, run in groupby(log, key=lambda each: each[0] in ("free", "unmap"))]
    return [each for run in runs for each in (sorted(run) if several_pools and run[0][0] in ("free", "unmap") else run)]


def _difference(real: list[Any], model: list[Any]) -> tuple[Any, Any]:
    return [each for each in real if each not in model], [each for each in model if each not in real]


def minimise(program: Program, differs: Callable[[Program], bool]) -> Program:
    """Leave out operations as long as the program still `differs`."""
    chunk = max(len(program.operations) // 2, 1)
    while True:
        start = 0
        while start < len(program.operations):
            rest = program.operations[:start] + program.operations[start + chunk :]
            smaller = program.with_operations(rest)
            if len(smaller.operations) < len(program.operations) and differs(smaller):
                program = smaller
            else:
                start += chunk
        if chunk == 1:
            return program
        chunk = max(chunk // 2, 1)
