"""A bisection whose probes run a training command in any repository: the command pretends, everything else is real."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.store import Store, open_store
from oombisect.probing.workload import PLAIN
from oombisect.readings import Outcome
from oombisect.session.measuring import Target
from oombisect.session.opening import Workshop, open_workshop, targets_of
from oombisect.session.request import BisectRequest, ProbeRequest
from oombisect.session.running import bisect_range
from oombisect.session.single import probe_commit
from oombisect.session.verdict import Report

from . import toy
from .toy import MIB, git
from .world import Quiet

# In the place of a training run: it reads memory.json (and what a build made of it) and tells that as the hook would.
TRAIN = """
import json, os, sys
from pathlib import Path
job = json.loads(Path(os.environ["OOMBISECT_COMMAND_JOB"]).read_text())
told = json.loads(Path("memory.json").read_text())
with open({calls!r}, "a") as calls:
    calls.write(json.dumps({{"argv": sys.argv[1:], "told": told}}) + "\\n")
if "exit" in told:
    print("cannot go on:", told["exit"])
    sys.exit(told["exit"])
size = told["mib"] << 20
if Path("built").exists():
    size += int(Path("built").read_text()) << 20
phase = {{"allocated_peak": size, "allocated_end": size, "reserved_peak": size, "reserved_end": size}}
result = {{"schema": 1, "outcome": "exact", "rank": 0, "world_size": 1, "ended": "iterations", "process_group": "fake",
           "phases": {{"step_1": phase}}, "versions": {{"torch": "toy"}}}}
(Path(job["out"]) / "result-0.json").write_text(json.dumps(result))
"""
COMMAND = ("python", "train.py", "--lr", "1")


class World:
    def __init__(self, folder: Path) -> None:
        self.folder, self.repo, self.calls = folder, folder / "repo", folder / "calls.jsonl"
        self.shas: list[str] = []

    def history(self, *memories: dict[str, Any]) -> None:
        self.repo.mkdir()
        git(self.repo, "init", "--quiet", "--initial-branch=main")
        (self.repo / "train.py").write_text(TRAIN.format(calls=str(self.calls)))
        for number, memory in enumerate(memories):
            (self.repo / "memory.json").write_text(json.dumps(memory))
            git(self.repo, "add", "--all")
            git(self.repo, "commit", "--quiet", "--allow-empty", "-m", f"change {number}")
            self.shas.append(git(self.repo, "rev-parse", "HEAD"))

    def request(self, **probe: Any) -> ProbeRequest:
        values = {"command": COMMAND, "limit_bytes": 5000 * MIB} | probe
        return ProbeRequest(repo=str(self.repo), python=sys.executable, **values)

    def store(self) -> Store:
        return open_store(self.folder / "db.sqlite", clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))

    def run(
        self,
        request: BisectRequest | None = None,
        *,
        session: str | None = None,
        watcher: Quiet | None = None,
        on_session: Callable[[str], None] = lambda _: None,
    ) -> Report:
        request = request or BisectRequest(range=f"{self.shas[0]}..{self.shas[-1]}", probe=self.request())
        with self.store() as store:
            if session is not None:
                store.resume_session(session)
            return bisect_range(
                store, request, watcher=watcher or Quiet(), cwd=self.folder, cache=self.folder / "cache",
                command=("test",), session=session, on_session=on_session,
            )  # fmt: skip

    def probe(self, revision: str, **probe: Any) -> Any:
        with self.store() as store:
            return probe_commit(
                store, revision, self.request(**probe), watcher=Quiet(), cwd=self.folder,
                cache=self.folder / "cache", command=("test",),
            )  # fmt: skip

    def ran(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.calls.read_text().splitlines()]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("oombisect.session.opening.open_device", lambda *_: toy.ToyDevice())
    return World(tmp_path)


def mib(size: int, **more: Any) -> dict[str, Any]:
    return {"mib": size, **more}


def test_the_commit_that_added_memory_to_a_command_is_named_and_confirmed_by_reverting_it(world: World) -> None:
    world.history(*(mib(3000 + (2500 if number >= 5 else 0)) for number in range(8)))
    report = world.run()
    assert report.exit_code is ExitCode.CULPRIT
    step = report.verdict.steps[0]
    assert (step.point, step.repo, step.delta["allocated"]) == (world.shas[5], "repo", 2500 * MIB)
    assert step.confirmed == "yes"
    assert {tuple(call["argv"]) for call in world.ran()} == {("--lr", "1")}
    again = report.reproduce[1]
    assert again.startswith(f"oombisect probe {world.shas[5][:12]} ") and again.endswith(" -- python train.py --lr 1")


def test_commits_that_cannot_be_tested_are_stepped_over(world: World) -> None:
    broken = mib(0, exit=125)
    world.history(mib(3000), mib(3001), broken, mib(3002), mib(5500), mib(5501))
    report = world.run()
    assert report.exit_code is ExitCode.CULPRIT and report.verdict.steps[0].point == world.shas[4]


def test_the_build_runs_first_and_its_failure_is_no_verdict(world: World) -> None:
    world.history(mib(3000))
    built = world.probe("HEAD", build="expr 700 > built")
    assert built.reading.peak_allocated == 3700 * MIB
    failed = world.probe("HEAD", build="echo no compiler here; exit 9")
    assert failed.reading.outcome is Outcome.UNRESOLVED
    assert failed.reading.reason == "the build failed with exit code 9: no compiler here"
    assert len(world.ran()) == 1


def test_a_build_is_done_once_while_probes_stay_at_a_commit_and_what_runs_leave_is_gone(world: World) -> None:
    world.history(mib(3000))
    (world.repo / "train.py").write_text(
        (world.repo / "train.py").read_text() + "assert not Path('left').exists()\nPath('left').write_text('x')\n"
    )
    git(world.repo, "commit", "--quiet", "-am", "leaves a file")
    build = f"echo x >> {world.folder}/builds; expr 700 > built"
    request = world.request(build=build)
    opened = open_workshop(
        request,
        cwd=world.folder,
        cache=world.folder / "cache",
        watcher=Quiet(),
        look=lambda known: known.resolve("HEAD"),
    )
    with opened as workshop:
        target = _target(workshop, request, "HEAD")
        for number in range(3):
            out = world.folder / f"out-{number}"
            run = workshop.prober.run(target.call(), target.lay_out(), out, PLAIN)
            assert run.reading.peak_allocated == 3700 * MIB, run.reading.reason
        other = _target(workshop, request, "HEAD~1")
        other.lay_out()
        target.lay_out()
    assert (world.folder / "builds").read_text().split() == ["x"] * 3


def _target(workshop: Workshop, request: ProbeRequest, revision: str) -> Target:
    repository = workshop.repository
    sha = repository.resolve(revision)
    return targets_of(workshop, request, repository.cache).of(sha, "", repository.relevant_trees(sha))


def test_equal_commands_of_equal_trees_are_measured_once_others_again(world: World) -> None:
    world.history(mib(3000), mib(3000, note=1))
    for command in (COMMAND, COMMAND, ("python", "train.py", "--lr", "2")):
        world.probe(world.shas[0], command=command)
    world.probe(world.shas[0], prepare=("megatron-lm",))
    assert len(world.ran()) == 3


class Impatient(Quiet):
    """Ctrl-C after the second probe."""

    count = 0

    def probe_finished(self, *_: Any) -> None:
        self.count += 1
        if self.count == 2:
            raise KeyboardInterrupt


def test_a_session_of_a_command_can_be_gone_on_with(world: World) -> None:
    world.history(*(mib(3000 + (2500 if number >= 2 else 0), note=number) for number in range(5)))
    begun: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        world.run(watcher=Impatient(), on_session=begun.append)
    before = [call["told"] for call in world.ran()]
    with world.store() as store:
        stored = store.session(begun[0])
    request = BisectRequest.from_json(stored.spec.arguments)
    assert request.probe.command == COMMAND
    assert (stored.spec.kind, stored.spec.recipe) == ("run", "python train.py --lr 1")
    report = world.run(request=request, session=begun[0])
    assert report.verdict.steps[0].point == world.shas[2]
    ends = [call["told"] for call in world.ran()[len(before) :]]
    assert [told for told in before if ends.count(told) > 1] == []  # measured once; afresh only to confirm


def test_a_test_of_megatron_lms_ci_is_read_at_each_commit(world: World) -> None:
    world.history(mib(3000))
    folder = world.repo / "tests/functional_tests/test_cases/gpt/a"
    folder.mkdir(parents=True)
    (world.repo / "megatron/training").mkdir(parents=True)
    (world.repo / "megatron/training/arguments.py").write_text("--fake-process-group")
    (world.repo / "pretrain_gpt.py").write_text((world.repo / "train.py").read_text().replace('"rank": 0', '"rank": 7')
                                                .replace("result-0", "result-7"))  # fmt: skip
    for layers in (12, 24):
        (folder / "model_config.yaml").write_text(
            f"MODEL_ARGS:\n  --num-layers: {layers}\n  --vocab-size: 9\nENV_VARS: {{}}\n"
        )
        git(world.repo, "add", "--all")
        git(world.repo, "commit", "--quiet", "-m", f"{layers} layers")
    for recipe, layers in (("ci:gpt/a", "24"), ("ci:gpt/a@HEAD~1", "12")):
        probed = world.probe("HEAD", recipe=recipe, command=())
        assert probed.reading.outcome is Outcome.EXACT, probed.reading.reason
        assert [rank.rank for rank in probed.reading.ranks] == [7]
        argv = world.ran()[-1]["argv"]
        assert argv[argv.index("--num-layers") + 1] == layers
    missing = world.probe(world.shas[0], recipe="ci:gpt/a", command=())
    assert missing.reading.outcome is Outcome.UNRESOLVED and "has no tests/functional_tests" in missing.reading.reason


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ({"recipe": "qwen3_8b_lora"}, "--recipe and a command"),
        ({"overrides": ("a=1",)}, "--set is for recipes"),
        ({"micro_batches": 2}, "--micro-batches is for recipes"),
        ({"prepare": ("nothing",)}, "--prepare nothing is not known"),
        ({"command": (), "recipe": "r", "build": "make"}, "--build"),
    ],
)
def test_options_that_do_not_go_together_are_refused(world: World, wrong: dict[str, Any], cause: str) -> None:
    with pytest.raises(OombisectError, match=cause):
        world.request(**wrong)


def test_an_end_that_cannot_be_probed_names_what_a_command_takes(world: World) -> None:
    world.history(mib(3000), mib(0, exit=125))
    with pytest.raises(OombisectError, match="bad end") as caught:
        world.run()
    assert "--build" in caught.value.way_out and "--set" not in caught.value.way_out
