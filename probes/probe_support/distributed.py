"""One rank of a big world in one process: torch's `fake` process group, with the few answers a real one would give.

The fake backend's collectives return at once and leave their outputs as allocated, which is right for memory. Wrong
would be only what the host reads back or what travels as Python objects; those are answered here, with this rank's
own value as every other rank's.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

# Results of collectives this small are counters and flags that the host may read back, never activations.
_SMALL_BYTES = 4096


def announce(rank: int, world_size: int) -> None:
    """Sets the environment a launcher would: Bridge reads the world size before any process group exists."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE=str(min(world_size, 8)),
        MASTER_ADDR="localhost",
        MASTER_PORT="29500",
    )


def announce_alone() -> None:
    """Sets what torchrun would for a world of one rank, where no launcher set it."""
    if "WORLD_SIZE" in os.environ:
        return
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    announce(0, 1)
    os.environ["MASTER_PORT"] = str(port)


def start_fake(rank: int, world_size: int) -> None:
    """Starts the default process group and makes every further one fake too."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    announce(rank, world_size)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    _fake_further_groups()


def fake_when_asked() -> None:
    """Makes the process group that a program asks for a fake one, whatever backend and store it names.

    Rank and world size are those it passes, else those of the environment, as for a real group.
    """
    real = dist.init_process_group
    signature = inspect.signature(real)

    @functools.wraps(real)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # a second to import, for those that ask

        asked = signature.bind(*args, **kwargs).arguments
        rank, world_size = asked.get("rank", -1), asked.get("world_size", -1)
        real(
            "fake",
            store=FakeStore(),
            rank=rank if rank >= 0 else int(os.environ.get("RANK", 0)),
            world_size=world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", 1)),
        )

    _replace("init_process_group", init_process_group)
    _fake_further_groups()


def _fake_further_groups() -> None:
    real_new_group = dist.new_group

    def new_group(
        ranks: Any = None,
        timeout: Any = None,
        backend: Any = None,
        pg_options: Any = None,
        use_local_synchronization: bool = False,
        group_desc: str | None = None,
        device_id: Any = None,
    ) -> Any:
        return real_new_group(ranks=ranks, backend="fake", group_desc=group_desc)

    _replace("new_group", new_group)
    _replace("barrier", lambda *args, **kwargs: None)
    _replace("monitored_barrier", lambda *args, **kwargs: None)


def answer_locally() -> None:
    """Answers what travels as Python objects or is read back by the host with this rank's own value.

    Needed with a fake group, which moves nothing, and on a simulated device, which holds no bytes to move.
    """
    _replace("broadcast_object_list", lambda *args, **kwargs: None)
    _replace("all_gather_object", _all_gather_object)
    _replace("gather_object", _gather_object)
    _replace("all_gather", _all_gather_small(dist.all_gather))


def _replace(name: str, function: Any) -> None:
    setattr(dist, name, function)
    setattr(distributed_c10d, name, function)


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    for index in range(len(object_list)):
        object_list[index] = obj


def _gather_object(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
    if object_gather_list is not None:
        _all_gather_object(object_gather_list, obj)


def _all_gather_small(real: Any) -> Any:
    """Small gathers give this rank's value for all (code asserts that such counters agree); large ones stay."""

    def all_gather(
        tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> Any:
        if async_op or tensor.numel() * tensor.element_size() > _SMALL_BYTES:
            return real(tensor_list, tensor, group=group, async_op=async_op)
        for output in tensor_list:
            if output.shape == tensor.shape and output.dtype == tensor.dtype:
                output.copy_(tensor)
        return None

    return all_gather
