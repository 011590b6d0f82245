"""Small real git repositories in Bridge's layout, made commit by commit with `git fast-import`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

GITLINK = "3rdparty/Megatron-LM"
RECIPE = "src/megatron/bridge/recipes/qwen/qwen3.py"
_ENV = {
    **{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(directory: Path, *arguments: str, stdin: str = "", env: dict[str, str] | None = None) -> str:
    """Run git as a user's own git would run it, with no configuration but the repository's."""
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments],
        input=stdin, capture_output=True, text=True, env={**_ENV, **(env or {})},
    )  # fmt: skip
    assert done.returncode == 0, f"git {arguments}: {done.stderr}"
    return done.stdout.strip()


class History:
    """A repository with a work tree; `commit` appends to a branch and answers the new commit's id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = 1_750_000_000
        if not path.exists():
            path.mkdir(parents=True)
            git(path, "init", "--quiet", "--initial-branch=main")

    def commit(
        self,
        subject: str,
        files: dict[str, str | None] | None = None,
        *,
        branch: str = "main",
        start: str | None = None,
        merge: str | None = None,
        gitlinks: dict[str, str] | None = None,
        symlinks: dict[str, str] | None = None,
    ) -> str:
        """A commit on `branch` (begun at `start`): `files` by path, None deletes."""
        self.clock += 60
        lines = [f"commit refs/heads/{branch}", f"committer Ann Author <ann@example.org> {self.clock} +0000"]
        lines += [f"data {len(subject.encode())}", subject]
        parent = start or self.tip(branch)
        lines += [f"from {parent}"] if parent else []
        lines += [f"merge {merge}"] if merge else []
        for path, text in (files or {}).items():
            lines += [f"D {path}"] if text is None else [f"M 100644 inline {path}", f"data {len(text.encode())}", text]
        lines += [f"M 160000 {sha} {path}" for path, sha in (gitlinks or {}).items()]
        for path, target in (symlinks or {}).items():
            lines += [f"M 120000 inline {path}", f"data {len(target.encode())}", target]
        git(self.path, "fast-import", "--quiet", "--force", stdin="\n".join(lines) + "\n")
        tip = self.tip(branch)
        assert tip is not None
        return tip

    def tip(self, branch: str = "main") -> str | None:
        found = git(self.path, "for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}")
        return found or None

    def check_out(self) -> None:
        """Bring the work tree to the branch's tip."""
        git(self.path, "reset", "--hard", "--quiet")

    def git(self, *arguments: str) -> str:
        return git(self.path, *arguments)


def modules(url: str, path: str = GITLINK, name: str = "mcore") -> str:
    """A `.gitmodules` file."""
    return f'[submodule "{name}"]\n\tpath = {path}\n\turl = {url}\n'


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    """Every file under `path` with its mode and content, to tell whether anything was touched."""
    files = sorted(p for p in path.rglob("*") if p.is_file() or p.is_symlink())
    return {str(p.relative_to(path)): (p.lstat().st_mode, b"" if p.is_symlink() else p.read_bytes()) for p in files}
