"""Building the virtual GPU for one torch, once, into a cache; and the environment that runs a process on it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oombisect.errors import OombisectError
from oombisect.units import TIB
from oombisect.virtual_gpu import generate
from oombisect.virtual_gpu.elf import Library, read_library
from oombisect.virtual_gpu.profiles import CAPABILITY_LIMITS, PROFILES, GpuProfile
from oombisect.virtual_gpu.prototypes import read_prototypes
from oombisect.virtual_gpu.target import Target, inspect_target

HERE = Path(__file__).resolve().parent
CORE = "liboombisect_vgpu.so"
OVERCOMMIT_BYTES = TIB
# Libraries that programs load by name, whether or not a wheel has them.
_DRIVER_SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
# Not ours: BLAS and FFTW interfaces under the names of other libraries, and helpers nobody loads by name.
_LEFT_ALONE = (
    "libnvblas",
    "libnvrtc-builtins",
    "libcufftw",
    "libcheckpoint",
    "libpcsamplingutil",
    "libnvperf",
    "libgomp",
    "nvshmem_",
)
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-g1", "-Wall", "-Wextra")
_COMPILE_LIMIT_S = 300
_SELF_TEST_LIMIT_S = 300


@dataclass(frozen=True)
class VirtualGpu:
    """A built and self-tested stand-in for the CUDA libraries of one torch.

    Attributes:
        directory: the built libraries.
        cache: the cache folder it lies in; Triton's and Inductor's caches lie there too.
        torch_version, cuda_version: what it was built for.
    """

    directory: Path
    cache: Path
    torch_version: str
    cuda_version: str

    def environment(self, profile: GpuProfile, *, limit_bytes: int | None = None, devices: int = 1) -> dict[str, str]:
        """What to add to a process's environment so that it sees `profile`.

        Args:
            profile: the GPU to show.
            limit_bytes: what context and allocations together may take; None lets them exceed the card ("overcommit").
            devices: how many such GPUs the machine has.
        """
        limits = CAPABILITY_LIMITS[profile.compute_capability]
        major, minor = profile.compute_capability
        values: dict[str, str | int] = {
            "NAME": profile.marketing_name,
            "TOTAL_BYTES": profile.total_bytes,
            "NVML_TOTAL_BYTES": profile.nvml_total_bytes,
            "CONTEXT_BYTES": profile.context_bytes,
            "LIMIT_BYTES": OVERCOMMIT_BYTES if limit_bytes is None else limit_bytes,
            "L2_BYTES": profile.l2_bytes,
            "SHARED_PER_SM_BYTES": limits.shared_per_sm_bytes,
            "SHARED_OPTIN_BYTES": limits.shared_optin_bytes,
            "SM_COUNT": profile.sm_count,
            "THREADS_PER_SM": limits.threads_per_sm,
            "BLOCKS_PER_SM": limits.blocks_per_sm,
            "MAJOR": major,
            "MINOR": minor,
            "MEMORY_BUS_BITS": profile.memory_bus_bits,
            "CLOCK_KHZ": profile.clock_khz,
            "MEMORY_CLOCK_KHZ": profile.memory_clock_khz,
            "DEVICES": devices,
        }
        compiled = self.cache / "virtual-gpu" / "compiled" / f"{self.torch_version}-sm{major}{minor}-{profile.sm_count}"
        return {
            "LD_PRELOAD": str(self.directory / CORE),
            **{f"OOMBISECT_VGPU_{name}": str(value) for name, value in values.items()},
            "TRITON_LIBCUDA_PATH": str(self.directory),
            "TRITON_CACHE_DIR": str(compiled / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
            # Compiled in the process itself: its pool of helpers costs more than it brings for a few small kernels, and
            # on Python 3.12.1 with torch 2.9 it keeps the process waiting for five minutes at its end.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }


def prepare(python: Path, cache: Path) -> VirtualGpu:
    """The virtual GPU for the torch of `python`, built on first use.

    A warm call starts no process and takes milliseconds. Two builders at once are safe: each builds apart, the first
    to finish wins.

    Raises:
        OombisectError: no usable torch there, no C compiler, no space, or the self-test failed.
    """
    cache = cache.absolute()
    if any(separator in str(cache) for separator in ": ;"):
        raise OombisectError(
            f"The cache folder {str(cache)!r} has a space, colon or semicolon in its path, which LD_PRELOAD cannot carry",
            "Choose another cache folder.",
        )
    target = inspect_target(python, cache)
    name = f"{target.torch_version}-cuda{target.cuda_version}-{_key(target)}"
    home = cache / "virtual-gpu" / name
    built = VirtualGpu(home, cache, target.torch_version, target.cuda_version)
    if (home / "build.json").is_file():
        return built
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".build-", dir=home.parent))
    except OSError as error:
        raise _no_space(home.parent, error) from error
    try:
        record = _build(target, scratch)
        record["self_test"] = _self_test(python, VirtualGpu(scratch, cache, target.torch_version, target.cuda_version))
        (scratch / "build.json").write_text(json.dumps(record, indent=1))
        try:
            scratch.rename(home)
        except OSError:
            if not (home / "build.json").is_file():  # not simply another builder that was faster
                raise
    except OSError as error:
        raise _no_space(home.parent, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return built


def _no_space(folder: Path, error: OSError) -> OombisectError:
    return OombisectError(
        f"The virtual GPU cannot be built in {folder} ({error.strerror or error})",
        "Free some space there or choose another cache folder.",
    )


def _key(target: Target) -> str:
    """Changes with our sources, the generator, and the libraries that the symbols come from."""
    digest = hashlib.sha256()
    sources = [*HERE.glob("*.py"), HERE / "answers.txt", *(p for p in (HERE / "csrc").rglob("*") if p.is_file())]
    for source in sorted(sources):
        digest.update(f"{source.relative_to(HERE)}\0".encode() + source.read_bytes())
    for library in (*target.torch_libraries, *target.cuda_libraries):
        path = Path(library)
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
    return digest.hexdigest()[:16]


# ---- building ----


def _compiler() -> str:
    for candidate in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if candidate and shutil.which(candidate.split()[0]):
            return candidate
    raise OombisectError(
        "The virtual GPU needs a C compiler, and there is none (tried $CC, cc, gcc, clang)",
        "Install one, e.g. apt-get install gcc libc6-dev, or set CC.",
    )


def _run_compiler(arguments: list[str], folder: Path) -> None:
    command = [*_compiler().split(), *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_COMPILE_LIMIT_S,
            env=_plain_environment(),
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise OombisectError(
            f"The C compiler {command[0]} does not run ({error})", "Set CC to one that works."
        ) from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()[-3:]
        raise OombisectError(
            f"The virtual GPU does not compile with {command[0]}: {' / '.join(errors[:3])}",
            "Check the disk space and the compiler; a torch newer than this program knows needs a newer oombisect.",
        )


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def _is_ours(path: str) -> bool:
    name = Path(path).name
    return ".alt." not in name and not name.startswith(_LEFT_ALONE) and name.startswith(("libcu", "libnv", "libnccl"))


def _build(target: Target, folder: Path) -> dict[str, object]:
    """Compile into `folder`; returns what the record says."""
    driver_headers = _find_headers(target)
    real = {path: read_library(Path(path)) for path in target.cuda_libraries if _is_ours(path)}
    torch = [read_library(Path(path)) for path in target.torch_libraries]
    cuda_h, typedefs_h = (driver_headers / name for name in ("cuda.h", "cudaTypedefs.h"))
    rows = generate.driver_names(cuda_h.read_text(errors="replace"), typedefs_h.read_text(errors="replace"))

    includes = [f"-I{HERE / 'csrc'}", *(f"-I{folder}" for folder in target.include_dirs)]
    includes += ["-idirafter", str(HERE / "csrc" / "compat")]
    by_hand = sorted((HERE / "csrc").glob("*.c"))
    _run_compiler([*_FLAGS, *includes, "-c", *map(str, by_hand)], folder)
    objects = [f"{source.stem}.o" for source in by_hand]
    written = frozenset[str]().union(*(read_library(folder / name).functions for name in objects))

    universe = _universe(torch, real.values(), (row.symbol for row in rows))
    headers = [header for directory in target.include_dirs for header in sorted(Path(directory).glob("*.h"))]
    source, answered = generate.stub_source(universe, written, generate.read_answers(), read_prototypes(headers))
    (folder / "stubs.c").write_text(source)
    (folder / "driver_names.c").write_text(generate.driver_names_source(rows))
    sonames = _link_named_libraries(real.values(), folder)
    (folder / "sonames.c").write_text(generate.sonames_source(sonames))
    _run_compiler([*_FLAGS, "-fno-builtin", includes[0], "-c", "stubs.c", "driver_names.c", "sonames.c"], folder)
    links = [f"./{soname}" for soname in sonames]
    _run_compiler(
        ["-shared", "-o", CORE, *objects, "stubs.o", "driver_names.o", "sonames.o", f"-Wl,-soname,{CORE}", "-Wl,-rpath,$ORIGIN",
         "-Wl,--no-as-needed", *links, "-lpthread", "-ldl"],
        folder,
    )  # fmt: skip
    for leftover in folder.glob("*.o"):
        leftover.unlink()
    return {
        "torch": target.torch_version,
        "cuda": target.cuda_version,
        "universe": len(universe),
        "written": len(written & universe),
        "answered": len(answered),
        "unstubbed": len(universe - written) - len(answered),
        "sonames": sonames,
    }


def _find_headers(target: Target) -> Path:
    for folder in map(Path, target.include_dirs):
        if (folder / "cuda.h").is_file() and (folder / "cudaTypedefs.h").is_file():
            return folder
    raise OombisectError("The CUDA headers beside torch lack cudaTypedefs.h", "Reinstall torch's nvidia packages.")


def _universe(torch: list[Library], real: Iterable[Library], driver: Iterable[str]) -> frozenset[str]:
    defined = {name for library in torch for name in library.functions}
    wanted = {name for library in torch for name in library.undefined} - defined
    exported = {name for library in real for name in library.functions}
    return frozenset(name for name in wanted | exported | set(driver) if generate.OURS.match(name))


def _link_named_libraries(real: Iterable[Library], folder: Path) -> list[str]:
    """Empty libraries with the real sonames and symbol versions. Each leads to the core, and the core loads them all:
    preloading the core alone then answers every request for one of these names."""
    versions = {library.soname: library.versions for library in real if library.soname}
    versions |= {soname: () for soname in _DRIVER_SONAMES}
    (folder / "empty.c").write_text("")
    _run_compiler(["-shared", "-fPIC", "-o", CORE, "empty.c", f"-Wl,-soname,{CORE}"], folder)  # a first core to link to
    for soname, names in versions.items():
        script: list[str] = []
        plain = [name for name in names if re.fullmatch(r"[\w.]+", name)]  # nothing links to libnvrtc-builtins by version
        if plain:
            (folder / "versions.map").write_text("".join(f"{name} {{ }};\n" for name in plain))
            script = ["-Wl,--version-script=versions.map"]
        _run_compiler(
            ["-shared", "-fPIC", "-o", soname, "empty.c", f"-Wl,-soname,{soname}", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed",
             f"./{CORE}", *script],
            folder,
        )  # fmt: skip
    (folder / "libcuda.so").symlink_to("libcuda.so.1")  # the name that Triton links with
    return sorted(versions)


# ---- the self-test ----


def _self_test(python: Path, virtual: VirtualGpu) -> dict[str, object]:
    profile = PROFILES["h100-80gb"]
    environment = {**os.environ, **virtual.environment(profile, limit_bytes=profile.total_bytes)}
    try:
        done = subprocess.run(
            [python, HERE / "selftest.py"],
            capture_output=True, text=True, timeout=_SELF_TEST_LIMIT_S, env=environment, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise _self_test_failed(str(error)) from error
    try:
        result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        tail = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise _self_test_failed(f"it ended with exit code {done.returncode}: {tail}") from None
    if result.get("failed"):
        raise _self_test_failed(str(result["failed"]))
    return result


def _self_test_failed(what: str) -> OombisectError:
    return OombisectError(
        f"The virtual GPU was built but failed its self-test: {what}",
        "This torch is not supported yet: use another torch with --python, or a real GPU with --gpu cuda.",
    )
