"""Declared routing for mixture-of-experts layers, where token counts would come from the device.

With nothing computed, or with no other ranks, a router's token counts mean nothing. They are declared instead, where
the token dispatchers read them: every rank sends an equal share of its tokens to every expert, times `skew` for the
experts of this rank (1.0: balanced). The router itself runs as it is; only the counts are replaced.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from .outcome import Unresolved


def share(total: int, parts: int) -> Any:
    """`total` over `parts` as evenly as integers can, the remainder to the first; an int64 array."""
    base, rest = divmod(int(total), parts)
    return np.array([base + (index < rest) for index in range(parts)], dtype=np.int64)


def declare(skew: float) -> None:
    """Installs the declared routing for the dispatchers of this Megatron-LM."""
    import megatron.core.transformer.moe.token_dispatcher as dispatchers

    _all_to_all(dispatchers, skew)
    if hasattr(dispatchers, "MoEAllGatherTokenDispatcher"):
        _all_gather(dispatchers, skew)
    if hasattr(dispatchers, "_DeepepManager"):
        _deep_ep(dispatchers)
    dispatchers.permute = _permute_known_size(dispatchers.permute)
    _padded_permutation()


def _all_to_all(dispatchers: Any, skew: float) -> None:
    dispatcher = dispatchers.MoEAlltoAllTokenDispatcher
    real = dispatcher._maybe_dtoh_and_synchronize

    @functools.wraps(real)
    def counts_to_host(self: Any, point: str, tokens_per_expert: Any = None) -> Any:
        result = real(self, point, tokens_per_expert)
        if point != self.cuda_dtoh_point or self.drop_and_pad:
            return result
        sent = self.routing_map.size(0) * self.config.moe_router_topk
        per_expert = share(sent, self.num_experts)
        first = self.local_expert_indices[0]
        local = (per_expert[first : first + self.num_local_experts] * skew).astype(np.int64)
        if torch.is_tensor(self.num_out_tokens):
            self.num_out_tokens = torch.tensor(sent)
        if self.input_splits is not None:
            self.input_splits = per_expert.reshape(self.ep_size, self.num_local_experts).sum(axis=1)
        if self.output_splits is not None:
            self.output_splits = np.full(self.ep_size, local.sum(), dtype=np.int64)
        if self.output_splits_tp is not None:
            self.output_splits_tp = np.full(self.tp_size, local.sum() * self.ep_size, dtype=np.int64)
        if self.num_local_experts > 1 and not self.config.moe_permute_fusion:
            counts = np.tile(local, (self.tp_size * self.ep_size, 1))
            self.num_global_tokens_per_local_expert = torch.from_numpy(counts)
        return torch.from_numpy(local * self.tp_size * self.ep_size)

    dispatcher._maybe_dtoh_and_synchronize = counts_to_host


def _all_gather(dispatchers: Any, skew: float) -> None:
    dispatcher = dispatchers.MoEAllGatherTokenDispatcher
    if not hasattr(dispatcher, "dispatch_postprocess"):
        return

    def dispatch_postprocess(self: Any, hidden_states: Any, probs: Any) -> Any:
        self.hidden_shape_before_permute = hidden_states.shape
        first, last = self.local_expert_indices[0], self.local_expert_indices[-1]
        self.local_map = self.routing_map[:, first : last + 1].contiguous()
        self.local_probs = probs[:, first : last + 1].contiguous()
        total = self.routing_map.size(0) * self.config.moe_router_topk
        per_expert = share(total, self.config.num_moe_experts)[first : last + 1]
        counts = torch.from_numpy((per_expert * skew).astype(np.int64))
        size = int(counts.sum())
        permuted = dispatchers.permute(
            hidden_states, self.local_map, num_out_tokens=size, fused=self.config.moe_permute_fusion
        )
        self.reversed_local_input_permutation_mapping = permuted[2]
        self.local_probs = self.local_probs.T.contiguous().view(-1)[:size] * 1.0
        self.routing_map = None
        return permuted[0], counts, self.local_probs

    dispatcher.dispatch_postprocess = dispatch_postprocess


def _deep_ep(dispatchers: Any) -> None:
    """DeepEP's own counts are declared by its stand-in; here, how many of the indices it gave name a local expert."""
    manager = dispatchers._DeepepManager
    if not hasattr(manager, "_indices_to_multihot"):
        return

    def indices_to_multihot(self: Any, indices: torch.Tensor, probs: torch.Tensor) -> Any:
        shape = (indices.shape[0], self.num_local_experts)
        routing_map = torch.zeros(shape, dtype=torch.long, device=indices.device)
        multihot = torch.zeros(shape, dtype=torch.float, device=indices.device)
        local = min(int(self.tokens_per_expert.sum()), indices.numel())
        columns = indices.reshape(-1)[:local].clone()
        rows = torch.empty_like(columns)
        routing_map[rows, columns] = 1
        multihot[rows, columns] = probs.reshape(-1)[:local]
        return routing_map.bool(), multihot

    manager._indices_to_multihot = indices_to_multihot


def _padded_permutation() -> None:
    """TE's permutation with padding sums the padded counts on the device and reads the sum: here the host does both."""
    from megatron.core.transformer.moe import moe_utils

    plain = getattr(moe_utils, "fused_permute_with_probs", None)
    if plain is None or getattr(moe_utils, "fused_permute_and_pad_with_probs", None) is None:
        return

    def permute_and_pad(tokens: Any, probs: Any, routing_map: Any, tokens_per_expert: Any, align_size: int) -> Any:
        if tokens_per_expert.is_cuda:
            raise Unresolved("expert token counts are on the device, where a simulated probe cannot read them")
        padded = (tokens_per_expert + align_size - 1) // align_size * align_size
        output, permuted_probs, row_id_map = plain(tokens, probs, routing_map, num_out_tokens=int(padded.sum()))
        offsets = None if torch.equal(padded, tokens_per_expert) else torch.zeros_like(padded, device=tokens.device)
        return output, permuted_probs, row_id_map, offsets, padded

    moe_utils.fused_permute_and_pad_with_probs = permute_and_pad


def _permute_known_size(real: Any) -> Any:
    """The unfused permutation selects by a device mask, whose number of set entries is unknown here: it is declared."""

    @functools.wraps(real)
    def permute(tokens: Any, routing_map: Any, *args: Any, num_out_tokens: Any = None, **kwargs: Any) -> Any:
        size = None if num_out_tokens is None else int(num_out_tokens)
        masked_select = torch.Tensor.masked_select

        def select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            if size is not None and size < self.expand(mask.shape).numel():
                return self.reshape(-1)[:size].clone()
            return masked_select(self, mask)

        torch.Tensor.masked_select = select  # type: ignore[method-assign]
        try:
            return real(tokens, routing_map, *args, num_out_tokens=size, **kwargs)
        finally:
            torch.Tensor.masked_select = masked_select  # type: ignore[method-assign]

    return permute
