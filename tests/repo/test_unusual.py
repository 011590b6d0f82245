"""Repositories, commits, paths and git commands out of the ordinary: each is read, or refused with its cause."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.repo.bridge import open_repository
from oombisect.repo.git import GitError, check_git
from oombisect.repo.submodule import MissingCommit
from tests.repo.history import GITLINK, History, git
from tests.repo.project import Project


def dated(project: Project, line: str) -> str:
    """A commit on the tip whose author line ends in `line`, as no git command would write it."""
    tip = project.bridge.tip()
    tree = project.bridge.git("rev-parse", f"{tip}^{{tree}}")
    body = f"tree {tree}\nparent {tip}\nauthor A <a@b> {line}\ncommitter A <a@b> 1750000000 +0000\n\nodd\n"
    return git(project.bridge.path, "hash-object", "-t", "commit", "-w", "--literally", "--stdin", stdin=body)


@pytest.mark.parametrize(
    "line",
    [
        *("99999999999999 +0000", "1750000000 +10039", "1750000000 +9999", "99999999999999999999999 +0000"),
        *("253402300800 +0000", "253402300799 -1400", "-99999999999999 +0000", "soon", ""),
    ],
)
def test_an_author_date_can_be_read_or_is_empty(project: Project, line: str) -> None:
    odd = dated(project, line)
    repository = project.open()
    (commit,) = repository.log(f"{project.ids['other']}..{odd}")
    assert commit.sha == odd and commit.subject == "odd"
    if commit.author_date:
        assert datetime.fromisoformat(commit.author_date).tzinfo is not None


def test_only_what_is_no_date_is_left_out(project: Project) -> None:
    repository = project.open()
    assert repository.commit(dated(project, "99999999999999 +0000")).author_date == ""
    assert repository.commit(dated(project, "1750000000 +10039")).author_date == ""
    assert repository.commit(dated(project, "1750000000 +1400")).author_date == "2025-06-16T05:06:40+14:00"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "../../x", "src/../../x", "src\0x"])
def test_a_path_that_leads_out_is_a_usage_error(project: Project, path: str) -> None:
    repository = project.open()
    with pytest.raises(OombisectError, match="no path inside the repository") as told:
        repository.log(project.ids["other"], paths=["src", path])
    assert told.value.exit_code == ExitCode.USAGE and "fsck" not in told.value.way_out


@pytest.mark.parametrize("path", [":(bad)x", ":!src", ":/", "-x", "--", "*", "src/m*", "no/such", "\udcff", "a\nb"])
def test_a_path_is_taken_to_the_letter(project: Project, path: str) -> None:
    repository = project.open()
    assert repository.log(project.ids["other"], paths=[path]) == []


def test_a_name_that_looks_like_magic_is_found(project: Project) -> None:
    project.bridge.commit("odd name", {":(bad)x": "x", "*": "y"})
    repository = project.open()
    tip = repository.resolve("main")
    for path in (":(bad)x", "*"):
        assert [c.subject for c in repository.log(tip, paths=[path])] == ["odd name"]


@pytest.mark.parametrize("path", ["src/megatron/bridge/model.py", "./src/megatron/bridge/model.py", "src/../src"])
def test_a_plain_path_narrows_the_history(project: Project, path: str) -> None:
    subjects = [c.subject for c in project.open().log(project.ids["other"], paths=[path])]
    assert subjects[-2:] == ["grow", "start"]


@pytest.fixture
def fake_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The one directory on PATH; a script `git` put there is the git of the test."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    check_git.cache_clear()
    yield directory
    check_git.cache_clear()


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (None, "not on PATH"),
        ("printf '\\377\\376\\033[31m'", "does not tell its version"),
        ("echo hello 9.9.9", "does not tell its version"),
        ("exit 1", "does not tell its version"),
        ("echo git version 99999999999999999999.1", "does not tell its version"),
        ("printf 'git version 2.38.1\\033[31m'", "too old: git version 2.38.1"),
        ("#!/no/such/interpreter", "cannot be run"),
    ],
)
def test_a_git_that_is_none(fake_git: Path, project: Project, script: str | None, cause: str) -> None:
    if script is not None:
        head = "" if script.startswith("#!") else "#!/bin/sh\n"
        (fake_git / "git").write_text(f"{head}{script}\n")
        (fake_git / "git").chmod(0o755)
    with pytest.raises(OombisectError, match=cause) as told:
        project.open()
    assert told.value.exit_code == ExitCode.INFRASTRUCTURE and "Install git" in told.value.way_out
    assert told.value.cause.isprintable()


def test_a_repository_of_something_else(project: Project, tmp_path: Path) -> None:
    other = History(tmp_path / "other")
    other.commit("unrelated", {"a": "b"})
    repository = project.open(other.path)
    with pytest.raises(OombisectError, match="not a Megatron Bridge repository") as told:
        repository.require_bridge("HEAD")
    assert told.value.exit_code == ExitCode.USAGE and "--repo" in told.value.way_out
    project.open().require_bridge("main")
    gone = project.bridge.commit("moved", {"src": None})
    with pytest.raises(OombisectError, match=gone[:12]):
        project.open().require_bridge("main")


def test_an_empty_repository(project: Project, tmp_path: Path) -> None:
    repository = project.open(History(tmp_path / "empty").path)
    assert repository.refs() == [] and repository.note_on_checkout() is None
    for revision in ("HEAD", "main"):
        with pytest.raises(OombisectError, match="no revision") as told:
            repository.resolve(revision)
        assert told.value.exit_code == ExitCode.USAGE


def test_what_leaves_commits_out_names_none(project: Project) -> None:
    for revision in ("^main", "^HEAD"):
        with pytest.raises(OombisectError, match="no revision"):
            project.open().resolve(revision)


def test_what_git_says_is_made_printable() -> None:
    error = GitError(["log"], 128, "warning: \x1b[2J\nfatal: bad \x1b]0;title\x07 name \x9b\udcff\nmore\r\n")
    assert error.reason == "bad ?]0;title? name ??"
    assert all(line.isprintable() for line in [error.cause, error.reason, *error.stderr.split("\n")])
    assert len(error.stderr.split("\n")) == 3


def test_a_detached_head(project: Project) -> None:
    project.bridge.git("checkout", "--quiet", "--detach", project.ids["grow"])
    repository = project.open()
    assert repository.resolve("HEAD") == project.ids["grow"]
    with repository.acquire_slot() as slot:
        assert repository.materialise("HEAD", slot).megatron_commit == project.ids["m0"]


def test_a_head_that_names_no_branch(project: Project) -> None:
    project.bridge.git("symbolic-ref", "HEAD", "refs/heads/unborn")
    repository = project.open()
    assert repository.resolve("main") == project.ids["other"]
    with pytest.raises(OombisectError, match="no revision"):
        repository.resolve("HEAD")


def lay_out(project: Project, where: Path) -> None:
    for options in ({}, {"megatron": project.megatron.path}):
        repository = project.open(where, **options)
        repository.note_on_checkout()
        with repository.acquire_slot() as slot:
            laid = repository.materialise("main", slot)
            assert laid.megatron_commit == project.ids["m2"]
            assert (laid.root / "src/megatron/bridge/model.py").read_text() == "HIDDEN = 2\n"


@pytest.mark.parametrize(
    "name",
    ["with space", "\u6a21\u578b \u00fc \U0001f600", '"quoted"', "#hash", "a:b", "dollar$x", "tab\there", "\udcff"],
)
def test_directories_with_any_name(project: Project, tmp_path: Path, name: str) -> None:
    """Of the user's repository, of its Megatron-LM and of the cache."""
    home = tmp_path / name
    try:
        home.mkdir()
    except (OSError, UnicodeError):
        pytest.skip("this file system has no such names")
    (tmp_path / "upstream").rename(home / "upstream")
    (tmp_path / "user").rename(home / "user")
    project.bridge.path = home / "user" / "Megatron-Bridge"
    project.megatron.path = home / "upstream" / "Megatron-LM"
    project.cache = home / "cache"
    lay_out(project, project.bridge.path)


def test_a_cache_behind_a_symbolic_link(project: Project, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    project.cache = tmp_path / "link" / "cache"
    lay_out(project, project.bridge.path)
    project.cache = tmp_path / "here"
    for part in ("git", "slots"):
        (tmp_path / "disk" / part).mkdir()
        (tmp_path / "here").mkdir(exist_ok=True)
        (tmp_path / "here" / part).symlink_to(tmp_path / "disk" / part)
    lay_out(project, project.bridge.path)


def test_a_relative_cache(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project.cache = Path("cache")
    lay_out(project, project.bridge.path)


def test_a_bare_clone_with_its_submodule_beside_it(project: Project, tmp_path: Path) -> None:
    bare = tmp_path / "user" / "bare repository.git"
    git(tmp_path, "clone", "--quiet", "--bare", str(project.bridge.path), str(bare))
    git(bare, "remote", "remove", "origin")
    lay_out(project, bare)


def test_a_shallow_clone_lays_out_what_it_has(project: Project, tmp_path: Path) -> None:
    shallow = tmp_path / "user" / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{project.bridge.path}", str(shallow))
    git(shallow, "remote", "remove", "origin")
    lay_out(project, shallow)
    repository = project.open(shallow)
    (tip,) = repository.log(repository.resolve("main"))
    assert repository.trees_of([tip])[0].gitlink == project.ids["m2"]
    assert repository.is_shallow
    with pytest.raises(OombisectError) as told:
        repository.resolve("main~1")
    assert "--unshallow" in told.value.way_out


def test_a_shallow_submodule_without_the_pinned_commit(project: Project, tmp_path: Path) -> None:
    shallow = tmp_path / "megatron"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{project.megatron.path}", str(shallow))
    git(shallow, "remote", "remove", "origin")
    project.megatron.path.rename(tmp_path / "away")
    repository = project.open(megatron=shallow)
    with repository.acquire_slot() as slot:
        with pytest.raises(MissingCommit, match=project.ids["m2"][:12]):
            repository.materialise("main", slot)
        here = project.bridge.commit("roll on", gitlinks={GITLINK: project.ids["m3"]})
        assert repository.materialise(here, slot).megatron_commit == project.ids["m3"]


def test_a_file_in_the_place_of_git_directory(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / ".git").write_text("gitdir: /no/such\x1b[2J/place\n")
    with pytest.raises(OombisectError, match="no git repository") as told:
        open_repository(tmp_path / "r", tmp_path, tmp_path / "cache")
    assert told.value.cause.isprintable() and told.value.exit_code == ExitCode.USAGE
