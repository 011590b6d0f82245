"""Looking into an interpreter without importing its torch. The interpreters here are scripts that print the facts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oombisect.errors import OombisectError
from oombisect.virtual_gpu.target import inspect_target, write_atomically

VERSION_PY = """from typing import Optional
__version__ = '2.99.0+cu130'
debug = False
cuda: Optional[str] = {cuda}
hip: Optional[str] = None
"""


class Interpreter:
    """A stand-in for `python`, whose answers can be changed, and which counts how often it runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / "lib" / "site-packages"
        self.python = root / "bin" / "python"
        self.runs = root / "runs"
        self.facts: dict[str, object] = {
            "system": "Linux", "machine": "x86_64", "python": "3.12.1", "torch": str(self.site / "torch/__init__.py"),
            "path": [str(self.site)],
        }  # fmt: skip
        self.python.parent.mkdir(parents=True)
        self.install()
        self.answer()

    def answer(self, **facts: object) -> None:
        self.facts |= facts
        script = f"#!/bin/sh\necho run >> '{self.runs}'\ncat <<'END'\n{json.dumps(self.facts)}\nEND\n"
        self.python.write_text(script)
        self.python.chmod(0o755)

    def install(self, cuda: str = "'13.0'") -> None:
        for name in ("torch/lib/libtorch_cuda.so", "torch/lib/libc10_cuda.so", "torch/__init__.py"):
            self.put(f"{name}")
        self.put("torch/version.py", VERSION_PY.format(cuda=cuda))
        self.put("nvidia/cu13/include/cuda.h")
        self.put("nvidia/cu13/lib/libcudart.so.13")

    def put(self, name: str, text: str = "x") -> None:
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_count(self) -> int:
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    return Interpreter(tmp_path / "env")


def test_what_is_found(interpreter: Interpreter, tmp_path: Path) -> None:
    target = inspect_target(interpreter.python, tmp_path / "cache")
    assert (target.torch_version, target.cuda_version) == ("2.99.0+cu130", "13.0")
    assert [Path(p).name for p in target.torch_libraries] == ["libc10_cuda.so", "libtorch_cuda.so"]
    assert [Path(p).name for p in target.cuda_libraries] == ["libcudart.so.13"]
    assert [Path(p).parent.name for p in target.include_dirs] == ["cu13"]


def test_a_warm_look_starts_no_process(interpreter: Interpreter, tmp_path: Path) -> None:
    first = inspect_target(interpreter.python, tmp_path / "cache")
    assert inspect_target(interpreter.python, tmp_path / "cache") == first
    assert interpreter.run_count() == 1


@pytest.mark.parametrize("change", ["torch/version.py", "nvidia/cu13/lib/libcudart.so.13", "new-package/__init__.py"])
def test_a_changed_environment_is_looked_at_again(interpreter: Interpreter, tmp_path: Path, change: str) -> None:
    inspect_target(interpreter.python, tmp_path / "cache")
    interpreter.put(change, VERSION_PY.format(cuda="'13.2'") + "# changed")
    again = inspect_target(interpreter.python, tmp_path / "cache")
    assert interpreter.run_count() == 2
    assert again.cuda_version == ("13.2" if "version" in change else "13.0")


def test_a_damaged_record_is_ignored(interpreter: Interpreter, tmp_path: Path) -> None:
    first = inspect_target(interpreter.python, tmp_path / "cache")
    (record,) = (tmp_path / "cache" / "virtual-gpu" / "targets").iterdir()
    for damage in ("", "{}", "[]", record.read_text()[:50], '{"fingerprint": [], "watched": [], "target": {"x": 1}}'):
        record.write_text(damage)
        assert inspect_target(interpreter.python, tmp_path / "cache") == first


@pytest.mark.parametrize(
    ("facts", "cause", "way_out"),
    [
        ({"system": "Darwin", "machine": "arm64"}, "Darwin arm64", "--gpu cuda"),
        ({"machine": "aarch64"}, "Linux x86-64 only", "--gpu cuda"),
        ({"torch": None}, "has no torch", "--python"),
    ],
)
def test_unsuitable_interpreters(
    interpreter: Interpreter, tmp_path: Path, facts: dict[str, object], cause: str, way_out: str
) -> None:
    interpreter.answer(**facts)
    with pytest.raises(OombisectError) as caught:
        inspect_target(interpreter.python, tmp_path / "cache")
    assert cause in caught.value.cause and way_out in caught.value.way_out


def test_a_torch_without_cuda(interpreter: Interpreter, tmp_path: Path) -> None:
    interpreter.install(cuda="None")
    with pytest.raises(OombisectError, match="built without CUDA"):
        inspect_target(interpreter.python, tmp_path / "cache")


def test_missing_headers(interpreter: Interpreter, tmp_path: Path) -> None:
    (interpreter.site / "nvidia/cu13/include/cuda.h").unlink()
    with pytest.raises(OombisectError, match=r"headers of torch 2\.99"):
        inspect_target(interpreter.python, tmp_path / "cache")


def test_a_python_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(OombisectError, match="no Python interpreter"):
        inspect_target(tmp_path / "nothing", tmp_path / "cache")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho broken interpreter >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(OombisectError, match="broken interpreter"):
        inspect_target(broken, tmp_path / "cache")


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OombisectError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "record.json", "{}")
