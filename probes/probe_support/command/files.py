"""The result file of one process: the facts that do not depend on how it ended, and which process speaks for a rank."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import environment, outcome
from ..plain import canonical, config_hash
from .job import CommandJob


def complete(result: dict[str, Any], job: CommandJob) -> None:
    """Adds what this process is made of. Nothing here may lose a number already measured."""
    stand_in = getattr(sys.modules.get("transformer_engine_torch"), "__file__", "") or ""
    facts: dict[str, Callable[[], Any]] = {
        "recipe_function": lambda: job.name,
        "config": lambda: json.loads(canonical(job.config)) if job.config is not None else None,
        "config_hash": lambda: config_hash(job.config) if job.config is not None else "",
        "world_size": world_size,
        "process_group": lambda: job.process_group,
        "versions": lambda: environment.versions("probe_support" in stand_in),
        "imported": lambda: environment.imported(job.roots),
        "allocator_settings": environment.allocator_settings,
        "attention_backend": _attention,
        "cold_compile": environment.compiled_cold,
        "host_peak_rss": environment.peak_host_bytes,
    }
    for name, fact in facts.items():
        try:
            result[name] = fact()
        except Exception as error:
            result["notes"].append(f"{name} is not known: {outcome.one_line(error)}")


def world_size() -> int:
    """The ranks of this process's group, else of its launcher's environment, else 1."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size())
    names = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), 1)


def _attention() -> str | None:
    module = sys.modules.get("probe_support.te_attention")
    return module.backend() if module is not None else None


def write(out: Path, rank: int, result: dict[str, Any]) -> None:
    """Leaves `result-<rank>.json`. Of several processes of one rank the one that took most memory speaks for it."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"result-{rank}.json"
    result |= {"rank": rank, "pid": os.getpid()}
    with (out / ".results.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others: list[dict[str, Any]] = []
        if path.is_file():
            others.append(json.loads(path.read_text()))
        if others and _taken(others[0]) > _taken(result):
            others, result = [result], others[0]
        for other in filter(_taken, others):
            note = f"process {other['pid']} of rank {rank} used a GPU too, {_taken(other)} bytes reserved: not counted"
            result["notes"] = [*result["notes"], note]
        for other in others:
            if other.get("snapshot"):
                (out / other["snapshot"]).unlink(missing_ok=True)
        if result.get("snapshot"):
            named = f"snapshot-{rank}.pickle.gz"
            (out / result["snapshot"]).replace(out / named)
            result["snapshot"] = named
        temporary = path.with_name(path.name + ".part")
        temporary.write_text(json.dumps(result, indent=1))
        temporary.replace(path)


def _taken(result: dict[str, Any]) -> int:
    return max((int(phase["reserved_peak"]) for phase in result["phases"].values()), default=0)
