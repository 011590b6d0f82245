"""Into merges: git, processes, the store and the search are real."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from oombisect.errors import ExitCode
from oombisect.reports.terminal import headline
from oombisect.session.verdict import Report

from . import toy
from .toy import MIB, git, mib
from .world import World


class Branches:
    """A mainline and a branch of it; each commit says what it changes of memory. Ids are kept by subject."""

    def __init__(self, world: World) -> None:
        self.world, self.ids = world, dict[str, str]()
        world.shas = toy.history(world.repo, [mib(8000, tag=0)])
        self.ids["start"] = world.shas[0]

    def commit(self, subject: str, **told: Any) -> None:
        folder = self.world.repo / "src/megatron/bridge/memory"
        for name, value in (told or {f"tag-{subject}": subject}).items():
            (folder / name).write_text(json.dumps(value) + "\n")
        git(self.world.repo, "add", "--all")
        git(self.world.repo, "commit", "--quiet", "-m", subject)
        self.ids[subject] = git(self.world.repo, "rev-parse", "HEAD")

    def go(self, branch: str, *, new: bool = False) -> None:
        git(self.world.repo, "checkout", "--quiet", *(["-b"] if new else []), branch)

    def merge(self, branch: str, subject: str, **told: Any) -> None:
        git(self.world.repo, "merge", "--quiet", "--no-ff", "--no-commit", branch)
        self.commit(subject, **(told or {f"tag-{subject}": subject}))

    def run(self, **options: Any) -> Report:
        tip = git(self.world.repo, "rev-parse", "main")
        return self.world.run([], range=f"{self.ids['start']}..{tip}", **options)

    def name(self, sha: str | None) -> str | None:
        return next((subject for subject, known in self.ids.items() if known == sha), None)


@pytest.fixture
def branches(world: World) -> Branches:
    return Branches(world)


def sizes(mib: int) -> dict[str, int]:
    return {"allocated": mib * MIB, "reserved": (mib + 100) * MIB}


def plain(branches: Branches) -> None:
    """The second of three commits of a branch adds 1800 MiB; the mainline went on meanwhile."""
    branches.go("side", new=True)
    branches.commit("s1")
    branches.commit("s2", **sizes(9800))
    branches.commit("s3")
    branches.go("main")
    branches.commit("m1")
    branches.merge("side", "merge")
    branches.commit("m2")


def descent_of(report: Report) -> dict[str, Any]:
    (step,) = report.verdict.steps
    found: dict[str, Any] = step.evidence["descent"]
    return found


def test_the_commit_of_the_merged_branch_is_named(branches: Branches) -> None:
    plain(branches)
    report = branches.run()
    assert report.exit_code is ExitCode.CULPRIT
    assert branches.name(report.verdict.crossing) == "merge"
    descent = descent_of(report)
    assert (descent["into"], descent["kind"]) == ("merge", "culprit")
    assert descent["branch"] == {"first": branches.ids["s1"], "last": branches.ids["s3"], "commits": 3}
    (step,) = report.verdict.steps
    inside = step.main_inside
    assert inside is not None and branches.name(inside.point) == "s2" and branches.name(inside.parent) == "s1"
    assert (inside.confirmed, inside.change, inside.crosses_limit) == ("yes", 1800 * MIB, True)
    text = headline(report)
    assert text.startswith(f'{inside.point[:10]} "s2"') and f'It was merged with {step.point[:10]} "merge"' in text
    probed = [shlex.split(command)[2] for command in report.reproduce]
    assert {branches.ids["s1"][:12], branches.ids["s2"][:12]} <= set(probed)
    assert not any("--megatron-commit" in command for command in report.reproduce)


def test_no_descent_where_none_is_wanted(branches: Branches) -> None:
    plain(branches)
    assert "descent" not in branches.run(descend=False).verdict.steps[0].evidence
    every = branches.run(first_parent=False)
    assert branches.name(every.verdict.crossing) == "s2", "every commit is a point then"


def test_the_merge_itself_may_have_done_it(branches: Branches) -> None:
    """No commit of the branch: what was changed in the merge."""
    branches.go("side", new=True)
    branches.commit("s1")
    branches.commit("s2")
    branches.go("main")
    branches.commit("m1")
    branches.merge("side", "merge", **sizes(9800))
    branches.commit("m2")
    report = branches.run()
    assert report.exit_code is ExitCode.CULPRIT and branches.name(report.verdict.steps[0].point) == "merge"
    descent = descent_of(report)
    assert (descent["kind"], descent["steps"]) == ("not-needed", [])
    assert descent["notes"] == ["the branch by itself adds +0 B: the merge itself brought it"]
    assert report.verdict.steps[0].main_inside is None


def test_a_branch_that_cannot_be_probed_by_itself_blurs_to_the_merge(branches: Branches) -> None:
    branches.go("side", new=True)
    branches.commit("s1", unresolved="ImportError", **sizes(9800))
    branches.go("main")
    branches.merge("side", "merge", unresolved="", **sizes(9800))
    branches.commit("m2")
    descent = descent_of(branches.run())
    assert descent["kind"] == "blurred"
    assert descent["notes"] == ["the branch cannot be probed at its tip: ImportError"]


def test_what_the_mainline_brought_into_the_branch_names_nobody(branches: Branches) -> None:
    """The mainline's own step is before the merge, and comes into the branch by a merge of the mainline."""
    branches.go("side", new=True)
    branches.commit("s1")
    branches.go("main")
    branches.commit("m1", **sizes(9000))
    branches.go("side")
    branches.merge("main", "back")
    branches.commit("s2", extra=1, **sizes(9600))
    branches.go("main")
    branches.merge("side", "merge")
    branches.commit("m2")
    report = branches.run()
    outer = next(step for step in report.verdict.steps if branches.name(step.point) == "merge")
    descent = outer.evidence["descent"]
    told = {branches.name(step["point"]): step["named"] for step in descent["steps"]}
    assert told == {"s2": True, "back": False}
    why = next(note for note in descent["notes"] if note.startswith(branches.ids["back"][:10]))
    assert "does not revert cleanly" in why, "s2 rewrote the same lines"


def test_the_budget_covers_the_descent(branches: Branches) -> None:
    plain(branches)
    first = branches.run(descend=False)
    with branches.world.store() as store:
        answers = [e.payload for e in store.events(first.session) if e.kind == "observation"]
    for file in branches.world.folder.glob("db.sqlite*"):
        file.unlink()
    descent = descent_of(branches.run(budget=sum(not answer["cached"] for answer in answers)))
    assert (descent["kind"], descent["steps"]) == ("budget", [])


def test_what_the_mainline_has_by_another_commit_is_not_what_the_merge_brought(branches: Branches) -> None:
    """The branch's own step was cherry-picked to the mainline before; what the merge brings was written into it."""
    branches.go("side", new=True)
    branches.commit("s1")
    branches.commit("s2", **sizes(9000))
    branches.go("main")
    branches.commit("picked", **sizes(9000))
    branches.merge("side", "merge", external=1500 * MIB)
    branches.commit("m2")
    report = branches.run()
    outer = next(step for step in report.verdict.steps if branches.name(step.point) == "merge")
    descent = outer.evidence["descent"]
    assert outer.named and outer.main_inside is None
    assert (descent["kind"], [(branches.name(s["point"]), s["named"]) for s in descent["steps"]]) == (
        "not-needed",
        [("s2", False)],
    )
    assert any("the mainline had before the merge" in note for note in descent["notes"])


def inside_merge(report: Report, branches: Branches) -> tuple[dict[str, Any], dict[str | None, tuple[bool, str]]]:
    """The descent into the commit `merge`; of each step inside whether it is named, and how it is confirmed."""
    descent = next(step for step in report.verdict.steps if branches.name(step.point) == "merge").evidence["descent"]
    return descent, {branches.name(step["point"]): (step["named"], step["confirmed"]) for step in descent["steps"]}


def test_a_picked_part_is_not_what_the_merge_brought(branches: Branches) -> None:
    """The mainline has the memory of the branch's commit, but not all of its files: the merge moves one of them."""
    branches.go("side", new=True)
    branches.commit("s1", rest=1, **sizes(9000))
    branches.go("main")
    branches.commit("picked", **sizes(9000))
    branches.merge("side", "merge", external=1500 * MIB)
    descent, told = inside_merge(branches.run(), branches)
    assert (descent["kind"], told) == ("not-needed", {"s1": (False, "superseded")})


def test_a_third_branch_that_both_merged_is_not_what_the_merge_brought(branches: Branches) -> None:
    branches.go("library", new=True)
    branches.commit("l1", **sizes(9000))
    branches.go("main")
    branches.go("side", new=True)
    branches.commit("s1")
    branches.merge("library", "into side")
    branches.go("main")
    branches.commit("m1")
    branches.merge("library", "into main")
    branches.merge("side", "merge", external=1500 * MIB)
    descent, told = inside_merge(branches.run(), branches)
    assert (descent["kind"], told) == ("not-needed", {"into side": (False, "superseded")})


def test_a_change_that_the_merge_left_out_is_not_what_it_brought(branches: Branches) -> None:
    branches.go("side", new=True)
    branches.commit("s1", **sizes(9000))
    branches.go("main")
    branches.merge("side", "merge", external=1500 * MIB, **sizes(8000))
    descent, told = inside_merge(branches.run(), branches)
    assert (descent["kind"], told) == ("not-needed", {"s1": (False, "superseded")})
    assert any("leaves the memory" in note for note in descent["notes"])


def test_what_a_merge_of_the_mainline_was_edited_to_do_is_the_branchs(branches: Branches) -> None:
    branches.go("side", new=True)
    branches.commit("s1")
    branches.go("main")
    branches.commit("m1", external=600 * MIB)
    branches.go("side")
    branches.merge("main", "back", **sizes(9500))
    branches.go("main")
    branches.merge("side", "merge")
    descent, told = inside_merge(branches.run(), branches)
    assert (descent["kind"], told) == ("culprit", {"back": (True, "yes")})


def test_a_branch_into_which_the_mainline_brought_less_is_not_said_to_add_nothing(branches: Branches) -> None:
    branches.go("side", new=True)
    branches.commit("s1", external=1500 * MIB)
    branches.go("main")
    branches.commit("m1", **sizes(6500))
    branches.go("side")
    branches.merge("main", "back")
    branches.go("main")
    branches.merge("side", "merge")
    branches.commit("m2", **sizes(8500))
    descent, told = inside_merge(branches.run(metric="device", exhaustive=True), branches)
    assert (descent["kind"], told) == ("blurred", {})
    assert "cannot be told" in descent["notes"][0]


def test_what_does_not_revert_on_the_merge_is_told_and_not_named(branches: Branches) -> None:
    """A later commit of the branch rewrote the same lines: how much of it is in the merge nobody knows."""
    branches.go("side", new=True)
    branches.commit("s1", **sizes(9500))
    branches.commit("s2", **sizes(9000))
    branches.go("main")
    branches.commit("m1")
    branches.merge("side", "merge")
    descent, told = inside_merge(branches.run(), branches)
    assert (descent["kind"], told["s1"]) == ("blurred", (False, "conflict"))
    assert any("does not revert cleanly" in note for note in descent["notes"])


def test_a_file_that_the_mainline_lacks_needs_no_revert_there(branches: Branches) -> None:
    """The branch made the file, and changes it: on the mainline there is nothing that it could be reverted in."""
    branches.go("side", new=True)
    branches.commit("s1", external=500 * MIB)
    branches.commit("s2", external=2000 * MIB)
    branches.go("main")
    branches.commit("m1")
    branches.merge("side", "merge")
    descent, told = inside_merge(branches.run(), branches)
    assert (descent["kind"], told) == ("culprit", {"s2": (True, "yes")})


def test_a_name_needs_a_budget_for_its_proof(branches: Branches) -> None:
    plain(branches)
    first = branches.run()
    with branches.world.store() as store:
        answers = [e.payload for e in store.events(first.session) if e.kind == "observation"]
    outer = sum(not answer["cached"] for answer in answers if not answer.get("scope"))
    kinds = []
    for short in (0, 1):
        for file in branches.world.folder.glob("db.sqlite*"):
            file.unlink()
        descent = descent_of(branches.run(budget=outer + descent_of(first)["probes"] - short))
        kinds.append((descent["kind"], [step["named"] for step in descent["steps"]]))
    assert kinds == [("culprit", [True]), ("budget", [False])]
