"""The real allocator: a process with torch on the virtual GPU that answers what it did with each program."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from oombisect.virtual_gpu.build import VirtualGpu
from oombisect.virtual_gpu.profiles import parse_gpu

from .compare import Answer
from .program import Program

DRIVER = Path(__file__).with_name("driver.py")


class Oracle:
    """Asks one release of PyTorch; a context manager, which ends the process."""

    def __init__(self, python: Path, gpu: VirtualGpu) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "CUDA_"))}
        environment |= gpu.environment(parse_gpu("virtual:h100-80gb"))
        environment |= {"TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [python, DRIVER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        first = json.loads(self._read())
        self.torch: str = first["torch"]
        self.names: list[str] = first["names"]

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the driver ended with {self._process.wait()}"
        return line

    def ask(self, program: Program) -> Answer:
        """What the real allocator does with a program."""
        assert self._process.stdin is not None
        self._process.stdin.write(program.line + "\n")
        self._process.stdin.flush()
        answer: Answer = json.loads(self._read())
        return answer

    def ask_all(self, programs: Iterable[Program]) -> Iterator[tuple[Program, Answer]]:
        """Every program with its answer; while one is looked at here, the next is already run there."""
        assert self._process.stdin is not None
        waiting: list[Program] = []
        for program in programs:
            self._process.stdin.write(program.line + "\n")
            self._process.stdin.flush()
            waiting.append(program)
            if len(waiting) > 1:
                yield waiting.pop(0), json.loads(self._read())
        for program in waiting:
            yield program, json.loads(self._read())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait()
