"""What a command may need on a virtual GPU beyond the hook: stand-ins for what is missing, values nothing computes.

Each has a name, is asked for by that name (`--prepare`), and acts when the program imports what it is about; a program
that never does is left alone. They are for simulated probes only: a real GPU has the real thing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from .. import absent_packages
from .job import CommandJob

_FLASH_ATTENTION = Path(__file__).resolve().parents[2] / "flash_attn_stand_in"


def prepare(job: CommandJob) -> None:
    """Installs the preparations that `job` names, in their own order.

    Raises:
        ValueError: there is none of that name.
    """
    unknown = sorted(set(job.prepare) - set(PREPARATIONS))
    if unknown:
        raise ValueError(f"no preparation is called {', '.join(unknown)}: there are {', '.join(PREPARATIONS)}")
    if job.simulated:
        for name, install in PREPARATIONS.items():
            if name in job.prepare:
                install(job)


def _absent_packages(_job: CommandJob) -> None:
    absent_packages.install()


def _flash_attention(_job: CommandJob) -> None:
    if absent_packages.missing("flash_attn"):
        sys.path.append(str(_FLASH_ATTENTION))


def _transformer_engine(_job: CommandJob) -> None:
    from .. import preparation

    if absent_packages.missing("transformer_engine") or not absent_packages.missing("transformer_engine_torch"):
        return
    if not preparation.compiled_transformer_engine():
        sys.meta_path.insert(0, _StandInFirst())


def _megatron_lm(job: CommandJob) -> None:
    from . import megatron_lm

    megatron_lm.install(job)


def _routing(job: CommandJob) -> None:
    from . import megatron_lm

    megatron_lm.declare_routing(job.moe_skew)


PREPARATIONS: dict[str, Callable[[CommandJob], None]] = {
    "absent-packages": _absent_packages,
    "flash-attn": _flash_attention,
    "transformer-engine": _transformer_engine,
    "megatron-lm": _megatron_lm,
    "moe-routing": _routing,
}


class _StandInFirst(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Puts the stand-in for Transformer Engine's compiled module in place when TE is imported, and not before."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "transformer_engine":
            return None
        sys.meta_path.remove(self)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        from .. import te_stand_in

        te_stand_in.install(None)  # imports the package itself
        module = sys.modules[spec.name]
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec


def cache_folder() -> Path | None:
    """Where what is built once may be kept; None where the driver named no place."""
    bytecode = os.environ.get("OOMBISECT_BYTECODE_CACHE")
    return Path(bytecode).parent.parent / "built" if bytecode else None
