"""The model with one rule wrong: text replaced in a copy of its package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from oombisect.memory import allocator

PACKAGE = "oombisect.memory.allocator"


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in a file of the package; it must stand there exactly once."""

    name: str
    file: str
    old: str
    new: str


MODEL = "model.py"
EXPANDABLE = "expandable.py"
MUTANTS = (
    Mutant("requests are rounded to 256", MODEL, "LEAST_BLOCK: Final = 512", "LEAST_BLOCK: Final = 256"),
    Mutant("roundup: only larger requests", MODEL, "requested > LEAST_BLOCK * count", "requested > 4 * LEAST_BLOCK * count"),
    Mutant("roundup: the next interval", MODEL, "max(power - 20, 0)", "max(power - 19, 0)"),
    Mutant("roundup: down", MODEL, "return -(-requested // step) * step", "return requested // step * step"),
    Mutant("small is less than 1 MiB", MODEL, "owner.small if size <= SMALL_SIZE", "owner.small if size < SMALL_SIZE"),
    Mutant("small segments of 4 MiB", MODEL, "SMALL_SEGMENT: Final = 2 * MIB", "SMALL_SEGMENT: Final = 4 * MIB"),
    Mutant("large segments in steps of 1 MiB", MODEL, "SEGMENT_GRANULE: Final = 2 * MIB", "SEGMENT_GRANULE: Final = MIB"),
    Mutant("10 MiB still share a segment", MODEL, "if size < LEAST_LARGE_SEGMENT:", "if size <= LEAST_LARGE_SEGMENT:"),
    Mutant("segments from 12 MiB", "settings.py", "LEAST_LARGE_SEGMENT: Final = 10 * MIB", "LEAST_LARGE_SEGMENT: Final = 12 * MIB"),
    Mutant("segments of 22 MiB", "settings.py", "DEFAULT_LARGE_SEGMENT: Final = 20 * MIB", "DEFAULT_LARGE_SEGMENT: Final = 22 * MIB"),
    Mutant("ties by the newest segment", "blocks.py", "self.made << ADDRESS_BITS | address", "(1 << 30) - self.made << ADDRESS_BITS | address"),
    Mutant("last fit", MODEL, "at = bisect_left(keys, size << ORDER_BITS)\n        if at", "at = len(keys) - 1 if keys and keys[-1] >> ORDER_BITS >= size else len(keys)\n        if at"),
    Mutant("small blocks are split for more than 512", MODEL, "if rest >= LEAST_BLOCK and (", "if rest > LEAST_BLOCK and ("),
    Mutant("large blocks are split for 1 MiB", MODEL, "(rest > SMALL_SIZE and", "(rest >= SMALL_SIZE and"),
    Mutant("large blocks are split for less", MODEL, "(rest > SMALL_SIZE and", "(rest > SMALL_SIZE // 2 and"),
    Mutant("expandable blocks are split like others", MODEL, "kind.small or settings.expandable_segments or", "kind.small or"),
    Mutant("oversize requests split too", MODEL, "and size < self._max_split)", ")"),
    Mutant("the largest request that is split", MODEL, "and size < self._max_split)", "and size <= self._max_split)"),
    Mutant("pools without splits split", MODEL, ") and owner.split:", "):"),
    Mutant("oversize blocks for small requests", MODEL, "if size < limit <= block.size:", "if False:"),
    Mutant("oversize begins above the limit", MODEL, "if size < limit <= block.size:", "if size < limit < block.size:"),
    Mutant("split rounding: one more byte", MODEL, "block.size >= size + self.settings.non_split_rounding", "block.size > size + self.settings.non_split_rounding"),
    Mutant("split rounding: none", MODEL, "if size >= limit and block.size >=", "if False and block.size >="),
    Mutant("split rounding: always a large segment", "settings.py", "return self.large_segment_size if self.max_non_split_rounding is None else self.max_non_split_rounding", "return self.large_segment_size"),
    Mutant("a freed block does not join the one before", MODEL, "neighbour = block.previous\n        if neighbour is not None and neighbour.state == FREE:", "neighbour = block.previous\n        if False:"),
    Mutant("a freed block does not join the one behind", MODEL, "neighbour = block.next\n        if neighbour is not None and neighbour.state == FREE:", "neighbour = block.next\n        if False:"),
    Mutant("a retry that fails is not counted", MODEL, "            self.statistics.retries += 1\n            block = self._ask_device(home, size)", "            block = self._ask_device(home, size)\n            self.statistics.retries += block is not None"),
    Mutant("no retry", MODEL, "if block is None and self._may_release(home.kind.pool):", "if False:"),
    Mutant("captures release memory too", MODEL, "return pool.number == 0 or (self.rules.private_pools_release and not pool.graph)", "return True"),
    Mutant("oversize memory is not released first", MODEL, "if block is None and self._release_oversize(home, size):", "if False:"),
    Mutant("oversize memory: the smallest first", MODEL, "for block in reversed(home.blocks[:at]):", "for block in home.blocks[:at]:"),
    Mutant("oversize memory: one is never enough", MODEL, "if at < len(home.blocks) and home.blocks[at].segment is None:", "if False:"),
    Mutant("oversize memory: all of it", MODEL, "if released >= wanted or block.size < self._max_split:", "if block.size < self._max_split:"),
    Mutant("small segments first", MODEL, "self._release_kind(ordinary.large)\n        self._release_kind(ordinary.small)", "self._release_kind(ordinary.small)\n        self._release_kind(ordinary.large)"),
    Mutant("split segments are released", MODEL, "elif not block.is_split:", "elif block.previous is None:"),
    Mutant("private pools are released while in use", MODEL, "for pool in [pool for pool in self._pools.values() if pool.released]:", "for pool in [pool for pool in self._pools.values() if pool.number]:"),
    Mutant("private pools are never released", MODEL, "for pool in [pool for pool in self._pools.values() if pool.released]:", "for pool in ():"),
    Mutant("a private pool is the ordinary one", MODEL, "owner = self._pools.get(pool) or self.pool(pool)", "owner = self._pools[0]"),
    Mutant("a dropped MemPool keeps its memory", MODEL, "if not pool.graph if at_once is None else at_once:\n                self._synchronize", "if False:\n                self._synchronize"),
    Mutant("a dropped MemPool waits for everything", MODEL, "self._synchronize(pool)", "self._synchronize(None)"),
    Mutant("nothing is waited for", MODEL, "for block in [block for block in self._pending if", "for block in [block for block in () if"),
    Mutant("waiting blocks last come first", MODEL, "for block in [block for block in self._pending if", "for block in [block for block in reversed(self._pending) if"),
    Mutant("waiting blocks are free", MODEL, "if pending:\n            self.wait_for(block)", "if False:\n            self.wait_for(block)"),
    Mutant("waiting blocks count as allocated", MODEL, "stats.freed += block.size\n", "stats.freed += block.size if not pending else 0\n"),
    Mutant("streams share their blocks", MODEL, "home = kind.homes.get(stream) or kind.home(stream)", "home = kind.homes.get(0) or kind.home(0)"),
    Mutant("the fraction is checked with the request", MODEL, "stats.reserved.current + asked > self.allowed", "stats.reserved.current + size > self.allowed"),
    Mutant("the fraction is reached too early", MODEL, "stats.reserved.current + asked > self.allowed", "stats.reserved.current + asked >= self.allowed"),
    Mutant("garbage: only what is older than the mean", MODEL, "age < mean_age:", "age <= mean_age:"),
    Mutant("garbage: one round", MODEL, "            candidates = kept\n", "            break\n"),
    Mutant("garbage: one segment is enough", MODEL, "while released < excess and candidates:", "while released == 0 and candidates:"),
    Mutant("garbage: of any age", MODEL, "if block.segment is not None or age < mean_age:", "if block.segment is not None:"),
    Mutant("garbage: split blocks have an age too", MODEL, "total_age = sum(kind.searches - block.since for block in candidates)", "total_age = sum(kind.searches - block.since for block in kind.free_blocks())"),
    Mutant("garbage: ages in frees", MODEL, "if self._collects:\n            kind.searches += 1", "if False:\n            kind.searches += 1"),
    Mutant("garbage: below the threshold of the device", MODEL, "int(self.settings.garbage_collection_threshold * self.allowed)", "int(self.settings.garbage_collection_threshold * self.device.total)"),
    Mutant("expandable: large pages of 2 MiB", MODEL, "page = SMALL_SEGMENT if kind.small else self.settings.large_segment_size", "page = SMALL_SEGMENT"),
    Mutant("expandable: small pages of 20 MiB", MODEL, "page = SMALL_SEGMENT if kind.small else self.settings.large_segment_size", "page = self.settings.large_segment_size"),
    Mutant("expandable: best fit without growth", MODEL, "_growth(blocks[at + 1]) < _growth(block):", "False:"),
    Mutant("expandable: equal growth is better", MODEL, "_growth(blocks[at + 1]) < _growth(block):", "_growth(blocks[at + 1]) <= _growth(block):"),
    Mutant("expandable: used although switched off", MODEL, "while block.segment is not None:\n                    at += 1\n                    if at == len(blocks):", "while False:\n                    at += 1\n                    if at == len(blocks):"),
    Mutant("expandable: always at the end", EXPANDABLE, "for block in home.unmapped:", "for block in reversed(home.unmapped):"),
    Mutant("expandable: runs begin without memory", EXPANDABLE, "first = before if before is not None and before.state >= FREE else block", "first = block"),
    Mutant("expandable: as many addresses as the device", EXPANDABLE, "(total + total // 8)", "total"),
    Mutant("expandable: what is mapped does not join", EXPANDABLE, "for neighbour in (block.previous, block.next):\n            if neighbour is not None and neighbour.state == FREE:", "for neighbour in (block.next,):\n            if neighbour is not None and neighbour.state == FREE:"),
    Mutant("expandable: part of a page is unmapped", EXPANDABLE, "segment.page_at_or_after(first), segment.page_at_or_before(end)", "segment.page_at_or_before(first), segment.page_at_or_before(end)"),
    Mutant("expandable: addresses are kept", EXPANDABLE, "self._device.unreserve(segment.base, segment.size)", "pass"),
    Mutant("expandable: counted as inactive split", MODEL, "if was_split and block.segment is None:\n", "if was_split:\n"),
    Mutant("the peak of requests ignores what waits", MODEL, "total - stats.completed_requested > stats.peak_requested", "total - stats.completed_requested >= stats.peak_requested + 512"),
    Mutant("oversize counts from above the limit", MODEL, "if size >= self._max_split:\n            stats.oversize_allocations.add(1)", "if size > self._max_split:\n            stats.oversize_allocations.add(1)"),
    Mutant("settings: new ones keep the roundup", "settings.py", "            expandable_segments=old.expandable_segments,\n", "            expandable_segments=old.expandable_segments,\n            roundup=old.roundup,\n"),
    Mutant("settings: new ones keep the split limit", "settings.py", "            expandable_segments=old.expandable_segments,\n", "            expandable_segments=old.expandable_segments,\n            max_split_size=old.max_split_size,\n"),
    Mutant("settings: new ones keep the threshold", "settings.py", "            expandable_segments=old.expandable_segments,\n", "            expandable_segments=old.expandable_segments,\n            garbage_collection_threshold=old.garbage_collection_threshold,\n"),
    Mutant("settings: new ones switch expandable segments off", "settings.py", "            expandable_segments=old.expandable_segments,\n", ""),
    Mutant("settings: smaller sizes have no divisions", "settings.py", "result[:index] = [number] * index", "pass"),
)  # fmt: skip


@contextmanager
def mutated(mutant: Mutant, folder: Path, number: int) -> Iterator[ModuleType]:
    """The package with the mutant in it, under another name; the folder must be on sys.path.

    Raises:
        AssertionError: the text to replace is not there (any more), or not once.
    """
    name = f"mutant_{number}"
    source = Path(allocator.__file__).parent
    (folder / name).mkdir()
    for path in source.glob("*.py"):
        text = path.read_text()
        if path.name == mutant.file:
            assert text.count(mutant.old) == 1, (
                f"{mutant.name}: the text to replace is there {text.count(mutant.old)} times"
            )
            text = text.replace(mutant.old, mutant.new)
        (folder / name / path.name).write_text(text.replace(PACKAGE, name))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(name)
    finally:
        for module in [module for module in sys.modules if module.split(".")[0] == name]:
            del sys.modules[module]
