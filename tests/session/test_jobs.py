"""Several probes at once, each in a process of its own: another speed, the same answers."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from rich.console import Console

from oombisect.cli.options import job_count
from oombisect.errors import OombisectError
from oombisect.history.records import SessionState
from oombisect.probing import benches
from oombisect.probing.benches import bench_count
from oombisect.probing.collect import peak_host_bytes
from oombisect.probing.devices import CudaDevice, find_cuda
from oombisect.probing.workload import PLAIN, Workload
from oombisect.readings import Outcome, Reading
from oombisect.reports.watch import ConsoleWatcher
from oombisect.session.config_request import SideRequest
from oombisect.session.measuring import Measured, Target

from . import toy
from .config_toy import ConfigWorld, Truth
from .test_resume import cli, finished, store
from .toy import MIB, RECIPE, mib
from .world import Quiet, World

WORKLOAD = Workload(recipe=RECIPE)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with eight cores and plenty of memory."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(benches.psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 40))


class Rounds(Quiet):
    """Counts the rounds, and the most probes that ran at once."""

    def __init__(self) -> None:
        self.rounds = self.running = self.most = 0
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, text: str) -> None:
        self.rounds += 1

    def probe_started(self, *_: Any) -> None:
        self.running += 1
        self.most = max(self.most, self.running)

    def probe_finished(self, _: Any, measured: Any, *__: Any) -> None:
        self.running -= not measured.cached


def steps_at(*places: int, count: int = 24, **more: Any) -> list[dict[str, Any]]:
    return [mib(7000 + 1000 * sum(i >= place for place in places), tag=i, **more) for i in range(count)]


def worlds(folder: Path, *names: str) -> list[World]:
    for name in names:
        (folder / name).mkdir()
    return [World(folder / name) for name in names]


@pytest.mark.usefixtures("wide")
def test_the_verdict_is_that_of_one_at_a_time_in_fewer_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oombisect.session.opening.open_device", lambda *_: toy.ToyDevice())
    memories = steps_at(7, count=16)
    rounds, told = [], []
    for jobs, world in zip((1, 2, 4), worlds(tmp_path, "one", "two", "four"), strict=True):
        watcher = Rounds()
        verdict = world.run(memories, jobs=jobs, watcher=watcher).verdict
        told.append((verdict.kind, verdict.crossing, [(s.point, s.parent, s.delta, s.kind) for s in verdict.steps]))
        rounds.append(watcher.rounds)
        assert watcher.most == jobs
        assert [step.point for step in verdict.steps] == [world.shas[7]]
    assert told[0] == told[1] == told[2]
    assert rounds[0] > rounds[1] > rounds[2]


@pytest.mark.usefixtures("wide")
def test_what_is_recorded_does_not_depend_on_which_probe_ends_first(world: World, tmp_path: Path) -> None:
    def events(world: World, order: int) -> list[Any]:
        memories = steps_at(5, count=12)
        for memory, i in zip(memories, range(12)[::order], strict=True):
            memory["sleep"] = 0.05 * i
        world.run(memories, jobs=2)
        with world.store() as store:
            (session,) = store.sessions()
            found = [dict(event.payload) for event in store.events(session.id)]
            for event in found:  # commits are others in the other world
                if event.get("conflict"):
                    event["conflict"] = "names commits"
                if "points" in event:
                    event["points"] = len(event["points"])
            return [*found, [(probe.spec.subject, probe.spec.request) for probe in store.probes(session.id)]]

    (other,) = worlds(tmp_path, "other")
    assert events(world, 1) == events(other, -1)


@pytest.mark.usefixtures("wide")
def test_a_bench_that_dies_is_an_infrastructure_failure_and_is_tried_again(world: World) -> None:
    class Killer(Rounds):
        killed = 0

        def tick(self, seconds: float) -> None:
            if self.running == 2 and not self.killed and len(world.probes()) >= 1:
                bench = next(p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline()))
                self.killed = bench.pid
                bench.kill()

    watcher = Killer()
    report = world.run(steps_at(5, count=8, sleep=0.6), jobs=2, watcher=watcher)
    assert watcher.killed
    (step,) = report.verdict.steps
    assert step.point == world.shas[5]
    assert [text for text in watcher.said if "trying again: the process that watched over the probe" in text]
    with world.store() as opened:
        (session,) = opened.sessions()
        outcomes = [probe.reading.outcome for probe in opened.probes(session.id) if probe.reading]
    assert outcomes.count(Outcome.INFRA) == 1
    assert not [p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())], "a bench was left"


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_leaves_no_probe_and_goes_on(tmp_path: Path, sign: signal.Signals) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    python, calls = toy.interpreter(tmp_path)
    shas = toy.history(repo, steps_at(5, count=12, sleep=1.0))
    options = ["--recipe", RECIPE, "--repo", str(repo), "--python", str(python), "--limit", "9900MiB", "--json"]
    process = cli(tmp_path, "run", f"{shas[0]}..{shas[-1]}", *options, "--jobs", "2")
    while len(calls.read_text().splitlines()) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len([child for child in children if "toy-python" in " ".join(child.cmdline())]) == 2
    if sign is signal.SIGINT:
        os.killpg(process.pid, sign)  # as a terminal does
    else:
        os.kill(process.pid, sign)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (-9 if sign is signal.SIGKILL else 128 + sign)
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    before = finished(tmp_path)
    resumed = cli(tmp_path, "resume", "last", "--json")
    output, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    assert [step["point"] for step in json.loads(output)["verdict"]["steps"]] == [shas[5]]
    after = finished(tmp_path)
    assert before <= after and max(after.values()) == 1
    with store(tmp_path) as opened:
        (session,) = opened.sessions()
    assert session.state is SessionState.FINISHED


def test_the_machine_bounds_probes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for gib, wanted, count in ((64, 4, 4), (64, 16, 8), (13, 8, 3), (1, 2, 1), (64, None, 8), (1, None, 1)):
        free = SimpleNamespace(available=gib << 30)
        monkeypatch.setattr(benches.psutil, "virtual_memory", lambda free=free: free)
        found, note = bench_count(wanted, toy.ToyDevice(), WORKLOAD)
        assert found == count
        assert bool(note) == (wanted is not None and wanted > count)


def test_real_gpus_are_shared_out_and_not_promised_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cuda = CudaDevice("H100", 80_000 * MIB, 8, "1")
    pairs = Workload(recipe=RECIPE, world_size=2)
    assert bench_count(None, cuda, pairs) == (4, "")
    assert [bench.gpus for bench in benches.benches(3, cuda, pairs)] == ["0,1", "2,3", "4,5"]
    assert bench_count(None, cuda, WORKLOAD) == (1, ""), "a world of all"
    with pytest.raises(OombisectError, match="--jobs 5"):
        bench_count(5, cuda, pairs)
    with pytest.raises(OombisectError, match="--jobs 2"):
        bench_count(2, cuda, Workload(recipe="", command=("torchrun", "train.py"))), "a command takes what it takes"


@pytest.mark.parametrize(
    ("visible", "count", "shares"),
    [
        (None, 8, ["0", "1", "2", "3", "4", "5", "6", "7"]),
        ("4,6,7", 3, ["4", "6", "7"]),
        ("6, 4", 2, ["6", "4"]),
        ("GPU-8f1c,GPU-77aa", 2, ["GPU-8f1c", "GPU-77aa"]),
        ("2,-1,3", 1, ["2"]),
        ("0,99,1", 1, ["0"]),
        ("", None, []),
        ("-1", None, []),
    ],
)
def test_only_the_gpus_that_may_be_used_are_shared_out(
    visible: str | None, count: int | None, shares: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of 8, as NVML tells it: NVML knows nothing of what is visible, a probe that is started does."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    cuda = find_cuda()
    assert (cuda and cuda.count) == count
    if cuda is None:
        return
    assert (cuda.model, cuda.capacity) == ("NVIDIA H100 80GB HBM3", 80 << 30)
    single = Workload(recipe=RECIPE, world_size=1)
    assert bench_count(None, cuda, single) == (len(shares), "")
    assert [bench.gpus for bench in benches.benches(len(shares), cuda, single)] == shares
    assert bench_count(None, cuda, WORKLOAD) == (1, ""), "a world of all that is visible"
    if len(shares) > 1:
        pairs = Workload(recipe=RECIPE, world_size=2)
        whole = len(shares) // 2
        assert bench_count(None, cuda, pairs) == (whole, "")
        assert [b.gpus for b in benches.benches(whole, cuda, pairs)] == [
            ",".join(shares[2 * i : 2 * i + 2]) for i in range(whole)
        ]


class Nvml:
    """NVML of a node with eight H100s."""

    NVMLError = OSError
    nvmlMemory_v2 = 2

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int:
        return 8

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, _: int) -> str:
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMemoryInfo(self, _: int, version: int) -> SimpleNamespace:
        return SimpleNamespace(total=81 << 30, reserved=1 << 30)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"


def test_what_earlier_probes_took_says_how_many_fit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy probes tell nothing of host memory; their results are told it here, as those of a real probe have it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    monkeypatch.setattr(benches.psutil, "virtual_memory", lambda: SimpleNamespace(available=12 << 30))
    memories = steps_at(5, count=40)
    watcher = Rounds()
    world.run(memories, jobs=16, watcher=watcher)
    assert watcher.most == 3, "nothing is known: 4 GiB each"
    results = sorted(world.folder.glob("*.artifacts/*/*/result-0.json"))
    for path in results:
        size = (1 << 30) if path == results[-1] else (1 << 28)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"host_peak_rss": size}))
    watcher = Rounds()
    world.run(memories, jobs=16, watcher=watcher, probe={"seed": 5})
    assert watcher.most == 6, "12 GiB, at twice the largest"
    assert any("6 at a time, not 16" in text and "2.00 GiB for a probe" in text for text in watcher.said), watcher.said


def test_results_that_tell_no_host_memory_are_passed_over(tmp_path: Path) -> None:
    told = {"0": 5, "1": 7, "2": -1, "3": True, "4": "9", "5": None}
    for rank, size in told.items():
        (tmp_path / f"result-{rank}.json").write_text(json.dumps({"host_peak_rss": size}))
    (tmp_path / "result-6.json").write_text("[" * 100_000)
    (tmp_path / "result-7.json").write_text("[1]")
    assert peak_host_bytes(tmp_path) == (5, 7)
    assert peak_host_bytes(tmp_path / "gone") == ()


@pytest.mark.parametrize("text", ["", "two", "-1", "1.5", "²"])
def test_jobs_is_a_number_or_auto(text: str) -> None:
    assert (job_count("3"), job_count("auto")) == (3, None)
    with pytest.raises(OombisectError, match="--jobs"):
        job_count(text)


def test_the_live_line_shows_every_probe_that_runs() -> None:
    output = io.StringIO()
    watcher = ConsoleWatcher(Console(file=output, width=300))
    targets = [Target(name * 40, f"change {name}", {}, Mock(), Mock()) for name in "ab"]
    for target in targets:
        watcher.probe_started(target, PLAIN, "measure")
    assert all(target.subject in watcher._line(1.0) for target in targets)
    measured = Measured(1, Reading(Outcome.INFRA, reason="gone"), cached=False)
    watcher.probe_finished(targets[0], measured, "measure", 1.0)
    assert targets[0].subject not in watcher._line(2.0)
    assert targets[1].subject in watcher._line(2.0)


@pytest.mark.usefixtures("wide")
def test_a_config_diff_has_the_same_verdict_at_any_number_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps, the keys that interact and the fewest to take back; states between are rejected on the way."""
    monkeypatch.setattr("oombisect.session.opening.open_device", lambda *_: toy.ToyDevice())
    keys = [f"model.{name}=1" for name in "abcdefghij"]
    truth = Truth(
        {"model": dict.fromkeys("abcdefghij", 0)},
        adds={"model.b=1": 900 * MIB, "model.g=1": 700 * MIB},
        together=[("model.b=1", "model.h=1", 500 * MIB)],
        needs=[("model.d=1", "model.e=1")],
    )
    told, rounds = [], []
    for jobs, name in ((1, "one"), (3, "three")):
        (tmp_path / name).mkdir()
        watcher = Rounds()
        report = ConfigWorld(tmp_path / name).diff(
            truth, SideRequest(RECIPE), SideRequest(RECIPE, tuple(keys)), jobs=jobs, watcher=watcher
        )
        assert watcher.most == jobs
        config = report.config
        assert config is not None
        steps = [(step.point, step.delta, step.kind) for step in report.verdict.steps]
        minimal = {part: config["minimal_revert"][part] for part in ("points", "fits", "goal")}
        told.append((report.verdict.kind, steps, config["interactions"], minimal))
        rounds.append(watcher.rounds)
    assert told[0] == told[1]
    assert {point for point, *_ in told[0][1]} == {"model.b", "model.g", "model.h"}
    assert rounds[0] > rounds[1]
