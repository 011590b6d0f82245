"""Parsing source text that anybody may have written: whatever is wrong with it, the answer is one exception."""

from __future__ import annotations

import ast
import warnings
from typing import Literal

FILE_LIMIT = 2 << 20
"""Bytes of a recipe file; the largest of Bridge's main, in 2026, has 0.11 MiB."""

REQUEST_LIMIT = 4096
"""Characters of a `--recipe`."""

# What `ast` raises for text that is no Python, or nests so deep that the parser's stack or ours ends (unparse and
# literal_eval walk the tree recursively); TypeError for a literal such as `{[]: 1}`.
UNREADABLE = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)


def parse_module(source: bytes) -> ast.Module:
    """The tree of a source file.

    Raises:
        UNREADABLE: it cannot be parsed, or is larger than `FILE_LIMIT`.
    """
    if len(source) > FILE_LIMIT:
        raise ValueError(f"{len(source)} bytes are no recipe file")
    return _parse(source, "exec", ast.Module)


def parse_expression(source: str) -> ast.expr:
    """The tree of one expression.

    Raises:
        UNREADABLE: it cannot be parsed.
    """
    return _parse(source, "eval", ast.Expression).body


def _parse[Tree: ast.AST](source: str | bytes, mode: Literal["exec", "eval"], kind: type[Tree]) -> Tree:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an invalid escape in somebody's string: not our user's to hear
        tree = ast.parse(source, mode=mode)
    assert isinstance(tree, kind)
    return tree
