"""Run on a (virtual) GPU by PyTorch alone: record as PyTorch does by default, and dump.

`record_defaults.py stacks FILE` writes some of the stacks: `tests/memory/default_stacks.json` was made by it.
"""

import json
import os
import sys
from pathlib import Path

import torch


class Doubled(torch.nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2048, 2048, device="cuda")
        self.second = torch.nn.Linear(2048, 2048, device="cuda")

    def forward(self, x):
        return self.second(torch.relu(self.first(x))).sum()


def train():
    model = Doubled()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.zeros(1024, 2048, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()


def uncut():
    """Blocks that are cut with expandable segments only."""
    return [torch.empty((11 << 20) + 1, dtype=torch.uint8, device="cuda") for _ in range(1000)]


def peaks():
    """The peaks since they were last reset."""
    stats = torch.cuda.memory_stats()
    return {name: stats[f"{name}_bytes.all.peak"] for name in ("allocated", "requested", "reserved")}


def with_expandable_segments(program):
    """The peaks of the program, run once more."""
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.cuda.reset_peak_memory_stats()
    program()
    return peaks()


def stacks(snapshot):
    """A few of the recorded stacks, without this machine's folders."""
    frames = [event["frames"] for event in snapshot["device_traces"][0] if event["action"] == "alloc"]
    chosen = {}
    for name, part in (("forward", "THPVariable_linear"), ("backward", "AddmmBackward0"), ("relu", "ReluBackward0")):
        chosen[name] = next(stack for stack in frames if any(part in frame["name"] for frame in stack))
    return {name: [[_neutral(f["filename"]), f["line"], f["name"]] for f in stack] for name, stack in chosen.items()}


def _neutral(file):
    for mark, folder in (("/site-packages/", "/venv/lib/python3.12"), ("/Python-3", "/build")):
        if mark in file:
            return folder + file[file.rindex(mark) :]
    return f"/home/user/{Path(file).name}" if file == __file__ else file


what, path = sys.argv[1:]
torch.cuda.memory._record_memory_history()
kept = uncut() if what == "uncut" else train()
if what == "stacks":
    Path(path).write_text(json.dumps(stacks(torch.cuda.memory._snapshot()), indent=0) + "\n")
else:
    torch.cuda.memory._dump_snapshot(path)
    found = {"default": peaks()}
    if what == "uncut":
        del kept
        found["expandable"] = with_expandable_segments(uncut)
    print(json.dumps(found))
sys.stdout.flush()
os._exit(0)  # torch's threads can abort the interpreter's clean-up
