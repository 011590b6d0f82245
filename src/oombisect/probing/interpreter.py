"""The Python that probes run in: which one, and what is installed there. It is asked, never imported from."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from oombisect.errors import OombisectError

_ASK = """
import importlib.metadata, importlib.util, json, sys
names = sorted({(d.metadata["Name"] or "").lower() + "==" + (d.version or "") for d in importlib.metadata.distributions()})
print(json.dumps({"version": sys.version.split()[0], "packages": names, "torch": importlib.util.find_spec("torch") is not None}))
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A target interpreter. `fingerprint` changes when any installed package does."""

    path: Path
    version: str
    packages: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256("\n".join((self.version, *self.packages)).encode()).hexdigest()


def inspect_interpreter(path: Path | None) -> Interpreter:
    """The interpreter at `path`, or the one oombisect runs in.

    Raises:
        OombisectError: it does not run, or has no torch.
    """
    python = path or Path(sys.executable)
    try:
        answer = subprocess.run(
            [str(python), "-c", _ASK], capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL
        )
        told = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise OombisectError(
            f"{python} cannot be used as the probes' interpreter: {error}",
            "Name a working Python with --python.",
        ) from error
    if not told["torch"]:
        raise OombisectError(
            f"{python} has no torch",
            "Name the environment that trains with --python PATH, or install oombisect[bridge,probe] into this one.",
        )
    return Interpreter(python, told["version"], tuple(told["packages"]))
