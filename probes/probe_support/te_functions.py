"""The functions of `transformer_engine_torch` that training in bf16/fp16 calls, as allocations only.

Each mirrors the outputs and temporaries of the C++ function of the same name in TE's `pytorch/csrc/extensions`.
Arguments are positional there and grew over versions, so a stand-in takes what it needs by position or kind and
ignores the rest. In-place functions return None and allocate nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import torch

Tensor = torch.Tensor
_TORCH_DTYPES = {
    "kByte": torch.uint8,
    "kInt16": torch.int16,
    "kInt32": torch.int32,
    "kInt64": torch.int64,
    "kFloat32": torch.float32,
    "kFloat16": torch.float16,
    "kBFloat16": torch.bfloat16,
}


def functions(dtypes: Any) -> dict[str, Callable[..., Any]]:
    """All stand-ins by name. `dtypes` is the enumeration `transformer_engine_torch.DType`."""
    table = {int(dtypes[name]): dtype for name, dtype in _TORCH_DTYPES.items() if name in dtypes.__members__}

    def as_torch(dtype: Any, default: torch.dtype) -> torch.dtype:
        if dtype is None:
            return default
        return dtype if isinstance(dtype, torch.dtype) else table[int(dtype)]

    return {
        **_gemms(as_torch),
        **_norms(as_torch),
        **_attention(),
        **_router(),
        **_activations(),
        **_softmaxes(),
        **_rope(),
        **_multi_tensor(),
        **_queries(),
    }


def _empty(shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="cuda")


def _refuse_quantizer(quantizer: Any) -> None:
    if quantizer is not None:
        from .te_stand_in import MissingStandIn

        raise MissingStandIn(f"output of {type(quantizer).__name__} has no stand-in: fp8 and fp4 need the real TE")


def _plain_tensor(value: Any) -> Tensor:
    """A tensor that is no quantised one; TE's quantised storages lay their bytes out in their own way."""
    if type(value) not in (Tensor, torch.nn.Parameter):
        from .te_stand_in import MissingStandIn

        raise MissingStandIn(f"a GEMM over {type(value).__name__} has no stand-in: fp8 and fp4 need the real TE")
    return value


def _gemms(as_torch: Callable[[Any, torch.dtype], torch.dtype]) -> dict[str, Callable[..., Any]]:
    def generic_gemm(
        a: Tensor, transa: bool, b: Tensor, transb: bool, out: Tensor | None, quantizer: Any, out_dtype: Any,
        bias: Tensor | None, bias_type: Any, gelu: bool, gelu_in: Tensor | None, grad: bool, *rest: Any,
        extra_output: Tensor | None = None, comm_overlap: Any = None, **options: Any,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        # cuBLAS is column-major: out[..., m] from A of m columns (rows if transposed) and all rows of B.
        _refuse_quantizer(quantizer)
        a, b = _plain_tensor(a), _plain_tensor(b)
        m = a.numel() // a.shape[-1] if transa else a.shape[-1]
        shape = (b.shape[-1], m) if transb else (*b.shape[:-1], m)
        if out is None:
            out = _empty(shape, as_torch(out_dtype, a.dtype))
        bias_grad = _empty((b.shape[-1],), out.dtype) if bias is not None and grad else None
        pre_gelu = _empty(shape, out.dtype) if gelu and not grad else None
        return out, bias_grad, pre_gelu, extra_output

    def te_general_grouped_gemm(
        a: list[Tensor],
        transa: bool,
        b: list[Tensor],
        transb: bool,
        out: list[Tensor] | None,
        out_dtype: Any,
        m_splits: list[int],
        bias: list[Tensor],
        *rest: Any,
        **options: Any,
    ) -> list[Tensor]:
        # TE's Python side allocates outputs and bias gradients; the C++ one fills them and gives the latter back.
        for value in (*a, *b):
            _plain_tensor(value)
        if out is None:
            from .te_stand_in import MissingStandIn

            raise MissingStandIn("te_general_grouped_gemm without given outputs has no stand-in")
        return bias

    return {"generic_gemm": generic_gemm, "te_general_grouped_gemm": te_general_grouped_gemm}


def _norms(as_torch: Callable[[Any, torch.dtype], torch.dtype]) -> dict[str, Callable[..., Any]]:
    def rows(x: Tensor) -> tuple[int]:
        return (x.numel() // x.shape[-1],)

    def layernorm_fwd(
        x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None, quantizer: Any, dtype: Any,
        *rest: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        _refuse_quantizer(quantizer)
        mean, rstd = _empty(rows(x), torch.float32), _empty(rows(x), torch.float32)
        return (_empty(x.shape, as_torch(dtype, x.dtype)) if out is None else out), mean, rstd

    def rmsnorm_fwd(
        x: Tensor, weight: Tensor, eps: float, out: Tensor | None, quantizer: Any, dtype: Any, *rest: Any
    ) -> tuple[Tensor, None, Tensor]:
        _refuse_quantizer(quantizer)
        rstd = _empty(rows(x), torch.float32)
        return (_empty(x.shape, as_torch(dtype, x.dtype)) if out is None else out), None, rstd

    def layernorm_bwd(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, *rest: Any) -> Any:
        return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)

    def rmsnorm_bwd(grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, *rest: Any) -> Any:
        return torch.empty_like(x), torch.empty_like(weight)

    def rmsnorm_bwd_add(grad: Tensor, x: Tensor, add: Tensor, rstd: Tensor, weight: Tensor, *rest: Any) -> Any:
        return torch.empty_like(x), torch.empty_like(weight)

    return {
        "layernorm_fwd": layernorm_fwd,
        "layernorm_bwd": layernorm_bwd,
        "rmsnorm_fwd": rmsnorm_fwd,
        "rmsnorm_bwd": rmsnorm_bwd,
        "rmsnorm_bwd_add": rmsnorm_bwd_add,
    }


def _of_owner(arguments: tuple[Any, ...], owner: str) -> list[Any]:
    return [argument for argument in arguments if getattr(argument, "owner", None) == owner]


def _attention() -> dict[str, Callable[..., Any]]:
    """cuDNN attention. Argument lists differ between TE versions; order among tensors and enumerations does not."""

    def fused_attn_fwd(max_seqlen_q: int, max_seqlen_kv: int, training: bool, *rest: Any) -> list[Tensor]:
        tensors = [argument for argument in rest if isinstance(argument, Tensor)]
        cu_seqlens = next(t for t in tensors if t.dim() == 1)
        q, _, v = [_plain_tensor(t) for t in tensors if t.dim() >= 3][:3]
        out = _empty((*q.shape[:-1], v.shape[-1]), q.dtype)
        rng_state = _empty((2,), torch.int64)
        heads = q.shape[-2]
        if _layout(rest).startswith("NVTE_T"):
            shape = (q.shape[0], heads, 1)
        else:
            shape = (cu_seqlens.numel() - 1, heads, max_seqlen_q, 1)
        statistics = [_empty(shape, torch.float32)]
        if _last_switches(rest)[:1] == [True]:  # return_max_logit: a maximum beside the sum, or another form of it
            statistics.append(_empty(shape, torch.float32))
        return [out, *statistics, rng_state] if training or len(statistics) > 1 else [out]

    def fused_attn_bwd(max_seqlen_q: int, max_seqlen_kv: int, *rest: Any) -> list[Tensor | None]:
        tensors = [argument for argument in rest if isinstance(argument, Tensor)]
        q, k, v = [_plain_tensor(t) for t in tensors if t.dim() >= 3][:3]
        grads = _attention_grads(q, k, v, _layout(rest))
        # Workspace of cudnn-frontend's backward graph, freed when the call returns: dQ and the softmax sums in fp32,
        # and for packed (THD) grouped-query attention dK and dV of all query heads. cuDNN's plan may add to it.
        size = 4 * (q.numel() + q.numel() // q.shape[-1])
        if _layout(rest).startswith("NVTE_T") and q.shape[-2] != k.shape[-2]:
            size += 4 * k.shape[0] * q.shape[-2] * (k.shape[-1] + v.shape[-1])
        workspace = _empty((size,), torch.uint8)
        del workspace
        return [*grads, None, None]

    def get_fused_attn_backend(*arguments: Any) -> Any:
        from .te_attention import fused_attention_backend

        return fused_attention_backend(arguments)

    def thd_get_partitioned_indices(cu_seqlens: Tensor, total_tokens: int, ranks: int, rank: int) -> Tensor:
        return _empty((int(total_tokens) // ranks,), torch.int32)

    def thd_read_half_tensor(x: Tensor, cu_seqlens: Tensor, half: int) -> Tensor:
        axis = 0 if x.dim() == 3 else 1  # [t, h, d] or [2, t, h, d]
        return _empty((*x.shape[:axis], x.shape[axis] // 2, *x.shape[axis + 1 :]), x.dtype)

    def thd_read_second_half_lse(lse: Tensor, cu_seqlens: Tensor, packed: bool, length: int) -> Tensor:
        return torch.zeros((*lse.shape[: 1 if packed else 2], length), dtype=lse.dtype, device="cuda")

    return {
        "thd_get_partitioned_indices": thd_get_partitioned_indices,
        "thd_read_half_tensor": thd_read_half_tensor,
        "thd_read_second_half_lse": thd_read_second_half_lse,
        "thd_sequence_order_to_cp_rank_order": lambda x, *arguments: torch.empty_like(x),
        "thd_cp_rank_order_to_sequence_order": lambda x, *arguments: torch.empty_like(x),
        "thd_second_half_lse_correction": lambda *arguments: None,
        "thd_out_correction": lambda *arguments: None,
        "thd_grad_correction": lambda *arguments: None,
        "fused_attn_fwd": fused_attn_fwd,
        "fused_attn_bwd": fused_attn_bwd,
        "get_fused_attn_backend": get_fused_attn_backend,
    }


def _router() -> dict[str, Callable[..., Any]]:
    """Routing in one kernel. Backward passes fill a gradient that is given, or before TE 2.11 or so make one.

    What they keep is fp32, as TE has had it since then; before, it had the type of the logits, which is fp32 too where
    `moe_router_dtype` is.
    """

    def fused_topk_with_score_function_fwd(logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        form, indices = (*rest[7:9], None, None)[:2]
        routing = _routing_map(logits, form) if indices is None else indices
        return _empty(logits.shape, logits.dtype), routing, _empty(logits.shape, torch.float32)

    def fused_topk_with_score_function_bwd(*arguments: Any) -> Tensor | None:
        _, kept, _, *given = [argument for argument in arguments if isinstance(argument, Tensor)]
        return None if given else _empty(kept.shape, kept.dtype)

    def fused_score_for_moe_aux_loss_fwd(
        logits: Tensor, topk: int, score_function: str, routing_map_format: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        scores = _empty(logits.shape, torch.float32)
        return scores, _routing_map(logits, routing_map_format), _empty(logits.shape, torch.float32)

    def fused_score_for_moe_aux_loss_bwd(
        *, intermediate_output: Tensor, grad_logits: Tensor | None = None, **rest: Any
    ) -> Tensor | None:
        return _empty(intermediate_output.shape, intermediate_output.dtype) if grad_logits is None else None

    def fused_moe_aux_loss_fwd(*, probs: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
        return _empty((), probs.dtype), _empty((), torch.float32)

    def fused_moe_aux_loss_bwd(*, num_rows: int, num_cols: int, grad_aux_loss: Tensor, **rest: Any) -> Tensor:
        return _empty((num_rows, num_cols), grad_aux_loss.dtype)

    return {
        "fused_topk_with_score_function_fwd": fused_topk_with_score_function_fwd,
        "fused_topk_with_score_function_bwd": fused_topk_with_score_function_bwd,
        "fused_score_for_moe_aux_loss_fwd": fused_score_for_moe_aux_loss_fwd,
        "fused_score_for_moe_aux_loss_bwd": fused_score_for_moe_aux_loss_bwd,
        "fused_moe_aux_loss_fwd": fused_moe_aux_loss_fwd,
        "fused_moe_aux_loss_fwd_graph_safe": fused_moe_aux_loss_fwd,
        "fused_moe_aux_loss_bwd": fused_moe_aux_loss_bwd,
    }


def _routing_map(logits: Tensor, form: Any) -> Tensor:
    """Which experts a token goes to: a byte each, or (form 1) a bit each."""
    *tokens, experts = logits.shape
    return _empty((*tokens, -(-experts // 8)), torch.uint8) if form == 1 else _empty(logits.shape, torch.bool)


def _last_switches(arguments: tuple[Any, ...]) -> list[bool]:
    """The booleans at the end of an argument list, in its order: TE 2.8 has none, later ones begin with the logits'."""
    return list(takewhile(lambda argument: isinstance(argument, bool), reversed(arguments)))[::-1]


def _layout(arguments: tuple[Any, ...]) -> str:
    return str(_of_owner(arguments, "NVTE_QKV_Layout")[0].name)


def _attention_grads(q: Tensor, k: Tensor, v: Tensor, layout: str) -> list[Tensor]:
    """dQ, dK, dV: interleaved layouts share one buffer, as in TE's C++ code."""
    if "3HD" in layout or "H3D" in layout:
        axis = -3 if "3HD" in layout else -2
        shape = list(q.shape)
        shape.insert(len(shape) + axis + 1, 3)
        return list(_empty(shape, q.dtype).unbind(axis))
    if "2HD" in layout or "H2D" in layout:
        axis = -3 if "2HD" in layout else -2
        shape = list(k.shape)
        shape.insert(len(shape) + axis + 1, 2)
        return [_empty(q.shape, q.dtype), *_empty(shape, k.dtype).unbind(axis)]
    return [_empty(q.shape, q.dtype), _empty(k.shape, k.dtype), _empty(v.shape, v.dtype)]


def _activations() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}

    def add(name: str, gated: bool) -> None:
        def forward(x: Tensor, quantizer: Any = None, *rest: Any, **options: Any) -> Tensor:
            _refuse_quantizer(quantizer)
            return _empty((*x.shape[:-1], x.shape[-1] // 2 if gated else x.shape[-1]), x.dtype)

        def backward(grad: Tensor, x: Tensor, quantizer: Any = None, *rest: Any, **options: Any) -> Tensor:
            _refuse_quantizer(quantizer)
            return torch.empty_like(x)

        found[name] = forward
        found[f"clamped_d{name[8:]}" if name.startswith("clamped_") else f"d{name}"] = backward

    for name in ("gelu", "relu", "silu", "qgelu", "srelu"):
        add(name, gated=False)
    for name in ("glu", "geglu", "reglu", "swiglu", "qgeglu", "sreglu", "clamped_swiglu"):
        add(name, gated=True)
    return found


def _softmaxes() -> dict[str, Callable[..., Any]]:
    kinds = ("scaled", "scaled_masked", "scaled_upper_triang_masked", "scaled_aligned_causal_masked")
    found: dict[str, Callable[..., Any]] = {}
    for kind in kinds:
        found[f"{kind}_softmax_forward"] = lambda x, *rest: torch.empty_like(x)
        found[f"{kind}_softmax_backward"] = lambda grad, *rest: grad  # written in place
    return found


def _rope() -> dict[str, Callable[..., Any]]:
    def rotate(x: Tensor, *rest: Any, **options: Any) -> Tensor:
        return _empty(x.shape, x.dtype)

    def fused_qkv_rope_forward(
        qkv: Tensor, q_freqs: Any, k_freqs: Any, starts: Any, splits: list[int], *rest: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        # [s, b, groups, q+k+v] -> q of all heads, k and v per group (hidden size of v per head = splits[1]).
        lead, groups = qkv.shape[:2], qkv.shape[2]
        head = splits[1]
        return (
            _empty((*lead, groups * splits[0] // head, head), qkv.dtype),
            _empty((*lead, groups, head), qkv.dtype),
            _empty((*lead, groups, splits[2]), qkv.dtype),
        )

    return {
        "fused_rope_forward": rotate,
        "fused_rope_backward": rotate,
        "fused_qkv_rope_forward": fused_qkv_rope_forward,
    }


def _multi_tensor() -> dict[str, Callable[..., Any]]:
    def l2norm(chunk: int, overflow: Tensor, lists: list[list[Tensor]], *rest: Any) -> tuple[Tensor, Tensor]:
        # 320 partial sums and one result, per tensor too if asked for (csrc/extensions/multi_tensor/l2norm).
        per_tensor = bool(rest and rest[-1] is True)
        partial = torch.zeros(320, dtype=torch.float32, device="cuda")
        total = torch.zeros(1, dtype=torch.float32, device="cuda")
        each = torch.empty(len(lists[0]) if per_tensor else 0, dtype=torch.float32, device="cuda")
        del partial
        return total, each

    found: dict[str, Callable[..., Any]] = {
        "multi_tensor_l2norm": l2norm,
        "multi_tensor_unscale_l2norm": l2norm,
    }
    for name in ("adam", "adam_param_remainder", "adam_fp8", "adam_capturable", "adam_capturable_master", "sgd"):
        found[f"multi_tensor_{name}"] = lambda *arguments: None
    for name in ("scale", "scale_tensor"):
        found[f"multi_tensor_{name}"] = lambda *arguments: None
    return found


def _queries() -> dict[str, Callable[..., Any]]:
    def get_cublaslt_version() -> int:
        major, minor = (int(part) for part in str(torch.version.cuda).split(".")[:2])
        return major * 10000 + minor * 100

    return {
        "get_cublasLt_version": get_cublaslt_version,
        "get_cudnn_version": lambda: int(torch.backends.cudnn.version() or 0),
        "get_num_cublas_streams": lambda: 4,
        "get_stream_priority_range": lambda *device: (0, -5),
        "ubuf_built_with_mpi": lambda: False,
        "device_supports_multicast": lambda *device: False,
    }
