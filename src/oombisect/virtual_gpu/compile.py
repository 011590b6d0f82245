"""Compiling the stand-in libraries for one torch installation into a folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from oombisect.errors import OombisectError
from oombisect.virtual_gpu import generate
from oombisect.virtual_gpu.elf import Library, read_library
from oombisect.virtual_gpu.prototypes import read_prototypes
from oombisect.virtual_gpu.target import Target

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "csrc"
CORE = "liboombisect_vgpu.so"
# Libraries that no wheel brings and programs load by name all the same.
_DRIVER_SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
# Not ours: BLAS and FFTW interfaces under other libraries' names, and helpers that only those libraries load.
_LEFT_ALONE = ("libnvblas", "libcufftw", "libcheckpoint", "libpcsamplingutil", "libnvperf")
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-g1", "-Wall", "-Wextra")
_TIME_LIMIT_S = 300


def compile_libraries(target: Target, folder: Path) -> dict[str, object]:
    """Build the core and one small library for each CUDA library's name.

    Returns:
        what there is to record: how many functions are known, written by hand, answered and unstubbed.

    Raises:
        OombisectError: no compiler, no space, headers that lack something, or sources that do not compile.
    """
    real = {path: read_library(Path(path)) for path in target.cuda_libraries if _is_ours(path)}
    torch = [read_library(Path(path)) for path in target.torch_libraries]
    driver_headers = _driver_headers(target)
    rows = generate.driver_names(*(text.read_text(errors="replace") for text in driver_headers))

    includes = [f"-I{SOURCES}", *(f"-I{directory}" for directory in target.include_dirs)]
    includes += ["-idirafter", str(SOURCES / "compat")]
    by_hand = sorted(SOURCES.glob("*.c"))
    run_compiler([*_FLAGS, *includes, "-c", *map(str, by_hand)], folder)
    objects = [f"{source.stem}.o" for source in by_hand]
    written = frozenset[str]().union(*(read_library(folder / name).functions for name in objects))

    universe = _universe(torch, real.values(), [*(row.symbol for row in rows), *generate.nvml_functions()])
    headers = [header for directory in target.include_dirs for header in sorted(Path(directory).glob("*.h"))]
    stubs, answered = generate.stub_source(universe, written, generate.read_answers(), read_prototypes(headers))
    sonames = _link_named_libraries(real.values(), folder)
    generated = {
        "stubs": stubs,
        "driver_names": generate.driver_names_source(rows),
        "sonames": generate.sonames_source(sonames),
    }
    for name, text in generated.items():
        (folder / f"{name}.c").write_text(text)
    run_compiler([*_FLAGS, "-fno-builtin", f"-I{SOURCES}", "-c", *(f"{name}.c" for name in generated)], folder)

    objects += [f"{name}.o" for name in generated]
    names = [f"./{soname}" for soname in sonames]
    run_compiler([*_shared(CORE), *objects, "-Wl,--no-as-needed", *names, "-lpthread", "-ldl"], folder)
    for leftover in (*folder.glob("*.o"), folder / "empty.c"):
        leftover.unlink()
    return {
        "torch": target.torch_version,
        "cuda": target.cuda_version,
        "known": len(universe),
        "written": len(written & universe),
        "answered": len(answered),
        "unstubbed": len(universe - written) - len(answered),
        "sonames": sonames,
    }


def _driver_headers(target: Target) -> tuple[Path, Path]:
    for folder in map(Path, target.include_dirs):
        if (folder / "cuda.h").is_file() and (folder / "cudaTypedefs.h").is_file():
            return folder / "cuda.h", folder / "cudaTypedefs.h"
    raise OombisectError(
        f"The CUDA headers beside torch {target.torch_version} lack cuda.h or cudaTypedefs.h",
        "Reinstall torch with its nvidia packages.",
    )


def _is_ours(path: str) -> bool:
    name = Path(path).name
    return ".alt." not in name and not name.startswith(_LEFT_ALONE) and name.startswith(("libcu", "libnv", "libnccl"))


def _universe(torch: list[Library], real: Iterable[Library], declared: Iterable[str]) -> frozenset[str]:
    """Every function of the CUDA libraries that this torch, or anything beside it, could call."""
    defined = {name for library in torch for name in library.functions}
    wanted = {name for library in torch for name in library.undefined} - defined
    exported = {name for library in real for name in library.functions}
    return frozenset(name for name in wanted | exported | set(declared) if generate.OURS.match(name))


def _shared(soname: str) -> list[str]:
    return ["-shared", "-fPIC", "-o", soname, f"-Wl,-soname,{soname}", "-Wl,-rpath,$ORIGIN"]


def _link_named_libraries(real: Iterable[Library], folder: Path) -> list[str]:
    """Empty libraries with the real sonames and symbol versions. Each leads to the core and the core loads them all,
    so preloading the core alone answers every request for one of these names."""
    versions = {library.soname: library.versions for library in real if library.soname}
    versions |= dict.fromkeys(_DRIVER_SONAMES, ())
    (folder / "empty.c").write_text("")
    run_compiler([*_shared(CORE), "empty.c"], folder)  # a first core, to link with
    for soname, defined in versions.items():
        script: list[str] = []
        plain = [name for name in defined if re.fullmatch(r"[\w.]+", name)]  # no program links to a name with a dash
        if plain:
            (folder / "versions.map").write_text("".join(f"{name} {{ }};\n" for name in plain))
            script = ["-Wl,--version-script=versions.map"]
        run_compiler([*_shared(soname), "empty.c", "-Wl,--no-as-needed", f"./{CORE}", *script], folder)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")  # the name that Triton links with
    return sorted(versions)


# ---- the C compiler ----


def find_compiler() -> list[str]:
    """$CC, cc, gcc or clang, whichever comes first. Raises OombisectError if there is none."""
    for candidate in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        words = candidate.split()
        if words and shutil.which(words[0]):
            return words
    raise OombisectError(
        "The virtual GPU needs a C compiler, and there is none ($CC, cc, gcc, clang)",
        "Install one, for example with apt-get install gcc libc6-dev, or set CC.",
    )


def run_compiler(arguments: list[str], folder: Path) -> None:
    """Run it in `folder`. Raises OombisectError with its first errors."""
    command = [*find_compiler(), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    environment["LC_ALL"] = "C"  # the errors are looked at
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIME_LIMIT_S, env=environment, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        cause = f"The C compiler {command[0]} does not run ({error})"
        raise OombisectError(cause, "Set CC to one that works.") from error
    if not done.returncode:
        return
    if "No space left on device" in done.stderr:
        raise OombisectError(f"No space is left to build the virtual GPU in {folder.parent}", "Free some there.")
    lines = done.stderr.splitlines()
    errors = [line for line in lines if "error" in line.lower()] or lines[-3:]
    detail = " / ".join(errors[:3]) or f"exit code {done.returncode}"
    raise OombisectError(
        f"The virtual GPU does not compile with {command[0]}: {detail}",
        "Check the compiler and its C library headers; a torch newer than this program may need a newer oombisect.",
    )
