"""What a probe can see of commits, what they changed, how much that counts."""

from __future__ import annotations

import pytest

from oombisect.repo.changes import ENV_ONLY, IMPORTED, INVISIBLE, NOT_IMPORTED, UNKNOWN_ROLL, Changed, roll_sizes, weigh
from oombisect.repo.git import NULL_SHA
from oombisect.repo.trees import TreeReader, parse_tree
from tests.repo.history import GITLINK
from tests.repo.project import Project


def test_relevant_trees_are_what_git_says(project: Project) -> None:
    repository = project.open()
    for name, pin in (("start", "m0"), ("roll", "m2"), ("other", "m2")):
        found = repository.relevant_trees(project.ids[name])
        say = project.bridge.git
        locks = [say("rev-parse", f"{project.ids[name]}:{file}") for file in ("uv.lock", "pyproject.toml")]
        assert found.to_json() == {
            "bridge": say("rev-parse", f"{project.ids[name]}:src"),
            "megatron-lm": project.megatron.git("rev-parse", f"{project.ids[pin]}:megatron"),
            "env-lock": ":".join(locks),
        }
        assert found.gitlink == project.ids[pin]


def test_equal_keys_are_what_a_probe_cannot_tell_apart(project: Project) -> None:
    repository, ids = project.open(), project.ids
    names = ("start", "docs", "grow", "roll", "lock", "other")
    keys = {name: repository.relevant_trees(ids[name]).key for name in names}
    assert keys["start"] == keys["docs"]
    assert keys["roll"] == keys["lock"]
    assert len(set(keys.values())) == 4
    docs_only_roll = project.bridge.commit("roll to m3", gitlinks={GITLINK: ids["m3"]})
    assert repository.relevant_trees(docs_only_roll).key == keys["other"]


def test_another_megatron_than_the_pinned(project: Project) -> None:
    repository, ids = project.open(), project.ids
    mixed = repository.relevant_trees(ids["grow"], megatron=ids["m2"])
    assert mixed.key == repository.relevant_trees(ids["roll"]).key and mixed.gitlink == ids["m2"]


def test_a_pin_that_is_not_at_hand_still_tells_commits_apart(project: Project) -> None:
    one = project.bridge.commit("roll to nowhere", gitlinks={GITLINK: "a" * 40})
    other = project.bridge.commit("roll to nowhere else", gitlinks={GITLINK: "b" * 40})
    repository = project.open()
    assert repository.relevant_trees(one).megatron == "gitlink:" + "a" * 40
    assert repository.relevant_trees(one).key != repository.relevant_trees(other).key


def test_a_commit_without_anything(project: Project) -> None:
    empty = project.bridge.commit("empty", {"README": "x"}, branch="orphan")
    assert project.open().relevant_trees(empty).to_json() == {"bridge": "", "megatron-lm": "", "env-lock": ""}


def test_reading_trees(project: Project) -> None:
    repository = project.open()
    reader = TreeReader(repository.mirror.local)
    commit = project.ids["other"]
    entry = reader.find(f"{commit}^{{tree}}", GITLINK)
    assert entry is not None and entry.is_gitlink and entry.sha == project.ids["m2"]
    assert reader.find(f"{commit}^{{tree}}", "uv.lock/below/a/file") is None
    assert reader.find(f"{commit}^{{tree}}", "no/such") is None
    assert reader.find_all([f"{commit}^{{tree}}", "f" * 40], "src")[1] is None
    assert parse_tree(b"") == {}


def test_changes_of_each_commit(project: Project) -> None:
    repository, ids = project.open(), project.ids
    commits = repository.log("--reverse", ids["other"])
    changed = dict(zip((c.subject for c in commits), repository.changed(commits)))
    assert changed["docs"] == Changed()
    assert changed["grow"].paths == ("src/megatron/bridge/model.py",)
    assert changed["roll"].roll == (ids["m0"], ids["m2"]) and set(changed["roll"].paths) == {GITLINK, "uv.lock"}
    assert changed["start"].roll == (NULL_SHA, ids["m0"])


def test_a_merge_changes_what_it_brings_to_its_first_parent(project: Project) -> None:
    ids, bridge = project.ids, project.bridge
    side = bridge.commit("side", {"src/megatron/bridge/side.py": "S = 1\n"}, branch="side", start=ids["start"])
    merge = bridge.commit("merge", {"src/megatron/bridge/side.py": "S = 1\n"}, merge=side)
    repository = project.open()
    assert repository.changed([repository.commit(merge)]) == [Changed(("src/megatron/bridge/side.py",))]


@pytest.mark.parametrize(
    ("paths", "imported", "weight"),
    [
        ((), None, INVISIBLE),
        (("uv.lock",), None, ENV_ONLY),
        (("src/a.py",), None, IMPORTED),
        (("src/a.py", "src/b.py"), {"src/b.py"}, IMPORTED),
        (("src/a.py", "uv.lock"), {"src/b.py"}, NOT_IMPORTED),
        (("src/a.py",), set(), NOT_IMPORTED),
    ],
)
def test_weights(paths: tuple[str, ...], imported: set[str] | None, weight: float) -> None:
    assert weigh(Changed(paths), imported, {}) == weight


def test_a_roll_weighs_its_commits() -> None:
    roll = Changed(("uv.lock",), ("a", "b"))
    assert weigh(roll, None, {("a", "b"): 12}) == ENV_ONLY + 12
    assert weigh(roll, None, {}) == ENV_ONLY + UNKNOWN_ROLL
    assert weigh(roll, None, {("a", "b"): 0}) == ENV_ONLY + 1


def test_roll_sizes(project: Project) -> None:
    """Straight, backwards, sideways, over a merge, and to a commit that is not there."""
    m, ids = project.megatron, project.ids
    side = m.commit("s1", {"megatron/s.py": "1"}, branch="side", start=ids["m1"])
    side = m.commit("s2", {"megatron/s.py": "2"}, branch="side")
    merge = m.commit("merge", {"megatron/s.py": "2"}, merge=side)
    repository = project.open()
    pin = repository.pin("main")
    assert pin is not None
    rolls = {
        (ids["m0"], ids["m3"]): 3,
        (ids["m3"], ids["m1"]): 2,
        (ids["m2"], side): 3,  # back over m2, forth over s1 and s2
        (ids["m2"], merge): 2,
        (side, merge): 3,  # m2, m3 and the merge itself; s1 and s2 are on neither side
    }
    sizes = roll_sizes(repository.store.mirror(pin).local, [*rolls, ("a" * 40, ids["m1"]), (NULL_SHA, ids["m1"])])
    assert sizes == rolls
