"""Stand-ins for what may be missing, put in place before anything of a project is imported; once per process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import absent_packages
from .outcome import Unresolved


@dataclass(frozen=True)
class Prepared:
    """`finder` answers missing packages; `stand_in`: TE runs over one; `directory`: where TE was taken from."""

    finder: absent_packages.Finder
    stand_in: bool
    directory: str | None


_prepared: Prepared | None = None


def prepare(simulated: bool, transformer_engine: str | None) -> Prepared:
    """Prepares this process, or returns what a worker prepared before it forked this process off."""
    global _prepared
    if _prepared is None:
        finder = absent_packages.install()
        from . import deep_ep_stand_in, te_stand_in

        stand_in = absent_packages.missing("transformer_engine_torch") and not compiled_transformer_engine()
        if stand_in and not simulated:
            raise Unresolved("Transformer Engine's compiled module is not installed, and a real GPU needs it")
        if stand_in:
            te_stand_in.install(transformer_engine)
        if simulated and absent_packages.missing("deep_ep"):
            deep_ep_stand_in.install()
        _prepared = Prepared(finder, stand_in, transformer_engine)
    return _prepared


def compiled_transformer_engine() -> bool:
    """Whether TE brings its compiled module inside its own package, as source builds and wheels do."""
    from .te_stand_in import find_package

    package = find_package(None)
    if package is None:
        return False
    folders = (package.parent, package, package / "wheel_lib")
    return any(_holds_extension(folder) for folder in folders)


def _holds_extension(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("transformer_engine_torch*.so"))
