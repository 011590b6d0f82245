"""What Megatron-LM's own training scripts need where nothing is computed and one rank stands for all.

Values that travel between ranks or come from the device, and that decide what runs, are given by name; everything that
allocates device memory is Megatron-LM's own.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .attach import when_imported
from .job import CommandJob

_HELPER = "megatron.core.datasets.helpers_cpp"
_FSDP = "megatron.core.distributed.fsdp"


def install(job: CommandJob) -> None:
    """Each line acts on one module, when it is imported, where it has the name."""
    sys.meta_path.append(_DatasetHelper())
    when_imported("megatron.core.datasets.utils", _without("compile_helpers"))
    when_imported("megatron.core.timers", _without_timers)
    when_imported("megatron.training.training", _training_is_wanted)
    when_imported("megatron.core.distributed.finalize_model_grads", _counts_agree)
    when_imported(f"{_FSDP}.src.megatron_fsdp.param_and_grad_buffer", _without("validate_uneven_dtensor"))
    when_imported(f"{_FSDP}.mcore_fsdp_adapter", _random_states_stay)
    when_imported("megatron.core.transformer.attention", _replicas_agree)
    when_imported("megatron.core.transformer.dot_product_attention", lambda module: _watch_attention())


def declare_routing(skew: float) -> None:
    """How many tokens reach each expert is declared, balanced times `skew` on this rank (`probe_support.moe`)."""

    def declare(_module: ModuleType) -> None:
        from .. import moe

        moe.declare(skew)

    when_imported("megatron.core.transformer.moe.token_dispatcher", declare)


def _watch_attention() -> None:
    from .. import te_attention

    te_attention.watch()


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _without(name: str) -> Any:
    """The module without what this function does: it checks, or builds, what is not there."""

    def replace(module: ModuleType) -> None:
        if hasattr(module, name):
            setattr(module, name, _nothing)

    return replace


def _without_timers(module: Any) -> None:
    """Timers compare ranks by a gather whose result nobody computes."""
    module.Timers.log = module.Timers.write = _nothing


def _training_is_wanted(module: Any) -> None:
    """Whether there is training data is broadcast from tensor-parallel rank 0: the others read a zero."""
    real = module.build_train_valid_test_data_loaders

    def build(*args: Any, **kwargs: Any) -> Any:
        loaders = real(*args, **kwargs)
        module.get_args().do_train = True
        return loaders

    module.build_train_valid_test_data_loaders = build


def _counts_agree(module: Any) -> None:
    """An assertion compares token counts of the pipeline's stages on the device: here all are this rank's own."""
    module.all = lambda values: (list(values), True)[1]


def _replicas_agree(module: Any) -> None:
    """`--test-mode` compares weights of other ranks with this one's on the device: here all are this rank's own."""
    real = getattr(module.SelfAttention, "run_realtime_tests", None)
    if real is None:
        return

    def run_realtime_tests(self: Any) -> None:
        import torch

        compare = torch.all
        torch.all = lambda *args, **kwargs: (compare(*args, **kwargs), True)[1]  # type: ignore[assignment]
        try:
            real(self)
        finally:
            torch.all = compare

    module.SelfAttention.run_realtime_tests = run_realtime_tests


def _random_states_stay(module: Any) -> None:
    """FSDP copies random states from other ranks."""
    module.FullyShardedDataParallel.sync_rng_states_across_tp_group = _nothing
    if hasattr(module, "_load_rng_state_dict"):
        module._load_rng_state_dict = _nothing


class _DatasetHelper(importlib.abc.MetaPathFinder):
    """Builds the C++ helper of this commit's data sets where no build of it is there; once per source."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _HELPER or not path:
            return None
        source = Path(next(iter(path))) / "helpers.cpp"
        if not source.is_file():
            return None
        return importlib.util.spec_from_file_location(name, _built(source))


def _built(source: Path) -> Path:
    """The compiled helper; `torch` brings the headers of pybind11."""
    from .preparations import cache_folder

    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    key = hashlib.sha256(source.read_bytes() + suffix.encode()).hexdigest()[:20]
    folder = (cache_folder() or Path(tempfile.mkdtemp(prefix="oombisect-"))) / f"megatron-helpers-{key}"
    built = folder / f"helpers_cpp{suffix}"
    if not built.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        includes = [sysconfig.get_paths()["include"], str(Path(torch.origin).parent / "include")]
        part = Path(tempfile.mkdtemp(dir=folder)) / built.name
        options = ["-O2", "-shared", "-std=c++17", "-fPIC", *(f"-I{folder}" for folder in includes)]
        subprocess.run(["c++", *options, str(source), "-o", str(part)], check=True)
        part.replace(built)
        part.parent.rmdir()
    return built
