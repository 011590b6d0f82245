"""Commits on disk: what lies in a slot is what the commit holds, whatever lay there before."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oombisect.errors import OombisectError
from oombisect.repo import slots
from oombisect.repo.bridge import BridgeRepository, Materialised
from oombisect.repo.slots import Slot
from tests.repo.history import GITLINK, git, modules
from tests.repo.project import Project


def expected(directory: Path, commit: str, *tops: str) -> dict[str, str]:
    """The files a commit holds below some top-level names, from `git ls-tree`."""
    listing = git(directory, "ls-tree", "-r", "--format=%(objecttype) %(path)", commit)
    paths = [line.removeprefix("blob ") for line in listing.splitlines() if line.startswith("blob ")]
    wanted = [p for p in paths if p.split("/")[0] in tops]
    return {p: git(directory, "show", f"{commit}:{p}") for p in wanted}


def found(root: Path, without: str = "") -> dict[str, str]:
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and p.name != ".git"]
    relative = {str(p.relative_to(root)): p for p in files}
    return {n: p.read_text().strip() for n, p in relative.items() if not without or not n.startswith(f"{without}/")}


def check(project: Project, laid: Materialised, bridge: str, megatron: str) -> None:
    want = expected(project.bridge.path, bridge, "src", "pyproject.toml", "uv.lock", ".gitmodules")
    assert found(laid.root, GITLINK) == want
    assert laid.megatron_root == laid.root / GITLINK
    assert found(laid.megatron_root) == expected(project.megatron.path, megatron, "megatron", "tool.py")
    assert laid.megatron_commit == megatron
    assert laid.source_paths == (laid.root / "src", laid.megatron_root)
    assert laid.roots == {"bridge": laid.root, "megatron-lm": laid.megatron_root}


PINS = {"start": "m0", "docs": "m0", "grow": "m0", "roll": "m2", "lock": "m2", "other": "m2"}


def test_any_commit_after_any_other(project: Project) -> None:
    repository = project.open()
    with repository.acquire_slot() as slot:
        for pair in itertools.permutations(("start", "grow", "other"), 2):
            for name in pair:
                laid = repository.materialise(project.ids[name], slot)
                check(project, laid, project.ids[name], project.ids[PINS[name]])


def test_what_a_probe_leaves_is_removed(project: Project) -> None:
    repository = project.open()
    with repository.acquire_slot() as slot:
        laid = repository.materialise("main", slot)
        assert laid.megatron_root is not None
        (laid.root / "src/megatron/bridge/model.py").write_text("edited by a probe\n")
        (laid.root / "src/megatron/bridge/__pycache__").mkdir()
        (laid.root / "src/megatron/bridge/__pycache__/model.pyc").write_text("stale")
        (laid.megatron_root / "megatron/core/helpers.so").write_text("built at another commit")
        (laid.megatron_root / "megatron/core/__init__.py").unlink()
        check(project, repository.materialise("main", slot), project.ids["other"], project.ids["m2"])


def test_another_submodule_commit_than_the_pinned(project: Project) -> None:
    repository = project.open()
    with repository.acquire_slot() as slot:
        laid = repository.materialise(project.ids["grow"], slot, megatron=project.ids["m1"])
        check(project, laid, project.ids["grow"], project.ids["m1"])


def test_commits_without_a_submodule_and_a_submodule_that_moves(project: Project) -> None:
    bridge, ids = project.bridge, project.ids
    gone = bridge.commit("no submodule", {GITLINK: None, ".gitmodules": None})
    declared = {".gitmodules": modules("../../upstream/Megatron-LM", "deps/mlm")}
    elsewhere = bridge.commit("elsewhere", declared, gitlinks={"deps/mlm": ids["m1"]})
    repository = project.open()
    with repository.acquire_slot() as slot:
        repository.materialise(ids["other"], slot)
        laid = repository.materialise(gone, slot)
        assert laid.megatron_root is None and laid.source_paths == (laid.root / "src",)
        assert not (laid.root / GITLINK).exists()
        laid = repository.materialise(elsewhere, slot)
        assert laid.megatron_root == laid.root / "deps/mlm"
        assert found(laid.megatron_root) == expected(project.megatron.path, ids["m1"], "megatron", "tool.py")
        assert not (laid.root / GITLINK).exists()
        check(project, repository.materialise(ids["other"], slot), ids["other"], ids["m2"])


def test_slots_are_not_shared(project: Project) -> None:
    repository = project.open()
    first, second = repository.acquire_slot(), repository.acquire_slot()
    assert first.path != second.path
    laid = [repository.materialise(c, s) for c, s in ((project.ids["start"], first), (project.ids["other"], second))]
    check(project, laid[0], project.ids["start"], project.ids["m0"])
    check(project, laid[1], project.ids["other"], project.ids["m2"])
    first.release()
    with repository.acquire_slot() as third:
        assert third.path == first.path
    second.release()


def test_all_slots_held(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MAXIMUM_SLOTS", 1)
    repository = project.open()
    with repository.acquire_slot(), pytest.raises(OombisectError, match="in use"):
        repository.acquire_slot()


HOLD = """
import sys, time
from pathlib import Path
from oombisect.repo.bridge import open_repository
repository = open_repository(Path(sys.argv[1]), Path("/"), Path(sys.argv[2]))
slot = repository.acquire_slot()
repository.materialise("main~5", slot)
print(slot.path, flush=True)
time.sleep(600)
"""


def test_a_killed_process_frees_its_slot(project: Project) -> None:
    arguments = [sys.executable, "-c", HOLD, str(project.bridge.path), str(project.cache)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        path = Path(holder.stdout.readline().strip())
        assert int(path.with_name(f"{path.name}.lock").read_text()) == holder.pid
        repository = project.open()
        with repository.acquire_slot() as other:
            assert other.path != path
        assert repository.prune_slots() == 1  # ours; not the one that is held
        assert path.is_dir()
        os.kill(holder.pid, signal.SIGKILL)
    with repository.acquire_slot() as slot:
        assert slot.path == path
        check(project, repository.materialise("main", slot), project.ids["other"], project.ids["m2"])


def test_a_git_command_that_outlives_its_driver_keeps_the_slot(project: Project, tmp_path: Path) -> None:
    """kill -9 hits the driver alone: its checkout goes on writing, and nobody else may come between."""
    real = shutil.which("git")
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "git"
    wait = f'case "$*" in *" checkout "*) touch {tmp_path}/begun; sleep 2;; esac'
    slow.write_text(f'#!/bin/sh\n{wait}\nexec {real} "$@"\n')
    slow.chmod(0o755)
    arguments = [sys.executable, "-c", HOLD, str(project.bridge.path), str(project.cache)]
    env = {**os.environ, "PATH": f"{slow.parent}:{os.environ['PATH']}"}
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, env=env) as driver:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        driver.kill()
    repository = project.open()
    with repository.acquire_slot() as other:
        assert other.path.name == "slot-1"
    time.sleep(2.5)
    with repository.acquire_slot() as slot:
        assert slot.path.name == "slot-0"
        check(project, repository.materialise("main", slot), project.ids["other"], project.ids["m2"])


def damage_index_lock(slot: Slot, repository: BridgeRepository) -> None:
    for lock in (repository.mirror.path / "worktrees" / slot.path.name / n for n in ("index.lock", "HEAD.lock")):
        lock.write_text("")


def damage_index(slot: Slot, repository: BridgeRepository) -> None:
    (repository.mirror.path / "worktrees" / slot.path.name / "index").write_bytes(b"DIRC garbage")


def damage_git_file(slot: Slot, repository: BridgeRepository) -> None:
    (slot.path / ".git").unlink()


def damage_registration(slot: Slot, repository: BridgeRepository) -> None:
    git(slot.path.parent, "-C", str(repository.mirror.path), "worktree", "remove", "--force", "--force", str(slot.path))


def damage_inner(slot: Slot, repository: BridgeRepository) -> None:
    (slot.path / GITLINK / ".git").write_text("gitdir: /nowhere\n")


def damage_inner_becomes_a_file(slot: Slot, repository: BridgeRepository) -> None:
    subprocess.run(["rm", "-r", str(slot.path / GITLINK)], check=True)
    (slot.path / GITLINK).write_text("what?")


@pytest.mark.parametrize(
    "damage",
    [
        damage_index_lock,
        damage_index,
        damage_git_file,
        damage_registration,
        damage_inner,
        damage_inner_becomes_a_file,
    ],
)
def test_a_damaged_slot_is_mended(project: Project, damage: object) -> None:
    repository = project.open()
    with repository.acquire_slot() as slot:
        repository.materialise("v1.0.0", slot)
        damage(slot, repository)  # type: ignore[operator]
        check(project, repository.materialise("main", slot), project.ids["other"], project.ids["m2"])
        check(project, repository.materialise("v1.0.0", slot), project.ids["start"], project.ids["m0"])


def test_kill_at_any_instant_of_a_checkout(project: Project) -> None:
    """A process that lays out commits without end is killed again and again; what the next one lays out is whole."""
    churn = HOLD.replace("time.sleep(600)", "").replace("print(slot.path, flush=True)", 'print("go", flush=True)') + (
        "import itertools\nfor n in itertools.cycle((0, 5)):\n    repository.materialise(f'main~{n}', slot)\n"
    )
    arguments = [sys.executable, "-c", churn, str(project.bridge.path), str(project.cache)]
    for delay in (0.01, 0.07, 0.13, 0.19):
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "go\n"
            time.sleep(delay)
            os.killpg(process.pid, signal.SIGKILL)
        repository = project.open()
        with repository.acquire_slot() as slot:
            check(project, repository.materialise("main~3", slot), project.ids["grow"], project.ids["m0"])


def test_prune_removes_inner_and_outer_registrations(project: Project) -> None:
    repository = project.open()
    with repository.acquire_slot() as slot:
        repository.materialise("main", slot)
        path = slot.path
    assert repository.prune_slots() == 1
    assert not path.exists()
    pin = repository.pin("main")
    assert pin is not None
    for mirror in (repository.mirror, repository.store.mirror(pin)):
        assert list((mirror.path / "worktrees").glob("*")) == []


def test_a_lock_held_by_a_stranger(project: Project) -> None:
    repository = project.open()
    with repository.acquire_slot() as slot:
        lock = slot.path.with_name(f"{slot.path.name}.lock")
    with lock.open("a") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        with repository.acquire_slot() as other:
            assert other.path.name == "slot-1"


def test_a_full_disk_is_told_of(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    repository = project.open()
    monkeypatch.setattr(slots, "write_atomically", full)
    with repository.acquire_slot() as slot, pytest.raises(OombisectError, match="No space left") as told:
        repository.materialise("main", slot)
    assert "free space" in told.value.way_out
