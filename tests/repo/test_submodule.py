"""Where pinned Megatron-LM commits come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.repo.git import GitError
from oombisect.repo.mirror import Mirror
from oombisect.repo.submodule import MissingCommit, local_directory, network_url
from tests.repo.history import GITLINK, History, git, modules
from tests.repo.project import Project


def lay_out(project: Project, **options: Path) -> str:
    repository = project.open(**options)
    with repository.acquire_slot() as slot:
        return repository.materialise("main", slot).megatron_commit


def move_upstream_away(project: Project) -> Path:
    away = project.megatron.path.parent.parent / "away"
    project.megatron.path.rename(away)
    return away


def test_a_relative_url_without_a_remote_starts_at_the_repository(project: Project) -> None:
    assert lay_out(project) == project.ids["m2"]


@pytest.mark.parametrize("style", ["{path}", "file://{path}"])
def test_local_urls(project: Project, style: str) -> None:
    url = style.format(path=project.megatron.path)
    project.bridge.commit("absolute", {".gitmodules": modules(url)})
    assert lay_out(project) == project.ids["m2"]


def test_a_relative_url_starts_at_the_remote(project: Project, tmp_path: Path) -> None:
    clone = tmp_path / "deep" / "down" / "clone"
    clone.parent.mkdir(parents=True)
    git(tmp_path, "clone", "--quiet", str(project.bridge.path), str(clone))
    repository = project.open(clone)
    with repository.acquire_slot() as slot:
        assert repository.materialise("main", slot).megatron_commit == project.ids["m2"]


def test_the_checkouts_own_submodule_will_do(project: Project) -> None:
    project.bridge.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
    move_upstream_away(project)
    assert (project.bridge.path / ".git/modules/mcore").is_dir()
    assert lay_out(project) == project.ids["m2"]


def test_a_clone_at_the_submodules_place_will_do(project: Project) -> None:
    away = move_upstream_away(project)
    place = project.bridge.path / GITLINK
    if place.is_dir():
        place.rmdir()
    git(place.parent, "clone", "--quiet", str(away), str(place))
    assert lay_out(project) == project.ids["m2"]


def test_a_named_clone_comes_first(project: Project) -> None:
    away = move_upstream_away(project)
    assert lay_out(project, megatron=away) == project.ids["m2"]


def test_nobody_has_it(project: Project) -> None:
    move_upstream_away(project)
    with pytest.raises(MissingCommit) as told:
        lay_out(project)
    assert told.value.sha == project.ids["m2"] and project.ids["m2"][:12] in told.value.cause
    assert "--megatron" in told.value.way_out and told.value.exit_code == ExitCode.INFRASTRUCTURE


@pytest.mark.parametrize(
    "words",
    [
        "fatal: unable to access 'https://h/m.git/': Could not resolve host: h",
        "fatal: unable to access 'https://h/m.git/': The requested URL returned error: 503",
        "fatal: unable to access 'https://h/m.git/': CONNECT tunnel failed, response 403",
        "ssh: connect to host h port 22: Connection timed out\nfatal: Could not read from remote repository.",
        "fetch-pack: unexpected disconnect while reading sideband packet\nfatal: early EOF",
    ],
)
def test_a_server_that_is_not_reached_tells_nothing_of_the_commit(
    project: Project, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    told = fetching(project, monkeypatch, words)
    assert len(told) == 2, "it is asked again"
    for error in told:
        assert not isinstance(error, MissingCommit) and error.exit_code == ExitCode.INFRASTRUCTURE
        assert "network" in error.way_out and "--megatron" in error.way_out


@pytest.mark.parametrize(
    "words",
    [
        "fatal: remote error: upload-pack: not our ref aaaa",
        "fatal: couldn't find remote ref aaaa",
        "error: Server does not allow request for unadvertised object aaaa",
        "remote: Repository not found.\nfatal: repository 'https://h/m.git/' not found",
        "fatal: unable to access 'https://h/m.git/': The requested URL returned error: 403",
        "fatal: could not read Username for 'https://h': terminal prompts disabled",
        "git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.",
    ],
)
def test_a_server_that_does_not_give_the_commit(project: Project, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    assert [type(error) for error in fetching(project, monkeypatch, words)] == [MissingCommit, MissingCommit]


def fetching(project: Project, monkeypatch: pytest.MonkeyPatch, words: str) -> list[OombisectError]:
    """What two attempts at a pinned commit end with where git's fetch says `words`."""

    def fail(mirror: Mirror, *refspecs: str) -> None:
        raise GitError(["fetch"], 128, words)

    monkeypatch.setattr(Mirror, "fetch", fail)
    project.bridge.commit("roll", {".gitmodules": modules("https://h/m.git")}, gitlinks={GITLINK: "a" * 40})
    repository, found = project.open(), []
    with repository.acquire_slot() as slot:
        for _ in range(2):
            with pytest.raises(OombisectError) as told:
                repository.materialise("main", slot)
            found.append(told.value)
    return found


def test_a_real_server_that_lacks_the_commit_and_one_that_is_not_there(project: Project, tmp_path: Path) -> None:
    """What git itself says, not what we take it to say."""
    clone = tmp_path / "partial"
    project.megatron.git("config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", "-n", f"file://{project.megatron.path}", str(clone))
    project.bridge.commit("roll", {".gitmodules": modules("https://h.invalid/m.git")}, gitlinks={GITLINK: "a" * 40})
    with pytest.raises(MissingCommit):
        lay_out(project, megatron=clone)
    git(clone, "remote", "set-url", "origin", "http://127.0.0.1:9/m.git")
    with pytest.raises(OombisectError, match="Could not fetch Megatron-LM commit aaaa") as told:
        lay_out(project, megatron=clone)
    assert not isinstance(told.value, MissingCommit)


@pytest.mark.parametrize("name", ["core_v1", "side", "{m2}^", "{m2:.8}~1"])
def test_any_revision_of_the_clone_names_a_megatron_commit(project: Project, name: str) -> None:
    for kind in ("tag", "branch"):
        project.megatron.git(kind, {"tag": "core_v1", "branch": "side"}[kind], project.ids["m1"])
    asked = name.format(**project.ids)
    assert project.open().resolve_megatron("main", asked) == project.ids["m1"]


@pytest.mark.parametrize("name", ["", "--all", "^main", "no-such-tag", "main:megatron"])
def test_what_is_no_revision_of_the_clone(project: Project, name: str) -> None:
    with pytest.raises(OombisectError, match="no Megatron-LM revision") as told:
        project.open().resolve_megatron("main", name)
    assert told.value.exit_code == ExitCode.USAGE


def test_a_pin_that_was_never_pushed(project: Project) -> None:
    project.bridge.commit("bad pin", gitlinks={GITLINK: "a" * 40})
    repository = project.open()
    with repository.acquire_slot() as slot:
        for _ in range(2):
            with pytest.raises(MissingCommit):
                repository.materialise("main", slot)
        assert repository.materialise("main~1", slot).megatron_commit == project.ids["m2"]


def test_a_commit_is_fetched_by_its_id(project: Project, tmp_path: Path) -> None:
    """A clone of the submodule is partial and old: what it lacks comes from its own remote, into the cache."""
    upstream = project.megatron
    upstream.git("config", "uploadpack.allowFilter", "true")
    upstream.git("config", "uploadpack.allowAnySHA1InWant", "true")
    old = tmp_path / "old"
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", "--no-checkout", f"file://{upstream.path}", str(old))
    new = upstream.commit("on no branch later", {"megatron/core/__init__.py": "V = 9\n"})
    upstream.git("update-ref", "refs/heads/main", project.ids["m3"])
    project.bridge.commit("roll", {".gitmodules": modules("https://invalid.invalid/m.git")}, gitlinks={GITLINK: new})
    repository = project.open(megatron=old)
    with repository.acquire_slot() as slot:
        laid = repository.materialise("main", slot)
        assert laid.megatron_root is not None
        assert (laid.megatron_root / "megatron/core/__init__.py").read_text().strip() == "V = 9"
    assert [s for s in project.said if new[:12] in s]
    assert git(old, "cat-file", "-t", project.ids["m3"]) == "commit"
    pin = repository.pin("main")
    assert pin is not None and repository.store.mirror(pin).has_commit(new)


def test_one_mirror_serves_many_checkouts(project: Project, tmp_path: Path) -> None:
    """A second checkout with another clone of the submodule does not take the first one's commits away."""
    project.bridge.commit("url", {".gitmodules": modules("https://invalid.invalid/m.git")})
    away = move_upstream_away(project)
    other = History(tmp_path / "othermlm")
    foreign = other.commit("unrelated", {"megatron/core/__init__.py": "V = 100\n"})
    first = project.open(megatron=away)
    second = project.open(megatron=other.path)
    pin = first.pin("main")
    assert pin is not None
    assert first.store.mirror(pin).path == second.store.mirror(pin).path
    assert first.store.mirror(pin).has_commit(project.ids["m2"]) and first.store.mirror(pin).has_commit(foreign)


@pytest.mark.parametrize(
    ("url", "base", "directory"),
    [
        ("/a/b", "", "/a/b"),
        ("file:///a/b%20c", "", "/a/b c"),
        ("../m", "/x/bridge", "/x/m"),
        ("./m", "/x/bridge", "/x/bridge/m"),
        ("../../m", "file:///x/y/bridge", "/x/m"),
        ("../m", "https://h/x/bridge.git", None),
        ("../m", "git@h:x/bridge.git", None),
        ("https://h/m.git", "/x", None),
        ("git@h:m.git", "/x", None),
        ("ssh://h/m", "/x", None),
    ],
)
def test_local_directory(url: str, base: str, directory: str | None) -> None:
    assert local_directory(url, base) == (Path(directory) if directory else None)


@pytest.mark.parametrize(
    ("url", "base", "whole"),
    [
        ("../Megatron-LM.git", "https://h/NVIDIA/Bridge.git", "https://h/NVIDIA/Megatron-LM.git"),
        ("./m", "https://h/a/", "https://h/a/m"),
        ("https://h/m", "https://x/y", "https://h/m"),
        ("../m", "", "../m"),
        ("git@github.com:NVIDIA/Megatron-LM.git", "", "https://github.com/NVIDIA/Megatron-LM.git"),
        ("ssh://git@github.com/NVIDIA/Megatron-LM.git", "", "https://github.com/NVIDIA/Megatron-LM.git"),
        (
            "../Megatron-LM.git",
            "git@github.com:NVIDIA-NeMo/Bridge.git",
            "https://github.com/NVIDIA-NeMo/Megatron-LM.git",
        ),
        ("git@example.org:m.git", "", "git@example.org:m.git"),
    ],
)
def test_network_url(url: str, base: str, whole: str) -> None:
    assert network_url(url, base) == whole
