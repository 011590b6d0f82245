"""The virtual GPU of one torch: built once into a cache, tested, and the environment that runs a process on it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oombisect.errors import OombisectError
from oombisect.units import TIB
from oombisect.virtual_gpu.compile import CORE, HERE, SOURCES, compile_libraries
from oombisect.virtual_gpu.profiles import CAPABILITY_LIMITS, PROFILES, GpuProfile
from oombisect.virtual_gpu.target import Target, inspect_target

OVERCOMMIT_BYTES = TIB
MAXIMUM_DEVICES = 16
_GENERATORS = ("build.py", "compile.py", "elf.py", "generate.py", "prototypes.py", "selftest.py")
_SELF_TEST_LIMIT_S = 600
_ABANDONED_AFTER_S = 3600.0


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
        """What to add to a process's environment so that it sees `profile` and nothing else.

        Args:
            profile: the GPU to show.
            limit_bytes: what context and allocations together may take; None lets them exceed the card ("overcommit"),
                so that one run tells its true peak.
            devices: how many such GPUs the machine has.
        """
        if not 1 <= devices <= MAXIMUM_DEVICES:
            raise OombisectError(f"{devices} virtual GPUs are too many or too few", f"Ask for 1 to {MAXIMUM_DEVICES}.")
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
        # What Triton and Inductor compile depends on the chip, and Inductor's tuning on its multiprocessors.
        compiled = self.cache / "virtual-gpu" / "compiled" / f"{self.torch_version}-sm{major}{minor}-{profile.sm_count}"
        return {
            "LD_PRELOAD": str(self.directory / CORE),
            **{f"OOMBISECT_VGPU_{name}": str(value) for name, value in values.items()},
            "TRITON_LIBCUDA_PATH": str(self.directory),
            "TRITON_CACHE_DIR": str(compiled / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
            "TORCH_EXTENSIONS_DIR": str(compiled / "extensions"),  # a killed build may lock it for good (torch 2.9)
            # Compiled in the process itself: its pool of helpers costs more than it brings for a few small kernels, and
            # on Python 3.12.1 with torch 2.9 it keeps the process waiting for five minutes at its end.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }


def prepare(python: Path, cache: Path, say: Callable[[str], None] = lambda _: None) -> VirtualGpu:
    """The virtual GPU for the torch of `python`, built on first use.

    A warm call starts no process and takes milliseconds; one that builds says so. Two builders at once are safe: each
    builds apart, the first to finish wins.

    Raises:
        OombisectError: no usable torch there, no C compiler, no space, or the self-test failed.
    """
    cache = cache.absolute()
    if any(separator in str(cache) for separator in ": ;"):
        raise OombisectError(
            f"The cache folder {str(cache)!r} has a space, colon or semicolon in its path: LD_PRELOAD cannot carry it",
            "Choose another cache folder.",
        )
    target = inspect_target(python, cache)
    home = cache / "virtual-gpu" / f"{target.torch_version}-cuda{target.cuda_version}-{_key(target)}"
    built = VirtualGpu(home, cache, target.torch_version, target.cuda_version)
    if not (home / "build.json").is_file():
        say(f"building the virtual GPU for torch {target.torch_version}, once")
        try:
            _build(python, target, built)
        except OSError as error:
            raise OombisectError(
                f"The virtual GPU cannot be built in {home.parent} ({error.strerror or error})",
                "Free some space there or choose another cache folder.",
            ) from error
    return built


def _build(python: Path, target: Target, wanted: VirtualGpu) -> None:
    """Compile and test apart, then move it into place."""
    parent = wanted.directory.parent
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent)
    scratch = Path(tempfile.mkdtemp(prefix=".build-", dir=parent))
    try:
        record = compile_libraries(target, scratch)
        trial = VirtualGpu(scratch, wanted.cache, wanted.torch_version, wanted.cuda_version)
        record["self_test"] = _self_test(python, trial)
        (scratch / "build.json").write_text(json.dumps(record, indent=1))
        scratch.chmod(0o755)
        try:
            scratch.rename(wanted.directory)
        except OSError:
            if not (wanted.directory / "build.json").is_file():  # else another builder was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove what builders that were killed left behind."""
    for leftover in parent.glob(".build-*"):
        try:
            abandoned = time.time() - leftover.stat().st_mtime > _ABANDONED_AFTER_S
        except OSError:
            continue
        if abandoned:
            shutil.rmtree(leftover, ignore_errors=True)


def _key(target: Target) -> str:
    """Changes with our sources, the generator, and the libraries that the functions come from."""
    digest = hashlib.sha256()
    sources = [HERE / name for name in _GENERATORS] + sorted(HERE.glob("*.txt"))
    sources += sorted(path for path in SOURCES.rglob("*") if path.is_file())
    for source in sources:
        digest.update(f"{source.relative_to(HERE)}\0".encode() + source.read_bytes() + b"\0")
    for library in sorted((*target.torch_libraries, *target.cuda_libraries)):
        digest.update(f"{Path(library).name}\0{Path(library).stat().st_size}\0".encode())
    return digest.hexdigest()[:16]


def _self_test(python: Path, virtual: VirtualGpu) -> dict[str, object]:
    profile = PROFILES["h100-80gb"]
    environment = {**os.environ, **virtual.environment(profile, limit_bytes=profile.total_bytes)}
    for name in ("CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "OOMBISECT_VGPU_ABORT_FILE"):
        environment.pop(name, None)
    try:
        done = subprocess.run(
            [python, HERE / "selftest.py"],
            capture_output=True, text=True, timeout=_SELF_TEST_LIMIT_S, env=environment, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise _refusal(str(error)) from error
    try:
        result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        tail = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise _refusal(f"it ended with exit code {done.returncode}: {tail}") from None
    if result.get("failed"):
        raise _refusal(str(result["failed"]))
    return result


def _refusal(what: str) -> OombisectError:
    return OombisectError(
        f"The virtual GPU was built but failed its self-test: {what}",
        "This torch is not supported yet: use another torch with --python, or a real GPU with --gpu cuda.",
    )
