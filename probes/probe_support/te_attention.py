"""Which attention a layer runs: cuDNN's support rules for the stand-in, and a record of what was really used."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

# Counts of forward calls by backend class name.
used: Counter[str] = Counter()
_CLASSES = ("FlashAttention", "FusedAttention", "UnfusedDotProductAttention")
_CAUSAL = ("NVTE_CAUSAL_MASK", "NVTE_PADDING_CAUSAL_MASK")
_BOTTOM_RIGHT = ("NVTE_CAUSAL_BOTTOM_RIGHT_MASK", "NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK")


def fused_attention_backend(arguments: tuple[Any, ...]) -> Any:
    """The stand-in of `get_fused_attn_backend` for bf16/fp16: the rules of TE's `fused_attn.cpp` for cuDNN from 9.6 on.

    Arguments are those of TE 2.9 to 2.18: is_training, q dtype, kv dtype, layout, bias, mask, softmax, dropout, heads,
    groups, seqlen q, seqlen kv, head dim qk, head dim v, window left, window right, ...
    """
    import transformer_engine_torch as tex

    training, q_dtype, _, layout, bias, mask, softmax, dropout = arguments[:8]
    seq_q, seq_kv, d_qk, d_v, left, right = arguments[10:16]
    supported = _supported(
        training=bool(training),
        half=int(q_dtype) in (int(tex.DType.kFloat16), int(tex.DType.kBFloat16)),
        thd=layout.name.startswith("NVTE_T"),
        bias=bias.name,
        mask=mask.name,
        softmax=softmax.name,
        dropout=float(dropout),
        seqlens=(int(seq_q), int(seq_kv)),
        head_dims=(int(d_qk), int(d_v)),
        window=(int(left), int(right)),
    )
    backends = tex.NVTE_Fused_Attn_Backend
    return backends.NVTE_F16_arbitrary_seqlen if supported else backends.NVTE_No_Backend


def _supported(
    *,
    training: bool,
    half: bool,
    thd: bool,
    bias: str,
    mask: str,
    softmax: str,
    dropout: float,
    seqlens: tuple[int, int],
    head_dims: tuple[int, int],
    window: tuple[int, int],
) -> bool:
    major, minor = torch.cuda.get_device_capability()
    arch = major * 10 + minor
    d_qk, d_v = head_dims
    plain = bias == "NVTE_NO_BIAS" and dropout == 0.0
    if not half or arch < 80 or d_qk % 8 or d_v % 8 or (thd and arch < 90):
        return False
    if arch == 90:
        # Hopper, training: up to 256, but not two different sizes that are both 128 or more, except 192 and 128.
        mixed = d_qk != d_v and d_qk >= 128 and d_v >= 128 and (d_qk, d_v) != (192, 128)
        if max(d_qk, d_v) > 256 or (training and mixed):
            return False
    elif max(d_qk, d_v) > 128 and training and not (arch >= 100 and (d_qk, d_v) in ((192, 128), (256, 256))):
        return False
    if thd and "PADDING" not in mask:
        return False
    if "PADDING" in mask and not plain:
        return False
    if mask in _BOTTOM_RIGHT and seqlens[0] > seqlens[1]:
        return False
    bounded = mask in _CAUSAL + _BOTTOM_RIGHT or "NO_MASK" in mask
    if window[0] >= 0 and not (plain and seqlens[0] <= seqlens[1] and bounded):
        return False
    return softmax == "NVTE_VANILLA_SOFTMAX" or int(torch.backends.cudnn.version() or 0) >= 91301


def watch() -> None:
    """Counts, from now on, which attention implementation each forward call of a layer runs."""
    watched: list[tuple[Any, str, str]] = []
    try:
        from transformer_engine.pytorch.attention.dot_product_attention import backends

        watched += [(getattr(backends, name), name, name) for name in _CLASSES if hasattr(backends, name)]
    except ImportError:
        pass
    try:
        from megatron.core.transformer.dot_product_attention import DotProductAttention

        watched.append((DotProductAttention, "DotProductAttention", "local"))
    except ImportError:
        pass
    for owner, _, label in watched:
        _count_forward(owner, label)


def _count_forward(owner: Any, label: str) -> None:
    forward = owner.forward

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        used[label] += 1
        return forward(self, *args, **kwargs)

    counted.__wrapped__ = forward  # type: ignore[attr-defined]
    owner.forward = counted


def backend() -> str | None:
    """The implementations used, most frequent first, joined by '+'; None if no attention ran."""
    names = [name for name, _ in sorted(used.items(), key=lambda item: (-item[1], item[0]))]
    return "+".join(names) or None
