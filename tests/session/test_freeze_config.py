"""Every commit with the config of one end: what code added is told from what a recipe changed."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.session.request import ProbeRequest
from oombisect.session.single import probe_commit

from . import toy
from .test_metric import Stops
from .toy import MIB, mib
from .world import Quiet, World


def recipe_and_code() -> list[dict[str, Any]]:
    """The third commit makes the recipe ask for more (`a`: 1 to 4), the sixth is code that takes more."""
    return [
        mib(5000 if n < 5 else 6800, tag=n - (n in (2, 5)), per_a=500 * MIB, config={"a": 1 if n < 2 else 4})
        for n in range(8)
    ]


def named(report: Any) -> list[tuple[str, int]]:
    return [(step.point, step.change) for step in report.verdict.steps if step.named]


def test_with_a_frozen_config_only_code_is_named(world: World) -> None:
    plain = world.run(recipe_and_code())
    assert named(plain) == [(world.shas[5], 1800 * MIB), (world.shas[2], 1500 * MIB)]
    good = world.run(recipe_and_code(), freeze_config="good")
    bad = world.run(recipe_and_code(), freeze_config="bad")
    for report, end, peak in ((good, 0, 5500), (bad, -1, 7000)):
        assert named(report) == [(world.shas[5], 1800 * MIB)] and report.exit_code is ExitCode.CULPRIT
        assert report.good.peak_allocated == peak * MIB
        assert report.probes_cached == 0, "a reading with another config is another measurement"
        (step,) = report.verdict.steps
        assert step.confirmed == "yes" and step.evidence["config_changes"] == []
        name = "good" if end == 0 else "bad"
        told = f"every commit ran with the config of the {name} end {world.shas[end][:10]}"
        assert any(note.startswith(told) for note in report.verdict.notes)
        assert report.workload["config_of"] == world.shas[end]
        with world.store() as store:
            asked = store.session(report.session).spec.arguments["probe"]
        assert asked["config_of"] == world.shas[end], "what is compared with sessions alike must know of it"


def test_the_command_that_reproduces_it_measures_the_same(world: World) -> None:
    report = world.run(recipe_and_code(), freeze_config="good")
    words = shlex.split(report.reproduce[0])
    frozen = words[words.index("--freeze-config") + 1]
    request = ProbeRequest(recipe=toy.RECIPE, repo=str(world.repo), python=str(world.python), limit_bytes=10_000 * MIB)
    count = len(world.probes())
    with world.store() as store:
        probed = probe_commit(
            store, world.shas[5], request, watcher=Quiet(), cwd=world.folder, cache=world.folder / "cache",
            command=("test",), config_of=frozen,
        )  # fmt: skip
    assert probed.reading.peak_allocated == 7300 * MIB
    assert len(world.probes()) == count, "the session has measured that"


def test_what_a_commit_has_no_field_for_is_unresolved_by_name(world: World) -> None:
    memories = [
        mib(8000 if n < 6 else 9800, tag=n, config={"a": 1} if n in (3, 4) else {"a": 1, "b": 2}) for n in range(8)
    ]
    report = world.run(memories, freeze_config="good", exhaustive=True)
    assert named(report) == [(world.shas[6], 1800 * MIB)]
    with world.store() as store:
        reasons = {p.reading.reason for p in store.probes(report.session) if p.reading and p.reading.reason}
    assert reasons == {"the frozen configuration sets b, which this commit does not have"}
    harmless = world.run(memories, freeze_config="good", exhaustive=True, probe={"overrides": ("b=null",)})
    assert named(harmless) == [(world.shas[6], 1800 * MIB)]
    with world.store() as store:
        assert all(p.reading and not p.reading.reason for p in store.probes(harmless.session))


def test_a_resumed_session_keeps_the_config(world: World) -> None:
    with pytest.raises(KeyboardInterrupt):
        world.run(recipe_and_code(), freeze_config="bad", watcher=Stops())
    with world.store() as store:
        (session,) = store.sessions()
    report = world.run([], session=session.id, freeze_config="bad")
    assert named(report) == [(world.shas[5], 1800 * MIB)]
    with world.store() as store:
        assert [event.kind for event in store.events(session.id)].count("frozen") == 1


def test_a_config_that_cannot_be_made_is_told(world: World) -> None:
    (world.python).write_text(world.python.read_text().replace('"described"', '"unresolved"'))
    with pytest.raises(OombisectError, match=r"config of .* cannot be made"):
        world.run(recipe_and_code(), freeze_config="good")
    for probe, message in (({"recipe": "", "command": ("true",)}, "for recipes"), ({}, "is no end")):
        with pytest.raises(OombisectError, match=message):
            world.run(recipe_and_code(), freeze_config="worst" if not probe else "good", probe=probe)
