"""Any repository, seen whole: every file is laid out, every change counts, tests and documentation least."""

from __future__ import annotations

from pathlib import Path

import pytest

from oombisect.axes.commits import commit_range
from oombisect.errors import OombisectError
from oombisect.repo.revert import RevertConflict
from oombisect.repo.whole import WholeRepository, open_whole

from ..session.toy import git


@pytest.fixture
def shas(tmp_path: Path) -> list[str]:
    repo = tmp_path / "repo"
    (repo / "pkg").mkdir(parents=True)
    git(repo, "init", "--quiet", "--initial-branch=main")
    found = []
    for files in (
        {"train.py": "1\n", "README.md": "a\n", "pkg/model.py": "x = 1\n"},
        {"README.md": "b\n"},
        {"pkg/model.py": "x = 2\n", "README.md": "c\n"},
        {"pkg/other.py": "y = 1\n", "README.md": "d\n"},
    ):
        for name, text in files.items():
            (repo / name).write_text(text)
        git(repo, "add", "--all")
        git(repo, "commit", "--quiet", "-m", "change")
        found.append(git(repo, "rev-parse", "HEAD"))
    return found


def opened(tmp_path: Path) -> WholeRepository:
    return open_whole(tmp_path / "repo", tmp_path, tmp_path / "cache")


def test_every_file_of_a_commit_is_laid_out_and_nothing_else(tmp_path: Path, shas: list[str]) -> None:
    repository = opened(tmp_path)
    with repository.acquire_slot() as slot:
        laid = repository.materialise(shas[3], slot)
        assert laid.roots == {"repo": laid.root}
        (laid.root / "built.so").write_text("left over")
        assert (laid.root / "pkg/other.py").read_text() == "y = 1\n"
        repository.materialise(shas[0], slot)
        names = {path.relative_to(laid.root).as_posix() for path in laid.root.rglob("*") if path.is_file()}
    assert names == {".git", "train.py", "README.md", "pkg/model.py"}


def test_documentation_counts_least_but_never_nothing(tmp_path: Path, shas: list[str]) -> None:
    axis = commit_range(opened(tmp_path), shas[0], shas[3])
    start, documentation, code, more = axis.weights()
    assert start == 0.0 < documentation < 0.1 < code == more
    assert len(set(axis.groups())) == 4  # a command may read its README
    assert {point.repo for point in axis.points} == {"repo"}


def test_a_change_is_taken_back_though_its_documentation_conflicts(tmp_path: Path, shas: list[str]) -> None:
    repository = opened(tmp_path)
    done = repository.reverted(shas[3], shas[2])
    with repository.acquire_slot() as slot:
        laid = repository.materialise(done.commit, slot)
        assert (laid.root / "pkg/model.py").read_text() == "x = 1\n"
        assert (laid.root / "README.md").read_text() == "d\n"
    (tmp_path / "repo/pkg/model.py").write_text("x = 3\n")
    git(tmp_path / "repo", "commit", "--quiet", "-am", "builds on it")
    with pytest.raises(RevertConflict):
        repository.reverted(git(tmp_path / "repo", "rev-parse", "HEAD"), shas[2])


def test_without_a_repository_the_way_out_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(OombisectError) as refused:
        open_whole(None, tmp_path, tmp_path / "cache")
    assert "--repo" in refused.value.way_out and "Bridge" not in refused.value.way_out
