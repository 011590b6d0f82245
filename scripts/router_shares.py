"""How unevenly a router spreads tokens before it has learnt anything (docs/accuracy.md).

    python scripts/router_shares.py [DRAWS]

computes, on the CPU, the layers of Megatron-LM's CI test `moe/gpt3_mcore_te_tp2_pp1_te_8experts_etp1_ep4` with weights
drawn as Megatron-LM draws them and tokens by Zipf's law, and prints for each draw what the experts of each of the four
ranks get, as a share of a balanced one and a mean of the twelve layers. A draw takes some ten seconds.
"""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

HIDDEN, LAYERS, EXPERTS, TOP, FFN, HEADS, VOCABULARY, LENGTH, BATCH, RANKS = 512, 12, 8, 2, 2048, 8, 50304, 1024, 4, 4
STD = 0.02


def main() -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        shares = [draw(seed) for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10)]
    for found in shares:
        print(" ".join(f"{share:.3f}" for share in found.tolist()))
    every = torch.stack(shares)
    print(f"standard deviation {every.std():.3f}, from {every.min():.3f} to {every.max():.3f}")


def draw(seed: int) -> Tensor:
    """The shares of the ranks [RANKS] for one draw of weights and tokens."""
    generator = torch.Generator().manual_seed(seed)

    def weights(*shape: int, std: float = STD) -> Tensor:
        return torch.randn(*shape, generator=generator) * std

    def norm(x: Tensor) -> Tensor:
        return layer_norm(x, (HIDDEN,))

    frequency = 1 / (torch.arange(VOCABULARY) + 2.7)
    words = torch.multinomial(frequency, BATCH * LENGTH, replacement=True, generator=generator)
    tokens = torch.randperm(VOCABULARY, generator=generator)[words].view(BATCH, LENGTH)
    x = weights(VOCABULARY, HIDDEN)[tokens] + weights(LENGTH, HIDDEN)
    narrow, loads = STD / math.sqrt(2 * LAYERS), list[Tensor]()
    for _ in range(LAYERS):
        mixed = (norm(x) @ weights(HIDDEN, 3 * HIDDEN)).chunk(3, -1)
        q, k, v = (part.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for part in mixed)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + attended.reshape(BATCH, LENGTH, HIDDEN) @ weights(HIDDEN, HIDDEN, std=narrow)
        rows = norm(x).view(-1, HIDDEN)
        scores, chosen = (rows @ weights(HIDDEN, EXPERTS)).topk(TOP)
        loads.append(torch.bincount(chosen.view(-1), minlength=EXPERTS) / (rows.shape[0] * TOP / EXPERTS))
        out = torch.zeros_like(rows)
        for expert in range(EXPERTS):
            row, place = (chosen == expert).nonzero(as_tuple=True)
            made = gelu(rows[row] @ weights(HIDDEN, FFN)) @ weights(FFN, HIDDEN, std=narrow)
            out.index_add_(0, row, made * scores.softmax(-1)[row, place, None])
        x = x + out.view(BATCH, LENGTH, HIDDEN)
    return torch.stack(loads).view(LAYERS, RANKS, -1).mean((0, 2))


if __name__ == "__main__":
    main()
