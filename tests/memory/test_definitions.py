"""Which function and class a line is in."""

from __future__ import annotations

import pytest

from oombisect.memory.definitions import Definitions

SOURCE = """import torch

def free(x):
    return [x for _ in range(3)]

class Base(MegatronModule, ABC):
    def forward(self, x):
        def glu(y):
            return y * 2
        return glu(x)

class Derived(Base):
    @property
    @cached
    def size(self):
        return (lambda: 1)()

class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx):
        return 1

class Plain:
    def run(self):
        return 1

class Outer:
    class Inner(nn.Module):
        async def go(self):
            return 1
"""


@pytest.mark.parametrize(
    ("line", "function", "name", "method", "start", "module"),
    [
        (4, "free", "free", "free", 3, False),
        (4, "<listcomp>", "free", "free", 3, False),
        (9, "glu", "Base.forward.glu", "Base.forward", 8, True),
        (10, "forward", "Base.forward", "Base.forward", 7, True),
        (16, "size", "Derived.size", "Derived.size", 13, True),
        (16, "<lambda>", "Derived.size", "Derived.size", 13, True),
        (21, "forward", "Fn.forward", "Fn.forward", 19, False),
        (25, "run", "Plain.run", "Plain.run", 24, False),
        (30, "go", "Outer.Inner.go", "Outer.Inner.go", 29, True),
    ],
)
def test_the_function_around_a_line(line: int, function: str, name: str, method: str, start: int, module: bool) -> None:
    found = Definitions.of(SOURCE).at(line, function)
    assert found is not None
    assert (found.name, found.method, found.start, found.module) == (name, method, start, module)


def test_outside_of_functions_there_is_none() -> None:
    assert Definitions.of(SOURCE).at(1, "<module>") is None


@pytest.mark.parametrize("source", ["def f(:\n", "\0", "(" * 5000, "class A(A):\n  def f(self): pass\n"])
def test_what_is_no_python_has_no_functions(source: str) -> None:
    found = Definitions.of(source).at(2, "f")
    assert found is None or found.name == "A.f"
