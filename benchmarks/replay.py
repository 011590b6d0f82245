"""How fast and how small the replay is: events per second on one core, bytes per live block.

    python benchmarks/replay.py [SNAPSHOT ...]

Without arguments a synthetic training: the same on every machine. An event is one of a recorded trace: an alloc, a
free_requested or a free_completed.
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from oombisect.memory.allocator import CachingAllocator, Rules, Settings, guess_rules, rules_for
from oombisect.memory.replay import replay
from oombisect.memory.requests import Op, Requests

EVENTS_PER_SECOND = 250_000
BYTES_PER_BLOCK = 300
DEVICE_BYTES = 80 << 30
REPEATS = 3
MIB = 1 << 20


def training(events: int, layers: int = 48, seed: int = 20) -> Requests:
    """A training as the allocator sees it: weights and optimizer stay, activations are freed in reverse order.

    Within a layer short-lived tensors come and go, more in the backward pass; a tenth of them are small. Every step is
    a little different, as with packed sequences.
    """
    chance = random.Random(seed)
    requests = Requests()

    def allocate(size: int) -> int:
        number = len(requests.sizes)
        requests.sizes.append(size)
        requests.streams.append(0)
        requests.pools.append(0)
        requests.stacks.append(-1)
        requests.addresses.append(0)
        _record(requests, Op.ALLOC, number)
        return number

    def passing(count: int, scale: int) -> None:
        temporaries = []
        for _ in range(count):
            size = chance.randrange(64, 64 << 10) if chance.random() < 0.1 else chance.randrange(1, 8) * scale
            temporaries.append(allocate(size))
            if len(temporaries) > 4:
                _record(requests, Op.RELEASE, temporaries.pop(chance.randrange(4)))
        for number in temporaries:
            _record(requests, Op.RELEASE, number)

    for _ in range(layers):
        for share in (3, 1, 4, 4):
            allocate(share * 16 * MIB)
            allocate(share * 32 * MIB)
            allocate(4096)
    while requests.trace_events < events:
        tokens = chance.randrange(3000, 4097)
        kept = []
        for _ in range(layers):
            kept.append([allocate(tokens * width) for width in (8192, 24576, 8192, 28672, 8192)])
            passing(20, tokens * 1024)
        for activations in reversed(kept):
            passing(40, tokens * 1024)
            for number in reversed(activations):
                _record(requests, Op.RELEASE, number)
    return requests


def _record(requests: Requests, op: Op, number: int) -> None:
    requests.ops.append(op)
    requests.blocks.append(number)
    requests.events.append(requests.trace_events)
    requests.trace_events += 2 if op is Op.RELEASE else 1


def measure(name: str, requests: Requests, settings: Settings, rules: Rules) -> None:
    seconds = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        result = replay(requests, settings, rules, device_bytes=DEVICE_BYTES)
        seconds = min(seconds, time.process_time() - start)
    speed = requests.trace_events / seconds
    print(
        f"{name:<44} {requests.trace_events:>9,} events {seconds:6.2f} s {speed:>10,.0f} events/s"
        f" ({speed / EVENTS_PER_SECOND:.1f} x target) {len(requests.ops) / seconds:>10,.0f} requests/s"
        f"   peak reserved {result.peak_reserved / (1 << 30):.2f} GiB"
    )


def memory(count: int = 200_000) -> None:
    """Bytes per live block, counted by tracemalloc: half of the blocks are then freed, so that as many are free."""
    rules = rules_for("2.14")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    allocator = CachingAllocator(Settings(), rules, device_bytes=1 << 50)
    chance = random.Random(1)
    live = [allocator.alloc(chance.randrange(1, 64) * 4096 + 8) for _ in range(count)]
    size = (tracemalloc.get_traced_memory()[0] - before) / count
    for index in range(0, count, 2):
        block = live[index]
        assert block is not None
        allocator.free(block)
        live[index] = None
    half_free = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    print(f"{size:.0f} bytes per live block ({size / BYTES_PER_BLOCK:.2f} x the bound of {BYTES_PER_BLOCK})")
    print(f"{half_free:.0f} bytes per block, half of them live and half of them free")


def main() -> None:
    rules = rules_for("2.14")
    if sys.argv[1:]:
        from oombisect.memory.snapshots import load, requests_of

        for path in sys.argv[1:]:
            start = time.process_time()
            snapshot = load(Path(path))
            requests = requests_of(snapshot.devices[0], snapshot)
            print(f"{path}: read in {time.process_time() - start:.2f} s")
            guessed = guess_rules(snapshot.settings)
            measure("as recorded", requests, Settings.of_snapshot(snapshot.settings, guessed), guessed)
            measure("default", requests, Settings.parse("", guessed), guessed)
            measure("expandable segments", requests, Settings.parse("expandable_segments:True", guessed), guessed)
        return
    requests = training(1_000_000)
    for text in ("", "expandable_segments:True", "max_split_size_mb:256", "roundup_power2_divisions:8"):
        measure(text or "default", requests, Settings.parse(text, rules), rules)
    memory()


if __name__ == "__main__":
    main()
