"""What oombisect itself costs, beside what it may cost: start-up, driver overhead per probe, a full-size probe.

    python benchmarks/driver.py [--repo BRIDGE-CLONE [--megatron MEGATRON-CLONE]]

With a Bridge clone it also times a warm probe of qwen3_8b_lora at full size on the virtual GPU. Whole-process wall
times, medians; they are only worth something on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.session import toy

import oombisect.session.opening as opening
from oombisect.history.store import open_store
from oombisect.session.request import BisectRequest, ProbeRequest
from oombisect.session.running import bisect_range

CLI = [sys.executable, "-c", "from oombisect.cli.main import main; main()"]


def show(name: str, value: float, bound: float, unit: str) -> None:
    print(f"{name:<58} {value:8.2f} {unit:<4} of {bound:6.2f} {unit:<4} ratio {value / bound:5.2f}", flush=True)


def seconds(command: Sequence[str], runs: int, **options: Any) -> float:
    times = []
    for _ in range(runs + 1):  # the first warms the caches
        started = time.perf_counter()
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def overhead(folder: Path) -> float:
    """Wall seconds a session takes per probe beyond the probe processes' own time."""

    class Stopwatch:
        probing = 0.0
        probes = 0

        def say(self, text: str) -> None: ...
        def progress(self, text: str) -> None: ...
        def tick(self, seconds: float) -> None: ...
        def probe_started(self, *_: Any) -> None: ...
        def probe_finished(self, target: Any, measured: Any, purpose: str, seconds: float) -> None:
            self.probing += seconds
            self.probes += not measured.cached

    repo = folder / "repo"
    repo.mkdir()
    shas = toy.history(repo, [toy.mib(4000 + 100 * (n > 20) + 900 * (n > 45), tag=n) for n in range(64)])
    python, _ = toy.interpreter(folder)
    opening.open_device = lambda *_: toy.ToyDevice()  # type: ignore[assignment,return-value]
    watch = Stopwatch()
    probe = ProbeRequest(toy.RECIPE, repo=str(repo), python=str(python))
    request = BisectRequest(f"{shas[0]}..{shas[-1]}", probe, exhaustive=True)
    started = time.perf_counter()
    with open_store(folder / "db.sqlite", clock=lambda: datetime.now(UTC)) as store:
        bisect_range(
            store, request, watcher=watch, cwd=folder, cache=folder / "cache", command=(), on_session=lambda _: None
        )
    return (time.perf_counter() - started - watch.probing) / watch.probes


def full_size(options: Sequence[str], folder: Path) -> tuple[float, float]:
    """Wall seconds and peak resident GiB of a warm full-size probe process."""
    env = dict(os.environ, XDG_DATA_HOME=str(folder))
    command = [*CLI, "probe", "HEAD", "--fresh", "--json", "--recipe", "qwen3_8b_lora", "--gpu", "virtual:h100-80gb"]
    command += ["--set", "model.seq_length=2048", "--db", str(folder / "full.db"), *options]
    for _ in range(2):  # the first warms the compile caches
        subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    results = sorted((folder / "full.artifacts").rglob("result-0.json"), key=lambda path: path.stat().st_mtime)
    result = json.loads(results[-1].read_text())
    return result["seconds"]["total"], result["host_peak_rss"] / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo")
    parser.add_argument("--megatron")
    arguments = parser.parse_args()
    show("oombisect --help", seconds([*CLI, "--help"], 9), 0.25, "s")
    with tempfile.TemporaryDirectory() as folder:
        show("driver overhead per probe (worktree, database, search)", overhead(Path(folder)), 0.5, "s")
    if arguments.repo:
        options = [f"--{name}={value}" for name, value in vars(arguments).items() if value]
        with tempfile.TemporaryDirectory() as folder:
            wall, resident = full_size(options, Path(folder))
        show("probe of qwen3_8b_lora, full size, warm (simulated)", wall, 25.0, "s")
        show("  its host memory", resident, 2.0, "GiB")


if __name__ == "__main__":
    main()
