"""Diffs and sources of two commits of both projects."""

from __future__ import annotations

from oombisect.memory.line_map import CodeDiff
from oombisect.repo.line_map import code_diffs, projects_at
from tests.repo.project import Project

MODEL = "src/megatron/bridge/model.py"


def diffs(project: Project, first: str, second: str, ignore_space: bool = False, **paths: str) -> dict[str, CodeDiff]:
    repository = project.open()
    ends = [projects_at(repository, point) for point in (first, second)]
    files = {name.replace("_", "-"): [path] for name, path in paths.items()}
    return code_diffs(*ends, files, ignore_space=ignore_space)


def test_sources_are_those_of_each_commit(project: Project) -> None:
    repository = project.open()
    for point, hidden, a in (("docs", "HIDDEN = 1\n", None), ("other", "HIDDEN = 2\n", "A = 1\n")):
        found = projects_at(repository, project.ids[point])
        assert found["bridge"].text(MODEL) == hidden
        assert found["megatron-lm"].text("megatron/core/a.py") == a
        assert found["bridge"].text("src/none.py") is None
        assert found["bridge"].text("src") is None


def test_lines_of_a_renamed_file(project: Project) -> None:
    body = "".join(f"line {n}\n" for n in range(1, 21))
    there = "src/megatron/bridge/there.py"
    first = project.bridge.commit("long", {MODEL: body})
    second = project.bridge.commit("rename", {MODEL: None, there: body.replace("line 10\n", "ten\nmore\n")})
    (file,) = diffs(project, first, second, bridge=MODEL)["bridge"].files
    assert (file.old, file.new) == (MODEL, there)
    assert [file.new_line(n) for n in (1, 9, 10, 11, 20)] == [1, 9, None, 12, 21]
    edit = file.edit_of_new(11)
    assert edit is not None and "+more" in edit.hunk.lines


def test_a_change_of_white_space_alone(project: Project) -> None:
    first = project.bridge.commit("flat", {MODEL: "a = 1\nb = 2\n"})
    second = project.bridge.commit("nested", {MODEL: "if True:\n    a = 1\n    b = 2\n"})
    (exact,) = diffs(project, first, second, bridge=MODEL)["bridge"].files
    (words,) = diffs(project, first, second, True, bridge=MODEL)["bridge"].files
    assert exact.new_line(1) is None and words.new_line(1) == 2


def test_a_roll_of_the_submodule_and_nothing_else(project: Project) -> None:
    path = "megatron/core/__init__.py"
    found = diffs(project, project.ids["grow"], project.ids["roll"], bridge=MODEL, megatron_lm=path)
    assert found["bridge"].files == ()
    assert found["megatron-lm"].by_new[path].edit_of_new(1) is not None


def test_files_nobody_asked_about_are_left_out(project: Project) -> None:
    assert diffs(project, project.ids["docs"], project.ids["grow"])["bridge"].files == ()
    assert diffs(project, project.ids["docs"], project.ids["docs"], bridge=MODEL)["bridge"].files == ()


def test_a_tip_with_a_change_reverted(project: Project) -> None:
    tip, culprit = project.ids["other"], project.ids["grow"]
    found = projects_at(project.open(), f"{tip}-{culprit}")
    assert found["bridge"].text(MODEL) == "HIDDEN = 1\n"


def test_nothing_that_a_repository_says_is_run(project: Project) -> None:
    marker = project.cache.parent / "ran"
    attributes = {".gitattributes": "*.py diff=evil\n"}
    first = project.bridge.commit("evil", {**attributes, MODEL: "a\n"})
    second = project.bridge.commit("more", {MODEL: "b\n"})
    for setting in ("textconv", "command"):
        project.bridge.git("config", f"diff.evil.{setting}", f"touch {marker};")
    assert diffs(project, first, second, bridge=MODEL)["bridge"].files
    assert not marker.exists()
