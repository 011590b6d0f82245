"""An index of tiny wheels that uv knows alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from .pretend import PackageWorld
from .wheels import use_index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    use_index(monkeypatch, folder, tmp_path / "uv-cache")
    return folder


@pytest.fixture
def world(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> PackageWorld:
    """Sessions whose probes measure packages."""
    return PackageWorld(tmp_path, index, monkeypatch)
