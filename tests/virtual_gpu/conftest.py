"""A virtual GPU for the interpreter that runs the tests, and children that run on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oombisect.errors import OombisectError
from oombisect.virtual_gpu.build import VirtualGpu, prepare
from oombisect.virtual_gpu.compile import find_compiler
from oombisect.virtual_gpu.profiles import parse_gpu
from oombisect.virtual_gpu.target import inspect_target

# Every child prints one JSON object and ends without interpreter clean-up (torch's threads can abort that).
_PROLOGUE = """
import ctypes, json, os, sys
def report(**values):
    print(json.dumps(values))
    sys.stdout.flush()
    os._exit(0)
cuda = ctypes.CDLL(None)
def figure(name):
    function = getattr(cuda, "oombisect_vgpu_" + name)
    function.restype = ctypes.c_uint64
    return function()
"""


@dataclass(frozen=True)
class Child:
    """What a child left behind."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """The JSON object it printed."""
        assert self.code == 0, self.err
        values: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return values


Run = Callable[..., Child]


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter under test."""
    return Path(sys.executable)


@pytest.fixture(scope="session")
def virtual_gpu(python: Path, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> VirtualGpu:
    """Built once and kept between test runs: the cache's key changes with the sources."""
    kept = getattr(pytestconfig, "cache", None)
    cache = Path(kept.mkdir("virtual-gpu")) if kept else tmp_path_factory.mktemp("virtual-gpu")
    try:
        inspect_target(python, cache)
        find_compiler()
    except OombisectError as error:
        pytest.skip(error.cause)
    return prepare(python, cache)


@pytest.fixture(scope="session")
def run(virtual_gpu: VirtualGpu, python: Path) -> Run:
    """Run a script in a child on the virtual GPU."""

    def run_child(
        script: str,
        *,
        gpu: str = "virtual:h100-80gb",
        limit_bytes: int | None = None,
        devices: int = 1,
        extra: Mapping[str, str] | None = None,
    ) -> Child:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "CUDA_"))}
        environment |= virtual_gpu.environment(parse_gpu(gpu), limit_bytes=limit_bytes, devices=devices)
        environment |= extra or {}
        done = subprocess.run(
            [python, "-c", _PROLOGUE + textwrap.dedent(script)],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        return Child(done.returncode, done.stdout, done.stderr)

    return run_child
