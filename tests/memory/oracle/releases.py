"""Interpreters with the releases of PyTorch whose rules differ."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDER = "2.9.1"


class NoRelease(Exception):
    """There is no interpreter with that release, and none can be made."""


def older_python(folder: Path) -> Path:
    """An interpreter with torch 2.9.1: OOMBISECT_TORCH29_PYTHON, or made in `folder` (a download of some 3 GB).

    Raises:
        NoRelease: the package index cannot be reached, or there is no uv.
    """
    given = os.environ.get("OOMBISECT_TORCH29_PYTHON")
    if given:
        return Path(given)
    python = folder / f"torch-{OLDER}" / "bin" / "python"
    uv = shutil.which("uv") or next(iter(Path(__file__).parents[3].glob(".venv-uv/bin/uv")), None)
    if uv is None:
        raise NoRelease("there is no uv to install it with")
    for command in (
        [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, python.parents[1]],
        [uv, "pip", "install", "--quiet", "--python", python, f"torch=={OLDER}"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NoRelease(f"torch {OLDER}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'no reason'}")
    return python
