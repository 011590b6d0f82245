"""Where commits lie: on the main line, on which branch off it, and how far along."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from oombisect.repo.lines import lines_of


class Repository:
    """A repository made commit by commit, with dates that tell nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@e"]
        command = ["git", *identity, "-C", str(self.path), *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, subject: str) -> str:
        self.git("commit", "--quiet", "--allow-empty", "--date", "2026-01-01T00:00:00Z", "-m", subject)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repo")


def test_lines(repository: Repository) -> None:
    main = [repository.commit(f"m{n}") for n in range(3)]
    repository.git("checkout", "--quiet", "-b", "r0.1", main[1])
    release = [repository.commit(f"r{n}") for n in range(2)]
    repository.git("checkout", "--quiet", "-b", "r0.1-fix")
    fix = repository.commit("fix")
    repository.git("checkout", "--quiet", "-b", "feature", main[2])
    side = [repository.commit(f"s{n}") for n in range(2)]
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--no-ff", "-m", "merge", "feature")
    merged = repository.git("rev-parse", "HEAD")
    repository.git("branch", "--quiet", "-D", "feature")
    repository.git("checkout", "--quiet", "r0.1")  # what is checked out does not matter
    asked = [*main, *release, fix, *side, merged, "f" * 40, "no commit"]
    found = lines_of(repository.path, asked)
    assert [found[sha] for sha in (*main, merged)] == [("", n) for n in range(4)]
    assert [found[sha] for sha in release] == [("r0.1", 2), ("r0.1", 3)]
    assert found[fix] == ("r0.1-fix", 4)
    assert [found[sha] for sha in side] == [(f"off {main[2][:10]}", 3), (f"off {main[2][:10]}", 4)]
    assert len(found) == len(asked) - 2


def test_a_chain_is_one_line_whatever_its_dates(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks differ between machines: a child may be older than its parent."""
    base = repository.commit("base")
    repository.git("checkout", "--quiet", "-b", "feature")
    side = []
    for year in (2029, 2028, 2027):
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{year}-01-01T00:00:00Z")
        side.append(repository.commit(f"s{year}"))
    repository.git("checkout", "--quiet", "main")
    repository.git("branch", "--quiet", "-D", "feature")
    assert lines_of(repository.path, side) == {sha: (f"off {base[:10]}", n) for n, sha in enumerate(side, 1)}


def test_the_furthest_main_branch_counts(repository: Repository) -> None:
    """The local branch may be behind the remote's, or ahead of it."""
    commits = [repository.commit(f"m{n}") for n in range(4)]
    repository.git("update-ref", "refs/remotes/origin/main", commits[3])
    repository.git("reset", "--quiet", "--hard", commits[1])
    assert lines_of(repository.path, commits)[commits[3]] == ("", 3)
    repository.git("update-ref", "refs/remotes/origin/main", commits[0])
    assert lines_of(repository.path, commits)[commits[1]] == ("", 1)


def test_without_a_main_branch_what_is_checked_out_counts(repository: Repository) -> None:
    first = repository.commit("one")
    repository.git("branch", "--quiet", "-m", "trunk")
    assert lines_of(repository.path, [first]) == {first: ("", 0)}


def test_an_empty_repository_knows_nothing(repository: Repository) -> None:
    assert lines_of(repository.path, ["a" * 40]) == {}
    assert lines_of(repository.path, []) == {}
