"""The parameters of library functions, read from the C headers beside torch.

Enough of C for NVIDIA's API headers: plain prototypes without function pointers. A function that is not understood is
left out, and then nothing can be answered through one of its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_PROTOTYPE = re.compile(r"\b(\w+)\s*\(([^(){};]*)\)\s*;")
_PARAMETER = re.compile(r"^(?P<type>.+?[\s*&])(?P<name>\w+)(?:\[\w*\])?$", re.DOTALL)
_WIDTHS = {"int": 32, "int32_t": 32, "unsigned int": 32, "uint32_t": 32, "cufftHandle": 32, "size_t": 64, "int64_t": 64}


@dataclass(frozen=True)
class Output:
    """A parameter that points to an integer.

    Attributes:
        index: its place among the integer and pointer arguments.
        bits: the width of what it points to.
    """

    index: int
    bits: int


Prototypes = dict[str, dict[str, Output]]


def read_prototypes(headers: Iterable[Path]) -> Prototypes:
    """Function name -> its integer outputs by parameter name in lower case."""
    found: Prototypes = {}
    for header in headers:
        text = _COMMENT.sub(" ", header.read_text(errors="replace"))
        for name, parameters in _PROTOTYPE.findall(text):
            found.setdefault(name, _outputs(parameters))
    return found


def _outputs(parameters: str) -> dict[str, Output]:
    outputs: dict[str, Output] = {}
    index = 0
    for parameter in parameters.split(","):
        match = _PARAMETER.match(parameter.strip())
        if match is None:
            continue
        words = match["type"].replace("*", " * ").split()
        if "*" not in words and words[-1] in ("float", "double"):
            continue  # passed in a floating-point register
        kind = " ".join(word for word in words if word not in ("*", "const"))
        if words.count("*") == 1 and "const" not in words and kind in _WIDTHS:
            outputs[match["name"].lower()] = Output(index, _WIDTHS[kind])
        index += 1
    return outputs
