"""How fast a snapshot opens and replays, and how much memory that takes.

    python benchmarks/snapshots.py [EVENTS]

A synthetic training: call stacks of 25 frames that share their frames, as PyTorch writes them: a list for each
allocation, and one for each free. Every file is read in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import gzip
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCE = str(Path(__file__).resolve().parents[1] / "src")
sys.path.insert(0, SOURCE)

TARGET_SECONDS = 15.0
DEVICE_BYTES = 80 << 30
MIB = 1 << 20
FUNCTIONS, DEPTH = 400, 25
PLAIN, PACKED = "snapshot.pickle", "snapshot.pickle.gz"


def training(count: int, seed: int = 7) -> dict[str, Any]:
    """A snapshot of about `count` events: blocks of 2 MiB to 20 MiB, a segment each, freed in reverse order."""
    chance = random.Random(seed)
    frames = [{"name": f"function_{at}", "filename": f"model_{at % 40}.py", "line": at} for at in range(FUNCTIONS)]
    stacks = [chance.choices(frames, k=DEPTH) for _ in range(2000)]
    events: list[dict[str, Any]] = []
    known: dict[int, list[int]] = {}
    top = 1 << 44

    def put(action: str, address: int, size: int, stack: list[Any]) -> None:
        events.append({
            "action": action, "addr": address, "size": size, "stream": 0, "time_us": 10**15 + 3 * len(events),
            "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0), "frames": stack,
        })  # fmt: skip

    while len(events) < count:
        live = []
        for _ in range(1000):
            size, stack = chance.randrange(1, 11) * 2 * MIB, list(chance.choice(stacks))
            if not known.setdefault(size, []):
                put("segment_alloc", top, size, stack)
                known[size].append(top)
                top += size
            address = known[size].pop()
            put("alloc", address, size, stack)
            live.append((address, size))
        for address, size in reversed(live):
            stack = list(chance.choice(stacks))
            put("free_requested", address, size, stack)
            put("free_completed", address, size, stack)
            known[size].append(address)
    segments = [
        {
            "device": 0, "address": address, "total_size": size, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False,
            "blocks": [
                {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []},
            ],
        }
        for size, addresses in known.items()
        for address in addresses
    ]  # fmt: skip
    return {"segments": segments, "device_traces": [events], "allocator_settings": {}, "external_annotations": []}


def measure(path: Path) -> None:
    from oombisect.memory.allocator import Settings, guess_rules
    from oombisect.memory.replay import replay
    from oombisect.memory.snapshots import load, requests_of

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    snapshot = load(path)
    opened = time.perf_counter()
    requests = requests_of(snapshot.devices[0], snapshot)
    asked = time.perf_counter()
    rules = guess_rules(snapshot.settings)
    replay(requests, Settings.of_snapshot(snapshot.settings, rules), rules, device_bytes=DEVICE_BYTES)
    done = time.perf_counter()
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert not requests.initial and not requests.unmatched_frees
    events = requests.trace_events
    print(
        f"{path.name:<20} {path.stat().st_size / MIB:6.1f} MiB {events:>9,} events {len(snapshot.stacks):,} stacks:"
        f" opens in {opened - start:.2f} s, requests in {asked - opened:.2f} s, replays in {done - asked:.2f} s,"
        f" together {done - start:.2f} s, {(done - start) / TARGET_SECONDS:.2f} x the bound of {TARGET_SECONDS:.0f} s;"
        f" peak memory {peak} MiB ({peak * MIB / events:.0f} bytes per event)"
    )


def generate(folder: Path, count: int) -> None:
    data = pickle.dumps(training(count))
    (folder / PLAIN).write_bytes(data)
    (folder / PACKED).write_bytes(gzip.compress(data, 6))


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]))
        return
    if sys.argv[1:2] == ["--generate"]:
        generate(Path(sys.argv[2]), int(sys.argv[3]))
        return
    count = sys.argv[1] if sys.argv[1:] else "1000000"
    with tempfile.TemporaryDirectory() as name:
        # Not in this process: Linux counts the peak memory of the process that starts another as the other's, too.
        subprocess.run([sys.executable, __file__, "--generate", name, count], check=True)
        for file in (PLAIN, PACKED):
            subprocess.run([sys.executable, __file__, "--measure", str(Path(name) / file)], check=True)


if __name__ == "__main__":
    main()
