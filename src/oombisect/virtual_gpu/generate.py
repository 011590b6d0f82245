"""From the symbols of the real libraries to C: one answer or one aborting stub for each.

The universe is every function that torch's libraries take from a CUDA library, every function that the CUDA
libraries beside torch export, and every driver function that cuda.h declares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from oombisect.errors import OombisectError
from oombisect.virtual_gpu.prototypes import Prototypes

HERE = Path(__file__).resolve().parent
# Every name the stand-in may claim. BLAS and FFTW interfaces (nvblas, cufftw) are left alone: NumPy has its own.
OURS = re.compile(
    r"(__cuda[A-Z]|cuda[A-Z]|cu[A-Z]|cublas|cudnn|cufft|curand|cusolver|cusparse|cupti|nvrtc|nvJitLink|nccl|pnccl|nvml[A-Z]"
    r"|nvtx[A-Z]|nvshmem|nvPTX)\w*$"
)
_BEHAVIOURS = {
    "success": re.compile(""),
    "launch": re.compile(""),
    "create": re.compile(r":\d+"),
    "put": re.compile(r":\w+:-?\d+"),
    "return": re.compile(r":-?\d+"),
}


@dataclass(frozen=True)
class Answer:
    """One line of answers.txt: what functions match, and what they do."""

    pattern: str
    behaviours: tuple[str, ...]


def read_answers(path: Path = HERE / "answers.txt") -> list[Answer]:
    """The reviewed list, in order; the first match wins. Raises OombisectError on a line it does not understand."""
    answers = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        pattern, *behaviours = words
        if behaviours == ["-"]:
            behaviours = []
        for behaviour in behaviours:
            name = behaviour.split(":")[0]
            if name not in _BEHAVIOURS or not _BEHAVIOURS[name].fullmatch(behaviour.removeprefix(name)):
                raise OombisectError(
                    f"{path.name}:{number}: {behaviour!r} is no behaviour", "See the head of that file."
                )
        answers.append(Answer(pattern, tuple(behaviours)))
    return answers


def nvml_functions(path: Path = HERE / "nvml_functions.txt") -> list[str]:
    """NVML's functions, by name."""
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def _body(symbol: str, behaviours: tuple[str, ...], prototypes: Prototypes) -> str | None:
    """The C statements, or None if the headers do not tell where a named parameter is."""
    parts = []
    for behaviour in behaviours:
        name, *values = behaviour.split(":")
        if name == "put":
            output = prototypes.get(symbol, {}).get(values[0].lower())
            if output is None:
                return None
            parts.append(f"ANSWER_PUT{output.bits}(a{output.index}, {values[1]})")
        elif name == "create":
            parts.append(f"ANSWER_CREATE(a{values[0]})")
        elif name == "return":
            parts.append(f"ANSWER_RETURN({values[0]})")
        else:
            parts.append(f"ANSWER_{name.upper()}")
    if not any(behaviour.startswith("return:") for behaviour in behaviours):
        parts.append("return 0;")
    return " ".join(parts)


def stub_source(
    universe: Iterable[str], written: frozenset[str], answers: list[Answer], prototypes: Prototypes
) -> tuple[str, list[str]]:
    """C source with a definition for each symbol of `universe` that is not `written` by hand.

    Returns:
        the source, and the names that are answered on purpose (the others end the process).
    """
    lines = ['#include "answers.h"', '#pragma GCC diagnostic ignored "-Wunused-parameter"']
    answered = []
    for symbol in sorted(set(universe) - written):
        match = next((answer for answer in answers if fnmatchcase(symbol, answer.pattern)), None)
        body = _body(symbol, match.behaviours, prototypes) if match and match.behaviours else None
        if body is None:
            lines.append(f"UNSTUBBED({symbol})")
        else:
            lines.append(f"FUNCTION({symbol}, {body})")
            answered.append(symbol)
    return "\n".join(lines) + "\n", answered


# ---- driver functions by name ----

_DECLARED = re.compile(r"\bCUresult\s+CUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_RENAMED = re.compile(
    r"^\s*#\s*define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_PT[DS]+Z?\()?(cu[A-Z]\w*?)(_v\d+)?\)?\s*$", re.MULTILINE
)
_TYPED = re.compile(r"\bPFN_(cu[A-Z]\w*?)_v(\d+)\)")


@dataclass(frozen=True)
class DriverName:
    """A name that programs ask for, the CUDA version its ABI dates from, and the symbol that has that ABI."""

    name: str
    since: int
    symbol: str


def declared_driver_functions(cuda_h: str) -> frozenset[str]:
    """Every driver symbol cuda.h declares, after its own renaming (cuMemAlloc -> cuMemAlloc_v2)."""
    renamed = {name: base + (suffix or "") for name, base, suffix in _RENAMED.findall(cuda_h)}
    declared = set(_DECLARED.findall(cuda_h))
    return frozenset(declared | {renamed.get(name, name) for name in declared})


def driver_names(cuda_h: str, typedefs_h: str) -> list[DriverName]:
    """Which symbol answers a name at which CUDA version.

    cudaTypedefs.h lists the CUDA version of each ABI of a name, cuda.h declares the symbols: the newest version belongs
    to the symbol of another name that cuda.h renames to, if there is one, else to the highest suffix; the version
    before it to the suffix before that, and so on.
    """
    renamed = {name: base for name, base, _ in _RENAMED.findall(cuda_h)}
    versions: dict[str, set[int]] = {}
    for name, since_text in _TYPED.findall(typedefs_h):
        versions.setdefault(name, set()).add(int(since_text))
    declared = declared_driver_functions(cuda_h)
    suffixes: dict[str, set[int]] = {}
    for symbol in declared:
        base, _, version = symbol.partition("_v")
        suffixes.setdefault(base, set()).add(int(version) if version.isdigit() else 1)
    rows = []
    for name in sorted(set(suffixes) | set(versions)):
        symbols = [renamed[name]] if renamed.get(name, name) != name else []
        for suffix in range(max(suffixes.get(name, {0})), 0, -1):
            symbols.append(name if suffix == 1 else f"{name}_v{suffix}")
        for since, symbol in zip(sorted(versions.get(name, {0}), reverse=True), symbols):
            if symbol in declared:
                rows.append(DriverName(name, since, symbol))
    rows += [DriverName(symbol, 0, symbol) for symbol in sorted(declared) if re.search(r"_v\d+$", symbol)]
    return rows


def driver_names_source(rows: list[DriverName]) -> str:
    """The table that entry_points.c searches."""
    lines = ['#include "driver_names.h"']
    lines += [f"void {symbol}(void);" for symbol in sorted({row.symbol for row in rows})]
    lines.append("const DriverName vgpu_driver_names[] = {")
    lines += [f'    {{"{row.name}", {row.since}, {row.symbol}}},' for row in rows]
    lines += ["    {0, 0, 0},", "};"]
    return "\n".join(lines) + "\n"


def sonames_source(sonames: Iterable[str]) -> str:
    """The names that loading.c answers itself."""
    rows = "".join(f'    "{soname}",\n' for soname in sonames)
    return f"extern const char *const vgpu_sonames[];\nconst char *const vgpu_sonames[] = {{\n{rows}    0,\n}};\n"
