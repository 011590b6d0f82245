"""docs/database.md describes the database there is."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from freeze import fill

PAGE = (Path(__file__).parents[2] / "docs" / "database.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def filled(database: Path) -> sqlite3.Connection:
    fill(database)
    return sqlite3.connect(database)


def test_every_table_and_column_is_described(filled: sqlite3.Connection) -> None:
    described = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    tables = [name for (name,) in filled.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert described.keys() == set(tables)
    for table in tables:
        columns = {column[1] for column in filled.execute(f"PRAGMA table_info({table})")}
        missing = columns - set(re.findall(r"`(\w+)`", described[table]))
        assert not missing, f"{table}: {missing}"


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_run(filled: sqlite3.Connection, example: str) -> None:
    filled.execute(example).fetchall()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 5
