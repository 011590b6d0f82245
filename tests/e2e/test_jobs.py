"""Two real probes on virtual GPUs at once: each reads to the byte what it reads alone."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from oombisect.axes.commits import commit_range
from oombisect.cli.sessions_of import clock
from oombisect.demo.repository import build_demo, find_megatron_core
from oombisect.history.records import SessionSpec
from oombisect.history.store import open_store
from oombisect.readings import Outcome, RankReading, Reading
from oombisect.session.commit_line import CommitLine
from oombisect.session.measuring import Measured, Measurer, Question
from oombisect.session.opening import open_places, open_workshop, targets_of
from oombisect.session.request import ProbeRequest
from tests.session.world import Quiet

pytestmark = [
    pytest.mark.virtual_gpu,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
]


def test_two_probes_at_once_read_what_they_read_alone(tmp_path: Path, cache_home: Path) -> None:
    demo = build_demo(tmp_path / "demo", find_megatron_core(Path(sys.executable)))
    cache = cache_home / "oombisect"
    request = ProbeRequest(demo.recipe, repo=str(demo.path), gpu=demo.device)

    def measured(jobs: int) -> Sequence[Measured]:
        with (
            open_store(tmp_path / f"{jobs}.db", clock=clock) as store,
            open_workshop(request, cwd=tmp_path, cache=cache, watcher=Quiet(), look=lambda _: None) as workshop,
            open_places(store, workshop, jobs, Quiet()) as places,
        ):
            assert len(places) == (jobs if jobs > 1 else 0), "this machine does not carry two probes"
            axis = commit_range(workshop.repository, demo.good, demo.bad)
            line = CommitLine(axis, targets_of(workshop, request, cache))
            spec = SessionSpec("run", (), {}, str(demo.path), request.recipe, workshop.device.name, "good", "bad")
            measurer = Measurer(store, store.create_session(spec).id, workshop.prober, Quiet(), places)
            questions = [Question(line.targets[place], "measure", False) for place in (0, -1)]
            begun = time.monotonic()
            found = measurer.measure_all(questions)
            print(f"{jobs} at a time: {time.monotonic() - begun:.1f} s")
            return found

    alone, together = measured(1), measured(2)
    assert [one.reading.outcome for one in alone] == [Outcome.EXACT] * 2
    assert alone[0].reading.peak_allocated < alone[1].reading.peak_allocated
    assert not any(one.cached for one in (*alone, *together))
    assert [figures(one.reading) for one in together] == [figures(one.reading) for one in alone]


def figures(reading: Reading) -> Reading:
    """All that is read but times, and the snapshot's own file."""
    return replace(reading, ranks=tuple(map(_of_rank, reading.ranks)))


def _of_rank(rank: RankReading) -> RankReading:
    return replace(rank, phases={name: replace(phase, seconds=0.0) for name, phase in rank.phases.items()})
