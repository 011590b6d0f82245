"""The axis inside one roll."""

from __future__ import annotations

import pytest

from oombisect.axes.submodule import roll_range
from oombisect.errors import OombisectError
from oombisect.repo.changes import IMPORTED, NOT_IMPORTED
from oombisect.repo.submodule import MissingCommit
from tests.repo.history import History
from tests.repo.project import Project


def test_a_roll_forward_is_the_first_parent_history_of_the_new_pin(project: Project) -> None:
    ids = project.ids
    axis = roll_range(project.open(), ids["roll"], ids["m0"], ids["m3"])
    assert [p.key for p in axis.points] == [ids[n] for n in ("m0", "m1", "m2", "m3")]
    assert [p.repo for p in axis.points] == ["megatron-lm"] * 4
    assert axis.points[1].parent == ids["m0"] and axis.points[3].subject == "m3 docs only"
    assert (axis.move, axis.fork, axis.lumps, axis.notes) == ("forward", None, {}, ())
    assert axis.groups() == [0, 1, 2, 2]  # the last touches no source


def test_every_point_has_the_sources_of_one_bridge_commit(project: Project) -> None:
    repository, ids = project.open(), project.ids
    axis = roll_range(repository, ids["other"], ids["m0"], ids["m2"])
    assert {trees.bridge for trees in axis.trees} == {repository.relevant_trees(ids["other"]).bridge}
    assert axis.trees[2] == repository.relevant_trees(ids["other"])
    assert axis.trees[0].megatron == repository.relevant_trees(ids["start"]).megatron
    with repository.acquire_slot() as slot:
        laid = axis.materialise(1, slot)
        assert laid.commit == ids["other"] and laid.megatron_commit == ids["m1"]
        assert (laid.root / "src/megatron/bridge/other.py").is_file()
        assert laid.megatron_root is not None and (laid.megatron_root / "megatron/core/a.py").is_file()


def test_weights_know_what_the_probe_imported(project: Project) -> None:
    ids = project.ids
    axis = roll_range(project.open(), ids["roll"], ids["m0"], ids["m3"])
    assert axis.weights() == [0.0, IMPORTED, IMPORTED, 0.0]
    assert axis.weights({"megatron-lm:megatron/core/__init__.py"}) == [0.0, NOT_IMPORTED, IMPORTED, 0.0]


def test_sideways_goes_through_the_merge_base(project: Project) -> None:
    ids, m = project.ids, project.megatron
    s1 = m.commit("s1", {"megatron/s.py": "1"}, branch="side", start=ids["m1"])
    s2 = m.commit("s2", {"megatron/s.py": "2"}, branch="side")
    axis = roll_range(project.open(), ids["roll"], s2, ids["m3"])
    assert [p.key for p in axis.points] == [s2, ids["m1"], ids["m2"], ids["m3"]]
    assert axis.lumps == {1: (s1, s2)}
    assert (axis.move, axis.fork) == ("sideways", ids["m1"])
    assert "2 commit(s)" in axis.notes[0] and "undone" in axis.notes[0]


def test_back_to_an_ancestor_is_one_step(project: Project) -> None:
    ids = project.ids
    axis = roll_range(project.open(), ids["roll"], ids["m3"], ids["m1"])
    assert [p.key for p in axis.points] == [ids["m3"], ids["m1"]]
    assert axis.lumps == {1: (ids["m2"], ids["m3"])} and axis.move == "back"


def test_an_old_pin_that_was_merged_in_is_told_of(project: Project) -> None:
    ids, m = project.ids, project.megatron
    side = m.commit("s1", {"megatron/s.py": "1"}, branch="side", start=ids["m1"])
    merge = m.commit("merge", {"megatron/s.py": "1"}, merge=side)
    axis = roll_range(project.open(), ids["roll"], side, merge)
    assert axis.points[0].key == side and axis.points[-1].key == merge
    assert "first-parent" in axis.notes[0]


def test_a_pin_that_is_nowhere(project: Project) -> None:
    with pytest.raises(MissingCommit, match="aaaaaaaa"):
        roll_range(project.open(), project.ids["roll"], project.ids["m0"], "a" * 40)


def test_histories_that_do_not_meet(project: Project) -> None:
    other = History(project.megatron.path.parent / "Other")
    alone = other.commit("alone", {"megatron/core/__init__.py": ""})
    project.megatron.git("fetch", "--quiet", str(other.path), "main:elsewhere")
    with pytest.raises(OombisectError, match="do not meet"):
        roll_range(project.open(), project.ids["roll"], alone, project.ids["m1"])


def test_a_commit_is_reverted_at_the_new_pin(project: Project) -> None:
    repository, ids = project.open(), project.ids
    done = repository.reverted_megatron(ids["roll"], ids["m2"], ids["m1"])
    assert done.changed
    trees = repository.relevant_trees(ids["roll"], megatron=done.commit)
    assert trees.megatron not in (repository.relevant_trees(ids["roll"]).megatron, "")
    with repository.acquire_slot() as slot:
        laid = repository.materialise(ids["roll"], slot, megatron=done.commit)
        assert laid.megatron_root is not None
        assert not (laid.megatron_root / "megatron/core/a.py").exists()
        assert (laid.megatron_root / "megatron/core/__init__.py").read_text() == "V = 2\n"
    assert project.open().reverted_megatron(ids["roll"], ids["m2"], ids["m1"]).commit == done.commit
