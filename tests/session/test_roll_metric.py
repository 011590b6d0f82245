"""Into rolls by another quantity than memory as a whole, or by a threshold."""

from __future__ import annotations

from pathlib import Path

import pytest

from oombisect.errors import ExitCode
from oombisect.reports.terminal import headline
from oombisect.session.verdict import Report

from .recording import record
from .rolls import Rolls, run
from .test_replaying import NEEDED_BAD, NEEDED_GOOD, pinned, plain
from .test_roll import descents
from .toy import MIB
from .world import World


@pytest.fixture
def rolls(world: World) -> Rolls:
    return Rolls(world.folder)


def test_what_is_followed_is_what_is_shared_out_and_walked(world: World, rolls: Rolls) -> None:
    """Bridge's source allocates far more, and Megatron-LM alone keeps more in the cache."""
    rolls.start()
    rolls.core("m1")
    rolls.core("m2", cached=700)
    rolls.core("m3")
    rolls.commit("roll", pin="m3", allocated=9200 * MIB, reserved=9300 * MIB)
    rolls.commit("b2")
    memory = run(world, rolls)
    assert descents(memory)[0]["shares_change"] is None
    assert memory.verdict.steps[0].main_inside is None, "of memory as a whole Bridge did most"
    report = run(world, rolls, metric="cached")
    (descent,) = descents(report)
    assert descent["kind"] == "culprit"
    assert descent["shares_change"] == {"bridge": 0, "dependencies": 0, "megatron-lm": 700 * MIB}
    (step,) = report.verdict.steps
    inside = step.main_inside
    assert inside is not None and rolls.name(inside.point) == "m2" and inside.change == 700 * MIB
    assert f"Megatron-LM {rolls.ids['m2'][:10]}" in headline(report)
    assert Report.from_json(report.to_json()).to_json() == report.to_json()


def test_the_part_that_crosses_the_threshold_is_walked_however_small(world: World, rolls: Rolls) -> None:
    rolls.start()
    rolls.core("m1")
    rolls.core("m2", 100)
    rolls.core("m3")
    rolls.commit("roll", pin="m3", allocated=9000 * MIB, reserved=9100 * MIB)
    rolls.commit("b2")
    (without,) = descents(run(world, rolls, metric="allocated"))
    assert without["kind"] == "not-needed"
    report = run(world, rolls, metric="allocated", threshold_bytes=9050 * MIB)
    (descent,) = descents(report)
    assert (descent["kind"], rolls.name(descent["crossing"])) == ("culprit", "m2")
    (below,) = descents(run(world, rolls, metric="allocated", threshold_bytes=8500 * MIB))
    assert below["kind"] == "not-needed", "Bridge's source crosses it"


def test_fragmentation_that_bridge_brought_is_shared_out_too(world: World, rolls: Rolls, tmp_path: Path) -> None:
    calm, worse = record(tmp_path / "calm.gz", plain()), record(tmp_path / "worse.gz", pinned())
    rolls.start(**calm.told())
    rolls.core("m1")
    rolls.commit("roll", pin="m1", **worse.told())
    rolls.commit("b2")
    report = run(world, rolls, metric="fragmentation", probe={"limit_bytes": 20_000 * MIB})
    assert report.exit_code is ExitCode.CULPRIT
    (descent,) = descents(report)
    assert descent["kind"] == "not-needed"
    assert descent["shares_change"] == {"bridge": NEEDED_BAD - NEEDED_GOOD, "dependencies": 0, "megatron-lm": 0}
