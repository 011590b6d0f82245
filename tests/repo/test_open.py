"""Opening a history: the user's repository is only read, and every refusal says the way out."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.repo.bridge import open_repository
from tests.repo.history import History, git, snapshot
from tests.repo.project import Project


def silent(_: str) -> None: ...


def test_user_repository_is_never_written(project: Project) -> None:
    (project.bridge.path / "src/megatron/bridge/model.py").write_text("edited by the user\n")
    before = snapshot(project.bridge.path)
    repository = project.open()
    with repository.acquire_slot() as slot:
        repository.materialise("main", slot)
        repository.materialise_reverted("main", project.ids["grow"], slot)
    repository.note_on_checkout()
    assert snapshot(project.bridge.path) == before
    assert snapshot(project.megatron.path)  # and its objects are still there to be read
    assert project.bridge.git("worktree", "list").count("\n") == 0


def test_a_read_only_repository_will_do(project: Project) -> None:
    top = project.bridge.path
    for path in [top, *top.rglob("*")]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        repository = project.open()
        with repository.acquire_slot() as slot:
            assert repository.materialise("main", slot).commit == project.ids["other"]
    finally:
        for path in [top, *top.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


def test_a_bare_repository_will_do(project: Project, tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "--quiet", "--bare", str(project.bridge.path), str(bare))
    repository = project.open(bare, megatron=project.megatron.path)
    assert repository.note_on_checkout() is None
    with repository.acquire_slot() as slot:
        assert repository.materialise("main", slot).megatron_commit == project.ids["m2"]


def test_head_of_a_linked_worktree_is_its_own(project: Project, tmp_path: Path) -> None:
    project.bridge.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"), project.ids["grow"])
    assert project.open(tmp_path / "linked").resolve("HEAD") == project.ids["grow"]
    assert project.open().resolve("HEAD") == project.ids["other"]


def test_current_directory_inside_a_checkout(project: Project) -> None:
    inside = project.bridge.path / "src" / "megatron"
    repository = open_repository(None, inside, project.cache, silent)
    assert repository.checkout == project.bridge.path


def test_current_directory_in_another_repository(project: Project, tmp_path: Path) -> None:
    """It says neither that Bridge is meant, nor that this repository is."""
    other, bare = tmp_path / "other", tmp_path / "bare.git"
    git(tmp_path, "init", "--quiet", str(other))
    git(tmp_path, "init", "--quiet", "--bare", str(bare))
    for folder in (other, bare, project.megatron.path):
        with pytest.raises(OombisectError, match=f"{folder}, which is no checkout of Megatron Bridge") as told:
            open_repository(None, folder, project.cache, silent, None, str(project.bridge.path))
        assert "--repo" in told.value.way_out and told.value.exit_code == ExitCode.USAGE
        assert not project.cache.exists(), "nothing was cloned"
    assert open_repository(project.bridge.path, other, project.cache, silent).checkout == project.bridge.path


def test_new_commits_are_seen_without_opening_again(project: Project) -> None:
    repository = project.open()
    new = project.bridge.commit("later", {"src/megatron/bridge/late.py": ""})
    with repository.acquire_slot() as slot:
        laid = repository.materialise(new, slot)
    assert (laid.root / "src/megatron/bridge/late.py").is_file()


@pytest.mark.parametrize("revision", ["v1.0.0", "main", "main~5", "HEAD^^"])
def test_revisions(project: Project, revision: str) -> None:
    assert project.open().resolve(revision) == project.bridge.git("rev-parse", f"{revision}^{{commit}}")


def test_short_ids(project: Project) -> None:
    assert project.open().resolve(project.ids["grow"][:10]) == project.ids["grow"]


@pytest.mark.parametrize("revision", ["v1.0.1", "mian"])
def test_unknown_revision_names_near_ones(project: Project, revision: str) -> None:
    with pytest.raises(OombisectError) as told:
        project.open().resolve(revision)
    assert revision in told.value.cause
    assert {"v1.0.1": "v1.0.0", "mian": "main"}[revision] in told.value.way_out
    assert told.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("revision", ["", "--all", "--output=/tmp/x", "no\nsuch", "main:src", "f" * 40])
def test_what_is_no_revision(project: Project, revision: str) -> None:
    with pytest.raises(OombisectError, match="no revision"):
        project.open().resolve(revision)


def test_ambiguous_id(project: Project) -> None:
    blobs = {f"blob{n}.txt": f"{n}\n" for n in range(1500)}
    project.bridge.commit("many", blobs)
    ids = project.bridge.git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    short = next(a[:4] for a, b in zip(sorted(ids), sorted(ids)[1:]) if a[:4] == b[:4] and a != b)
    commits = [i for i in ids if i.startswith(short)]
    assert len(commits) > 1
    with pytest.raises(OombisectError, match="beginning of"):
        project.open().resolve(short)


def test_missing_path_and_no_repository(project: Project, tmp_path: Path) -> None:
    with pytest.raises(OombisectError, match="does not exist"):
        project.open(tmp_path / "nowhere")
    (tmp_path / "plain").mkdir()
    with pytest.raises(OombisectError, match="no git repository") as told:
        project.open(tmp_path / "plain")
    assert "--repo" in told.value.way_out
    with pytest.raises(OombisectError, match="no git repository"):
        project.open(megatron=tmp_path / "plain")


def test_uncommitted_changes_are_told_of(project: Project) -> None:
    assert project.open().note_on_checkout() is None
    (project.bridge.path / "src/megatron/bridge/model.py").write_text("edited\n")
    note = project.open().note_on_checkout()
    assert note is not None and note.startswith("1 uncommitted change")


def test_sha256_repository_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--object-format=sha256", str(tmp_path / "r"))
    with pytest.raises(OombisectError, match="SHA-256"):
        open_repository(tmp_path / "r", tmp_path, tmp_path / "cache", silent)


def test_unusable_cache_is_told_of(project: Project, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache should be")
    with pytest.raises(OombisectError, match="cache directory") as told:
        project.open()
    assert told.value.exit_code == ExitCode.INFRASTRUCTURE


def test_clone_into_the_cache(project: Project, tmp_path: Path) -> None:
    """Without a checkout the history is cloned once, atomically, and brought up to date when a revision is unknown."""
    source = project.bridge.path
    project.bridge.git("config", "uploadpack.allowFilter", "true")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    said: list[str] = []
    for _ in range(2):
        repository = open_repository(None, elsewhere, project.cache, said.append, project.megatron.path, str(source))
    assert [s for s in said if "Cloning" in s] == said and len(said) == 1
    assert repository.resolve("HEAD") == project.ids["other"]
    with repository.acquire_slot() as slot:
        laid = repository.materialise("v1.0.0", slot)
        assert (laid.root / "src/megatron/bridge/model.py").read_text() == "HIDDEN = 1\n"
        assert not (laid.root / "docs").exists()
    # Blobless: contents that no probe reads have not been downloaded.
    docs = project.bridge.git("rev-parse", "v1.0.0:docs/index.md")
    assert repository.mirror.local.call("cat-file", "-e", docs, ok=(0, 1, 128))[0] != 0
    new = project.bridge.commit("pushed later", {"src/megatron/bridge/new.py": ""}, branch="topic", start="main")
    assert repository.resolve("topic") == new
    with pytest.raises(OombisectError, match="no revision"):
        repository.resolve("topid")


def test_clone_failure_leaves_nothing(project: Project, tmp_path: Path) -> None:
    with pytest.raises(OombisectError) as told:
        open_repository(None, tmp_path, project.cache, silent, None, str(tmp_path / "no-such-repository"))
    assert "Megatron Bridge" in told.value.cause and "--repo" in told.value.way_out
    assert told.value.exit_code == ExitCode.INFRASTRUCTURE
    assert [p.name for p in (project.cache / "git").iterdir()] == ["Megatron-Bridge.git.lock"]


def test_killed_clone_is_swept_away(project: Project, tmp_path: Path) -> None:
    left = project.cache / "git" / ".Megatron-Bridge.git.abc"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    open_repository(None, tmp_path, project.cache, silent, None, str(project.bridge.path))
    assert not left.exists()


def test_shallow_clone_says_so(project: Project, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    url = f"file://{project.bridge.path}"
    git(tmp_path, "clone", "--quiet", "--depth=2", "--no-tags", url, str(shallow))
    repository = project.open(shallow, megatron=project.megatron.path)
    assert [c.subject for c in repository.log(repository.resolve("HEAD"))] == ["other", "lock"]
    with pytest.raises(OombisectError) as told:
        repository.resolve("v1.0.0")
    assert "--unshallow" in told.value.way_out
    git(shallow, "fetch", "--quiet", "--unshallow")
    assert len(repository.log(project.open(shallow).resolve("HEAD"))) == 6


def test_partial_clone_downloads_into_the_mirror(project: Project, tmp_path: Path) -> None:
    project.bridge.git("config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    url = f"file://{project.bridge.path}"
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", "--no-checkout", url, str(partial))
    before = snapshot(partial)
    repository = project.open(partial, megatron=project.megatron.path)
    commits = repository.log(repository.resolve("origin/main"))
    assert len({t.key for t in repository.trees_of(commits)}) == 4  # asked of trees alone
    with repository.acquire_slot() as slot:
        laid = repository.materialise("origin/main", slot)
        assert (laid.root / "src/megatron/bridge/model.py").read_text() == "HIDDEN = 2\n"
    assert snapshot(partial) == before


def test_inherited_git_variables_change_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`git bisect run` and hooks run us with GIT_DIR and GIT_INDEX_FILE set."""
    other = History(tmp_path / "other")
    other.commit("unrelated", {"a": "b"})
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.path / ".git" / "index"))
    repository = project.open()
    assert repository.resolve("main") == project.ids["other"]
    with repository.acquire_slot() as slot:
        repository.materialise("main", slot)
    assert [p.name for p in other.path.iterdir()] == [".git"]
    assert repository.refs() == ["main", "v1.0.0"]
