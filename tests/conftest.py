"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the test run's own; OOMBISECT_TEST_CACHE names one to keep (a virtual GPU is built once)."""
    kept = os.environ.get("OOMBISECT_TEST_CACHE")
    return Path(kept) if kept else tmp_path_factory.mktemp("cache")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes name no test: packed data holds the time it was packed at, so that two workers would see two names."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None
