"""Whole sessions over toy histories: git, worktrees, processes, the store and the search are real."""

from __future__ import annotations

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.records import SessionState
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading, Reading
from oombisect.session.bisection import metrics_of

from . import toy
from .toy import MIB, mib
from .world import World


def test_a_rank_that_died_would_have_had_what_it_held_then_and_what_it_asked_for() -> None:
    early = PhaseMetrics(allocated_peak=78, reserved_peak=79)
    late = PhaseMetrics(allocated_peak=70, reserved_peak=79)
    oom = Oom("step_1", "CUDA out of memory", requested=21, allocated=60)
    rank = RankReading(0, {"model": early, "step_1": late}, 1, oom)
    found = metrics_of(Reading(Outcome.CENSORED, ranks=(rank,)))
    assert (found.allocated, found.reserved) == (81, 81), "not the earlier peak and the request"


def test_a_capacity_step_is_named_with_its_size(world: World) -> None:
    report = world.run(
        [mib(8000, tag=i) for i in range(6)] + [mib(9800, tag=5), *(mib(9800, tag=i) for i in range(6, 12))]
    )
    assert report.exit_code is ExitCode.CULPRIT
    (step,) = report.verdict.steps
    assert step.point == world.shas[6] == report.verdict.crossing
    assert step.parent == world.shas[5]
    assert step.delta == {"allocated": 1800 * MIB, "reserved": 1800 * MIB, "external": 0}
    assert (step.kind, step.confirmed, step.named, step.crosses_limit) == ("capacity", "yes", True, True)
    assert report.verdict.explained == 1.0
    assert report.good.fits is True and report.bad.fits is False
    assert report.bad.simulated


def test_stranded_memory_is_fragmentation_only_when_the_needed_capacity_rose(world: World) -> None:
    calm = [mib(8000, 8100, tag=i) for i in range(4)]
    stranded = [mib(8000, 9900, needed=9800, tag=i) for i in range(4)]
    report = world.run(calm + stranded)
    (step,) = report.verdict.steps
    assert step.point == world.shas[4]
    assert step.kind == "fragmentation"
    needed = step.evidence["needed_capacity"]
    assert abs(needed["larger_bytes"] - 10_300 * MIB) <= needed["resolution_bytes"]
    assert step.evidence["expandable_segments"]["fits"] is True


def test_less_stranded_memory_is_an_improvement_by_its_sign(world: World) -> None:
    stranded = [mib(8000, 9900, needed=9800, tag=i) for i in range(3)]
    calm = [mib(8000, 8100, tag=i) for i in range(3, 6)]
    report = world.run(stranded + calm, find="improvement")
    (step,) = report.verdict.steps
    assert (step.point, step.kind) == (world.shas[3], "fragmentation")
    assert step.evidence["fragmentation_bytes"] < 0


def test_a_larger_cache_alone_is_no_fragmentation(world: World) -> None:
    """Reserved grows past the limit, yet the run fits: the allocator gives its cache back."""
    report = world.run([mib(8000, 8100, tag=i) for i in range(4)] + [mib(8000, 9900, tag=i) for i in range(4)])
    assert report.bad.fits is True
    assert all(step.kind != "fragmentation" for step in report.verdict.steps)


def test_commits_no_probe_can_see_cost_nothing(world: World) -> None:
    report = world.run([mib(8000), *[None] * 20, mib(9800), *[None] * 20])
    assert report.verdict.crossing == world.shas[21]
    assert len([p for p in world.probes() if not p["limit"] and not p["env"]]) <= 4  # both ends, and again to confirm


def test_a_broken_stretch_blurs_and_is_never_blamed(world: World) -> None:
    broken = {"unresolved": "ImportError: no", "allocated": 0, "reserved": 0}
    middle = [{**broken, "tag": i} for i in range(3)]
    report = world.run([mib(8000, tag=i) for i in range(4)] + middle + [mib(9800, tag=i) for i in range(4)])
    assert report.exit_code is ExitCode.BLURRED
    assert not any(step.point in world.shas[4:7] for step in report.verdict.steps)
    assert set(report.verdict.steps[0].blurred) == set(world.shas[4:8])


def test_no_change_is_said_to_be_none(world: World) -> None:
    report = world.run([mib(8000, tag=i) for i in range(6)])
    assert report.exit_code is ExitCode.NO_REGRESSION
    assert report.verdict.steps == ()


def test_an_improvement_is_found_and_its_config_change_shown(world: World) -> None:
    memories = [mib(9000, config={"seq": 4096}, tag=i) for i in range(4)]
    memories += [mib(7000, config={"seq": 2048}, tag=i) for i in range(4)]
    report = world.run(memories, find="improvement")
    assert report.exit_code is ExitCode.CULPRIT
    (step,) = report.verdict.steps
    assert step.point == world.shas[4]
    assert step.delta["allocated"] == -2000 * MIB
    assert step.evidence["config_changes"] == [{"path": "seq", "before": 4096, "after": 2048}]
    assert step.kind == "capacity"


def test_a_second_session_probes_nothing_again(world: World) -> None:
    memories = [mib(8000, tag=i) for i in range(5)] + [mib(9800, tag=i) for i in range(5)]
    first = world.run(memories)
    before = len(world.probes())
    second = world.run(memories)
    fresh = world.probes()[before:]
    assert second.verdict.to_json() == first.verdict.to_json()
    assert second.probes_cached > 0
    # Confirmation is fresh by its nature: culprit, parent, and the reverted end; nothing else runs.
    assert len(fresh) <= 3


def test_an_end_that_cannot_be_probed_is_an_error_with_its_reason(world: World) -> None:
    broken = {"unresolved": "AssertionError: tp must divide heads", "allocated": 0, "reserved": 0}
    with pytest.raises(OombisectError, match=r"bad end .* tp must divide heads") as caught:
        world.run([mib(8000), mib(8000, tag=1), broken])
    assert caught.value.exit_code == ExitCode.USAGE
    with world.store() as store:
        (session,) = store.sessions()
    assert (session.state, session.exit_code) == (SessionState.INTERRUPTED, ExitCode.USAGE)


def test_a_recipe_nobody_has_is_an_error_before_any_probe(world: World) -> None:
    with pytest.raises(OombisectError, match="neither end") as caught:
        world.run([mib(8000), mib(9800)], probe={"recipe": "toy_2b_lora"})
    assert "toy_1b_pretrain" in caught.value.cause + caught.value.way_out
    assert world.probes() == []


def test_a_probe_that_hangs_is_infrastructure_and_tried_again(world: World) -> None:
    hang = mib(8000, sleep=600)
    report = world.run([mib(8000), hang, mib(8000, tag=2)], probe={"time_limit": 1.5}, grid=1)
    assert report.exit_code in (ExitCode.NO_REGRESSION, ExitCode.INFRASTRUCTURE)
    assert len([p for p in world.probes() if p["told"].get("sleep")]) == 2
    with world.store() as store:
        reasons = [p.reading.reason for p in store.probes(report.session) if p.reading and p.reading.reason]
    assert reasons and all("time limit" in reason for reason in reasons)


def test_a_fit_that_could_not_be_tried_is_no_does_not_fit(world: World) -> None:
    """The bad end's peaks straddle the limit, and something kills every probe that has the limit enforced."""
    report = world.run([mib(8000), mib(9000, 9900, limited_signal=9)])
    assert report.bad.fits is None
    assert report.exit_code is ExitCode.INFRASTRUCTURE
    assert report.verdict.steps == ()


def test_nobody_is_named_when_the_confirming_probes_fail(world: World) -> None:
    memories = [mib(8000, tag=i, sleep=1) for i in range(3)] + [mib(9800, tag=i, sleep=1) for i in range(3, 6)]
    assert world.run(memories).exit_code is ExitCode.CULPRIT
    again = world.run(memories, probe={"time_limit": 0.3})  # what is known needs no probe; what is fresh does
    assert again.exit_code is ExitCode.INFRASTRUCTURE
    assert not any(step.named for step in again.verdict.steps)


def test_a_path_filter_names_a_group_of_commits_not_the_innocent_one(world: World) -> None:
    memories = [mib(8000, tag=0), None, mib(9800, tag=1), None, mib(9800, tag=2)]
    report = world.run(memories, paths=("README.md",))
    assert report.exit_code is ExitCode.BLURRED
    (step,) = report.verdict.steps
    assert not step.named
    assert world.shas[2] in step.blurred


def test_a_good_end_on_another_branch_goes_through_the_merge_base(world: World) -> None:
    memories = [mib(8000, tag=0), mib(8000, tag=1), mib(9800, tag=2), mib(9800, tag=3)]
    world.shas = toy.history(world.repo, memories)
    toy.git(world.repo, "checkout", "--quiet", "-b", "release", world.shas[0])
    (world.repo / "NEWS").write_text("released\n")
    toy.git(world.repo, "add", "--all")
    toy.git(world.repo, "commit", "--quiet", "-m", "release")
    report = world.run(memories, range="release..main")
    assert report.verdict.crossing == world.shas[2]
    assert [step.point for step in report.verdict.steps if step.named] == [world.shas[2]]


def test_an_improvement_sought_where_memory_grew_is_told(world: World) -> None:
    report = world.run([mib(8000), mib(9000, tag=1)], find="improvement")
    assert report.exit_code is ExitCode.NO_REGRESSION
    assert any("--find regression" in note for note in report.verdict.notes)


def test_a_probe_that_dies_is_unresolved_by_signal(world: World) -> None:
    report = world.run([mib(8000), mib(8000, signal=11), mib(9800)])
    assert report.exit_code is ExitCode.BLURRED
    with world.store() as store:
        reasons = [p.reading.reason for p in store.probes(report.session) if p.reading and p.reading.reason]
    assert any("SIGSEGV" in reason for reason in reasons)


def test_the_budget_is_kept(world: World) -> None:
    report = world.run([mib(7000 + 30 * i) for i in range(64)], budget=5)
    assert report.exit_code is ExitCode.BUDGET
    assert len(world.probes()) <= 5 + 1  # the fit probe of a point near the limit is no search probe
    open_ones = [note for note in report.verdict.notes if note.startswith("not searched yet: ")]
    assert 0 < len(open_ones) <= 3 and all("changes, peak allocated +" in note for note in open_ones)
    assert any("resume --budget" in note for note in report.verdict.notes)
