"""Into rolls of Megatron-LM: git, worktrees in worktrees, processes, the store and the search are real."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from oombisect.cli.sessions_of import clock
from oombisect.errors import ExitCode, OombisectError
from oombisect.history.store import open_store
from oombisect.probing.workload import Sources
from oombisect.readings import Outcome
from oombisect.repo.bridge import BridgeRepository, open_repository
from oombisect.session.measuring import Target
from oombisect.session.opening import targets_of
from oombisect.session.request import ProbeRequest
from oombisect.session.single import probe_commit
from oombisect.session.verdict import Report, StepVerdict
from tests.repo.history import GITLINK, git, modules

from . import toy
from .rolls import Rolls, run
from .test_resume import cli, finished
from .toy import MIB
from .world import Quiet, World


@pytest.fixture
def rolls(world: World) -> Rolls:
    return Rolls(world.folder)


def descents(report: Report) -> list[dict[str, Any]]:
    return [step.evidence["descent"] for step in report.verdict.steps if "descent" in step.evidence]


def allocated(shares: dict[str, dict[str, int]]) -> dict[str, int]:
    return {part: share["allocated"] // MIB for part, share in shares.items()}


def plain(rolls: Rolls) -> None:
    """A roll that moves the submodule and nothing else; one of its five commits adds 1800 MiB."""
    rolls.start()
    for n, size in enumerate((0, 0, 1800, 0, 0), 1):
        rolls.core(f"m{n}", size)
    rolls.commit("b1")
    rolls.commit("roll", pin="m5")
    rolls.commit("b3")


def test_the_commit_of_a_plain_roll_is_named(world: World, rolls: Rolls) -> None:
    plain(rolls)
    report = run(world, rolls)
    assert report.exit_code is ExitCode.CULPRIT
    (step,) = report.verdict.steps
    assert step.point == report.verdict.crossing == rolls.ids["roll"] and step.repo == "bridge"
    (descent,) = descents(report)
    assert descent["kind"] == "culprit"
    assert descent["pins"] == {
        "before": rolls.ids["m0"], "after": rolls.ids["m5"], "move": "forward", "merge_base": None, "commits": 5,
    }  # fmt: skip
    assert allocated(descent["shares_bytes"]) == {"bridge": 0, "dependencies": 0, "megatron-lm": 1800}
    assert descent["interaction_bytes"]["allocated"] == 0
    assert descent["base"] == {"bridge": rolls.ids["roll"]}
    assert descent["crossing"] == rolls.ids["m3"]
    (inner,) = map(StepVerdict.from_json, descent["steps"])
    assert (inner.point, inner.parent) == (rolls.ids["m3"], rolls.ids["m2"])
    assert (inner.repo, inner.subject) == ("megatron-lm", "m3")
    assert inner.delta == {"allocated": 1800 * MIB, "reserved": 1800 * MIB, "external": 0}
    assert (inner.kind, inner.confirmed, inner.named, inner.crosses_limit) == ("capacity", "yes", True, True)
    assert "submodule" in step.evidence and "submodule" not in inner.evidence


def test_a_roll_without_source_of_bridge_costs_no_corner(world: World, rolls: Rolls) -> None:
    """Its corners are its two sides, measured already."""
    plain(rolls)
    report = run(world, rolls)
    (descent,) = descents(report)
    assert [corner["outcome"] for corner in descent["corners"]] == ["exact", "exact"]
    assert descent["probes"] == 5  # two middles, the commit and its parent afresh, the new pin without it
    with world.store() as store:
        assert not [p for p in store.probes(report.session) if p.spec.request == "corner"]


def test_the_commands_that_reproduce_a_roll_measure_what_the_session_did(world: World, rolls: Rolls) -> None:
    plain(rolls)
    report = run(world, rolls)
    inside = [shlex.split(command) for command in report.reproduce if "--megatron-commit" in command]
    assert [words[2] for words in inside] == [rolls.ids["roll"][:12]] * 2
    commits = [words[words.index("--megatron-commit") + 1] for words in inside]
    assert commits == [rolls.ids["m2"][:12], rolls.ids["m3"][:12]]
    before = len(world.probes())
    request = ProbeRequest(recipe=toy.RECIPE, repo=str(world.repo), python=str(world.python), limit_bytes=10_000 * MIB)
    for commit, size in (("m2", 8000), ("m3", 9800)):
        with world.store() as store:
            probed = probe_commit(
                store, rolls.ids["roll"], request, watcher=Quiet(), cwd=world.folder, cache=world.folder / "cache",
                command=("test",), megatron=rolls.ids[commit][:12],
            )  # fmt: skip
        assert probed.reading.peak_allocated == size * MIB
        assert probed.point == f"{rolls.ids['roll']}+{rolls.ids[commit]}"
    with world.store() as store:
        assert not [p for s in store.sessions() if s.spec.kind == "probe" for p in store.probes(s.id)]  # all were known
    assert len(world.probes()) <= before + 1  # why the larger one does not fit


def test_a_commit_of_megatron_lm_that_is_none(world: World, rolls: Rolls) -> None:
    rolls.start()
    repository = open_repository(rolls.bridge.path, world.folder, world.folder / "cache")
    assert repository.resolve_megatron("main", rolls.ids["m0"][:8]) == rolls.ids["m0"]
    for name in ("deadbeef", "mian", "--all", "f" * 40):
        with pytest.raises(OombisectError, match=name[:12]) as told:
            repository.resolve_megatron("main", name)
        assert "--megatron" in told.value.way_out


def test_no_descent_where_none_is_wanted(world: World, rolls: Rolls) -> None:
    plain(rolls)
    assert not descents(run(world, rolls, descend=False))


def test_both_parts_of_a_roll_contribute_and_interact(world: World, rolls: Rolls) -> None:
    rolls.start(apis=[1])
    rolls.core("m1")
    rolls.core("m2", 1200, together=True)
    rolls.core("m3")
    rolls.commit("b1")
    rolls.commit("roll", pin="m3", allocated=8600 * MIB, reserved=8700 * MIB, together=200 * MIB)
    rolls.commit("b3")
    (descent,) = descents(run(world, rolls))
    assert allocated(descent["shares_bytes"]) == {"bridge": 700, "dependencies": 0, "megatron-lm": 1300}
    assert descent["interaction_bytes"]["allocated"] == 200 * MIB
    old_bridge, old_megatron = descent["corners"]
    assert (old_bridge["bridge"], old_bridge["megatron-lm"]) == (rolls.ids["b1"], rolls.ids["m3"])
    assert old_bridge["peak_allocated"] == 9200 * MIB and old_bridge["fits"] is True
    assert (old_megatron["bridge"], old_megatron["megatron-lm"]) == (rolls.ids["roll"], rolls.ids["m0"])
    assert old_megatron["peak_allocated"] == 8600 * MIB
    (inner,) = descent["steps"]
    assert rolls.name(inner["point"]) == "m2"
    assert inner["delta_bytes"]["allocated"] == 1400 * MIB  # under the new Bridge
    assert descent["growth"]["allocated"] == 1400 * MIB


class Locks:
    """Environments of locks: that of `two` takes 300 MiB more than that of `one`."""

    def __init__(self, repository: BridgeRepository) -> None:
        self.repository = repository

    def of(self, env_lock: str) -> Environment:
        (text,) = self.repository.mirror.contents([env_lock.partition(":")[0]])
        return Environment(300 * MIB if text == b"two" else 0)


@dataclass(frozen=True)
class Environment:
    more: int

    @property
    def trees(self) -> dict[str, int]:
        return {"environment": self.more}

    def around(self, target: Target) -> Target:
        trees = {**target.trees, **self.trees}
        return replace(target, trees=trees, lay_out=lambda slot=None: self.weigh(target.lay_out(slot)))

    def weigh(self, sources: Sources) -> Sources:
        for name in ("allocated", "reserved"):
            file = sources.paths[0] / "megatron/bridge/memory" / name
            file.write_text(str(json.loads(file.read_text()) + self.more))
        return sources

    def without(self, before: Environment, after: Environment) -> Environment:
        return replace(self, more=self.more - after.more + before.more)


def test_dependencies_are_a_third_part_where_each_commit_has_its_own(
    world: World, rolls: Rolls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*arguments: Any) -> Any:
        return replace(targets_of(*arguments), locks=Locks(arguments[0].repository))  # type: ignore[arg-type]

    monkeypatch.setattr("oombisect.session.running.targets_of", locked)
    rolls.start()
    rolls.bridge.commit("lock", {"uv.lock": "one"})
    rolls.core("m1", 1200)
    rolls.core("m2")
    memory = {"allocated": 8200 * MIB, "reserved": 8300 * MIB}
    files = {f"src/megatron/bridge/memory/{name}": f"{size}\n" for name, size in memory.items()}
    roll = rolls.bridge.commit("roll", {"uv.lock": "two", **files}, gitlinks={GITLINK: rolls.ids["m2"]})
    report = run(world, rolls, range="main~1..main")
    (descent,) = descents(report)
    assert allocated(descent["shares_bytes"]) == {"bridge": 200, "dependencies": 300, "megatron-lm": 1200}
    assert descent["interaction_bytes"]["allocated"] == 0
    assert descent["environment"] == {"held_fixed": False, "lock_changed": True}
    assert len(descent["corners"]) == 6
    sizes = {(c["bridge"] == roll, c["megatron-lm"] == rolls.ids["m2"], c["environment"] == roll): c["peak_allocated"]
             for c in descent["corners"]}  # fmt: skip
    for (bridge, megatron, environment), size in sizes.items():
        assert size == (8000 + 200 * bridge + 1200 * megatron + 300 * environment) * MIB
    assert [rolls.name(step["point"]) for step in descent["steps"]] == ["m1"]
    assert descent["steps"][0]["delta_bytes"]["allocated"] == 1200 * MIB


def test_a_roll_that_the_old_bridge_cannot_run_is_walked_under_the_new_one(world: World, rolls: Rolls) -> None:
    rolls.start()
    rolls.core("m1", 1800)
    rolls.core("m2", api=2)
    rolls.commit("roll", pin="m2", apis=[1, 2], allocated=8100 * MIB, reserved=8200 * MIB)
    rolls.commit("b2")
    (descent,) = descents(run(world, rolls))
    assert [corner["outcome"] for corner in descent["corners"]] == ["unresolved", "exact"]
    assert "no api" in descent["corners"][0]["reason"]
    assert any("no api" in note for note in descent["notes"]) and any("alone" in note for note in descent["notes"])
    assert allocated(descent["shares_bytes"]) == {"bridge": 100, "dependencies": 0, "megatron-lm": 1800}
    assert descent["interaction_bytes"] is None
    assert descent["base"] == {"bridge": rolls.ids["roll"]}
    assert [rolls.name(step["point"]) for step in descent["steps"]] == ["m1"]


def test_a_roll_that_the_new_bridge_needs_is_walked_under_the_old_one(world: World, rolls: Rolls) -> None:
    rolls.start(apis=[1, 2])
    rolls.core("m1", api=2)
    rolls.core("m2", 1800)
    rolls.core("m3")
    rolls.commit("roll", pin="m3", apis=[2])
    rolls.commit("b2")
    (descent,) = descents(run(world, rolls))
    assert [corner["outcome"] for corner in descent["corners"]] == ["exact", "unresolved"]
    assert descent["base"] == {"bridge": rolls.ids["b0"]}
    assert [rolls.name(step["point"]) for step in descent["steps"]] == ["m2"]


def test_a_roll_that_builds_only_whole_is_blurred_to_the_roll(world: World, rolls: Rolls) -> None:
    rolls.start()
    rolls.core("m1", 1800, api=2)
    rolls.commit("roll", pin="m1", apis=[2])
    rolls.commit("b2")
    report = run(world, rolls)
    assert report.exit_code is ExitCode.CULPRIT
    (step,) = report.verdict.steps
    assert step.point == rolls.ids["roll"] and step.named
    (descent,) = descents(report)
    assert (descent["kind"], descent["base"], descent["shares_bytes"]) == ("blurred", None, None)
    assert "steps" not in descent and any("blurred to the roll" in note for note in descent["notes"])


def test_where_the_source_of_bridge_did_it_nothing_is_walked(world: World, rolls: Rolls) -> None:
    rolls.start()
    rolls.core("m1", 10)
    rolls.core("m2")
    rolls.commit("roll", pin="m2", allocated=9790 * MIB, reserved=9890 * MIB)
    rolls.commit("b2")
    (descent,) = descents(run(world, rolls))
    assert descent["kind"] == "not-needed" and "steps" not in descent
    assert allocated(descent["shares_bytes"]) == {"bridge": 1790, "dependencies": 0, "megatron-lm": 10}
    assert any("+10.0 MiB" in note and "no descent" in note for note in descent["notes"])


def test_what_shows_under_the_old_bridge_alone_is_walked_there(world: World, rolls: Rolls) -> None:
    """Either part brings the memory, and both together no more than one: the new Bridge hides Megatron-LM's."""
    rolls.start()
    rolls.core("m1", 1800, together=True)
    rolls.core("m2")
    rolls.commit("roll", pin="m2", allocated=9800 * MIB, reserved=9900 * MIB, together=-1800 * MIB)
    rolls.commit("b2")
    (descent,) = descents(run(world, rolls))
    assert allocated(descent["shares_bytes"]) == {"bridge": 900, "dependencies": 0, "megatron-lm": 900}
    assert descent["interaction_bytes"]["allocated"] == -1800 * MIB
    assert descent["base"] == {"bridge": rolls.ids["b0"]}
    assert [rolls.name(step["point"]) for step in descent["steps"]] == ["m1"]


def test_a_sideways_roll_goes_through_the_merge_base(world: World, rolls: Rolls) -> None:
    rolls.core("m0", api=1)
    rolls.core("m1")
    side = rolls.core("s1", 300, branch="side", start=rolls.ids["m0"])
    rolls.core("m2", 1800)
    rolls.core("m3")
    rolls.commit("b0", pin="s1", allocated=8000 * MIB, reserved=8100 * MIB, apis=[1])
    rolls.commit("roll", pin="m3")
    rolls.commit("b2")
    (descent,) = descents(run(world, rolls))
    assert descent["pins"]["move"] == "sideways" and descent["pins"]["merge_base"] == rolls.ids["m0"]
    found = {rolls.name(step["point"]): step for step in descent["steps"]}
    assert found["m2"]["named"] and found["m2"]["delta_bytes"]["allocated"] == 1800 * MIB
    assert not found["m0"]["named"] and found["m0"]["blurred"] == [side]
    assert found["m0"]["delta_bytes"]["allocated"] == -300 * MIB


def test_what_a_branch_saved_and_a_sideways_roll_lost_is_that_branch_undone(world: World, rolls: Rolls) -> None:
    rolls.core("m0", api=1)
    rolls.core("m1")
    rolls.core("s1", branch="side", start=rolls.ids["m0"])
    rolls.core("s2", -1800, branch="side")
    rolls.commit("b0", pin="s2", allocated=9800 * MIB, reserved=9900 * MIB, apis=[1])
    rolls.commit("roll", pin="m1")
    rolls.commit("b2")
    report = run(world, rolls)
    (descent,) = descents(report)
    assert descent["kind"] == "blurred"
    (inner,) = descent["steps"]
    assert not inner["named"] and inner["blurred"] == [rolls.ids["s1"], rolls.ids["s2"]]
    assert inner["delta_bytes"]["allocated"] == 1800 * MIB


def test_every_named_roll_is_gone_into(world: World, rolls: Rolls) -> None:
    rolls.start()
    for n, size in enumerate((0, 700, 0, 900), 1):
        rolls.core(f"m{n}", size)
    rolls.commit("first", pin="m2")
    rolls.commit("between")
    rolls.commit("second", pin="m4")
    report = run(world, rolls)
    found = {rolls.name(s.point): s.evidence["descent"]["steps"] for s in report.verdict.steps if s.named}
    assert {roll: rolls.name(steps[0]["point"]) for roll, steps in found.items()} == {"first": "m2", "second": "m4"}


def test_a_named_step_that_moves_no_submodule_has_no_descent(world: World, rolls: Rolls) -> None:
    rolls.start()
    rolls.core("m1")
    rolls.commit("roll", pin="m1")
    rolls.commit("grow", allocated=9800 * MIB, reserved=9900 * MIB)
    report = run(world, rolls)
    assert [rolls.name(step.point) for step in report.verdict.steps] == ["grow"] and not descents(report)


def test_a_budget_covers_what_is_searched_inside_too(world: World, rolls: Rolls) -> None:
    plain(rolls)
    report = run(world, rolls, budget=8)
    (descent,) = descents(report)
    assert descent["kind"] == "budget" and descent["probes"] == 1
    assert report.exit_code is ExitCode.CULPRIT
    plainly = [p for p in world.probes() if not p["limit"] and not p["env"]]
    assert len(plainly) == 8  # seven to find and confirm the roll


class Interrupted(BaseException):
    pass


class Stops(Quiet):
    """Interrupts as the n-th probe since the descent began is about to start."""

    def __init__(self, after: int) -> None:
        self.left: int | None = None
        self.after = after

    def say(self, text: str) -> None:
        if "going on into that" in text:
            self.left = self.after

    def probe_started(self, *_: Any) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Interrupted


@pytest.mark.parametrize("after", [0, 3, 6])
def test_a_descent_that_was_interrupted_goes_on_without_repeating_a_probe(
    world: World, rolls: Rolls, interrupted_whole: dict[str, Any], after: int
) -> None:
    uneven(rolls)
    with pytest.raises(Interrupted):
        run(world, rolls, watcher=Stops(after))
    with world.store() as store:
        (session,) = store.sessions()
        before = [p.spec.signature for p in store.probes(session.id) if p.reading]
    report = run(world, rolls, session=session.id)
    with world.store() as store:
        asked = [(p.spec.signature, p.spec.request) for p in store.probes(session.id) if p.reading]
    assert len(before) < len(asked)
    assert len(set(asked)) == len(asked), "a finished probe was repeated"
    assert report.verdict.to_json() == interrupted_whole


def uneven(rolls: Rolls) -> None:
    """A roll of both parts."""
    rolls.start()
    for n, size in enumerate((0, 0, 1200, 0), 1):
        rolls.core(f"m{n}", size)
    rolls.commit("roll", pin="m4", allocated=8600 * MIB, reserved=8700 * MIB)
    rolls.commit("b2")


@pytest.fixture(scope="module")
def interrupted_whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `uneven` ends with when nothing disturbs it; the histories are the same to the byte."""
    folder = tmp_path_factory.mktemp("whole")
    rolls = Rolls(folder)
    uneven(rolls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oombisect.session.opening.open_device", lambda *_: toy.ToyDevice())
        return run(World(folder), rolls).verdict.to_json()


def test_kill_9_inside_a_descent(tmp_path: Path) -> None:
    """The whole command line, killed when the walk has measured a point of its own."""
    rolls = Rolls(tmp_path)
    uneven(rolls)
    python, _ = toy.interpreter(tmp_path)
    where = ["--repo", str(rolls.bridge.path), "--python", str(python), "--limit", "10000MiB"]
    process = cli(tmp_path, "run", f"{rolls.ids['b0']}..main", "--recipe", toy.RECIPE, *where, "--json")
    while not any(event["scope"] and not event["cached"] for event in observations(tmp_path)):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = finished(tmp_path)
    output, errors = cli(tmp_path, "resume", "last", "--json").communicate(timeout=300)
    (step,) = json.loads(output)["verdict"]["steps"]
    assert [rolls.name(inside["point"]) for inside in step["evidence"]["descent"]["steps"]] == ["m3"], errors
    after = finished(tmp_path)
    assert before < after and max(after.values()) == 1, "a finished probe was repeated"


def observations(folder: Path) -> list[dict[str, Any]]:
    """What the searches of the newest session observed so far, with their scopes."""
    if not (folder / "db.sqlite").exists():
        return []
    with contextlib.suppress(OombisectError), open_store(folder / "db.sqlite", clock=clock, readonly=True) as store:
        events = [event for session in store.sessions(1) for event in store.events(session.id)]
        return [{"scope": "", **event.payload} for event in events if event.kind == "observation"]
    return []


def test_a_pinned_commit_that_the_network_did_not_give_is_asked_for_again(world: World, rolls: Rolls) -> None:
    """Unresolved now is no answer for later: the commit lies at a remote that may be back."""
    rolls.start()
    upstream, old, away = rolls.megatron, world.folder / "old", world.folder / "away"
    upstream.git("config", "uploadpack.allowFilter", "true")
    upstream.git("config", "uploadpack.allowAnySHA1InWant", "true")
    git(world.folder, "clone", "--quiet", "--filter=blob:none", "--no-checkout", f"file://{upstream.path}", str(old))
    pin, url = rolls.core("m1", 1800), {".gitmodules": modules("https://invalid.invalid/m.git")}
    roll = rolls.bridge.commit("roll", url, gitlinks={GITLINK: pin})
    request = ProbeRequest(
        recipe=toy.RECIPE, repo=str(rolls.bridge.path), megatron=str(old), python=str(world.python),
        limit_bytes=10_000 * MIB,
    )  # fmt: skip

    def outcome() -> Outcome:
        with world.store() as store:
            return probe_commit(
                store, roll, request, watcher=Quiet(), cwd=world.folder, cache=world.folder / "cache",
                command=("test",),
            ).reading.outcome  # fmt: skip

    upstream.path.rename(away)
    assert [outcome(), outcome()] == [Outcome.UNRESOLVED] * 2
    away.rename(upstream.path)
    assert outcome() is Outcome.EXACT
