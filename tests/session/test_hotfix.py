"""A change applied to every commit before it is probed."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.repo import bridge
from oombisect.repo.hotfix import Hotfix, HotfixConflict, with_hotfixes
from oombisect.repo.mirror import Mirror
from oombisect.session.request import BisectRequest

from .toy import MIB, git, mib
from .world import World

BROKEN = "ImportError: no module named x"


def broken_stretch(world: World) -> list[dict[str, Any]]:
    """The third to the last commit do not import; the sixth adds 1800 MiB."""
    memories = [
        mib(8000 if n < 5 else 9800, tag=n - (n == 5), **({"unresolved": BROKEN} if 2 <= n <= 7 else {}))
        for n in range(9)
    ]
    world.run(memories, budget=2)
    return memories


def mending_patch(world: World, name: str = "fix.patch") -> Path:
    """Takes away what keeps a commit from importing."""
    patch = world.folder / name
    patch.write_text(git(world.repo, "diff", world.shas[7], world.shas[8], "--", "*/unresolved") + "\n")
    return patch


def outcomes(world: World, session: str) -> set[str]:
    with world.store() as store:
        return {str(probe.reading.outcome) for probe in store.probes(session) if probe.reading}


def test_a_hotfix_makes_broken_commits_measurable(world: World) -> None:
    memories = broken_stretch(world)
    plain = world.run(memories)
    assert plain.exit_code is ExitCode.BLURRED
    before = git(world.repo, "status", "--porcelain"), git(world.repo, "rev-list", "--all")
    patch = mending_patch(world)
    report = world.run(memories, probe={"hotfixes": (Hotfix(str(patch)),)})
    assert report.exit_code is ExitCode.CULPRIT
    (step,) = report.verdict.steps
    assert (step.point, step.confirmed, step.change) == (world.shas[5], "yes", 1800 * MIB)
    assert outcomes(world, report.session) == {"exact"}, "the ends have it already: there it changes nothing"
    assert (git(world.repo, "status", "--porcelain"), git(world.repo, "rev-list", "--all")) == before
    assert all(["--hotfix", str(patch)] == _after(command, "--hotfix") for command in report.reproduce)
    assert len(report.workload["hotfixes"]) == 1
    assert "every commit was probed with the hotfix fix.patch on top" in report.verdict.notes


def _after(command: str, option: str) -> list[str]:
    words = shlex.split(command)
    return words[words.index(option) :][:2]


def test_a_session_keeps_its_hotfix_whatever_the_file_becomes(world: World) -> None:
    memories = broken_stretch(world)
    patch = mending_patch(world)
    begun = world.run(memories, budget=2, probe={"hotfixes": (Hotfix(str(patch)),)})
    with world.store() as store:
        kept = BisectRequest.from_json(store.session(begun.session).spec.arguments)
    assert BisectRequest.from_json(kept.to_json()) == kept
    patch.unlink()
    report = world.run(memories, probe={"hotfixes": kept.probe.hotfixes})
    assert report.verdict.steps[0].point == world.shas[5]


def test_another_hotfix_is_another_measurement(world: World) -> None:
    memories = [mib(8000), mib(9800)]
    world.run(memories)
    patch = world.folder / "more.patch"
    patch.write_text("--- /dev/null\n+++ b/src/megatron/bridge/memory/external\n@@ -0,0 +1 @@\n+0\n")
    count = len(world.probes())
    report = world.run(memories, probe={"hotfixes": (Hotfix(str(patch)),)})
    assert report.probes_cached == 0 and report.good.external == 0
    assert len(world.probes()) > count


def test_a_hotfix_may_be_a_commit(world: World) -> None:
    memories = broken_stretch(world)
    with pytest.raises(OombisectError, match=r"good end .* does not apply"):  # that one changes `tag` too
        world.run(memories, probe={"hotfixes": (Hotfix(world.shas[8]),)}, range=f"{world.shas[0]}..{world.shas[7]}")
    git(world.repo, "checkout", "--quiet", "-b", "fix", world.shas[7])
    git(world.repo, "rm", "--quiet", "src/megatron/bridge/memory/unresolved")
    git(world.repo, "commit", "--quiet", "-m", "import again")
    report = world.run(memories, probe={"hotfixes": (Hotfix("fix"),)})
    assert report.verdict.steps[0].point == world.shas[5] and report.exit_code is ExitCode.CULPRIT
    assert _after(report.reproduce[0], "--hotfix")[1] == git(world.repo, "rev-parse", "fix"), "the branch may move"


def test_where_it_does_not_apply_the_point_is_unresolved(world: World) -> None:
    memories = [mib(8000 if n < 5 else 9800, tag=1 if n in (3, 4) else 0, other=n) for n in range(8)]
    world.run(memories, budget=2)
    patch = world.folder / "tag.patch"
    patch.write_text(
        "--- a/src/megatron/bridge/memory/tag\n+++ b/src/megatron/bridge/memory/tag\n@@ -1 +1 @@\n-0\n+7\n"
    )
    count = len(world.probes())
    report = world.run(memories, probe={"hotfixes": (Hotfix(str(patch)),)})
    (step,) = report.verdict.steps
    assert not step.named and set(step.blurred) == {world.shas[n] for n in (3, 4, 5)}
    with world.store() as store:
        reasons = {p.reading.reason for p in store.probes(report.session) if p.reading and p.reading.reason}
    assert reasons == {"the hotfix tag.patch does not apply: patch failed: src/megatron/bridge/memory/tag:1"}
    assert all(probe["told"]["tag"] == 7 for probe in world.probes()[count:])


def test_a_reverted_tip_that_does_not_take_the_hotfix_is_a_conflict(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories = broken_stretch(world)

    def only_on_given_commits(mirror: Mirror, commit: str, hotfixes: Sequence[Hotfix]) -> str:
        if commit not in world.shas:
            raise HotfixConflict(hotfixes[0], "patch failed: x.py:1")
        return with_hotfixes(mirror, commit, hotfixes)

    monkeypatch.setattr(bridge, "with_hotfixes", only_on_given_commits)
    report = world.run(memories, probe={"hotfixes": (Hotfix(str(mending_patch(world))),)})
    assert [(s.point, s.confirmed) for s in report.verdict.steps] == [(world.shas[5], "conflict")]


@pytest.mark.parametrize(
    ("text", "message"),
    [("no patch at all\n", "is no patch"), ("", "is no patch"), (None, "is no file, and no commit")],
)
def test_what_is_no_hotfix_is_refused(world: World, text: str | None, message: str) -> None:
    patch = world.folder / "x.patch"
    if text is not None:
        patch.write_text(text)
    with pytest.raises(OombisectError, match=message) as told:
        world.run([mib(8000), mib(9800)], probe={"hotfixes": (Hotfix(str(patch)),)})
    assert told.value.exit_code == ExitCode.USAGE
    assert not world.probes()


def test_a_patch_cannot_reach_out_of_the_tree(world: World) -> None:
    patch = world.folder / "out.patch"
    patch.write_text("--- /dev/null\n+++ b/../../outside\n@@ -0,0 +1 @@\n+x\n")
    with pytest.raises(OombisectError, match=r"good end .* does not apply: invalid path"):
        world.run([mib(8000), mib(9800)], probe={"hotfixes": (Hotfix(str(patch)),)})
    found = subprocess.run(["find", str(world.folder), "-name", "outside"], capture_output=True, text=True, check=True)
    assert not found.stdout
