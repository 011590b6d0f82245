"""One rank of a big world in one process: torch's `fake` process group, with the few answers a real one would give.

The fake backend's collectives return at once and leave their outputs as allocated, which is right for memory. Wrong
would be only what the host reads back, what travels as Python objects, and what DDP takes from the future of a
reduction; those are answered here, with this rank's own value as every other rank's.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from .after_import import after_import

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
    _replace("all_reduce", _all_reduce_with_a_value(dist.all_reduce))
    after_import("torch.nn.parallel.distributed", _ddp_without_reducing)
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


class _Reduced(dist.Work):
    """What an asynchronous all-reduce hands back. Communication hooks of DDP read its value, and fake work has none."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._tensor = tensor

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def get_future(self) -> Any:
        return _known([self._tensor])


def _known(value: Any) -> Any:
    """A future that is done; it holds tensors of the current device."""
    future: Any = torch.futures.Future(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else None)
    future.set_result(value)
    return future


def _all_reduce_with_a_value(real: Any) -> Any:
    @functools.wraps(real)
    def all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        work = real(tensor, *args, **kwargs)
        return work if work is None or isinstance(work, distributed_c10d._IllegalWork) else _Reduced(tensor)

    return all_reduce


def _ddp_without_reducing(module: Any) -> None:
    """DDP's own reduction reads, in C++, the value that fake work lacks; a hook that leaves the bucket replaces it."""
    real_forward = module.DistributedDataParallel._pre_forward
    hooked = weakref.WeakSet[Any]()

    @functools.wraps(real_forward)
    def pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        # Not before: a program may register a hook of its own until the first backward pass, and one is all there is.
        if self not in hooked and not self._use_python_reducer:
            hooked.add(self)
            if not self._comm_hooks:
                dist._register_comm_hook(self.reducer, None, lambda _state, bucket: _known(bucket.buffer()))
        return real_forward(self, *inputs, **kwargs)

    module.DistributedDataParallel._pre_forward = pre_forward


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
