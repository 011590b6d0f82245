"""What a session follows: another quantity than memory as a whole, either way, or a threshold instead of the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.reports.terminal import headline
from oombisect.session.verdict import Report

from .recording import record
from .test_replaying import NEEDED_BAD, NEEDED_GOOD, pinned, plain
from .toy import MIB, mib, ranks
from .world import Quiet, World


def test_each_metric_names_the_change_that_moved_it(world: World) -> None:
    """One change adds to what is allocated and takes from the cache; another one adds to the cache alone."""
    memories = [mib(4000, 5000, tag=0), mib(5500, 5500, tag=0), mib(5500, 7500, tag=0), mib(5500, 7500, tag=1)]
    allocated = world.run(memories, metric="allocated")
    cached = world.run(memories, metric="cached")
    for report, place, change in ((allocated, 1, 1500 * MIB), (cached, 2, 2000 * MIB)):
        assert report.exit_code is ExitCode.CULPRIT
        first = report.verdict.steps[0]
        assert (first.point, first.change, first.named) == (world.shas[place], change, True)
    assert cached.verdict.change == 1000 * MIB and cached.verdict.metric == "cached"
    assert "+1.95 GiB (simulated) reserved minus allocated" in headline(cached)
    assert Report.from_json(cached.to_json()).to_json() == cached.to_json()


def test_movement_either_way_is_found(world: World) -> None:
    memories = [mib(size, tag=n) for n, size in enumerate((8000, 6000, 6000, 9500, 9500))]
    found = {}
    for find in ("regression", "any"):
        report = world.run(memories, find=find, grid=1, exhaustive=True)
        found[find] = {step.change for step in report.verdict.steps if step.named}
    assert found == {"regression": {3500 * MIB}, "any": {3500 * MIB, -2000 * MIB}}


def test_a_threshold_is_crossed_where_the_limit_is_not(world: World) -> None:
    memories = [mib(size, size, tag=n) for n, size in enumerate((4000, 5000, 6000, 6000, 9000))]
    report = world.run(memories, metric="allocated", threshold_bytes=5000 * MIB)
    assert report.good.fits and report.bad.fits, "neither end crosses the limit"
    assert report.verdict.crossing == world.shas[2], "a value equal to the threshold is not past it"
    assert report.verdict.threshold_bytes == 5000 * MIB
    assert "across 4.88 GiB (simulated) of peak allocated" in headline(report)
    assert world.run(memories, metric="allocated").verdict.crossing is None


def test_fragmentation_is_what_replays_say_is_needed_beyond_what_is_allocated(world: World, tmp_path: Path) -> None:
    """A larger cache first, which is none, and then memory stranded."""
    calm, worse = record(tmp_path / "calm.gz", plain()), record(tmp_path / "worse.gz", pinned())
    cache = [(what, f"x{n}", 900 * MIB) for what in ("alloc", "free") for n in range(5)]
    kept = record(tmp_path / "kept.gz", [*plain()[:5], *cache, *plain()[5:]])
    memories = [one.told(tag=n) for n, one in enumerate((calm, calm, kept, kept, worse, worse))]
    limit = {"limit_bytes": 20_000 * MIB}
    report = world.run(memories, metric="fragmentation", probe=limit)
    assert kept.reserved - kept.allocated >= 4000 * MIB, "the cache is large"
    (step,) = (step for step in report.verdict.steps if step.named)
    assert (step.point, step.change) == (world.shas[4], NEEDED_BAD - NEEDED_GOOD)


class Stops(Quiet):
    """Interrupts the session once it knows three answers."""

    answers = 0

    def progress(self, text: str) -> None:
        self.answers += 1
        if self.answers == 3:
            raise KeyboardInterrupt


def test_an_interrupted_search_for_fragmentation_goes_on(world: World, tmp_path: Path) -> None:
    calm, worse = record(tmp_path / "calm.gz", plain()), record(tmp_path / "worse.gz", pinned())
    memories = [one.told(tag=n) for n, one in enumerate((*[calm] * 4, *[worse] * 4))]
    options: dict[str, Any] = {"metric": "fragmentation", "probe": {"limit_bytes": 20_000 * MIB}}
    with pytest.raises(KeyboardInterrupt):
        world.run(memories, watcher=Stops(), **options)
    with world.store() as store:
        (session,) = store.sessions()
    report = world.run(memories, session=session.id, **options)
    assert [(s.point, s.change) for s in report.verdict.steps] == [(world.shas[4], NEEDED_BAD - NEEDED_GOOD)]


def test_the_sizes_are_those_of_the_rank_that_needs_most(world: World, tmp_path: Path) -> None:
    """A rank that allocates more and strands nothing must not hide what the other one strands."""
    calm, worse = record(tmp_path / "calm.gz", plain()), record(tmp_path / "worse.gz", pinned())
    large = record(tmp_path / "large.gz", [("alloc", "x", 7000 * MIB)])
    memories = [ranks(large.told(), one.told(), tag=n) for n, one in enumerate((calm, calm, worse))]
    report = world.run(memories, metric="fragmentation", probe={"limit_bytes": 20_000 * MIB})
    assert report.verdict.change == NEEDED_BAD - NEEDED_GOOD


def test_without_a_replay_fragmentation_is_not_known(world: World) -> None:
    with pytest.raises(OombisectError, match=r"good end .* no replay"):
        world.run([mib(8000), mib(9000)], metric="fragmentation")
