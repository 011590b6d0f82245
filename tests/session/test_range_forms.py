"""What may be said of a range besides its ends: points to skip, dates."""

from __future__ import annotations

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.session.editing import undo
from oombisect.session.events import skipped

from .toy import mib
from .world import World


def probed(world: World) -> set[str]:
    with world.store() as store:
        return {probe.spec.point for session in store.sessions() for probe in store.probes(session.id)}


def test_what_is_skipped_is_never_probed_and_never_blamed(world: World) -> None:
    memories = [mib(8000 if n < 5 else 9800, tag=n) for n in range(9)]
    world.run(memories, budget=2)  # makes the history
    report = world.run(memories, skip=(world.shas[5], f"{world.shas[2]}..{world.shas[4]}"))
    assert not probed(world) & {world.shas[n] for n in (3, 4, 5)}
    assert report.exit_code is ExitCode.BLURRED
    (step,) = report.verdict.steps
    assert not step.named and set(step.blurred) == {world.shas[n] for n in (3, 4, 5, 6)}
    with world.store() as store:
        session = store.session(report.session)
        assert session.spec.arguments["skip"] == [], "the log has them as skips"
        assert skipped(store.events(session.id)) == {world.shas[n] for n in (3, 4, 5)}
        undo(store, session, len([e for e in store.events(session.id) if e.kind in ("skip", "observation")]))
    resumed = world.run(memories, session=report.session)
    assert resumed.verdict.steps[0].point == world.shas[5], "a skip that was taken back does not come again"


def test_a_skip_that_is_none_is_refused_before_anything_runs(world: World) -> None:
    memories = [mib(8000), mib(8000, tag=1), mib(9800)]
    world.run(memories, budget=2)
    before = len(world.probes())
    for skip, message in (
        ("nothing", "no revision"),
        (world.shas[0], "is an end"),
        (f"{world.shas[1]}..{world.shas[2]}", "is an end"),
        (f"{world.shas[1]}..{world.shas[1]}", "no point of the range"),
        (f"{world.shas[1]}...{world.shas[2]}", "no range"),
    ):
        with pytest.raises(OombisectError, match=message):
            world.run(memories, skip=(skip,))
    with world.store() as store:
        assert len(store.sessions()) == 1
    assert len(world.probes()) == before


def test_a_session_by_date_keeps_its_ends(world: World) -> None:
    memories = [mib(8000), mib(9800)]
    world.run(memories, budget=2)
    report = world.run(memories, range=f"{world.shas[0]}..main@{{2023-11-15}}")
    with world.store() as store:
        assert store.session(report.session).spec.arguments["range"] == f"{world.shas[0]}..{world.shas[1]}"
