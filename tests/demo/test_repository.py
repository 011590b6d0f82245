import itertools
import os
import shutil
from pathlib import Path

import pytest

from oombisect.demo import commits
from oombisect.demo.repository import BRIDGE, MEGATRON, SUBMODULE, DemoRepository, build_demo, find_megatron_core
from oombisect.demo.truth import Truth
from oombisect.errors import OombisectError
from tests.demo.layout import first_parents, git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


def _history(demo: DemoRepository) -> str:
    return git(demo.path, "log", "--format=%H %an %ad %s", "--all")


def test_same_commits_every_time(small_core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = build_demo(tmp_path / "one", small_core)
    (tmp_path / ".gitconfig").write_text("[user]\nname = Somebody\n[core]\nautocrlf = true\n[commit]\ngpgsign = true\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    previous = os.umask(0o077)
    try:
        two = build_demo(tmp_path / "deeper" / "two", small_core)
    finally:
        os.umask(previous)
    monkeypatch.delenv("GIT_DIR")
    assert _history(one) == _history(two)


def test_another_core_gives_other_commits(small_core: Path, tmp_path: Path) -> None:
    one = build_demo(tmp_path / "one", small_core)
    (small_core / "package_info.py").write_text("MAJOR = 1\n")
    assert _history(one) != _history(build_demo(tmp_path / "two", small_core))


def test_made_once(small_core: Path, tmp_path: Path) -> None:
    demo = build_demo(tmp_path / "demo", small_core)
    (demo.path / "mine").write_text("kept: nothing is made anew\n")
    assert build_demo(tmp_path / "demo", small_core) == demo
    assert (demo.path / "mine").exists()


def test_interrupted_making_starts_again(small_core: Path, tmp_path: Path) -> None:
    demo = build_demo(tmp_path / "demo", small_core)
    whole = _history(demo)
    (tmp_path / "demo" / ".oombisect-demo.json").write_text("{}")
    shutil.rmtree(demo.path / ".git")
    assert _history(build_demo(tmp_path / "demo", small_core)) == whole


def test_never_into_somebody_elses_folder(small_core: Path, tmp_path: Path) -> None:
    precious = tmp_path / "work" / MEGATRON / "precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("")
    with pytest.raises(OombisectError, match="not the demo's"):
        build_demo(tmp_path / "work", small_core)
    assert precious.exists()


def test_no_git(small_core: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OombisectError, match="git"):
        build_demo(tmp_path / "demo", small_core)


def test_no_megatron_core(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho\n")
    python.chmod(0o755)
    with pytest.raises(OombisectError, match="megatron-core"):
        find_megatron_core(python)
    with pytest.raises(OombisectError, match="cannot be run"):
        find_megatron_core(tmp_path / "missing")
    with pytest.raises(OombisectError, match=r"not the package megatron\.core"):
        build_demo(tmp_path / "demo", tmp_path)


def test_layout(demo: DemoRepository, megatron_core: Path) -> None:
    assert git(demo.path, "status", "--porcelain") == ""
    assert not (demo.path / "src" / "megatron" / "__init__.py").exists(), "megatron is a namespace package"
    core = demo.path / SUBMODULE / "megatron" / "core"
    assert (core / "package_info.py").read_bytes() == (megatron_core / "package_info.py").read_bytes()
    same = [
        f for f in megatron_core.rglob("*.py") if (core / f.relative_to(megatron_core)).read_bytes() == f.read_bytes()
    ]
    assert len(same) >= len(list(megatron_core.rglob("*.py"))) - 2, "all but the two files that decorate"
    tracked = git(demo.path.parent / MEGATRON, "ls-files").split()
    assert not [name for name in tracked if name.endswith((".pyc", ".so"))]


def test_truth_agrees_with_the_history(demo: DemoRepository, facts: Truth) -> None:
    line = first_parents(demo)
    good = git(demo.path, "rev-parse", f"{demo.good}^{{commit}}")
    in_range = line[line.index(good) + 1 :]
    assert 35 <= len(in_range) <= 45
    order = [facts.reverted, facts.revert, facts.roll, facts.merge, *facts.unimportable]
    order += [facts.fragmentation, facts.capacity]
    assert [in_range.index(sha) for sha in order] == sorted(in_range.index(sha) for sha in order)
    assert facts.reverted in git(demo.path, "log", "-1", "--format=%b", facts.revert)
    assert len(git(demo.path, "log", "-1", "--format=%P", facts.merge).split()) == 2
    assert len(git(demo.path, "log", "--format=%H", f"{facts.merge}^1..{facts.merge}^2").split()) == 3

    def pin(sha: str) -> str:
        return git(demo.path, "rev-parse", f"{sha}:{SUBMODULE}")

    moves = [sha for before, sha in itertools.pairwise(line) if pin(before) != pin(sha)]
    assert moves == [facts.roll]
    between = git(demo.path / SUBMODULE, "log", "--format=%H", f"{pin(f'{facts.roll}^')}..{pin(facts.roll)}").split()
    assert len(between) == 2

    def source(sha: str) -> str:
        return git(demo.path, "rev-parse", f"{sha}:src")

    untouched = [
        sha for before, sha in itertools.pairwise(line) if source(before) == source(sha) and pin(before) == pin(sha)
    ]
    assert len(untouched) >= 12, "many commits are documentation and tests"


def test_reverts_at_the_tip_are_clean(demo: DemoRepository, facts: Truth, tmp_path: Path) -> None:
    """Confirmation takes each culprit back at the bad end; what came later must not stand in the way."""
    copy = tmp_path / "copy"
    shutil.copytree(demo.path, copy)
    for sha in (facts.capacity, facts.fragmentation):
        git(copy, "-c", "user.name=x", "-c", "user.email=x@example.com", "revert", "--no-edit", sha)
    source = copy / "src" / "megatron" / "bridge"
    assert "WeightStaging" not in (source / "training" / "setup.py").read_text()
    assert "new_empty" in (source / "models" / "petrel" / "attention.py").read_text()


def test_the_history_does_not_give_itself_away() -> None:
    """Subjects and texts of the regressions name neither memory nor what they do to it."""
    culprits = {"chunk-tensors", "staged-weights", "layer-movement"}
    for commit in commits.bridge_commits():
        if commit.slug in culprits:
            words = f"{commit.subject} {commit.body}".lower()
            assert not [w for w in ("memory", "fragment", "regress", "leak", "oom", "strand", "capacity") if w in words]


def test_edits_must_hit_once(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a a b")
    commits.Edit("f", "b", "c").apply(tmp_path)
    commits.Edit("f", "a", "d", all=True).apply(tmp_path)
    assert (tmp_path / "f").read_text() == "d d c"
    for old in ("d", "missing"):
        with pytest.raises(ValueError, match="occurrences"):
            commits.Edit("f", old, "x").apply(tmp_path)


@pytest.mark.parametrize("text", ["", "[]"])
def test_nonsense_in_the_marker(small_core: Path, tmp_path: Path, text: str) -> None:
    target = tmp_path / "demo"
    target.mkdir()
    (target / ".oombisect-demo.json").write_text(text)
    assert build_demo(target, small_core).path == target / BRIDGE
