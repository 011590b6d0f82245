"""Answers imports of a few packages that Bridge's training path names but a memory probe never uses.

Two kinds. Bridge imports some unconditionally (resiliency, ModelOpt, Energon, video readers) that an NVIDIA container
has and a laptop need not: they are answered where they are *missing*, by a finder that stands last in `sys.meta_path`,
so an installed package wins. Others are heavy and serve only real data, diffusion models or export: they are answered
*always*, by a finder that stands first, which saves seconds per probe. Any other missing package is an ordinary
ImportError, reported by its name.

Nothing here computes: attributes are empty classes, which may be derived from, may decorate and may be called; *using*
what such a call gave raises `Unresolved` by name, apart from what `install` answers on purpose.
"""

from __future__ import annotations

import abc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any, ClassVar

from .outcome import Unresolved

# Package -> the version it claims. Megatron-LM asks nvidia_resiliency_ext to be 0.6 or newer.
ANSWERED_IF_MISSING = {
    "nvidia_resiliency_ext": "0.6.0",
    "modelopt": "0.46.0",
    "megatron.energon": "7.0.0",
    "webdataset": "1.0.0",
    "qwen_vl_utils": "1.0.0",
    "decord": "1.0.0",
    "av": "1.0.0",
    "imageio": "1.0.0",
}
ANSWERED_ALWAYS = {
    "datasets": "4.0.0",  # reads real data; brings pandas and pyarrow
    "diffusers": "0.36.0",  # image and video models; brings peft and accelerate
    "onnxscript": "0.6.0",  # export; brings onnx
}


class _AbsentMeta(abc.ABCMeta):
    """Class attributes of an absent class are absent classes: decorators, bases and annotations then evaluate."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent_class(f"{cls.__module__}.{cls.__qualname__}", name)

    def __getitem__(cls, _item: Any) -> Any:
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__dict__.get("_absent"):
            name = f"{cls.__module__}.{cls.__qualname__}"
            return args[0] if _decorates(args, kwargs) else _AbsentValue(name)
        return super().__call__(*args, **kwargs)  # a class of the project derived from an absent one


def _decorates(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return len(args) == 1 and not kwargs and isinstance(args[0], (type, types.FunctionType))


class _AbsentValue:
    """What calling something absent gives: may be held and may decorate (`@make(argument)`); other use is refused."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if _decorates(args, kwargs) else self._refuse()

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return self._refuse()

    def _refuse(self, *args: Any) -> Any:
        name = object.__getattribute__(self, "_name")
        raise Unresolved(f"the package of {name} is not installed, and the run uses it")

    __bool__ = __iter__ = __len__ = __enter__ = __getitem__ = _refuse  # type: ignore[assignment]


def absent_class(module: str, name: str) -> type:
    return _AbsentMeta(name, (), {"_absent": True, "__module__": module})


class _AbsentModule(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = absent_class(self.__name__, name)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages of `answered` (package -> claimed version) and everything below them."""

    def __init__(self, answered: dict[str, str]) -> None:
        self.answered = answered
        self.used: set[str] = set()

    def _package(self, fullname: str) -> str | None:
        parts = fullname.split(".")
        prefixes = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
        return next((prefix for prefix in prefixes if prefix in self.answered), None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if self._package(fullname) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        package = self._package(spec.name)
        assert package is not None
        self.used.add(package)
        module = _AbsentModule(spec.name)
        module.__version__ = self.answered[package]  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def missing(name: str) -> bool:
    """Whether no package of this name is installed (dotted names: within an importable parent)."""
    try:
        return importlib.util.find_spec(name) is None
    except (ImportError, ValueError):
        return True


def install() -> Finder:
    """Installs the finders and the few answers the training loop asks for; returns the finder of missing packages."""
    finder = Finder(ANSWERED_IF_MISSING)
    modelopt_absent = missing("modelopt")
    sys.meta_path.append(finder)
    sys.meta_path.insert(0, Finder(ANSWERED_ALWAYS))
    if modelopt_absent:
        # The training loop asks on every step whether the pipeline carries a teacher's tensors too: it does not.
        distill = importlib.import_module("modelopt.torch.distill.plugins.megatron")
        distill.get_tensor_shapes_adjust_fn_for_distillation = lambda *args, **kwargs: None  # type: ignore[attr-defined]
    if missing("fused_weight_gradient_mlp_cuda"):
        # Apex's kernel accumulates a weight gradient in place: no allocation, so doing nothing is right for memory.
        module = types.ModuleType("fused_weight_gradient_mlp_cuda")
        for name in ("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16"):
            setattr(module, name, lambda *args, **kwargs: None)
        sys.modules["fused_weight_gradient_mlp_cuda"] = module
    return finder
