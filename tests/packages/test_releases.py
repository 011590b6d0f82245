"""Whole sessions over the releases of a package: everything but the probe itself is real."""

from __future__ import annotations

import json
import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest

from oombisect.axes.releases import parse_releases
from oombisect.errors import ExitCode, OombisectError
from oombisect.history.records import SessionState
from oombisect.probing import benches
from oombisect.probing.environments import Environments, releases
from oombisect.probing.interpreter import inspect_interpreter
from tests.session import toy
from tests.session.test_resume import cli
from tests.session.world import Quiet

from .pretend import PackageWorld
from .wheels import make_wheel

_STEP = {"2.0": 0, "2.1": 0, "2.2": 1800, "2.3": 1800}


def test_a_release_is_named_with_its_size(world: PackageWorld) -> None:
    world.releases_of("torch", _STEP, {"2.2": ["triton==3.3"]})
    make_wheel(world.index, "triton", "3.3")
    make_wheel(world.index, "triton", "3.2")
    world.environment("torch==2.3", "triton==3.2")
    report = world.releases("torch", "2.0..2.3")
    assert report.exit_code is ExitCode.CULPRIT
    (step,) = report.verdict.steps
    assert (step.point, step.parent, step.repo, step.named) == ("2.2", "2.1", "package", True)
    assert step.delta["allocated"] == 1800 * toy.MIB
    assert report.verdict.crossing == "2.2"
    assert step.evidence["dependencies"] == [
        {"package": "torch", "before": "2.1", "after": "2.2"},
        {"package": "triton", "before": "3.2", "after": "3.3"},
    ]
    assert report.good.fits is True and report.bad.fits is False
    assert report.points == 4
    assert report.bad.versions["torch"] == "2.3" and report.good.versions["torch"] == "2.0"
    assert any(f"oombisect releases torch 2.1..2.2 --at {world.shas[0][:12]}" in line for line in report.reproduce)
    assert inspect_interpreter(world.python).packages.count("torch==2.3") == 1  # the base is not touched


def test_releases_side_by_side_have_the_verdict_of_one_at_a_time(
    world: PackageWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(benches.psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 40))
    world.releases_of("torch", {f"2.{n}": 1800 if n >= 3 else 0 for n in range(7)})
    world.environment("torch==2.6")
    told, begun = [], []

    class Counting(Quiet):
        def probe_started(self, *_: Any) -> None:
            open_.append(1)
            begun[-1] = max(begun[-1], len(open_))

        def probe_finished(self, _: Any, measured: Any, *__: Any) -> None:
            del open_[: not measured.cached]

    for jobs in (1, 3):
        open_: list[int] = []
        begun.append(0)
        world.watcher = Counting()
        for file in world.folder.glob("db.sqlite*"):
            file.unlink()
        verdict = world.releases("torch", "2.0..2.6", jobs=jobs).verdict
        told.append((verdict.kind, [(s.point, s.parent, s.delta, s.kind, s.confirmed) for s in verdict.steps]))
    assert begun == [1, 3]
    assert told[0] == told[1]
    assert told[0][1][0][:2] == ("2.3", "2.2")


def test_a_release_that_does_not_install_blurs_and_is_never_blamed(world: PackageWorld) -> None:
    world.releases_of("torch", {"2.0": 0, "2.1": 0, "2.2": "ImportError: no", "2.3": 1800}, {"2.1": ["nowhere"]})
    world.environment("torch==2.3")
    report = world.releases("torch", "2.0..2.3")
    assert report.exit_code is ExitCode.BLURRED
    (step,) = report.verdict.steps
    assert set(step.blurred) == {"2.1", "2.2", "2.3"}
    with world.store() as store:
        reasons = {p.reading.reason for p in store.probes(report.session) if p.reading and p.reading.reason}
    assert len(reasons) == 2 and any("nowhere" in reason for reason in reasons)
    assert "ImportError: no" in reasons


def test_an_end_that_cannot_be_probed_is_an_error_with_uvs_reason(world: PackageWorld) -> None:
    world.releases_of("torch", {"2.0": 0, "2.1": 0}, {"2.1": ["nowhere"]})
    world.environment("torch==2.0")
    with pytest.raises(OombisectError, match=r"bad end 2\.1 .*nowhere") as caught:
        world.releases("torch", "2.0..2.1")
    assert caught.value.exit_code == ExitCode.USAGE


def test_no_change_costs_few_probes(world: PackageWorld) -> None:
    world.releases_of("torch", dict.fromkeys(_STEP, 0))
    world.environment("torch==2.3")
    report = world.releases("torch", "2.0..2.3")
    assert report.exit_code is ExitCode.NO_REGRESSION
    assert len(world.probes()) <= 3


def test_megatron_core_takes_the_place_of_the_submodule(world: PackageWorld) -> None:
    world.releases_of("megatron-core", {"0.18": 0, "0.19": 1800})
    make_wheel(world.index, "torch", "2.0")
    world.environment("megatron-core==0.18", "torch")
    report = world.releases("megatron-core", "0.18..0.19")
    assert [step.point for step in report.verdict.steps] == ["0.19"]
    assert all(probe["roots"] == ["bridge"] for probe in world.probes())


class Interrupting(Quiet):
    """Ctrl-C after the second probe."""

    def __init__(self) -> None:
        self.finished = 0

    def probe_finished(self, *_: Any) -> None:
        self.finished += 1
        if self.finished == 2:
            raise KeyboardInterrupt


def test_a_session_goes_on_with_the_releases_it_began_with(world: PackageWorld) -> None:
    world.releases_of("torch", _STEP)
    world.environment("torch==2.3")
    world.watcher = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        world.releases("torch", "2.0..2.3")
    with world.store() as store:
        (stored,) = store.sessions()
    assert (stored.spec.kind, stored.state) == ("releases", SessionState.INTERRUPTED)
    world.watcher = Quiet()
    make_wheel(world.index, "torch", "2.1.5")  # published meanwhile
    report = world.releases("torch", "0..1", session=stored.id)
    assert (report.session, report.points) == (stored.id, 4)
    assert [step.point for step in report.verdict.steps] == ["2.2"]
    plain = [probe["versions"]["torch"] for probe in world.probes() if not probe["limit"] and not probe["alloc_conf"]]
    assert sorted(plain) == ["2.0", "2.1", "2.1", "2.2", "2.2", "2.3"]  # each once, and the step's sides afresh


def test_kill_9_in_a_build_then_resume(world: PackageWorld) -> None:
    """As a user runs it: nothing half-built is used, no finished probe is repeated, the verdict is the same."""
    world.releases_of("torch", _STEP)
    world.environment("torch==2.3")
    world.shas = toy.history(world.repo, [toy.mib(8000)])
    options = ["--recipe", toy.RECIPE, "--repo", str(world.repo), "--python", str(world.python), "--limit", "9900MiB"]
    running = cli(world.folder, "releases", "torch", "2.0..2.3", *options, "--json")
    home = world.folder / "cache/oombisect/environments"
    deadline = time.monotonic() + 120
    while not list(home.glob(".*/environment/bin/python")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    assert list(home.glob(".*/environment")), "it was not killed in a build"
    resumed = cli(world.folder, "resume", "last", "--json")
    output, errors = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, errors
    report = json.loads(output)
    assert [step["point"] for step in report["verdict"]["steps"]] == ["2.2"]
    assert not list(home.glob(".*"))
    assert "finished" in cli(world.folder, "resume", "last").communicate(timeout=60)[1]


@pytest.fixture
def known(world: PackageWorld) -> Environments:
    make_wheel(world.index, "torch", "2.0")
    world.environment("torch")
    return Environments(inspect_interpreter(world.python), world.folder / "cache")


def test_pre_releases_are_left_out_unless_they_are_an_end(world: PackageWorld, known: Environments) -> None:
    for version in ("1.0rc1", "1.0", "1.1rc1", "1.1", "1.1.post1", "1.2rc1", "1.2"):
        make_wheel(world.index, "te", version)
    assert releases(known, "te", "1.0", "1.2") == ("1.0", "1.1", "1.1.post1", "1.2")
    assert releases(known, "te", "1.0rc1", "1.2rc1") == ("1.0rc1", "1.0", "1.1", "1.1.post1", "1.2rc1")
    assert releases(known, "te", "1.1", "1.1.post1") == ("1.1", "1.1.post1")


def test_an_unknown_release_is_an_error(world: PackageWorld, known: Environments) -> None:
    world.releases_of("torch", _STEP)
    with pytest.raises(OombisectError, match=r"torch==9\.0") as caught:
        world.releases("torch", "2.0..9.0", find="improvement")
    assert caught.value.exit_code == ExitCode.USAGE
    with world.store() as store:
        assert store.sessions() == []


@pytest.mark.parametrize("text", ["2.0", "..", "2.0..", "..2.1", "2.0..2.0", "2.1..2.0", "a..b", "2.0...2.1", ""])
def test_what_is_no_range_of_releases_is_refused(text: str) -> None:
    with pytest.raises(OombisectError):
        parse_releases(text)


@pytest.mark.parametrize("name", ["", "-r", "--index=x", "torch==2", "torch 2", "../x", "x;y"])
def test_what_is_no_name_of_a_package_is_refused(world: PackageWorld, name: str) -> None:
    with pytest.raises(OombisectError, match="no name of a package"):
        world.releases(name, "2.0..2.1")
