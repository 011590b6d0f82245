"""How long planning a range takes: open the repository, list the points, read their trees, weigh them.

    python benchmarks/plan_range.py [--commits 10000] [--repo PATH --range GOOD..BAD --megatron PATH]

Without `--repo` a synthetic history in Bridge's shape is made first (not timed): 3 in 5 commits touch one source file,
one in 80 moves the submodule, one in 10 is a merge, the rest touch documentation. The cache is fresh each round.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from oombisect.axes.commits import commit_range, parse_range
from oombisect.repo.bridge import open_repository

GITMODULES = '[submodule "m"]\n\tpath = 3rdparty/Megatron-LM\n\turl = ../megatron\n'
SOURCES = [f"src/megatron/bridge/part{n // 20}/module{n}.py" for n in range(600)]
OTHERS = [f"{top}/dir{n // 10}/file{n}.md" for top in ("docs", "tests", "examples", "scripts") for n in range(150)]


def blob(path: str, text: str) -> str:
    return f"M 100644 inline {path}\ndata {len(text)}\n{text}\n"


def commit(branch: str, mark: int, subject: str, *lines: str) -> str:
    stamp = 1_700_000_000 + mark
    head = f"commit refs/heads/{branch}\nmark :{mark}\ncommitter A <a@example.org> {stamp} +0000\n"
    return head + f"data {len(subject)}\n{subject}\n" + "".join(lines)


def make(path: Path, stream: Iterator[str]) -> None:
    subprocess.run(["git", "init", "--quiet", "--bare", str(path)], check=True)
    text = "".join(stream)
    subprocess.run(["git", "-C", str(path), "fast-import", "--quiet"], input=text, text=True, check=True)


def megatron(commits: int) -> Iterator[str]:
    for n in range(1, commits + 1):
        yield commit("main", n, f"core {n}", blob(f"megatron/core/module{n % 200}.py", f"{n}\n"))


def bridge(commits: int, pins: list[str], chance: random.Random) -> Iterator[str]:
    first = [blob(path, "0\n") for path in (*SOURCES, *OTHERS, "uv.lock")] + [blob(".gitmodules", GITMODULES)]
    yield commit("main", 1, "start", *first, f"M 160000 {pins[0]} 3rdparty/Megatron-LM\n")
    pin = 0
    for n in range(2, commits + 1):
        if n % 80 == 0:
            pin = min(pin + chance.randint(1, 20), len(pins) - 1)
            change = f"M 160000 {pins[pin]} 3rdparty/Megatron-LM\n" + blob("uv.lock", f"{n}\n")
        else:
            change = blob(chance.choice(SOURCES if chance.random() < 0.6 else OTHERS), f"{n}\n")
        if n % 10 == 0:
            side = commits + n
            yield commit("side", side, f"side {n}", f"from :{n - 1}\n", change)
            yield commit("main", n, f"Merge {n}", f"from :{n - 1}\n", f"merge :{side}\n", change)
        else:
            yield commit("main", n, f"change {n}", f"from :{n - 1}\n", change)


def synthetic(root: Path, commits: int) -> Path:
    make(root / "megatron", megatron(2000))
    command = ["git", "-C", str(root / "megatron"), "rev-list", "--reverse", "main"]
    pins = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    make(root / "bridge", bridge(commits, pins, random.Random(0)))
    return root / "bridge"


def plan(repo: Path, good: str, bad: str, mlm: Path | None, cache: Path) -> dict[str, float]:
    """Seconds by stage, and of processor time in all (ours and git's): what a busy machine cannot blur."""
    marks, before = [time.perf_counter()], sum(os.times()[:4])
    repository = open_repository(repo, repo, cache, lambda _: None, mlm)
    marks.append(time.perf_counter())
    axis = commit_range(repository, good, bad)
    marks.append(time.perf_counter())
    groups = axis.groups()
    marks.append(time.perf_counter())
    weights = axis.weights()
    marks.append(time.perf_counter())
    assert len(groups) == len(weights) == len(axis.points)
    stages = [b - a for a, b in pairwise(marks)]
    shape = {"points": len(groups), "groups": groups[-1] + 1}
    totals = {"total": sum(stages), "cpu": sum(os.times()[:4]) - before}
    return dict(zip(("open", "list", "trees", "weights"), stages)) | totals | shape


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repo", type=Path)
    parser.add_argument("--range", default="main~100..main")
    parser.add_argument("--megatron", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        repo = options.repo or synthetic(Path(scratch), options.commits)
        good, bad = parse_range(options.range) if options.repo else (f"main~{options.commits - 1}", "main")
        for turn in range(options.rounds):
            told = plan(repo, good, bad, options.megatron, Path(scratch) / f"cache{turn}")
            print("  ".join(f"{k} {v:.3f} s" if isinstance(v, float) else f"{v} {k}" for k, v in told.items()))


if __name__ == "__main__":
    main()
