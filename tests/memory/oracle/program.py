"""Random programs for an allocator: a seed gives a program, always the same one.

A program is what a training script does to the allocator and nothing else: settings, a device, and operations, each a
list of a name and arguments (the methods of `Runner` in `driver.py` carry them out on the real one):

    alloc BLOCK SIZE STREAM POOL        free BLOCK                 record BLOCK STREAM (Tensor.record_stream)
    hold, finish (events complete only after the next finish)      empty (torch.cuda.empty_cache)
    settings TEXT                       fraction NUMBER
    pool NUMBER SPLIT, enter NUMBER, leave NUMBER (a MemPool and its use)
    capture NUMBER STREAM, captured NUMBER STREAM (a CUDA graph and its pool)
    drop NUMBER (its MemPool, or the graphs that were captured into it, are gone)
"""

from __future__ import annotations

import json
import random
import re
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

MIB = 1 << 20
GB = 10**9
Operation = list[Any]

SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:21",
    "max_split_size_mb:64",
    "max_split_size_mb:200",
    "max_split_size_mb:512",
    "max_split_size_mb:32,max_non_split_rounding_mb:24",
    "max_split_size_mb:64,max_non_split_rounding_mb:100",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:16",
    "roundup_power2_divisions:[1:8,64:4,>:2]",
    "roundup_power2_divisions:[4:1,16:8,256:16,>:1]",
    "roundup_power2_divisions:[32:256,64:128,256:64,>:32]",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.9",
    "garbage_collection_threshold:0.7,max_split_size_mb:100",
    "garbage_collection_threshold:0.8,roundup_power2_divisions:8",
    "expandable_segments:True,garbage_collection_threshold:0.7",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,max_split_size_mb:64",
    "expandable_segments:True,max_split_size_mb:40,max_non_split_rounding_mb:30,garbage_collection_threshold:0.8",
)
LARGE_SEGMENT_SETTINGS = (
    "large_segment_size_mb:12",
    "large_segment_size_mb:64",
    "large_segment_size_mb:32,max_split_size_mb:32",
    "large_segment_size_mb:100,garbage_collection_threshold:0.7",
    "large_segment_size_mb:24,expandable_segments:True",
    "max_split_size_mb:20,max_non_split_rounding_mb:20",
    "per_process_memory_fraction:0.7",
    "per_process_memory_fraction:0.9,garbage_collection_threshold:0.5,expandable_segments:True",
)
"""Settings that older releases lack."""
CHANGES = ("expandable_segments:False", "expandable_segments:False,max_split_size_mb:128")
"""Settings that only make sense as a change."""

BORDERS = (MIB, 2 * MIB, 10 * MIB, 12 * MIB, 20 * MIB, 21 * MIB, 32 * MIB, 64 * MIB, 100 * MIB, 200 * MIB, 512 * MIB)


@dataclass(frozen=True)
class Program:
    """One program; sizes are bytes. `capacity` is what the device really has, `total` what it says it has.

    `newer`: it uses what came after torch 2.9.
    """

    seed: int
    settings: str
    total: int
    capacity: int
    streams: int
    operations: list[Operation]
    newer: bool = False

    @property
    def line(self) -> str:
        """For the driver."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @property
    def may_break_pytorch(self) -> bool:
        """It may meet a fault of PyTorch: it miscounts the expandable segments of private pools, and forgets pools."""
        texts = [self.settings, *(operation[1] for operation in self.operations if operation[0] == "settings")]
        drops = any(operation[0] == "drop" for operation in self.operations)
        return drops and any("expandable_segments:True" in text for text in texts)

    def with_operations(self, operations: list[Operation]) -> Program:
        """The same with other operations, without those that make no sense there."""
        return replace(self, operations=sensible(operations, newer=self.newer))


def sensible(operations: list[Operation], *, newer: bool) -> list[Operation]:
    """Leave out operations that cannot be done (because others were left out), and tell each request its pool."""
    live: set[int] = set()
    pools: set[int] = set()
    inside: int | None = None
    capture: tuple[int, int] | None = None
    kept = []
    for operation in operations:
        name, *arguments = operation
        first = arguments[0] if arguments else None
        idle = inside is None and capture is None
        if name == "alloc":
            block, size, stream, _ = arguments
            if capture is not None and stream != capture[1]:
                continue
            pool = inside or (capture[0] if capture is not None else 0)
            live.add(block)
            operation = ["alloc", block, size, stream, pool]
        elif name == "free":
            if first not in live:
                continue
            live.remove(first)
        elif name == "record" and first not in live:
            continue
        elif name == "pool":
            pools.add(arguments[0])
        elif name == "enter":
            if not idle or first not in pools:
                continue
            inside = first
        elif name == "leave":
            if inside is None or first != inside:
                continue
            inside = None
        elif name == "capture":
            if not idle:
                continue
            capture = (arguments[0], arguments[1])
            pools.add(arguments[0])
        elif name == "captured":
            if capture is None or tuple(arguments) != capture:
                continue
            capture = None
        elif name == "drop":
            if not idle or first not in pools:
                continue
            pools.remove(arguments[0])
        elif name == "empty" and (capture is not None or (inside is not None and not newer)):
            continue
        kept.append(operation)
    return kept


def make_program(seed: int, *, newer: bool, length: int = 0) -> Program:
    """The program of a seed.

    Args:
        newer: settings that came after torch 2.9 may be used.
        length: how many requests; 0: some hundred.
    """
    return _Maker(seed, newer).program(length)


def split_limit(settings: str) -> int:
    """max_split_size_mb."""
    match = re.search(r"max_split_size_mb:(\d+)", settings)
    return int(match[1]) if match else sys.maxsize


class _Maker:
    def __init__(self, seed: int, newer: bool) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.newer = newer
        self.choices = SETTINGS + LARGE_SEGMENT_SETTINGS if newer else SETTINGS
        self.operations: list[Operation] = []
        self.live: list[tuple[int, int]] = []
        self.blocks = 0
        self.pools: list[int] = []
        self.made = 0
        self.inside = 0
        self.capture = 0
        self.capture_stream = 0

    def program(self, length: int) -> Program:
        chance = self.random
        settings = self.choices[self.seed % len(self.choices)]
        self.capacity = chance.choice(
            [200 * MIB, 700 * MIB, 1000 * MIB, 3 * GB, 6 * GB, 6 * GB, 24 * GB, 24 * GB, 80 * GB, 81_559 * MIB]
        )
        self.settings = settings
        self.began_expandable = "expandable_segments:True" in settings
        total = self.capacity + chance.choice([0, 0, 1, 12_345_678, self.capacity // 16])
        self.streams = chance.choice([1, 1, 2, 3])
        self.records = self.streams > 1 and chance.random() < 0.5
        self.uses_pools = chance.random() < 0.3
        self.captures = self.uses_pools and self.streams > 1 and chance.random() < 0.6
        self.holds = self.records and not self.captures and chance.random() < 0.7
        self.changes = chance.random() < (0.7 if "max_non_split" in settings else 0.3)
        self.many = length or chance.choice([60, 120, 200, 300])
        self.pressure = chance.choice([0.3, 0.7, 0.9, 1.0, 1.1])
        self.favourites = [self._fresh_size() for _ in range(chance.randint(2, 8))]
        if "max_split" in settings and chance.random() < 0.7:
            self._add_oversize(settings)
        self.loyalty = chance.choice([0.2, 0.5, 0.8, 0.95])
        if ("garbage" in settings and chance.random() < 0.85) or chance.random() < 0.2:
            self.operations.append(["fraction", chance.choice([0.3, 0.5, 0.7, 0.75, 0.9, 0.97, 1.0])])
        elif self.capacity == 700 * MIB and chance.random() < 0.7:
            self.operations.append(["fraction", 0.7])  # of 700 MiB that is 490 MiB or, cut off, a byte less
            total = self.capacity
            self.operations += [["alloc", self.blocks, 490 * MIB, 0, 0], ["free", self.blocks]]
            self.blocks += 1
        style = chance.choice([self._training, self._random, self._stack, self._queue])
        while self.blocks < self.many:
            self._incidents()
            if chance.random() < 0.15:
                style = chance.choice([self._training, self._random, self._stack, self._queue])
            style()
        self._incidents()
        self._leave()
        if chance.random() < 0.5:
            while self.live and chance.random() < 0.98:
                self._free(chance.randrange(len(self.live)))
            self.operations.append(["empty"])
        return Program(
            self.seed,
            settings,
            total,
            self.capacity,
            self.streams,
            sensible(self.operations, newer=self.newer),
            self.newer,
        )

    # ---- sizes ----

    def _fresh_size(self) -> int:
        chance = self.random
        kind = chance.random()
        if kind < 0.06:
            return chance.randint(1, 1024)
        if kind < 0.16:
            return max(1, 512 * chance.randint(1, 4000) + chance.choice([-1, 0, 0, 1, 100]))
        if kind < 0.26:
            return int(2 ** chance.uniform(9, 20))
        if kind < 0.46:
            return max(
                1, chance.choice(BORDERS) + chance.choice([-513, -512, -1, 0, 0, 1, 512, -MIB, MIB, MIB + 1, 3 * MIB])
            )
        if kind < 0.56:
            divisions = 1 << chance.randint(1, 5)
            power = 1 << chance.randint(16, 29)
            return power + power // divisions * chance.randint(0, divisions - 1) + chance.choice([-1, 0, 1, 511])
        if kind < 0.74:
            return int(2 ** chance.uniform(20, 25.5))
        if kind < 0.85:
            return int(2 ** chance.uniform(24, 29))
        return max(1, int(self.capacity / 2 ** chance.uniform(1, 6.5)))

    def _add_oversize(self, settings: str) -> None:
        """Sizes that are as far apart as an oversize block may be larger than its request, or one step more or less."""
        chance = self.random
        least = split_limit(settings) * MIB
        size = least + 2 * MIB * chance.randint(0, max(self.capacity // (64 * MIB), 1))
        rounding = re.search(r"max_non_split_rounding_mb:(\d+)", settings)
        for apart in {int(rounding[1]) if rounding else 20, 20}:
            self.favourites += [size, size, size + apart * MIB, size + apart * MIB + chance.choice([-512, 0, 1])]

    def _size(self) -> int:
        if self.random.random() < 0.01:
            return int(self.capacity * self.random.uniform(0.8, 1.3))
        if self.random.random() < self.loyalty:
            return self.random.choice(self.favourites)
        return self._fresh_size()

    # ---- what a program does ----

    def _alloc(self) -> None:
        chance = self.random
        stream = chance.randrange(self.streams) if chance.random() < 0.5 else 0
        if self.capture:
            stream = self.capture_stream
        block, size = self.blocks, self._size()
        self.blocks += 1
        self.operations.append(["alloc", block, size, stream, 0])
        self.live.append((block, size))
        # (After a use in an older release's MemPool, PyTorch may take another block at the same place for this one.)
        if self.records and not (self.inside and self.holds) and chance.random() < 0.35:
            for _ in range(chance.choice([1, 1, 2])):
                self.operations.append(["record", block, chance.randrange(self.streams)])
        while sum(size for _, size in self.live) > self.pressure * self.capacity and chance.random() < 0.9:
            self._free(chance.randrange(len(self.live)))

    def _free(self, index: int) -> None:
        block, _ = self.live.pop(index)
        self.operations.append(["free", block])

    def _training(self) -> None:
        """A forward and a backward pass: what the forward keeps is freed from its end, among short-lived blocks."""
        chance = self.random
        start = len(self.live)
        for _ in range(chance.randint(2, 12)):
            self._alloc()
            if chance.random() < 0.5:
                self._alloc()
                self._free(len(self.live) - 1) if self.live else None
        while len(self.live) > start and chance.random() < 0.97:
            if chance.random() < 0.4:
                self._alloc()
                if self.live:
                    self._free(len(self.live) - 1)
            if len(self.live) > start:
                self._free(len(self.live) - 1)

    def _random(self) -> None:
        for _ in range(self.random.randint(5, 30)):
            if self.inside and self.newer and self.random.random() < 0.02:
                self.operations.append(["empty"])
            if self.live and self.random.random() < 0.48:
                self._free(self.random.randrange(len(self.live)))
            else:
                self._alloc()

    def _stack(self) -> None:
        for _ in range(self.random.randint(3, 20)):
            self._alloc()
        for _ in range(self.random.randint(0, len(self.live))):
            self._free(len(self.live) - 1)

    def _queue(self) -> None:
        for _ in range(self.random.randint(3, 20)):
            self._alloc()
        for _ in range(self.random.randint(0, len(self.live))):
            self._free(0)

    def _incidents(self) -> None:
        """What happens now and then: settings, caches, events, pools."""
        chance, done = self.random, self.operations
        self._leave()
        if chance.random() < 0.05:
            done.append(["empty"])
        if self.changes and chance.random() < (0.4 if "max_non_split" in self.settings else 0.15):
            expandable = "expandable_segments:True" in self.settings
            choices = CHANGES if expandable and chance.random() < 0.4 else self.choices
            if "max_non_split" in self.settings and chance.random() < 0.6:
                choices = (f"max_split_size_mb:{split_limit(self.settings)}",)
            if choices := [text for text in choices if self._may_follow(text)]:
                self.settings = text = chance.choice(choices)
                if self.newer and "max_" in text and "large" not in text:
                    text = (
                        f"large_segment_size_mb:20,{text}"  # a larger one that is still in force would refuse the rest
                    )
                done.append(["settings", text])
        if self.changes and chance.random() < 0.05:
            done.append(["fraction", chance.choice([0.4, 0.8, 0.95, 1.0])])
        if self.holds and chance.random() < 0.5:
            done.append([chance.choice(["hold", "finish"])])
        if self.uses_pools:
            if self.pools and chance.random() < 0.12:
                if self.holds:
                    self._wait()
                done.append(["drop", self.pools.pop(chance.randrange(len(self.pools)))])
            elif chance.random() < 0.5:
                self._enter()

    def _may_follow(self, text: str) -> bool:
        """PyTorch frees split blocks, and so fails, if the size from which none is split is lowered in the middle, or
        if expandable segments are switched on, under which it splits all blocks."""
        splits_more = "expandable_segments:True" in text and "max_split" in text and not self.began_expandable
        return split_limit(text) >= split_limit(self.settings) and not splits_more

    def _wait(self) -> None:
        """A block that is freed and waits."""
        self.operations.append(["hold"])
        self.operations.append(["alloc", self.blocks, self._size(), 0, 0])
        self.operations.append(["record", self.blocks, 1])
        self.operations.append(["free", self.blocks])
        self.blocks += 1

    def _enter(self) -> None:
        chance = self.random
        number = chance.choice(self.pools) if self.pools and chance.random() < 0.6 else 0
        if not number:
            self.made += 1
            number = self.made * 2 + (self.captures and chance.random() < 0.7)
            self.pools.append(number)
            if number % 2 == 0:
                self.operations.append(["pool", number, not self.newer or chance.random() < 0.7])
        if number % 2:  # odd ones are those of graphs
            self.capture, self.capture_stream = number, chance.randrange(1, self.streams)
            self.operations.append(["capture", number, self.capture_stream])
        else:
            self.inside = number
            self.operations.append(["enter", number])

    def _leave(self) -> None:
        if self.capture:
            self.operations.append(["captured", self.capture, self.capture_stream])
        if self.inside:
            self.operations.append(["leave", self.inside])
        self.capture = self.inside = 0
