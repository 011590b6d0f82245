"""A stand-in for DeepEP, the expert dispatcher of several Bridge recipes, where it is missing (simulated probes only).

Megatron's own functions run over it. Its buffer allocates what the C++ one gives back as tensors, for uniformly random
routing: a token travels once to each rank that holds one of its experts, so the tokens a rank receives are fewer than
the rows its experts compute. Communication buffers lie outside PyTorch and are not modelled.
"""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import torch

from .moe import share


def received(tokens: int, ranks: int, experts: int, topk: int) -> int:
    """Tokens a rank of `ranks` is expected to receive, each rank sending `tokens` to `topk` of `experts` at random."""
    elsewhere = math.comb(experts - experts // ranks, topk) / math.comb(experts, topk)
    return math.ceil(tokens * ranks * (1 - elsewhere))


class EventHandle:
    """A recorded CUDA event; nothing is ever pending here."""

    def current_stream_wait(self) -> None:
        pass


class EventOverlap:
    def __init__(self, event: Any = None, extra_tensors: Any = None) -> None:
        self.event = event

    def current_stream_wait(self) -> None:
        pass


class _Config:
    def get_nvl_buffer_size_hint(self, hidden_bytes: int, ranks: int) -> int:
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, ranks: int) -> int:
        return 0


class _Handle:
    """What a dispatch leaves for its combine: the sizes of both sides, and the index tensors it keeps alive."""

    def __init__(self, tokens: int, received: int, kept: tuple[torch.Tensor, ...]) -> None:
        self.tokens = tokens
        self.received = received
        self.kept = kept


class Buffer:
    """`deep_ep.Buffer` for one group of ranks; `skew` multiplies what this rank receives."""

    skew = 1.0

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, *args: Any, **kwargs: Any) -> None:
        self.group = group
        self.num_nvl_bytes = num_nvl_bytes
        self.num_rdma_bytes = num_rdma_bytes

    @staticmethod
    def set_num_sms(number: int) -> None:
        pass

    @staticmethod
    def get_dispatch_config(ranks: int) -> _Config:
        return _Config()

    @staticmethod
    def get_combine_config(ranks: int) -> _Config:
        return _Config()

    def get_dispatch_layout(self, topk_idx: torch.Tensor, num_experts: int, **options: Any) -> Any:
        ranks, tokens = self.group.size(), topk_idx.shape[0]
        per_rank = _ints(ranks)
        per_expert = _ints(num_experts)
        in_rank = torch.empty((tokens, ranks), dtype=torch.bool, device="cuda")
        return per_rank, None, per_expert, in_rank, EventOverlap()

    def dispatch(
        self,
        x: torch.Tensor,
        handle: _Handle | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        **options: Any,
    ) -> Any:
        if handle is not None:
            return x.new_empty((handle.received, *x.shape[1:])), None, None, None, None, EventOverlap()
        assert topk_idx is not None and topk_weights is not None
        assert num_tokens_per_expert is not None and is_token_in_rank is not None
        ranks, experts, topk = self.group.size(), num_tokens_per_expert.numel(), topk_idx.shape[1]
        arriving = math.ceil(received(x.shape[0], ranks, experts, topk) * self.skew)
        kept = (is_token_in_rank, _ints(arriving), _ints(x.shape[0], ranks))
        per_expert = share(x.shape[0] * topk, experts)[: experts // ranks] * ranks * self.skew
        return (
            x.new_empty((arriving, *x.shape[1:])),
            topk_idx.new_empty((arriving, topk)),
            topk_weights.new_empty((arriving, topk)),
            [int(count) for count in per_expert],
            _Handle(x.shape[0], arriving, kept),
            EventOverlap(),
        )

    def combine(
        self, x: torch.Tensor, handle: _Handle, topk_weights: torch.Tensor | None = None, **options: Any
    ) -> Any:
        weights = None if topk_weights is None else topk_weights.new_empty((handle.tokens, topk_weights.shape[1]))
        return x.new_empty((handle.tokens, *x.shape[1:])), weights, EventOverlap()


def _ints(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32, device="cuda")


def installed() -> bool:
    return getattr(sys.modules.get("deep_ep"), "Buffer", None) is Buffer


def install() -> None:
    """Makes `deep_ep` importable."""
    package, utils = types.ModuleType("deep_ep"), types.ModuleType("deep_ep.utils")
    package.__path__ = []
    package.Buffer = Buffer  # type: ignore[attr-defined]
    package.utils = utils  # type: ignore[attr-defined]
    utils.EventHandle = EventHandle  # type: ignore[attr-defined]
    utils.EventOverlap = EventOverlap  # type: ignore[attr-defined]
    sys.modules["deep_ep"], sys.modules["deep_ep.utils"] = package, utils
