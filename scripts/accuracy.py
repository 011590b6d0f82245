"""Measure on a virtual GPU what others measured on real ones, and print both side by side (docs/accuracy.md).

    python scripts/accuracy.py --repo PATH [--megatron PATH] [--db FILE]

needs a Megatron Bridge clone and takes a probe per row, half a minute each with warm caches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass

SOURCE = "Bridge, skills/nemo-mbridge-perf-memory-tuning/SKILL.md (pull request 4581)"
COMMIT = "33655ef84"
LORA = ("model.sequence_parallel=True", "model.seq_length=8192")
UNPACKED = ("dataset.enable_offline_packing=False", "dataset.offline_packing_specs=null")
REGATHER = "peft.sequence_parallel_input_regather"
DENSE = ("qwen3_8b_lora", "virtual:h100-80gb", ("model.tensor_model_parallel_size=2", *LORA))
MOE = (
    "qwen3_30b_a3b_lora",
    "virtual:h100-80gb",
    ("model.tensor_model_parallel_size=4", "model.expert_model_parallel_size=4", *LORA),
)


@dataclass(frozen=True)
class Row:
    """One published figure: peak allocated in units of 1e9 bytes, as it was published."""

    name: str
    recipe: str
    gpu: str
    overrides: tuple[str, ...]
    published: float
    world_size: int | None = None
    phase: str | None = None  # None: the peak of the whole run


ROWS = (
    Row("Qwen3-8B LoRA, TP2, sequence parallel, sequence 8192", *DENSE, 47.545),
    Row("the same with input regather", DENSE[0], DENSE[1], (*DENSE[2], f"{REGATHER}=True"), 42.814),
    Row("Qwen3-8B LoRA as above, without packing", DENSE[0], DENSE[1], (*DENSE[2], *UNPACKED), 47.545),
    Row("the same with input regather", DENSE[0], DENSE[1], (*DENSE[2], *UNPACKED, f"{REGATHER}=True"), 42.814),
    Row(
        "Qwen3-8B LoRA as above, on 8 GPUs (DP4), first iteration",
        *DENSE[:2],
        (*DENSE[2], *UNPACKED),
        47.545,
        8,
        "step_1",
    ),
    Row("the same with input regather", *DENSE[:2], (*DENSE[2], *UNPACKED, f"{REGATHER}=True"), 42.814, 8, "step_1"),
    Row("Qwen3-30B-A3B LoRA, TP4, EP4, balanced routing, sequence 8192", *MOE, 29.890),
    Row("the same with input regather", MOE[0], MOE[1], (*MOE[2], f"{REGATHER}=True"), 28.321),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", required=True)
    parser.add_argument("--megatron")
    parser.add_argument("--db")
    arguments = parser.parse_args()
    options = [f"--{name}={value}" for name, value in vars(arguments).items() if value]
    print(f"Published: {SOURCE}, H100, at {COMMIT}. GB = 1e9 bytes, peak allocated.\n")
    print("| what | virtual (simulated) | published | difference |\n|---|---|---|---|")
    before: tuple[float, float] | None = None
    for row in ROWS:
        measured = peak(row, options)
        print(
            f"| {row.name} | {measured:.3f} | {row.published:.3f} | {measured / row.published - 1:+.2%} |", flush=True
        )
        if before:
            saved, published = before[0] - measured, before[1] - row.published
            print(f"| saving | {saved:.3f} | {published:.3f} | {saved / published - 1:+.2%} |", flush=True)
        before = None if before else (measured, row.published)


def peak(row: Row, options: list[str]) -> float:
    """Peak allocated of one row's probe, units of 1e9 bytes; ends the program where it cannot be measured."""
    command = [sys.executable, "-c", "from oombisect.cli.main import main; main()", "probe", COMMIT, "--json"]
    command += ["--recipe", row.recipe, "--gpu", row.gpu, *options]
    for override in row.overrides:
        command += ["--set", override]
    if row.world_size:
        command += ["--world-size", str(row.world_size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    reading = json.loads(done.stdout)["reading"] if done.stdout else None
    if reading is None or reading["outcome"] != "exact":
        sys.exit(f"{row.name}: {reading['reason'] if reading else 'no reading'}")
    if row.phase is None:
        return float(reading["peak_allocated"]) / 1e9
    return max(float(rank["phases"][row.phase]["allocated_peak"]) for rank in reading["ranks"]) / 1e9


if __name__ == "__main__":
    main()
