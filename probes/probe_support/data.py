"""Synthetic data in the shape of the recipe's: zeros, full sequences, on the CPU as a loader would hand them over.

Pretraining iterates over micro-batches; fine-tuning ("batch" loaders) over the whole batch of this data-parallel rank,
which Bridge splits. Packed recipes get packs: one full pack per sample, cut into `SEQUENCES_PER_PACK` equal sequences
(how SQuAD packs exactly is data-dependent; the number of tokens, which decides memory, is the pack's size).
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from .configuration import packing_specs
from .outcome import Unresolved

SEQUENCES_PER_PACK = 4


class Tokenizer:
    """A null tokenizer: ids without text."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.eod = self.eos_id = self.eos_token_id = vocab_size - 1
        self.pad = self.pad_id = self.pad_token_id = vocab_size - 2
        self.bos_id = self.bos_token_id = self.bos = vocab_size - 3
        self.unique_identifiers: dict[str, str] = {}


def tokenizer_for(config: Any) -> Tokenizer:
    """A tokenizer of the vocabulary size the model is set to; a recipe that takes it from a real one must say it."""
    size = getattr(config.model, "vocab_size", None) or getattr(config.tokenizer, "vocab_size", None)
    if not size:
        raise Unresolved("the recipe takes its vocabulary size from a real tokenizer: override model.vocab_size=N")
    return Tokenizer(int(size))


def iterator_for(config: Any, count: int, current_packing_keys: bool) -> Iterator[dict[str, Any]]:
    """Endless batches for a step of `count` micro-batches.

    Args:
        current_packing_keys: this Bridge names packs by cu_seqlens_q and its kin; older ones by cu_seqlens.
    """
    dataset = config.dataset
    kind = type(dataset).__name__
    if any(word in kind for word in ("VLM", "Energon", "DirectHF")) and not hasattr(dataset, "dataloader_type"):
        raise Unresolved(f"no synthetic data for datasets of type {kind}")
    length = int(config.model.seq_length)
    rows = int(config.train.micro_batch_size)
    if getattr(dataset, "dataloader_type", "single") == "batch":
        rows *= count
    packed = pack_size(dataset)
    if packed is not None:
        length = packed
    batch = _batch(rows, length)
    if not getattr(dataset, "skip_getting_attention_mask_from_dataset", True):
        batch["attention_mask"] = torch.ones(rows, 1, length, length, dtype=torch.bool).tril().logical_not()
    if packed is not None:
        batch.update(_pack(rows, length, current_packing_keys))
    while True:
        yield dict(batch)


def pack_size(dataset: Any) -> int | None:
    """Tokens per pack, None where sequences are not packed."""
    specs, _ = packing_specs(dataset)
    size = getattr(specs, "packed_sequence_size", None)
    return int(size) if size and size > 0 and getattr(dataset, "enable_offline_packing", True) else None


def declare_bounds(length: int) -> None:
    """Gives the unfused rotary embedding of packs their bounds on the host (simulated probes only).

    It splits by them, and a device that computes nothing has no lengths to read back.
    """
    from megatron.core.models.common.embeddings import rope_utils

    real = getattr(rope_utils, "_apply_rotary_pos_emb_thd", None)
    if real is None:
        return
    bounds = torch.tensor(_bounds(length), dtype=torch.int32)

    @functools.wraps(real)
    def apply(t: torch.Tensor, cu_seqlens: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return real(t, bounds, *args, **kwargs)

    rope_utils._apply_rotary_pos_emb_thd = apply


def _batch(rows: int, length: int) -> dict[str, Any]:
    return {
        "tokens": torch.zeros(rows, length, dtype=torch.long),
        "labels": torch.zeros(rows, length, dtype=torch.long),
        "loss_mask": torch.ones(rows, length),
        "position_ids": torch.arange(length).repeat(rows, 1),
        "attention_mask": None,
    }


def _bounds(length: int) -> list[int]:
    """Where the sequences of a pack of `length` tokens begin, and where the last ends."""
    return [length * n // SEQUENCES_PER_PACK for n in range(SEQUENCES_PER_PACK + 1)]


def _pack(rows: int, length: int, current_keys: bool) -> dict[str, torch.Tensor]:
    bounds = _bounds(length)
    cu_seqlens = torch.tensor([bounds] * rows, dtype=torch.int32)
    longest = torch.full((rows, 1), max(b - a for a, b in itertools.pairwise(bounds)), dtype=torch.int32)
    if current_keys:
        return {
            "cu_seqlens_q": cu_seqlens,
            "cu_seqlens_kv": cu_seqlens,
            "max_seqlen_q": longest,
            "max_seqlen_kv": longest,
        }
    argmin = torch.full((rows, 1), len(bounds), dtype=torch.int32)
    return {"cu_seqlens": cu_seqlens, "cu_seqlens_argmin": argmin, "max_seqlen": longest}


def wants_list(setup_data_iterators: Any) -> bool:
    """Whether this Bridge gives virtual pipelines a list of iterators from set-up on, or makes it in each step."""
    try:
        return "range(model_length)" in inspect.getsource(setup_data_iterators)
    except (OSError, TypeError):
        return False
