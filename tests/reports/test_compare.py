"""A comparison on a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command, command
from tests.cli.dumps import MIB, dump

__all__ = ["command"]


@pytest.mark.parametrize("by", ["stack", "module", "phase"])
def test_sizes_subtract_to_the_difference_beside_them(command: Command, tmp_path: Path, by: str) -> None:
    """1.01 GiB and 2.01 GiB would make 1.00."""
    for name, size in (("a.gz", 1030 * MIB), ("b.gz", 2062 * MIB)):
        dump(tmp_path / name, [("alloc", "block", size)])
    said = command("compare", "a.gz", "b.gz", "--by", by)
    assert said.code == 0 and "+1.01 GiB" in said.out, said.err
    assert said.out.count("1.006 GiB") == said.out.count("2.014 GiB") == 2
