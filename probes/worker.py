"""A worker that has imported what no commit changes (torch, transformers, Transformer Engine) and forks probes.

    python worker.py

For each line `JOB.json` on standard input, or `JOB.json<tab>NAME=VALUE<tab>...` with variables for that probe alone,
it forks one process, which leads a session of its own and writes to `log-<rank>.txt` in the job's `out` folder. On
standard output it says `ready`, then for each job `started JOB.json PID` and, at its end, `done JOB.json STATUS`
(negative: the signal that ended it). Several may run at a time. It ends with standard input.

CUDA is never initialised here. A job this process is not prepared for (a real process group, its own Transformer
Engine, variables that are read at import) starts afresh in the forked process: the same result, no head start.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import sys
from pathlib import Path

import bridge_train
from probe_support import bytecode, preparation

_IMPORTS = (
    *("torch._inductor.compile_fx", "torch._inductor.codecache", "torch.distributed.checkpoint"),
    *("torch.distributed.fsdp", "torch.distributed.tensor", "torch.testing._internal.distributed.fake_pg"),
    *("transformers", "transformers.models.auto.modeling_auto", "transformers.modeling_utils"),
    *("omegaconf", "hydra.core.override_parser.overrides_parser", "numpy", "yaml", "einops", "rich.console"),
)


# The virtual GPU reads its limit when it is loaded, which was before the fork.
_LIMIT = "OOMBISECT_VGPU_LIMIT_BYTES"


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends: a fork does not inherit that from the worker."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _limit_device(limit: int) -> None:
    ctypes.CDLL(None).oombisect_vgpu_set_limit(ctypes.c_uint64(limit))


def preload() -> None:
    bytecode.install(())
    preparation.prepare(simulated=True, transformer_engine=None)
    for name in _IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    if torch.cuda.is_initialized():
        raise SystemExit("importing the libraries initialised CUDA: a process with CUDA cannot be forked")


def start(line: str) -> tuple[str, int]:
    """Forks the probe of one line; returns the job's path and the process id."""
    path, *assignments = line.split("\t")
    worker = os.getpid()
    child = os.fork()
    if child:
        return path, child
    status = 1
    try:
        _die_with(worker)
        os.setsid()
        variables = dict(assignment.split("=", 1) for assignment in assignments)
        os.environ.update(variables)
        if _LIMIT in variables:
            _limit_device(int(variables[_LIMIT]))
        job = json.loads(Path(path).read_text())
        out = Path(job["out"])
        out.mkdir(parents=True, exist_ok=True)
        log = os.open(out / f"log-{job.get('rank', 0)}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        os.chdir(out)
        status = bridge_train.run_forked(path)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def say(text: str) -> None:
    print(text, flush=True)


def serve() -> None:
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ, "")
    pending, open_input, running = b"", True, 0
    while open_input or running:
        for key, _ in selector.select():
            if key.fd == 0:
                chunk = os.read(0, 65536)
                open_input = bool(chunk)
                if not chunk:
                    selector.unregister(0)
                *lines, pending = (pending + chunk).split(b"\n")
                for line in filter(None, (line.decode().strip() for line in lines)):
                    path, child = start(line)
                    say(f"started {path} {child}")
                    selector.register(os.pidfd_open(child), selectors.EVENT_READ, f"{path}\t{child}")
                    running += 1
            else:
                path, child_text = key.data.split("\t")
                _, status = os.waitpid(int(child_text), 0)
                selector.unregister(key.fd)
                os.close(key.fd)
                running -= 1
                say(f"done {path} {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    bridge_train.fix_hash_seed(sys.argv)
    preload()
    say("ready")
    serve()
