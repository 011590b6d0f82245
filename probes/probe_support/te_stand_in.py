"""A stand-in for Transformer Engine's compiled module, for machines without it (simulated probes only).

TE's own Python package runs unmodified over `transformer_engine_torch` as made here: each function allocates what the
C++ one allocates (shapes and dtypes of TE's `pytorch/csrc/extensions/*.cpp`) and computes nothing. A function without
a stand-in raises `MissingStandIn` by name, never a silent guess. Enumerations are symbols: their values do not matter,
except for the data types, whose list is read from the installed TE.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .outcome import Unresolved

# Data types of `transformer_engine.h`, in its order.
_DTYPES = (
    *("kByte", "kInt16", "kInt32", "kInt64", "kFloat32", "kFloat16", "kBFloat16"),
    *("kFloat8E4M3", "kFloat8E5M2", "kFloat8E8M0", "kFloat4E2M1"),
)
# Members whose values TE's Python code uses: as an index, or to look them up.
_ORDERED = {
    "NVTERoutingMapFormat": ["BYTEMAP", "BITMAP_U8"],
    "FP8FwdTensors": [f"GEMM{n}_{kind}" for n in (1, 2, 3) for kind in ("INPUT", "WEIGHT", "OUTPUT")],
    "FP8BwdTensors": [f"GRAD_{kind}{n}" for n in (1, 2, 3) for kind in ("OUTPUT", "INPUT")],
}


class MissingStandIn(NotImplementedError, Unresolved):
    """Transformer Engine asked its compiled module for something that has no stand-in."""


class _Symbol(int):
    """One member of an enumeration: equal to itself and its value, usable as an index and a dictionary key."""

    name: str
    owner: str

    def __new__(cls, value: int, owner: str, name: str) -> _Symbol:
        symbol = super().__new__(cls, value)
        symbol.owner, symbol.name = owner, name
        return symbol

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Symbol):
            return self.owner == other.owner and self.name == other.name
        return int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(int(self))

    def __repr__(self) -> str:
        return f"{self.owner}.{self.name}"


class _SymbolMeta(type):
    """A class whose upper-case attributes, its only instances, come into being when first asked for."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        members: dict[str, _Symbol] = cls.__dict__["_members"]
        if name not in members:
            members[name] = _Symbol(len(members), cls.__name__, name)
        return members[name]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Symbol) and instance.owner == cls.__name__

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise MissingStandIn(f"transformer_engine_torch.{cls.__name__} has no stand-in")


def _symbols(name: str) -> type:
    members: dict[str, _Symbol] = {}
    for member in _ORDERED.get(name, ()):
        members[member] = _Symbol(len(members), name, member)
    return _SymbolMeta(name, (), {"_members": members, "__module__": "transformer_engine_torch"})


class _StandIn(types.ModuleType):
    """`transformer_engine_torch`: known functions, symbols for capitalised names, a refusal by name for the rest."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _symbols(name) if name[0].isupper() else _refusal(name)
        setattr(self, name, value)
        return value


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise MissingStandIn(f"transformer_engine_torch.{name} has no stand-in in the probe")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__module__ = "transformer_engine_torch"
    return refuse


def _dtype_names(package: Path) -> list[str]:
    """The data types this TE's Python side mirrors (it asserts that both lists agree); else all known ones."""
    source = (package / "pytorch" / "constants.py").read_text()
    mirrored = set(re.findall(r"int\(tex\.DType\.(k\w+)\)", source))
    return [name for name in _DTYPES if name in mirrored] if mirrored else list(_DTYPES)


def find_package(directory: str | None) -> Path | None:
    """The TE Python package: in `directory` if given, else installed. Found without importing it."""
    if directory is not None:
        package = Path(directory) / "transformer_engine"
        return package if package.is_dir() else None
    spec = importlib.util.find_spec("transformer_engine")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def install(directory: str | None) -> None:
    """Imports TE over the stand-in.

    Args:
        directory: a folder that holds the package `transformer_engine`; None: the installed one.
    """
    package = find_package(directory)
    if package is None:
        raise Unresolved(
            "Transformer Engine is not installed: the Python package is enough for a simulated probe "
            "(`pip install --no-deps transformer-engine`)"
        )
    if directory is not None:
        sys.path.insert(0, directory)
    # TE's own switch for "the shared libraries are not there": no loading of libtransformer_engine.so.
    os.environ.setdefault("NVTE_PROJECT_BUILDING", "1")
    os.environ.setdefault("NVTE_FRAMEWORK", "pytorch")
    from . import te_functions

    module = _StandIn("transformer_engine_torch")
    module.__file__ = __file__
    names = _dtype_names(package)
    dtype = enum.IntEnum("DType", {name: _DTYPES.index(name) for name in names})  # type: ignore[misc]
    module.DType = dtype  # type: ignore[attr-defined]
    module.FP8TensorMeta = type("FP8TensorMeta", (), {})  # type: ignore[attr-defined]
    functions = te_functions.functions(dtype)
    for name, function in functions.items():
        setattr(module, name, function)
    # TE star-imports the module into its `cpp_extensions`: the list must hold what it may look up there.
    module.__all__ = sorted({"DType", "FP8TensorMeta", *functions})  # type: ignore[attr-defined]
    sys.modules["transformer_engine_torch"] = module
    _import_without_extension()


def _import_without_extension() -> None:
    """Imports `transformer_engine` with its loader of the compiled module replaced: that module is there already."""
    spec = importlib.util.find_spec("transformer_engine")
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["transformer_engine"] = package
    common = importlib.import_module("transformer_engine.common")
    common.load_framework_extension = lambda framework: None  # type: ignore[attr-defined]
    spec.loader.exec_module(package)
