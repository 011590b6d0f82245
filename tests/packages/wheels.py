"""A package index of our own: a folder of tiny wheels, and a Python environment with some of them installed."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from oombisect.probing.environments import find_uv

ROOT = Path(__file__).parents[2]


def make_wheel(
    index: Path, name: str, version: str, requires: Sequence[str] = (), files: Mapping[str, str] | None = None
) -> Path:
    """A pure wheel; without `files` one module of its name that says its version."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    contents = dict(files or {f"{module}/__init__.py": f"__version__ = {version!r}\n"})
    needs = "".join(f"Requires-Dist: {text}\n" for text in requires)
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    contents[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    index.mkdir(parents=True, exist_ok=True)
    path = index / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in contents.items():
            archive.writestr(place, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def use_index(monkeypatch: pytest.MonkeyPatch, index: Path, cache: Path) -> None:
    """Have uv know this index and nothing else."""
    index.mkdir(parents=True, exist_ok=True)
    settings = cache.with_name("uv.toml")
    settings.write_text(
        f'no-index = true\nfind-links = ["{index}"]\ncache-dir = "{cache}"\npython-downloads = "never"\n'
    )
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))


def make_environment(folder: Path, *requirements: str) -> Path:
    """A Python environment with `requirements` of the index in use; its interpreter."""
    uv = find_uv()
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    python = folder / "bin" / "python"
    if requirements:
        install = [uv, "pip", "install", "--quiet", "--python", str(python), *requirements]
        subprocess.run(install, check=True)
    return python
