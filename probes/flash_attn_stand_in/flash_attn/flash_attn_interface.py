"""Allocations of flash-attention's forward and backward passes, in the order of its C++ code."""

import torch

_SEQUENCE_MULTIPLE = 128


def _up(size, multiple):
    return (size + multiple - 1) // multiple * multiple


def _head_multiple(head_dim):
    """Head sizes are padded to whole tiles of the kernel."""
    return 32 if head_dim <= 128 else 64


def _empty(shape, like, dtype=None):
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def _random_state(like):
    return _empty((2,), like, torch.int64)


def _flash_attn_forward(q, k, v, *_args, **_kwargs):
    """Output, log-sum-exp, the (empty) softmax and the state of the random numbers; q: batch, sequence, heads, size."""
    batch, sequence, heads, _ = q.shape
    out = _empty((*q.shape[:-1], v.shape[-1]), q)
    log_sum_exp = _empty((batch, heads, sequence), q, torch.float32)
    return out, log_sum_exp, _empty((0,), q), _random_state(q)


def _flash_attn_varlen_forward(q, k, v, *_args, **_kwargs):
    """As above for packed sequences; q: tokens, heads, size."""
    tokens, heads, _ = q.shape
    out = _empty((*q.shape[:-1], v.shape[-1]), q)
    log_sum_exp = _empty((heads, tokens), q, torch.float32)
    return out, log_sum_exp, _empty((0,), q), _random_state(q)


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, *_args, deterministic=False, **_kwargs):
    """The fp32 accumulator of dQ, the row sums and, with fewer key than query heads, dK and dV of all heads."""
    batch, sequence, heads, size = q.shape
    rounded, padded = _up(sequence, _SEQUENCE_MULTIPLE), _up(size, _head_multiple(size))
    gradients = (dq, dk, dv) if dq is not None else tuple(torch.empty_like(tensor) for tensor in (q, k, v))
    sums = _empty((batch, heads, rounded), q, torch.float32)
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    splits = -(-processors // (batch * heads)) if deterministic else 1
    accumulator = _empty((splits, batch, rounded, heads, padded), q, torch.float32)
    expanded = ()
    if k.shape[2] != heads:
        shape = (batch, k.shape[1], heads, size)
        expanded = (_empty(shape, k), _empty(shape, v))
    del accumulator, expanded, gradients  # held to the end of the pass
    return sums


def _flash_attn_varlen_backward(
    dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, *_args, deterministic=False, **_kwargs
):
    """As above for packed sequences, which the accumulator holds with 128 rows of room for each."""
    tokens, heads, size = q.shape
    batch = cu_seqlens_q.numel() - 1
    rows, padded = tokens + 128 * batch, _up(size, _head_multiple(size))
    gradients = (dq, dk, dv) if dq is not None else tuple(torch.empty_like(tensor) for tensor in (q, k, v))
    sums = _empty((heads, rows), q, torch.float32)
    accumulator = _empty((rows, heads, padded), q, torch.float32)
    expanded = ()
    if k.shape[1] != heads:
        shape = (k.shape[0], heads, size)
        expanded = (_empty(shape, k), _empty(shape, v))
    del accumulator, expanded, gradients
    return sums


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, deterministic, bounds):
        run = _flash_attn_forward if bounds is None else _flash_attn_varlen_forward
        out, log_sum_exp, _, state = run(q, k, v)
        ctx.save_for_backward(q, k, v, out, log_sum_exp, state)
        ctx.deterministic, ctx.bounds = deterministic, bounds
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, log_sum_exp, _ = ctx.saved_tensors
        dq, dk, dv = (torch.empty_like(tensor) for tensor in (q, k, v))
        arguments = (dout, q, k, v, out, log_sum_exp, dq, dk, dv)
        if ctx.bounds is None:
            _flash_attn_backward(*arguments, deterministic=ctx.deterministic)
        else:
            _flash_attn_varlen_backward(*arguments, ctx.bounds, deterministic=ctx.deterministic)
        return dq, dk, dv, None, None


def flash_attn_func(q, k, v, *_args, deterministic=False, **_kwargs):
    return _Attention.apply(q, k, v, deterministic, None)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, *_args, deterministic=False, **_kwargs):
    return _Attention.apply(q, k, v, deterministic, cu_seqlens_q)
