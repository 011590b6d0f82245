"""Project files are compiled once per content, never trusted by time stamp.

Between two points of a bisection a file can change while size and time stamp stay (a checkout within one second), and
stale bytecode has corrupted bisections elsewhere. So for the projects' own files nothing is read from or written to
`__pycache__`; their code is kept in a folder of its own under a hash of path and content. Installed packages are
cached by Python itself; where the environment forbids it to (PYTHONDONTWRITEBYTECODE), in the same folder.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import Any

FOLDER_VARIABLE = "OOMBISECT_BYTECODE_CACHE"


def install(roots: Iterable[str]) -> None:
    """Load modules under `roots` by content; without a cache folder they are compiled each time."""
    spellings = {spelling for root in roots for spelling in (os.path.abspath(root), os.path.realpath(root))}
    prefixes = tuple(os.path.join(spelling, "") for spelling in spellings)
    folder = os.environ.get(FOLDER_VARIABLE)
    cache = Path(folder) if folder else None
    if cache is not None and sys.dont_write_bytecode:
        sys.pycache_prefix, sys.dont_write_bytecode = str(cache / "installed"), False

    class Loader(SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType:
            path = self.get_filename(fullname)
            return _code(self, path, self.get_data(path), cache)

    details: list[tuple[Any, list[str]]] = [(ExtensionFileLoader, EXTENSION_SUFFIXES), (Loader, SOURCE_SUFFIXES)]
    standard = FileFinder.path_hook(*details)

    def hook(path: str) -> FileFinder:
        if not os.path.join(path, "").startswith(prefixes):
            raise ImportError("not a project folder")
        return standard(path)

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()


def _code(loader: SourceFileLoader, path: str, source: bytes, cache: Path | None) -> CodeType:
    if cache is None:
        return loader.source_to_code(source, path)
    key = hashlib.sha256(b"\0".join((MAGIC_NUMBER, path.encode(), source))).hexdigest()
    entry = cache / key[:2] / key[2:]
    try:
        kept = marshal.loads(entry.read_bytes())  # noqa: S302  # our own cache, as `__pycache__` is Python's
        if isinstance(kept, CodeType):
            return kept
    except (OSError, EOFError, ValueError, TypeError):
        pass
    code = loader.source_to_code(source, path)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        part = entry.with_name(f"{entry.name}.{os.getpid()}")
        part.write_bytes(marshal.dumps(code))
        part.replace(entry)
    except OSError:  # a full disk costs time, not the probe
        pass
    return code
