"""sqlite-utils without numpy and pandas, which it imports wherever it finds them: a second of start-up for nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Database", "Table"]


@contextmanager
def _absent(*names: str) -> Iterator[None]:
    """Make imports of `names` fail, as where they are not installed; a module that is loaded already stays."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is how import is told "not there"
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with _absent("numpy", "pandas"):
    from sqlite_utils import Database
    from sqlite_utils.db import Table
