"""An index of tiny wheels that uv knows alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from .wheels import use_index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    use_index(monkeypatch, folder, tmp_path / "uv-cache")
    return folder
