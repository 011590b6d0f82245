"""Nothing a repository or a user's configuration says is run while a history is read and laid out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from oombisect.errors import OombisectError
from oombisect.repo.bridge import open_repository
from oombisect.repo.git import Git
from oombisect.repo.submodule import Declared, megatron_of, parse_gitmodules
from tests.repo.history import GITLINK, modules
from tests.repo.project import Project

HOOKS = ("post-checkout", "post-index-change", "reference-transaction", "post-commit", "fsmonitor-watchman")


# A command that reads the user's configuration meets `safe.bareRepository` in it.
BARE = "[safe]\n\tbareRepository = explicit\n"


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A program that leaves a mark when it is run; the mark is `<trap>.ran`."""
    script = tmp_path / "trap"
    script.write_text(f'#!/bin/sh\necho "$0 $@" >> {script}.ran\ncat\n')
    script.chmod(0o755)
    return script


def hostile_config(trap: Path) -> str:
    return f"""
[core]
\tfsmonitor = {trap}
\tsshCommand = {trap}
\thooksPath = {trap.parent}/hooks
\tpager = {trap}
\teditor = {trap}
\taskPass = {trap}
\talternateRefsCommand = {trap}
\tgitProxy = {trap}
[diff]
\texternal = {trap}
[filter "evil"]
\tclean = {trap}
\tsmudge = {trap}
\tprocess = {trap}
\trequired = true
[filter "lfs"]
\tsmudge = {trap}
\tprocess = {trap}
\trequired = true
[diff "evil"]
\ttextconv = {trap}
\tcommand = {trap}
[merge "evil"]
\tdriver = {trap} %A
[credential]
\thelper = !{trap}
[uploadpack]
\tpackObjectsHook = {trap}
[gpg]
\tprogram = {trap}
[log]
\tshowSignature = true
"""


def arm(project: Project, trap: Path) -> None:
    attributes = "* filter=evil diff=evil merge=evil\n*.bin filter=lfs\n"
    project.bridge.commit("attributes", {".gitattributes": attributes, "src/.gitattributes": attributes})
    project.bridge.commit("sign me", {"src/megatron/bridge/model.py": "HIDDEN = 3\n", "src/a.bin": "pointer\n"})
    project.bridge.git("reset", "--quiet", "--hard")
    for repository in (project.bridge, project.megatron):
        hooks = repository.path / ".git" / "hooks"
        hooks.mkdir(exist_ok=True)
        for name in HOOKS:
            (hooks / name).write_text(trap.read_text())
            (hooks / name).chmod(0o755)
        with (repository.path / ".git" / "config").open("a") as config:
            config.write(hostile_config(trap))
        (repository.path / ".git" / "info").mkdir(exist_ok=True)
        (repository.path / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    edited = project.bridge.path / "src/megatron/bridge/model.py"
    edited.write_text("HIDDEN = 4\n")  # of the same size, so that status has to look inside


def work(project: Project, **options: Path) -> None:
    repository = project.open(**options)
    assert repository.note_on_checkout() is not None
    commits = repository.log(repository.resolve("main"))
    repository.trees_of(commits)
    repository.changed(commits)
    with pytest.raises(OombisectError):
        repository.resolve("no-such-branch")
    with repository.acquire_slot() as slot:
        for revision in ("main~3", "main"):
            repository.materialise(revision, slot)
        laid = repository.materialise_reverted("main", project.ids["other"], slot)
        assert (laid.root / "src/a.bin").read_text().strip() == "pointer"
        assert (laid.root / "src/megatron/bridge/model.py").read_text().strip() == "HIDDEN = 3"


def test_repository_configuration_and_hooks(project: Project, trap: Path) -> None:
    arm(project, trap)
    work(project)
    assert not Path(f"{trap}.ran").exists(), Path(f"{trap}.ran").read_text()


@pytest.mark.parametrize("promised", [False, True], ids=["local", "with a network URL"])
def test_user_and_system_configuration(
    project: Project, trap: Path, monkeypatch: pytest.MonkeyPatch, promised: bool
) -> None:
    home = trap.parent / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(hostile_config(trap) + BARE)
    (trap.parent / "system").write_text(hostile_config(trap))
    arm(project, trap)
    if promised:  # what is missing could be downloaded, so the user's configuration is read; nothing is missing
        project.bridge.commit("url", {".gitmodules": modules("https://invalid.invalid/m.git")})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(trap.parent / "system"))
    for name in ("GIT_EXTERNAL_DIFF", "GIT_EDITOR", "GIT_PAGER", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_SSH_COMMAND"):
        monkeypatch.setenv(name, str(trap))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(trap))
    work(project, **({"megatron": project.megatron.path} if promised else {}))
    assert not Path(f"{trap}.ran").exists(), Path(f"{trap}.ran").read_text()


def test_the_trap_works(project: Project, trap: Path) -> None:
    """The test above would mean nothing if plain git did not fall into it."""
    arm(project, trap)
    subprocess.run(["git", "-C", str(project.bridge.path), "status"], capture_output=True)  # whether it succeeds or not
    assert Path(f"{trap}.ran").exists()


def test_clone_of_a_hostile_repository(project: Project, trap: Path, tmp_path: Path) -> None:
    arm(project, trap)
    url = str(project.bridge.path)
    repository = open_repository(None, tmp_path, project.cache, lambda _: None, project.megatron.path, url)
    with repository.acquire_slot() as slot:
        repository.materialise("main", slot)
    assert not Path(f"{trap}.ran").exists(), Path(f"{trap}.ran").read_text()


@pytest.mark.parametrize(
    "url", ["ext::sh -c 'touch {mark}'", "--upload-pack=touch {mark}", "ssh://-oProxyCommand=touch%20{mark}/x"]
)
def test_a_submodule_url_runs_nothing(project: Project, tmp_path: Path, url: str) -> None:
    mark = tmp_path / "mark"
    project.bridge.commit("evil", {".gitmodules": modules(url.format(mark=mark))}, gitlinks={GITLINK: "a" * 40})
    repository = project.open()
    with repository.acquire_slot() as slot, pytest.raises(OombisectError, match="aaaaaaaaaaaa"):
        repository.materialise("main", slot)
    assert not mark.exists()


@pytest.mark.parametrize("path", ["../outside", "/etc/x", ".git/hooks", "a/../../b", "a/.GIT/b", "a\nb", ""])
def test_unsafe_submodule_paths_are_left_out(tmp_path: Path, path: str) -> None:
    quoted = path.replace("\n", "\\n")
    data = f'[submodule "Megatron"]\n\tpath = "{quoted}"\n\turl = ../x\n'.encode()
    assert parse_gitmodules(data, Git(tmp_path)) == ()


def test_gitmodules_includes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "more").write_text('[submodule "Megatron"]\n\tpath = 3rdparty/M\n\turl = x\n')
    assert parse_gitmodules(f"[include]\n\tpath = {tmp_path}/more\n".encode(), Git(tmp_path)) == ()
    assert parse_gitmodules(b"[submodule broken\n", Git(tmp_path)) == ()


def test_which_submodule_is_megatron() -> None:
    megatron = Declared("m", "3rdparty/Megatron-LM", "https://h/x.git")
    other = Declared("o", "3rdparty/other", "https://h/other.git")
    by_url = Declared("x", "deps/core", "https://h/NVIDIA/Megatron-LM.git")
    assert megatron_of([other, megatron]) == megatron
    assert megatron_of([other, by_url]) == by_url
    assert megatron_of([other]) == other
    assert megatron_of([other, Declared("p", "deps/p", "https://h/p.git")]) is None
    assert megatron_of([]) is None


def test_a_symlink_in_the_tree_leads_nowhere_outside(project: Project, tmp_path: Path) -> None:
    """A commit that has a symbolic link where the slot has the submodule's directory."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("mine")
    link = project.bridge.commit("link", {GITLINK: None}, symlinks={"3rdparty": str(outside)})
    back = project.bridge.commit("back", {"3rdparty": None}, gitlinks={GITLINK: project.ids["m1"]})
    repository = project.open()
    with repository.acquire_slot() as slot:
        for commit in (project.ids["other"], link, back, link, back):
            repository.materialise(commit, slot)
        assert (slot.path / GITLINK / "megatron/core/a.py").is_file()
    assert [p.name for p in outside.iterdir()] == ["keep"]
