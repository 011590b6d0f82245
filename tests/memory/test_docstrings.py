"""Everything public in the memory package says what it is for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import oombisect.memory

ROOT = Path(oombisect.memory.__file__).parent


def undocumented(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """The names of public classes, functions, methods and properties without a docstring."""
    for node in body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from undocumented(node.body, f"{prefix}{node.name}.")


def test_what_has_no_docstring_is_found() -> None:
    source = (
        "class A:\n    'a'\n    def b(self): ...\n    def _c(self): ...\n"
        "def d():\n    'd'\nclass _E:\n    def f(self): ..."
    )
    assert list(undocumented(ast.parse(source).body)) == ["A.b"]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_all_that_is_public_has_a_docstring(path: Path) -> None:
    module = ast.parse(path.read_text())
    assert ast.get_docstring(module)
    assert not list(undocumented(module.body))
