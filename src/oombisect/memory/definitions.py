"""Which function of a Python file a line is in: a frame of a stack has a bare name, its class is in the source."""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Definition:
    """A function: `name` as in `MLP.forward`, the lines it covers (decorators included), from 1.

    `cls` is the class it is a method of (the nearest one around it, also for functions inside methods). `module`: that
    class is a `torch.nn.Module` by its looks: it, or a class of the file it inherits from, defines `forward` or names a
    base that ends in `Module`, and is no autograd function.
    """

    name: str
    start: int
    end: int
    cls: str | None = None
    module: bool = False

    @property
    def method(self) -> str:
        """The method it is or stands in (`MLP.forward` for `MLP.forward.glu`); outside of classes itself."""
        parts = self.name.split(".")
        return self.name if self.cls is None else ".".join(parts[: parts.index(self.cls) + 2])


class Definitions:
    """The functions of one file."""

    def __init__(self, found: tuple[Definition, ...]) -> None:
        self._found = found

    @classmethod
    @functools.lru_cache(maxsize=1024)  # both sides of a comparison have mostly the same files
    def of(cls, source: str) -> Definitions:
        """Those of a source text; none if it is no Python (of the version that runs this)."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # old escape sequences in other people's strings
                tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return cls(())
        classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        modules = {name for name in classes if _is_module(name, classes, frozenset())}
        return cls(tuple(_functions(tree, "", None, modules)))

    def at(self, line: int, function: str) -> Definition | None:
        """The innermost function of that bare name around a line; failing that, any innermost one around it.

        The latter is for lambdas and comprehensions, which belong to the function they stand in.
        """
        around = [d for d in self._found if d.start <= line <= d.end]
        named = [d for d in around if d.name.rpartition(".")[2] == function]
        return min(named or around, key=lambda d: d.end - d.start, default=None)


def _functions(node: ast.AST, prefix: str, cls: str | None, modules: set[str]) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.", child.name, modules)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            start = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            name = f"{prefix}{child.name}"
            yield Definition(name, start, child.end_lineno or child.lineno, cls, cls in modules)
            yield from _functions(child, f"{name}.", cls, modules)
        else:
            yield from _functions(child, prefix, cls, modules)


def _is_module(name: str, classes: dict[str, ast.ClassDef], seen: frozenset[str]) -> bool:
    node = classes[name]
    bases = [_last(base) for base in node.bases]
    if any(base.endswith("Function") for base in bases):
        return False
    if any(base.endswith("Module") for base in bases):
        return True
    if any(isinstance(item, ast.FunctionDef) and item.name == "forward" for item in node.body):
        return True
    seen |= {name}
    return any(base in classes and base not in seen and _is_module(base, classes, seen) for base in bases)


def _last(base: ast.expr) -> str:
    match base:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _last(value)
    return ""
