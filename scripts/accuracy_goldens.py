"""Measure tests of Megatron-LM's CI on a virtual GPU beside what CI measured on H100s (docs/accuracy.md).

    python scripts/accuracy_goldens.py --repo MEGATRON-LM [--only TEXT] [--db FILE]

runs `pretrain_gpt.py` of the commit of each row of `megatron_goldens.csv` as CI does, on the rank whose memory CI tells
(the last), and prints a row of the table for each: a minute each with warm caches. A row that was measured before costs
nothing. `golden`: CI's `mem-max-allocated-bytes` at an early iteration, the peak since the process began.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

GOLDENS = Path(__file__).with_name("megatron_goldens.csv")
ITERATIONS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--db")
    arguments = parser.parse_args()
    options = ["--repo", arguments.repo, *(["--db", arguments.db] if arguments.db else [])]
    errors: dict[str, list[float]] = {"dense": [], "MoE": []}
    print("| test | commit | golden, bytes | virtual (simulated), bytes | difference |\n|---|---|---|---|---|")
    with GOLDENS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if arguments.only in row["test"]]
    for row in rows:
        golden = int(row["gold_max_same_iter"])
        measured = peak(row, options)
        if isinstance(measured, str):
            print(f"| {row['test']} | {row['commit']} | {golden:,} | {measured} | |", flush=True)
            continue
        error = measured / golden - 1
        errors["MoE" if row["test"].startswith("moe/") else "dense"].append(abs(error))
        print(f"| {row['test']} | {row['commit']} | {golden:,} | {measured:,} | {error:+.3%} |", flush=True)
    for kind, found in errors.items():
        if found:
            print(f"\n{len(found)} {kind}: median {median(found):.3%}, largest {max(found):.3%}")


def peak(row: dict[str, str], options: list[str]) -> int | str:
    """Peak allocated of the row's rank in bytes, or why there is none."""
    command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", "probe", row["commit"], "--json"]
    command += ["--recipe", f"ci:{row['test']}", "--gpu", "virtual:h100-80gb", "--iterations", str(ITERATIONS)]
    command += ["--world-size", row["world"], "--ranks", row["rank"], *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    reading = json.loads(done.stdout).get("reading") if done.stdout else None
    if reading is None or reading["outcome"] != "exact":
        return reading["reason"] if reading else "no reading"
    return int(reading["peak_allocated"])


if __name__ == "__main__":
    main()
