"""The tip without one change."""

from __future__ import annotations

import pytest

from oombisect.errors import OombisectError
from oombisect.repo.mirror import Mirror, Promisor
from oombisect.repo.revert import RevertConflict, revert
from tests.repo.history import GITLINK, git
from tests.repo.project import Project

MODEL = "src/megatron/bridge/model.py"


def tree(project: Project, commit: str, mirror: str) -> dict[str, str]:
    listing = git(project.cache.parent, "-C", mirror, "ls-tree", "-r", "--format=%(path) %(objectname)", commit)
    return dict(line.rsplit(" ", 1) for line in listing.splitlines())


def test_a_change_comes_out_and_nothing_else(project: Project) -> None:
    repository = project.open()
    done = repository.reverted("main", project.ids["grow"])
    mirror = str(repository.mirror.path)
    before, after = tree(project, project.ids["other"], mirror), tree(project, done.commit, mirror)
    assert {p for p in before if before[p] != after.get(p)} == {MODEL} and before.keys() == after.keys()
    assert done.changed
    with repository.acquire_slot() as slot:
        laid = repository.materialise_reverted("main", project.ids["grow"], slot)
        assert (laid.root / MODEL).read_text().strip() == "HIDDEN = 1"
        assert laid.commit == done.commit and laid.megatron_commit == project.ids["m2"]


def test_a_partial_clone_makes_the_same_commit(project: Project) -> None:
    """Which is made under our identity, whoever runs git and when."""
    repository = project.open()
    tip, culprit = (repository.resolve(name) for name in ("main", project.ids["grow"]))
    partial = Mirror(repository.mirror.path, Promisor(str(project.bridge.path)))
    assert revert(partial, tip, culprit, bool).commit == revert(repository.mirror, tip, culprit, bool).commit


def test_same_question_same_commit_in_every_process(project: Project) -> None:
    first, second = project.open(), project.open()
    commit = first.reverted("main", project.ids["grow"]).commit
    assert second.reverted("main", project.ids["grow"]).commit == commit
    # A resumed session knows the id and nothing else.
    assert project.open().relevant_trees(commit) == first.relevant_trees(commit)
    with pytest.raises(OombisectError, match="no revision"):
        project.open(project.megatron.path).resolve(commit)


def test_a_later_change_to_the_same_lines_conflicts(project: Project) -> None:
    project.bridge.commit("more", {MODEL: "HIDDEN = 3\n"})
    with pytest.raises(RevertConflict) as told:
        project.open().reverted("main", project.ids["grow"])
    assert told.value.paths == (MODEL,)
    assert project.ids["grow"][:12] in told.value.cause and MODEL in told.value.cause


def test_a_later_deletion_conflicts(project: Project) -> None:
    project.bridge.commit("delete", {MODEL: None})
    with pytest.raises(RevertConflict) as told:
        project.open().reverted("main", project.ids["grow"])
    assert told.value.paths == (MODEL,)


def test_a_change_undone_since_changes_nothing(project: Project) -> None:
    project.bridge.commit("undo", {MODEL: "HIDDEN = 1\n"})
    assert not project.open().reverted("main", project.ids["grow"]).changed


def test_a_conflict_that_no_probe_sees_is_settled_as_at_the_tip(project: Project) -> None:
    """The roll's own uv.lock lines have changed since; its gitlink still comes out."""
    repository = project.open()
    with repository.acquire_slot() as slot:
        laid = repository.materialise_reverted("main", project.ids["roll"], slot)
        assert laid.megatron_commit == project.ids["m0"]
        assert (laid.root / "uv.lock").read_text().strip() == "three"
        assert laid.notes and "uv.lock" in laid.notes[0]


def test_an_unseen_conflict_with_a_deletion(project: Project) -> None:
    project.bridge.commit("no lock", {"uv.lock": None})
    done = project.open().reverted("main", project.ids["roll"])
    repository = project.open()
    assert "uv.lock" not in tree(project, done.commit, str(repository.mirror.path))
    assert done.ignored == ("uv.lock",)


def test_a_later_roll_makes_the_gitlink_conflict(project: Project) -> None:
    project.bridge.commit("roll again", gitlinks={GITLINK: project.ids["m3"]})
    with pytest.raises(RevertConflict) as told:
        project.open().reverted("main", project.ids["roll"])
    assert told.value.paths == (GITLINK,)


def test_a_merge_is_undone_against_its_first_parent(project: Project) -> None:
    ids, bridge = project.ids, project.bridge
    side = bridge.commit("side 1", {"src/megatron/bridge/side.py": "S = 1\n"}, branch="side", start=ids["lock"])
    side = bridge.commit("side 2", {"src/megatron/bridge/side2.py": "S = 2\n"}, branch="side")
    both = {"src/megatron/bridge/side.py": "S = 1\n", "src/megatron/bridge/side2.py": "S = 2\n"}
    merge = bridge.commit("merge side", both, merge=side)
    bridge.commit("after", {"src/megatron/bridge/after.py": "A = 1\n"})
    repository = project.open()
    done = repository.reverted("main", merge)
    names = set(tree(project, done.commit, str(repository.mirror.path)))
    assert "src/megatron/bridge/after.py" in names and "src/megatron/bridge/other.py" in names
    assert not names & set(both)


def test_the_first_commit_of_a_history(project: Project) -> None:
    """It has no parent: undoing it deletes what it made; what changed since is in conflict."""
    with pytest.raises(RevertConflict) as told:
        project.open().reverted("main", project.ids["start"])
    assert MODEL in told.value.paths
    done = project.open().reverted(project.ids["start"], project.ids["start"])
    assert done.changed
    assert tree(project, done.commit, str(project.open().mirror.path)) == {}


def test_a_file_renamed_since(project: Project) -> None:
    text = "".join(f"line {n}\n" for n in range(40))
    first = project.bridge.commit("long", {"src/megatron/bridge/long.py": text})
    grown = project.bridge.commit("grown", {"src/megatron/bridge/long.py": text.replace("line 20\n", "line twenty\n")})
    changed = text.replace("line 20\n", "line twenty\n")
    project.bridge.commit("rename", {"src/megatron/bridge/long.py": None, "src/megatron/bridge/longer.py": changed})
    repository = project.open()
    done = repository.reverted("main", grown)
    after = tree(project, done.commit, str(repository.mirror.path))
    before = tree(project, first, str(repository.mirror.path))
    assert after["src/megatron/bridge/longer.py"] == before["src/megatron/bridge/long.py"]
