"""Where the files that ship beside the package lie: `probes/`, `db/` and `docs/`.

In a wheel they are inside the package (`_shipped/`), in a checkout at the top of the repository.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    installed = _PACKAGE / "_shipped" / name
    return installed if installed.is_dir() else _PACKAGE.parents[1] / name


def probes_dir() -> Path:
    """The folder of standalone probe scripts, run in the target environment."""
    return _shipped("probes")


def db_dir() -> Path:
    """The folder of schema migrations and canned queries."""
    return _shipped("db")


def docs_dir() -> Path:
    """The folder of the documentation, which messages name."""
    return _shipped("docs")
