"""A world of its own for each test: a toy history, a toy interpreter, a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import toy
from .world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("oombisect.session.opening.open_device", lambda *_: toy.ToyDevice())
    return World(tmp_path)
