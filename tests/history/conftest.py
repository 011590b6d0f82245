from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from history_support import SESSION, Clock

from oombisect.history.store import Store, open_store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "data" / "oombisect.db"


@pytest.fixture
def store(database: Path, clock: Clock) -> Iterator[Store]:
    with open_store(database, clock=clock) as opened:
        yield opened


@pytest.fixture
def session(store: Store) -> str:
    """A session that the store holds."""
    return store.create_session(SESSION).id
