"""Lays commits of the demo out on disk, without any of the code that is tested elsewhere."""

import io
import subprocess
import tarfile
from pathlib import Path

from oombisect.demo.repository import MEGATRON, SUBMODULE, DemoRepository


def git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def first_parents(demo: DemoRepository) -> list[str]:
    """All commits of the line, oldest first: the root included."""
    return git(demo.path, "log", "--first-parent", "--reverse", "--format=%H", demo.bad).split()


def lay_out(demo: DemoRepository, sha: str, target: Path) -> Path:
    """The tree of `sha` below `target`, its submodule included."""
    _unpack(demo.path, sha, target)
    _unpack(demo.path.parent / MEGATRON, git(demo.path, "rev-parse", f"{sha}:{SUBMODULE}"), target / SUBMODULE)
    return target


def lay_out_source(demo: DemoRepository, sha: str, target: Path) -> Path:
    """The tree of `sha` below `target`, without its submodule."""
    _unpack(demo.path, sha, target)
    return target


def _unpack(repository: Path, sha: str, target: Path) -> None:
    archive = subprocess.run(["git", "archive", sha], cwd=repository, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")
