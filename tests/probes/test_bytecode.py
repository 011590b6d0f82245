"""A file that changes without size or time stamp telling is loaded anew; the cache is used; its damage is survived."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROBES = Path(__file__).parents[2] / "probes"
_SHOW = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from probe_support import bytecode
bytecode.install([sys.argv[2]])
import project.part as part
import inspect
print(part.VALUE, inspect.getsource(part).strip(), part.__file__)
"""


def show(root: Path, cache: Path | None) -> str:
    env = {name: value for name, value in os.environ.items() if name != "OOMBISECT_BYTECODE_CACHE"}
    if cache:
        env["OOMBISECT_BYTECODE_CACHE"] = str(cache)
    command = [sys.executable, "-c", _SHOW, str(PROBES), str(root)]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


def write(root: Path, value: int) -> None:
    path = root / "project" / "part.py"  # no __init__: a namespace package, as megatron is
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"VALUE = {value}\n")
    os.utime(path, (1_700_000_000, 1_700_000_000))


def test_a_change_of_equal_size_and_time_is_seen(tmp_path: Path) -> None:
    for value in (1, 2, 1):
        write(tmp_path / "root", value)
        assert show(tmp_path / "root", tmp_path / "cache").startswith(f"{value} VALUE = {value} ")
    assert not list((tmp_path / "root").rglob("__pycache__"))


def test_the_cache_answers_and_damage_is_survived(tmp_path: Path) -> None:
    write(tmp_path / "root", 7)
    first = show(tmp_path / "root", tmp_path / "cache")
    cached = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    (entry,) = [path for path in cached if "installed" not in path.parts]
    kept = entry.read_bytes()
    assert show(tmp_path / "root", tmp_path / "cache") == first
    entry.write_bytes(kept[: len(kept) // 2])
    assert show(tmp_path / "root", tmp_path / "cache") == first
    assert entry.read_bytes() == kept


def test_without_a_cache_folder_it_compiles(tmp_path: Path) -> None:
    write(tmp_path / "root", 7)
    assert show(tmp_path / "root", None).startswith("7 ")
    assert not list((tmp_path / "root").rglob("__pycache__"))
