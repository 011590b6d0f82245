"""What is in the interpreter that probes run in, without importing torch there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oombisect.errors import OombisectError

# Runs in the target, which may be any Python since 3.9. Finding a top-level module does not import it.
_INSPECT = """
import importlib.util, json, platform, re, sys
spec = importlib.util.find_spec("torch")
origin = spec.origin if spec and spec.origin else None
print(json.dumps({"system": platform.system(), "machine": platform.machine(), "python": platform.python_version(),
                  "torch": origin, "path": [entry for entry in sys.path if entry]}))
"""
_TIME_LIMIT_S = 60


@dataclass(frozen=True)
class Target:
    """A torch installation that the virtual GPU can be built for.

    Attributes:
        torch_version: e.g. `2.14.1+cu130`.
        cuda_version: the CUDA it was built with, e.g. `13.0`.
        torch_dir: the package folder.
        torch_libraries: torch's own libraries that use CUDA.
        cuda_libraries: the CUDA libraries beside torch, by soname file name.
        include_dirs: folders with the CUDA headers.
    """

    torch_version: str
    cuda_version: str
    torch_dir: str
    torch_libraries: tuple[str, ...]
    cuda_libraries: tuple[str, ...]
    include_dirs: tuple[str, ...]


_TORCH_WAY_OUT = (
    "Install a CUDA build of PyTorch there (pip install torch), or choose another interpreter with --python."
)


def inspect_target(python: Path, cache: Path) -> Target:
    """What torch `python` has. A warm call only looks at file times and starts no process.

    Raises:
        OombisectError: no interpreter, no torch, a torch without CUDA, missing CUDA libraries, not Linux x86-64.
    """
    if not python.is_file():
        raise OombisectError(f"There is no Python interpreter at {python}", "Give its path with --python.")
    key = hashlib.sha256(f"{python.absolute()}\0{os.environ.get('PYTHONPATH', '')}".encode()).hexdigest()[:20]
    record = cache / "virtual-gpu" / "targets" / f"{key}.json"
    try:
        stored: dict[str, Any] = json.loads(record.read_text())
        if stored["fingerprint"] == _fingerprint(stored["watched"]):
            fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored["target"].items()}
            return Target(**fields)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no record yet, or one of another version: look again
    target, watched = _inspect(python)
    write_atomically(
        record, json.dumps({"target": asdict(target), "watched": watched, "fingerprint": _fingerprint(watched)})
    )
    return target


def _fingerprint(paths: list[str]) -> list[list[int] | None]:
    """Modification time (ns) and size of each path, or None where there is none."""
    found: list[list[int] | None] = []
    for path in paths:
        try:
            status = Path(path).stat()
            found.append([status.st_mtime_ns, status.st_size])
        except OSError:
            found.append(None)
    return found


def _inspect(python: Path) -> tuple[Target, list[str]]:
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    environment.pop("LD_PRELOAD", None)
    try:
        done = subprocess.run(
            [python, "-c", _INSPECT], capture_output=True, text=True, timeout=_TIME_LIMIT_S, env=environment, check=True
        )
        facts: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        raise OombisectError(
            f"{python} does not run: {str(detail).strip()[-300:]}", "Give another one with --python."
        ) from error
    if (facts["system"], facts["machine"]) != ("Linux", "x86_64"):
        raise OombisectError(
            f"The virtual GPU runs on Linux x86-64 only, and {python} is for {facts['system']} {facts['machine']}",
            "Use a Linux x86-64 machine, or a real GPU with --gpu cuda.",
        )
    if facts["torch"] is None:
        raise OombisectError(f"{python} has no torch", _TORCH_WAY_OUT)
    torch_dir = Path(facts["torch"]).parent
    version = _version_constants(torch_dir / "version.py", python)
    library_dir = torch_dir / "lib"
    if not version.get("cuda") or not (library_dir / "libtorch_cuda.so").is_file():
        raise OombisectError(
            f"The torch {version.get('__version__', '?')} of {python} is built without CUDA", _TORCH_WAY_OUT
        )
    roots = [torch_dir.parent, *(Path(entry) for entry in facts["path"])]
    nvidia = list(dict.fromkeys(root / "nvidia" for root in roots if (root / "nvidia").is_dir()))
    folders = sorted(folder for root in nvidia for folder in root.iterdir() if folder.is_dir())
    cuda_libraries = [
        *library_dir.glob("lib*.so.*"),
        *(library for folder in folders for library in folder.glob("lib/lib*.so*")),
    ]
    includes = [folder / "include" for folder in folders if (folder / "include").is_dir()]
    if not any((folder / "cuda.h").is_file() for folder in includes):
        raise OombisectError(
            f"The CUDA headers of torch {version['__version__']} are missing beside {torch_dir}",
            "Reinstall torch with its nvidia packages; torch's own wheels bring the headers in nvidia/*/include.",
        )
    target = Target(
        torch_version=str(version["__version__"]),
        cuda_version=str(version["cuda"]),
        torch_dir=str(torch_dir),
        torch_libraries=tuple(str(path) for path in sorted(library_dir.glob("lib*.so"))),
        cuda_libraries=tuple(str(path) for path in sorted(cuda_libraries)),
        include_dirs=tuple(str(folder) for folder in includes),
    )
    watched = [
        str(python.resolve()),
        str(python.parent.parent / "pyvenv.cfg"),
        facts["torch"],
        str(torch_dir / "version.py"),
    ]
    watched += [str(torch_dir.parent), *(str(root) for root in nvidia)]
    watched += [*target.torch_libraries, *target.cuda_libraries]
    return target, watched


def _version_constants(path: Path, python: Path) -> dict[str, object]:
    """The plain assignments of torch/version.py."""
    try:
        text = path.read_text()
    except OSError as error:
        raise OombisectError(f"The torch of {python} is broken ({error})", _TORCH_WAY_OUT) from error
    values: dict[str, object] = {}
    for line in text.splitlines():
        name, separator, value = line.partition(" = ")
        name = name.split(":")[0].strip()
        if separator and name.isidentifier():
            values[name] = None if value.strip() == "None" else value.strip().strip("'\"")
    return values


def write_atomically(path: Path, text: str) -> None:
    """Write `text` under a temporary name and rename it. Raises OombisectError if that cannot be done."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OombisectError(
            f"{path.parent} cannot be written ({error.strerror or error})",
            "Free some space or choose another cache folder.",
        ) from error
