"""train_at.py: reads runs from stdin as JSON, trains each in a fork, prints what became of them as JSON.

A run is {"root": laid-out commit, "limit": bytes or null, "expandable": bool}; its result {"fits": bool,
"allocated": peak bytes, "reserved": peak bytes}. It runs on a virtual GPU, and asks PyTorch's own allocator: nothing
of oombisect that decides or classifies takes part.
"""

import ctypes
import importlib
import json
import logging
import os
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
sys.modules["transformer_engine"] = None

import torch  # noqa: E402
import torch.distributed._tensor  # noqa: E402  # imports sympy: once here, not in each fork
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

OVERCOMMIT = 1 << 40


def train(run: dict) -> dict:
    limit = ctypes.CDLL(None).oombisect_vgpu_set_limit
    limit.argtypes = [ctypes.c_uint64]
    limit(run["limit"] or OVERCOMMIT)
    if run["expandable"]:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    sys.path[:0] = [f"{run['root']}/src", f"{run['root']}/3rdparty/Megatron-LM"]
    os.environ.update(WORLD_SIZE="1", RANK="0", LOCAL_RANK="0")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    recipes = importlib.import_module("megatron.bridge.recipes")
    names = "petrel_3b_pretrain_config", "petrel_3b_pretrain_1gpu_h100_bf16_config"
    cfg = next(getattr(recipes, name) for name in names if hasattr(recipes, name))()
    cfg.train.train_iters, cfg.train.global_batch_size = 3, 2 * cfg.train.micro_batch_size
    cfg.scheduler.lr_warmup_iters, cfg.checkpoint.save = 0, None
    step = importlib.import_module("megatron.bridge.training.gpt_step").forward_step
    fits = True
    try:
        importlib.import_module("megatron.bridge.training.pretrain").pretrain(cfg, step)
    except torch.OutOfMemoryError:
        fits = False
    stats = torch.cuda.memory_stats()
    return {
        "fits": fits,
        "allocated": stats["allocated_bytes.all.peak"],
        "reserved": stats["reserved_bytes.all.peak"],
    }


def forked(run: dict) -> dict:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        status = 1
        try:
            os.write(writing, json.dumps(train(run)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        raise SystemExit(f"the run {run} failed")
    return json.loads(text)


results = [forked(run) for run in json.load(sys.stdin)]
print(json.dumps(results))
