"""What is known of keys that do not go together: states between two configs that no run would accept.

A rule says nothing about memory. It keeps the chain of a config diff from passing through states that are certain to
be rejected; what no rule knows is learned from rejected probes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oombisect.recipes.config_diff import ABSENT, value_at

ENV = "env:"
# Some model configurations keep most of their fields in another one, and pass them off as their own.
_MODEL, _INNER = "model.", "model.transformer."
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class Settings:
    """One state of a run: its config, as a probe describes it, and variables of the process, which win over the
    config's own `env_vars`."""

    config: Mapping[str, Any]
    env: Mapping[str, str]

    def get(self, key: str) -> Any:
        """A value by dotted name or `env:NAME`; None where there is none."""
        if key.startswith(ENV):
            name = key.removeprefix(ENV)
            own = self.config.get("env_vars") or {}
            return self.env.get(name, own.get(name))
        places = (key, key.replace(_MODEL, _INNER, 1))
        values = (value_at(self.config, tuple(place.split("."))) for place in places)
        return next((value for value in values if value is not ABSENT), None)

    def whole(self, key: str, default: int = 1) -> int:
        """A value that must be a whole number to be one."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default


@dataclass(frozen=True, slots=True)
class Rule:
    """`keys` go together only where `holds`; `text` says when that is."""

    text: str
    keys: tuple[str, ...]
    holds: Callable[[Settings], bool]

    def concerns(self, name: str) -> bool:
        """Whether the key of this name is one of them, or is a whole section that holds one."""
        plain = name.replace(_INNER, _MODEL, 1)
        return any(key in (name, plain) or key.startswith(f"{name}.") for key in self.keys)


def _expandable(settings: Settings) -> bool:
    return any("expandable_segments:True" in str(settings.get(ENV + name) or "") for name in _ALLOCATOR)


def _offloading(settings: Settings) -> bool:
    return not settings.get("model.cpu_offloading") or settings.whole("model.pipeline_model_parallel_size") == 1


def _sequence_parallel(settings: Settings) -> bool:
    return not settings.get("model.sequence_parallel") or settings.whole("model.tensor_model_parallel_size") > 1


def _layers_divide(settings: Settings) -> bool:
    if any(settings.get(key) for key in _BY_HAND):
        return True
    stages = settings.whole("model.pipeline_model_parallel_size")
    virtual = settings.get("model.virtual_pipeline_model_parallel_size")
    if virtual is not None and stages == 1:
        return False
    chunks = stages * settings.whole("model.virtual_pipeline_model_parallel_size")
    return chunks > 0 and settings.whole("model.num_layers", 0) % chunks == 0


def _recompute(settings: Settings) -> bool:
    if settings.get("model.recompute_granularity") != "full":
        return True
    return bool(settings.get("model.recompute_method") and settings.get("model.recompute_num_layers"))


def _user_buffers(settings: Settings) -> bool:
    return not (settings.get("ddp.nccl_ub") and _expandable(settings))


def _graphs(settings: Settings) -> bool:
    captured = settings.get("model.cuda_graph_impl") not in (None, "none") or settings.get("model.enable_cuda_graph")
    return not (captured and _expandable(settings)) or str(settings.get("env:NCCL_GRAPH_REGISTER")) == "0"


def _sequence_lengths(settings: Settings) -> bool:
    model, data, other = (settings.get(key) for key in _LENGTHS)
    data = other if data is None else data  # where a data set has both, Bridge makes the second follow the first
    return model is None or data is None or model == data


def _one_name(settings: Settings) -> bool:
    values = {settings.get(ENV + name) for name in _ALLOCATOR} - {None}
    return len(values) <= 1


_BY_HAND = (
    "model.pipeline_model_parallel_layout",
    "model.num_layers_in_first_pipeline_stage",
    "model.num_layers_in_last_pipeline_stage",
    "model.account_for_embedding_in_pipeline_split",
    "model.account_for_loss_in_pipeline_split",
)
_LENGTHS = ("model.seq_length", "dataset.seq_length", "dataset.sequence_length")
_CONFS = tuple(ENV + name for name in _ALLOCATOR)

RULES = (
    Rule(
        "cpu_offloading needs a pipeline of one stage",
        ("model.cpu_offloading", "model.pipeline_model_parallel_size"),
        _offloading,
    ),
    Rule(
        "sequence parallelism needs tensor parallelism",
        ("model.sequence_parallel", "model.tensor_model_parallel_size"),
        _sequence_parallel,
    ),
    Rule(
        "pipeline stages and their virtual stages must divide the layers",
        (
            "model.num_layers",
            "model.pipeline_model_parallel_size",
            "model.virtual_pipeline_model_parallel_size",
            *_BY_HAND,
        ),
        _layers_divide,
    ),
    Rule(
        "full recomputation needs a method and a number of layers",
        ("model.recompute_granularity", "model.recompute_method", "model.recompute_num_layers"),
        _recompute,
    ),
    Rule("NCCL user buffers do not work with expandable segments", ("ddp.nccl_ub", *_CONFS), _user_buffers),
    Rule(
        "CUDA graphs with expandable segments need NCCL_GRAPH_REGISTER=0",
        ("model.cuda_graph_impl", "model.enable_cuda_graph", "env:NCCL_GRAPH_REGISTER", *_CONFS),
        _graphs,
    ),
    Rule("model and data set must have one sequence length", _LENGTHS, _sequence_lengths),
    Rule("the two names of the allocator's settings must agree", _CONFS, _one_name),
)
