"""The PyPI releases of megatron-bridge as a git history: one commit per release, its megatron-core as the submodule.

Releases are downloaded when asked for (wheels, no dependencies) and unpacked into a repository in Bridge's layout. Each
is paired with the megatron-core release that its git tag pins.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

# megatron-bridge -> megatron-core, by the version that the release's git tag pins.
RELEASES = {
    "0.3.0": "0.16.0",
    "0.3.1": "0.16.1",
    "0.4.0": "0.17.0",
    "0.4.1": "0.17.0",
    "0.4.2": "0.17.1",
    "0.5.0": "0.18.0",
    "0.5.1": "0.18.2",
    "0.6.0": "0.19.0",
    "0.6.2": "0.19.2",
}
SUBMODULE = "3rdparty/Megatron-LM"


class NoDownload(Exception):
    """The package index cannot be reached, or there is no uv."""


def build(folder: Path) -> Path:
    """The Bridge repository in `folder`, with a tag `v<release>` on each commit.

    Raises:
        NoDownload: a release cannot be downloaded.
    """
    bridge, core = folder / "Megatron-Bridge", folder / "Megatron-LM"
    for repo in (bridge, core):
        repo.mkdir(parents=True)
        _git(repo, "init", "--quiet", "--initial-branch=main")
    pins: dict[str, str] = {}
    for release, core_release in RELEASES.items():
        if core_release not in pins:
            _replace(core / "megatron", _unpacked("megatron-core", core_release, folder) / "megatron")
            _commit(core, f"megatron-core {core_release}")
            pins[core_release] = _git(core, "rev-parse", "HEAD")
        _replace(bridge / "src/megatron", _unpacked("megatron-bridge", release, folder) / "megatron")
        (bridge / ".gitmodules").write_text(
            f'[submodule "{SUBMODULE}"]\n\tpath = {SUBMODULE}\n\turl = {core.as_uri()}\n'
        )
        _git(bridge, "add", "--all")
        _git(bridge, "update-index", "--add", "--cacheinfo", f"160000,{pins[core_release]},{SUBMODULE}")
        _git(bridge, "commit", "--quiet", "-m", f"Release {release} with megatron-core {core_release}")
        _git(bridge, "tag", f"v{release}")
    return bridge


def _unpacked(package: str, version: str, folder: Path) -> Path:
    target = folder / "wheels" / f"{package}-{version}"
    if target.is_dir():
        return target
    uv = shutil.which("uv") or next(iter(Path(__file__).parents[2].glob(".venv-uv/bin/uv")), None)
    if uv is None:
        raise NoDownload("there is no uv to download releases with")
    command = [str(uv), "pip", "install", "--quiet", "--no-deps", "--target", str(target), "--python", sys.executable]
    done = subprocess.run([*command, f"{package}=={version}"], capture_output=True, text=True)
    if done.returncode:
        raise NoDownload(f"{package} {version}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'no reason'}")
    return target


def _replace(target: Path, source: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))


def _commit(repo: Path, message: str) -> None:
    _git(repo, "add", "--all")
    _git(repo, "commit", "--quiet", "-m", message)


def _git(repo: Path, *arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in
            (("NAME", "releases"), ("EMAIL", "releases@localhost"), ("DATE", "1700000000 +0000"))}  # fmt: skip
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", "-C", str(repo), *arguments], env=env, check=True, capture_output=True, text=True
    ).stdout.strip()
