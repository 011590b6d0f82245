"""What a process of a probed command gets at its start. Nothing here imports torch: most processes never will."""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import bytecode
from ..after_import import after_import
from .job import CommandJob


def attach(path: str) -> None:
    """Arms this process for the job at `path`: it acts when torch, torch.distributed or a prepared package comes."""
    job = CommandJob.load(path)
    bytecode.install(job.roots.values())
    random.seed(job.seed)
    when_imported("numpy.random", lambda module: module.seed(job.seed))
    if job.process_group == "fake":
        # Each rank has a virtual device of its own, whichever of its node a launcher takes it for.
        if "LOCAL_RANK" in os.environ:
            os.environ["LOCAL_RANK"] = "0"
        when_imported("torch", lambda module: when_imported("torch.distributed", _fake_process_group))
    when_imported("torch", lambda module: _watch(job))
    if job.prepare:
        from .preparations import prepare

        prepare(job)


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """As `after_import`, for a program that is not ours: an action that fails is told, and the program goes on."""

    def told(module: ModuleType) -> None:
        try:
            action(module)
        except Exception:
            print(f"oombisect: the probe failed to prepare {name}", file=sys.stderr)
            traceback.print_exc()

    after_import(name, told)


def _fake_process_group(_module: ModuleType) -> None:
    import torch.distributed as dist

    if dist.is_available():
        from .. import distributed

        distributed.fake_when_asked()
        distributed.answer_locally()


def _watch(job: CommandJob) -> Any:
    from .watch import Watch

    Watch(job).arm()
