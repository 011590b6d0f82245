"""The Python that probes run in: which one, and what is installed there. It is asked, never imported from."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from oombisect.errors import OombisectError
from oombisect.printable import printable

_ASK_SECONDS = 60

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
        OombisectError: it does not run, answers nonsense, or has no torch.
    """
    python = path or Path(sys.executable)
    try:
        version, packages, torch = _told(_ask(python))
    except (OSError, ValueError, RecursionError, subprocess.TimeoutExpired) as error:
        what = f"no answer in {_ASK_SECONDS} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise OombisectError(
            f"{printable(str(python))} cannot be used as the probes' interpreter: {printable(what)}",
            "Name a working Python with --python.",
        ) from error
    if not torch:
        raise OombisectError(
            f"{printable(str(python))} has no torch",
            "Name the environment that trains with --python PATH, or install oombisect[bridge,probe] into this one.",
        )
    return Interpreter(python, version, packages)


def _ask(python: Path) -> str:
    """What the interpreter prints when asked; ValueError if it fails at that."""
    answer = subprocess.run(
        [str(python), "-c", _ASK], capture_output=True, timeout=_ASK_SECONDS, stdin=subprocess.DEVNULL, check=False
    )
    if answer.returncode:
        lines = answer.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(f"it ended with {answer.returncode}: {lines[-1][:300] if lines else 'no output'}")
    return answer.stdout.decode(errors="replace")


def _told(text: str) -> tuple[str, tuple[str, ...], bool]:
    """Version, packages and whether there is torch; ValueError if `text` says none of it."""
    try:
        told = json.loads(text)
    except ValueError as error:
        raise ValueError("its answer is no JSON: is it a Python?") from error
    match told:
        case {"version": str(version), "packages": list(packages), "torch": bool(torch)}:
            # The version becomes the name of a folder.
            if re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,39}", version) and all(isinstance(p, str) for p in packages):
                return version, tuple(packages), torch
    raise ValueError("its answer is not what was asked for: is it a Python?")
