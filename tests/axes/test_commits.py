"""The axis of commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from oombisect.axes.commits import commit_range, parse_range, range_ends
from oombisect.errors import ExitCode, OombisectError
from oombisect.repo.changes import IMPORTED, NOT_IMPORTED
from tests.repo.history import History, git
from tests.repo.project import Project

ORDER = ("start", "docs", "grow", "roll", "lock", "other")
MODEL = "src/megatron/bridge/model.py"


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("v1..v2", ("v1", "v2")),
        (" a..b ", ("a", "b")),
        ("a..", ("a", "HEAD")),
        ("..b", ("HEAD", "b")),
        ("v0.5.0..v0.6.0", ("v0.5.0", "v0.6.0")),
        ("HEAD~3..HEAD^2", ("HEAD~3", "HEAD^2")),
    ],
)
def test_parse_range(text: str, ends: tuple[str, str]) -> None:
    assert parse_range(text) == ends


@pytest.mark.parametrize("text", ["main", "..", "", "a...b", "a..b..c", "a....b"])
def test_no_range(text: str) -> None:
    with pytest.raises(OombisectError, match="no range") as told:
        parse_range(text)
    assert "GOOD..BAD" in told.value.way_out and told.value.exit_code == ExitCode.USAGE


def test_three_dots_begin_where_the_two_parted(project: Project) -> None:
    side = project.bridge.commit("side", {MODEL: "HIDDEN = 9\n"}, branch="side", start=project.ids["grow"])
    repository = project.open()
    good, bad, note = range_ends(repository, "side...main")
    assert (good, bad) == (project.ids["grow"], "main") and note and "parted" in note
    assert range_ends(repository, "main...side")[:2] == (project.ids["grow"], "side")
    assert commit_range(repository, *range_ends(repository, "main...side")[:2]).points[-1].key == side
    assert range_ends(repository, "side..main") == ("side", "main", None)
    assert range_ends(repository, "v1.0.0...main")[0] == project.ids["start"], "main descends from it"
    with pytest.raises(OombisectError, match="no commits that main lacks") as told:
        range_ends(repository, "main...v1.0.0")
    assert told.value.way_out == "Swap them: v1.0.0...main"
    for text in ("...", "a....b", "a...b..c", "a..b...c"):
        with pytest.raises(OombisectError, match="no range"):
            range_ends(repository, text)


def test_points(project: Project) -> None:
    axis = commit_range(project.open(), "v1.0.0", "main")
    assert [p.key for p in axis.points] == [project.ids[n] for n in ORDER]
    assert [p.subject for p in axis.points] == list(ORDER)
    assert [p.parent for p in axis.points] == ["", *(p.key for p in axis.points[:-1])]
    first = axis.points[0]
    assert first.short == first.key[:9] and first.author == "Ann Author" and first.repo == "bridge"
    assert first.author_date.startswith("2025-06-15T") and axis.notes == ()
    assert axis.index("main~1") == 4 and axis.index(project.ids["grow"][:9]) == 2
    with pytest.raises(OombisectError, match="not a point"):
        commit_range(project.open(), "main~2", "main").index("v1.0.0")


def test_groups_and_signatures(project: Project) -> None:
    axis = commit_range(project.open(), "v1.0.0", "main")
    assert axis.groups() == [0, 0, 1, 2, 2, 3]
    assert axis.signature(0) == axis.signature(1)
    assert axis.signature(3)["bridge"] == axis.signature(4)["bridge"]
    assert axis.signature(3)["env-lock"] != axis.signature(4)["env-lock"]


def test_weights(project: Project) -> None:
    axis = commit_range(project.open(), "v1.0.0", "main")
    start, docs, grow, roll, lock, other = axis.weights()
    assert (start, docs, lock) == (0.0, 0.0, 0.0)
    assert grow == other == IMPORTED
    assert 2.0 <= roll < 2.1  # two submodule commits and a lock file
    weights = axis.weights({f"bridge:{MODEL}", "megatron-lm:megatron/core/__init__.py"})
    assert (weights[2], weights[5]) == (IMPORTED, NOT_IMPORTED)


def test_weights_by_many_rolls_at_once(project: Project) -> None:
    """Back, sideways and to a commit nobody has: nothing fails, and what is known counts."""
    m, ids = project.megatron, project.ids
    side = m.commit("s1", {"megatron/s.py": "1"}, branch="side", start=ids["m1"])
    for pin in (ids["m0"], side, "a" * 40, ids["m3"]):
        project.bridge.commit(f"pin {pin[:4]}", gitlinks={"3rdparty/Megatron-LM": pin})
    weights = commit_range(project.open(), "v1.0.0", "main").weights()
    assert [round(w) for w in weights[6:]] == [2, 2, 10, 10]


def test_materialise(project: Project) -> None:
    repository = project.open()
    axis = commit_range(repository, "v1.0.0", "main")
    with repository.acquire_slot() as slot:
        assert (axis.materialise(1, slot).root / MODEL).read_text() == "HIDDEN = 1\n"
        assert (axis.materialise(2, slot).root / MODEL).read_text() == "HIDDEN = 2\n"


@pytest.fixture
def merged(project: Project) -> tuple[Project, dict[str, str]]:
    """A side branch of two commits, merged."""
    bridge, ids = project.bridge, dict(project.ids)
    ids["s1"] = bridge.commit("s1", {"src/s.py": "1"}, branch="side", start=ids["lock"])
    ids["s2"] = bridge.commit("s2", {"src/s.py": "2"}, branch="side")
    ids["merge"] = bridge.commit("merge", {"src/s.py": "2"}, merge=ids["s2"])
    ids["last"] = bridge.commit("last", {MODEL: "HIDDEN = 5\n"})
    return project, ids


def test_a_merge_is_one_point(merged: tuple[Project, dict[str, str]]) -> None:
    project, ids = merged
    axis = commit_range(project.open(), "v1.0.0", "main")
    assert [p.subject for p in axis.points] == [*ORDER, "merge", "last"]
    assert axis.points[6].parent == ids["other"]


def test_every_commit_of_a_merge(merged: tuple[Project, dict[str, str]]) -> None:
    project, ids = merged
    axis = commit_range(project.open(), "v1.0.0", "main", first_parent=False)
    subjects = [p.subject for p in axis.points]
    assert sorted(subjects) == sorted([*ORDER, "s1", "s2", "merge", "last"])
    place = {p.key: n for n, p in enumerate(axis.points)}
    for commit in axis.commits:
        assert all(place[parent] < place[commit.sha] for parent in commit.parents)
    assert {p.subject: p.parent for p in axis.points}["s1"] == ids["lock"]


def test_a_good_end_off_the_line_is_told_of(merged: tuple[Project, dict[str, str]]) -> None:
    project, ids = merged
    axis = commit_range(project.open(), ids["s1"], "main")
    assert [p.subject for p in axis.points] == ["s1", "other", "merge", "last"]
    assert len(axis.notes) == 1 and "first-parent" in axis.notes[0]


@pytest.mark.parametrize(
    ("paths", "subjects"),
    [
        (["src"], ["start", "grow", "other"]),
        ([MODEL], ["start", "grow", "other"]),  # the bad end is a point whatever it touches
        (["docs", MODEL], ["start", "docs", "grow", "other"]),
        (["3rdparty/Megatron-LM"], ["start", "roll", "other"]),
        (["uv.lock"], ["start", "roll", "lock", "other"]),
    ],
)
def test_path_filters(project: Project, paths: list[str], subjects: list[str]) -> None:
    axis = commit_range(project.open(), "v1.0.0", "main", paths=paths)
    assert [p.subject for p in axis.points] == subjects
    assert axis.notes == ()
    assert len(axis.groups()) == len(axis.weights()) == len(subjects)


def test_a_path_that_nothing_touches_is_told_of(project: Project) -> None:
    axis = commit_range(project.open(), "v1.0.0", "main", paths=["src/no/such.py"])
    assert [p.subject for p in axis.points] == ["start", "other"]
    assert len(axis.notes) == 1 and "src/no/such.py" in axis.notes[0]


def test_a_filtered_point_is_laid_out_whole(project: Project) -> None:
    repository = project.open()
    axis = commit_range(repository, "v1.0.0", "main", paths=["uv.lock"])
    with repository.acquire_slot() as slot:
        assert (axis.materialise(1, slot).root / MODEL).read_text() == "HIDDEN = 2\n"


def refused(project: Project, good: str, bad: str) -> OombisectError:
    with pytest.raises(OombisectError) as told:
        commit_range(project.open(), good, bad)
    assert told.value.exit_code == ExitCode.USAGE
    return told.value


def test_reversed(project: Project) -> None:
    error = refused(project, "main", "v1.0.0")
    assert "reversed" in error.cause and "v1.0.0..main" in error.way_out


def test_same_commit(project: Project) -> None:
    assert "same commit" in refused(project, "main", project.ids["other"]).cause


def test_unknown_end(project: Project) -> None:
    assert "v1.0.0" in refused(project, "v1.0", "main").way_out


def test_forked(project: Project) -> None:
    """A tag on a release branch: the line goes through the merge base, which stands for the branch undone."""
    grow = project.ids["grow"]
    one = project.bridge.commit("release", {"src/r.py": ""}, branch="release", start=grow)
    two = project.bridge.commit("release again", {"src/r.py": "1"}, branch="release")
    line = commit_range(project.open(), "release", "main")
    assert [point.key for point in line.points[:2]] == [two, grow]
    straight = commit_range(project.open(), grow, "main")
    assert [point.key for point in line.points[1:]] == [point.key for point in straight.points]
    assert line.lumps == {1: (one, two)}
    assert any("does not descend" in note and grow[:12] in note for note in line.notes)


def test_left_out_commits_stay_with_the_point_after_them(project: Project) -> None:
    whole = commit_range(project.open(), "v1.0.0", "main")
    filtered = commit_range(project.open(), "v1.0.0", "main", paths=["README.md"])
    assert not whole.lumps
    keys = [point.key for point in whole.points[1:]]
    covered = [filtered.lumps.get(n, (point.key,)) for n, point in enumerate(filtered.points) if n]
    assert [sha for lump in covered for sha in lump] == keys


def test_no_common_history(project: Project) -> None:
    project.bridge.commit("alone", {"src/megatron/bridge/x.py": ""}, branch="alone")
    assert "share no history" in refused(project, "alone", "main").cause


def test_not_bridge(project: Project, tmp_path: Path) -> None:
    other = History(tmp_path / "other")
    first = other.commit("one", {"a": "1"})
    other.commit("two", {"a": "2"})
    with pytest.raises(OombisectError, match="src/megatron/bridge") as told:
        commit_range(project.open(other.path), first, "main")
    assert "--repo" in told.value.way_out


def test_shallow_history(project: Project, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=2", f"file://{project.bridge.path}", str(shallow))
    git(shallow, "fetch", "--quiet", "--depth=1", "origin", f"+{project.ids['start']}:refs/heads/old")
    repository = project.open(shallow)
    with pytest.raises(OombisectError, match="shallow") as told:
        commit_range(repository, "old", "main")
    assert "--unshallow" in told.value.way_out
    assert len(commit_range(repository, "main~1", "main").points) == 2


def test_odd_subjects_and_names(project: Project) -> None:
    subject = "tabs\tand ünïcode \x1b[31mred and 'quotes'"
    project.bridge.commit(subject, {MODEL: "HIDDEN = 9\n", "src/a b/ü\tx.py": "1\n"})
    axis = commit_range(project.open(), "v1.0.0", "main")
    assert "\x1b" not in axis.points[-1].subject and "ünïcode" in axis.points[-1].subject
    assert axis.repository.changed(axis.commits)[-1].paths == ("src/a b/ü\tx.py", MODEL)
