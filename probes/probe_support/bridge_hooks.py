"""The names of Bridge's set-up and training modules that a probe replaces or wraps, each only where this commit has it.

Replaced: tokenizer, checkpoint look-ups and loads, data iterators, the compilation of the dataset helper, and (where
values do not reach the host) the agreement of all ranks that an optimizer step succeeded. Wrapped, to mark phases:
building the model, building the optimizer, each training step. Everything else is Bridge's own code.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from . import data
from .phases import Phases


def _module(name: str) -> Any:
    """The module, None where this Bridge has no such; one that is there and cannot be imported is an error."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise


def _replace(module: Any, name: str, value: Any) -> bool:
    if module is None or not hasattr(module, name):
        return False
    setattr(module, name, value)
    return True


class Hooks:
    """Installs all replacements for one run of `config`."""

    def __init__(self, config: Any, phases: Phases, count: int, unreal: bool) -> None:
        self.config = config
        self.phases = phases
        self.count = count
        self.unreal = unreal
        self.steps = 0
        self.setup = _module("megatron.bridge.training.setup")
        self.train = _module("megatron.bridge.training.train")

    def install(self) -> None:
        self._tokenizer_and_checkpoints()
        self._data()
        self._phases()
        if self.unreal:
            self._agreements()

    def _tokenizer_and_checkpoints(self) -> None:
        tokenizer = data.tokenizer_for(self.config)
        _replace(self.setup, "build_tokenizer", lambda *args, **kwargs: tokenizer)
        # Adapters insist on a checkpoint of the base model; whatever else looks for one is told there is none.
        adapters = getattr(self.config, "peft", None) is not None
        _replace(self.setup, "checkpoint_exists", lambda *args, **kwargs: adapters)
        _replace(self.setup, "_should_load_checkpoint", lambda *args, **kwargs: False)
        for name in ("load_checkpoint", "_load_checkpoint_from_path"):
            _replace(self.setup, name, lambda *args, **kwargs: (0, 0))
        # The C++ index helper serves real datasets only.
        _replace(_module("megatron.core.datasets.utils"), "compile_helpers", lambda: None)
        _replace(_module("megatron.bridge.training.initialize"), "compile_helpers", lambda: None)

    def _data(self) -> None:
        step = _module("megatron.bridge.training.gpt_step")
        source = ""
        with contextlib.suppress(OSError, TypeError):
            source = inspect.getsource(step)
        batches = data.iterator_for(self.config, self.count, "cu_seqlens_q" in source)
        chunks = int(getattr(self.config.model, "virtual_pipeline_model_parallel_size", None) or 1)
        as_list = chunks > 1 and data.wants_list(getattr(self.setup, "setup_data_iterators", None))
        as_list = as_list and getattr(self.config.dataset, "dataloader_type", "single") != "batch"

        def setup_data_iterators(cfg: Any, train_state: Any, *args: Any, **kwargs: Any) -> Any:
            train_state.do_train = True
            train_state.do_valid = train_state.do_test = False
            return ([batches] * chunks if as_list else batches), None, None

        _replace(self.setup, "setup_data_iterators", setup_data_iterators)

    def _phases(self) -> None:
        if not self._wrap(self.setup, "_build_distributed_model", "setup", "model", "optimizer"):
            provider = type(self.config.model)
            self._wrap(provider, "provide_distributed_model", "setup", "model", "optimizer")
        self._wrap(self.setup, "setup_optimizer", None, "optimizer", "step_1")
        real = self.train.train_step

        @functools.wraps(real)
        def train_step(*args: Any, **kwargs: Any) -> Any:
            self.steps += 1
            result = real(*args, **kwargs)
            self.phases.close(f"step_{self.steps}", f"step_{self.steps + 1}")
            return result

        self.train.train_step = train_step

    def _wrap(self, owner: Any, name: str, before: str | None, phase: str, following: str) -> bool:
        """Makes `owner.name` end phase `before` when called and `phase` when it returns."""
        real: Callable[..., Any] | None = getattr(owner, name, None)
        if real is None:
            return False

        @functools.wraps(real)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                self.phases.close(before, phase)
            result = real(*args, **kwargs)
            self.phases.close(phase, following)
            return result

        setattr(owner, name, wrapped)
        return True

    def _agreements(self) -> None:
        """Whether all ranks' optimizer steps succeeded travels through a tensor; the others say what this one says."""
        _replace(self.train, "logical_and_across_model_parallel_group", lambda value, *args, **kwargs: value)
