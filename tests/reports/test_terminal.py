"""The report says every number whole, at any width, and labels what is simulated."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from oombisect.errors import ExitCode
from oombisect.history.records import SessionSpec, SessionState, StoredSession
from oombisect.probing.workload import Variation
from oombisect.readings import Oom, Outcome, PhaseMetrics, RankReading, Reading
from oombisect.reports.reading import render_reading
from oombisect.reports.sessions import render_sessions, session_json
from oombisect.reports.terminal import evidence_lines, headline, render
from oombisect.reports.watch import ConsoleWatcher
from oombisect.session.measuring import Measured, Target
from oombisect.session.single import Probed
from oombisect.session.verdict import Report, StepVerdict, Verdict
from oombisect.units import GIB

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SIZE = re.compile(r"\d ([KMGT]i)?B\b")
LONG = "Give every chunk of queries a tensor of its own, which is as simple as it gets and reads well " * 2


def gib(size: float) -> int:
    return int(size * GIB)


def reading(allocated: float, reserved: float, *, fits: bool | None = None, **more: Any) -> Reading:
    phase = PhaseMetrics(allocated_peak=gib(allocated), reserved_peak=gib(reserved), device_used=gib(reserved))
    rank = RankReading(0, {"optimizer": phase, "step_2": phase}, external=gib(0.5), oom=more.pop("oom", None))
    known: dict[str, Any] = {"device": "virtual:h100-80gb", "simulated": True, "world_size": 8, **more}
    return Reading(known.pop("outcome", Outcome.EXACT), ranks=(rank,), fits=fits, **known)


def step(number: int, kind: str, evidence: Mapping[str, Any], **delta: int) -> StepVerdict:
    point = f"{number}" * 40
    return StepVerdict(point, "a" * 40, LONG, "bridge", delta, kind, "yes", evidence, crosses_limit=number == 1)


FRAGMENTATION = step(
    1, "fragmentation",
    {"fragmentation_bytes": gib(2.17), "phases": {"optimizer": gib(1.11), "step_2": gib(-3.33)},
     "classification": {"notes": ["4.44 GiB would do for a perfect allocator"]},
     "needed_capacity": {"rank": 0, "smaller_bytes": gib(77.5), "larger_bytes": gib(79.67),
                         "larger_expandable_bytes": gib(76.81), "resolution_bytes": gib(0.21)}},
    allocated=0, reserved=gib(12.34), external=0,
)  # fmt: skip
CAPACITY = step(2, "capacity", {}, allocated=gib(-15.39), reserved=gib(-15.48), external=gib(-0.25))
REPORT = Report(
    session="20260101-1",
    verdict=Verdict("culprit", gib(79.18), "1" * 40, (FRAGMENTATION, CAPACITY), {"allocated": gib(5.39)}, 1.0),
    good=reading(70.12, 72.34, fits=True),
    bad=reading(75.51, 81.55, fits=False),
    probes=9,
    probes_cached=2,
    points=40,
    workload={},
    reproduce=("oombisect probe 111111111111 --recipe " + "x" * 200,),
)  # fmt: skip


def shown(report: Report, width: int, *, terminal: bool) -> str:
    out = io.StringIO()
    render(report, Console(file=out, width=width, force_terminal=terminal, highlight=False, color_system=None))
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 80, 140])
@pytest.mark.parametrize("terminal", [True, False])
def test_numbers_ids_and_classes_are_whole(width: int, terminal: bool) -> None:
    text = shown(REPORT, width, terminal=terminal)
    sizes = "+2.17 GiB|0.21 GiB|+12.34 GiB|-15.39 GiB|-15.48 GiB|77.50 GiB|79.67 GiB|76.81 GiB|70.12 GiB|81.55 GiB"
    for whole in (*sizes.split("|"), "1111111111", "2222222222", "fragmentation", "capacity", LONG, *REPORT.reproduce):
        assert whole in text
    assert "…" not in text
    assert "9 probes run in this session, 2 answers reused" in text


def test_the_table_is_there_at_80_columns() -> None:
    (header,) = [line for line in shown(REPORT, 80, terminal=True).splitlines() if "needed" in line and "class" in line]
    assert len(header) <= 80
    (row,) = [line for line in shown(REPORT, 80, terminal=True).splitlines() if "1111111111 *" in line]
    sizes = ["+0", "B", "+12.34", "GiB", "+0", "B", "+2.17", "GiB"]
    assert row.split() == ["1111111111", "*", *sizes, "fragmentation"]


@pytest.mark.parametrize("width", [40, 80])
def test_every_line_with_a_size_says_simulated(width: int) -> None:
    text = shown(REPORT, width, terminal=False)
    rows = [line for line in text.splitlines() if SIZE.search(line) and not re.match(r" ?[12]{10} [*+ ]", line)]
    assert len(rows) >= 7
    assert all("(simulated)" in row for row in rows), rows
    assert "sizes of the steps (simulated)" in text or width == 40


def test_a_measured_report_does_not_say_simulated() -> None:
    real = replace(REPORT, good=replace(REPORT.good, simulated=False), bad=replace(REPORT.bad, simulated=False))
    assert "simulated" not in shown(real, 80, terminal=False)


def test_stranded_bytes_have_their_resolution() -> None:
    assert "+2.17 GiB (± 0.21 GiB) (simulated) stranded" in shown(REPORT, 80, terminal=False)


def probe_report(one: Reading, width: int = 80, classification: Mapping[str, Any] | None = None) -> str:
    out = io.StringIO()
    probed = Probed("20260101-2", "c" * 40, gib(79.18), one, classification)
    render_reading(probed, Console(file=out, width=width, highlight=False))
    return out.getvalue()


FAILURE = {
    "limit_bytes": gib(79.18), "enforced": True, "event": 12345, "requested_bytes": gib(2.25),
    "segment_bytes": gib(2.25), "allocated_bytes": gib(70.5), "reserved_bytes": gib(77.5),
    "requested_by": ["forward (mlp.py:12)"],
    "stranded_bytes": gib(7.25), "largest_free_bytes": gib(1.75), "of_other_streams_and_pools_bytes": 0,
    "idle_private_pools_bytes": 0,
    "holders": [{"stack": ["keep (cache.py:7)", "step (train.py:9)"], "blocks": 12, "size_bytes": gib(0.125),
                 "stranded_bytes": gib(6.5), "never_freed": 11}],
    "asked_for_bytes": gib(69), "rounding_bytes": gib(1.25),
    "rounders": [{"stack": ["odd (act.py:3)"], "blocks": 1300, "size_bytes": gib(15), "rounding_bytes": gib(1.2),
                  "never_freed": 0}],
}  # fmt: skip
FRAGMENTED = {
    "class": "fragmentation", "rank": 0, "limit": gib(79.18), "perfect_allocator_needs": gib(75.5),
    "perfect_allocator_is_lower_bound": False, "reserved_minus_allocated": gib(6), "needed_capacity": gib(80.25),
    "needed_capacity_expandable": gib(76.125), "needed_capacity_method": "replay", "resolution_bytes": 2 << 20,
    "fits_with_expandable_segments": True, "stranded": FAILURE, "expandable_segments": {"fits_by": "replay"},
}  # fmt: skip


def test_a_probe_says_why_it_does_not_fit() -> None:
    text = probe_report(reading(75, 81, fits=False), classification=FRAGMENTED)
    for part in (
        "fragmentation: what is needed would fit", "75.50 GiB (simulated), limit 79.18 GiB",
        "needed capacity (by replay): 80.25 GiB, with expandable segments 76.12 GiB (simulated)",
        "with expandable segments, its requests replayed with the limit: fits", "2.25 GiB asked for",
        "7.25 GiB are free and cannot be given back (simulated)",
        "6.50 GiB held by 12 blocks of 0.12 GiB in all, 11 not freed while it was recorded (simulated)",
        "(simulated), allocated at keep (cache.py:7)",
        "stranded: 8.50 GiB (simulated), of which",
        "1.25 GiB lie unused inside blocks, larger than what was asked for (69.00 GiB) (simulated)",
        "1.20 GiB inside 1,300 blocks of 15.00 GiB in all",
    ):  # fmt: skip
        assert part in text
    capacity = {**FRAGMENTED, "class": "capacity", "perfect_allocator_needs": gib(79.5)}
    capacity |= {"perfect_allocator_is_lower_bound": True, "stranded": None}
    text = probe_report(reading(79, 81, fits=False), classification=capacity)
    assert "no allocator could fit it" in text and "at least 79.50 GiB (simulated)" in text
    assert "error at event" not in text


def test_what_was_stored_before_rounding_was_told_is_still_shown() -> None:
    new = ("asked_for_bytes", "rounding_bytes", "rounders")
    old = {**FRAGMENTED, "stranded": {name: value for name, value in FAILURE.items() if name not in new}}
    text = probe_report(reading(75, 81, fits=False), classification=old)
    assert "7.25 GiB are free and cannot be given back" in text and "inside blocks" not in text


@pytest.mark.parametrize(
    ("by", "fits", "said"),
    [
        ("probe", True, "with expandable segments and the limit enforced: fits"),
        ("replay", False, "with expandable segments, its requests replayed with the limit: does not fit either"),
        ("peak", True, "with expandable segments, without the limit: it took no more: fits"),
        ("run", False, "with expandable segments: it ran out of memory, too: does not fit either"),
    ],
)
def test_it_is_said_what_showed_that_expandable_segments_help(by: str, fits: bool, said: str) -> None:
    found = {**FRAGMENTED, "fits_with_expandable_segments": fits, "expandable_segments": {"fits_by": by}}
    assert f"run again {said}" in probe_report(reading(75, 81, fits=False), classification=found)


def test_what_is_not_classified_has_its_reason() -> None:
    found = {**FRAGMENTED, "class": "unknown", "reason": "a perfect allocator would fit it, but"}
    assert "not classified: a perfect allocator would" in probe_report(
        reading(75, 81, fits=False), classification=found
    )
    unknown = replace(FRAGMENTATION, kind="unknown", evidence={"classification": {"reason": "none shown"}})
    report = replace(REPORT, verdict=replace(REPORT.verdict, steps=(unknown,)))
    assert "not classified: none shown" in shown(report, 80, terminal=False)


def test_the_request_that_failed_is_said_to_be_in_the_sum() -> None:
    died = {**FRAGMENTED, "class": "capacity", "perfect_allocator_is_lower_bound": True}
    died |= {"failed_request_bytes": gib(4.25), "failed_request_counted": True}
    one = reading(75, 81, outcome=Outcome.CENSORED, fits=False)
    text = probe_report(one, classification=died)
    assert "with the 4.25 GiB of the request that failed (simulated), and outside PyTorch" in text
    assert "at least 75.50 GiB (simulated)" in text and one.to_json()["is_lower_bound"] is True
    assert reading(75, 81).to_json()["is_lower_bound"] is False


def test_of_a_run_that_died_growth_is_at_least() -> None:
    died = reading(75.51, 81.55, outcome=Outcome.CENSORED, fits=False)
    grown = replace(CAPACITY, evidence={"censored": True}, crosses_limit=True)
    report = replace(REPORT, bad=died, verdict=replace(REPORT.verdict, steps=(grown,)))
    assert "at least -15.39 GiB (simulated) peak allocated" in shown(report, 80, terminal=False).splitlines()[1]
    creep = replace(report, verdict=replace(REPORT.verdict, kind="creep", steps=()))
    assert "moved by at least +5.39 GiB" in shown(creep, 80, terminal=False)
    assert "at least" not in shown(REPORT, 80, terminal=False)


def test_sizes_that_are_compared_never_look_alike_unless_they_are() -> None:
    close = {**FRAGMENTED, "needed_capacity": gib(79.1825), "needed_capacity_expandable": gib(79.1775)}
    text = probe_report(reading(75, 81, fits=False), classification=close)
    assert "limit 79.180 GiB" in text and "79.182 GiB, with expandable segments 79.177 GiB" in text
    assert "79.182 GiB peak allocated" in shown(replace(REPORT, good=reading(79.1825, 79.5)), 80, terminal=False)


def test_a_probe_says_why_it_fits_though_more_was_reserved() -> None:
    assert "above the limit of 79.18 GiB, but it is cache" in probe_report(reading(75, 81, fits=True))
    assert "above the limit" not in probe_report(reading(75, 76, fits=True))


def test_a_step_shows_what_is_stranded_and_the_test_with_the_limit_enforced() -> None:
    enforced = {"limit_bytes": gib(79.18), "survives": False, "survives_with_expandable_segments": True}
    fragmented = replace(
        FRAGMENTATION, evidence={**FRAGMENTATION.evidence, "stranded": FAILURE, "limit_enforced": enforced}
    )
    text = shown(replace(REPORT, verdict=replace(REPORT.verdict, steps=(fragmented,))), 80, terminal=False)
    assert "6.50 GiB held by 12 blocks" in text
    assert "79.18 GiB (simulated) enforced: it runs out of memory, with expandable segments it runs to the end" in text


@pytest.mark.parametrize("width", [40, 80])
def test_a_probe_shows_whole_numbers(width: int) -> None:
    oom = Oom("step_2", "CUDA out of memory. Tried to allocate 1.23 GiB. " * 3)
    text = probe_report(reading(75.25, 81.75, outcome=Outcome.CENSORED, fits=False, oom=oom), width)
    assert "75.25 GiB" in text and "81.75 GiB" in text and "…" not in text
    assert oom.message + " (simulated)" in text


def test_progress_lines_name_the_capacity_and_are_labelled() -> None:
    out = io.StringIO()
    watcher = ConsoleWatcher(Console(file=out, width=40))
    target = Target("d" * 40, LONG, {}, lambda: None, lambda: None)  # type: ignore[arg-type,return-value]
    watcher.probe_started(target, Variation(limit_bytes=gib(77.25)), "capacity")
    oom = reading(75, 76, outcome=Outcome.CENSORED, oom=Oom("step_2", "CUDA out of memory"))
    watcher.probe_finished(target, Measured(1, oom, cached=False), "capacity", 1.0)
    started, line = out.getvalue().splitlines()
    assert started.startswith("probing dddddddddd ") and "needed capacity at 77.25 GiB" in started
    assert "needed capacity at 77.25 GiB" in line
    assert "at least 75.00 GiB allocated (simulated)" in line


def test_the_live_line_is_taken_away() -> None:
    out = io.StringIO()
    watcher = ConsoleWatcher(Console(file=out, width=80, force_terminal=True))
    target = Target("d" * 40, "subject", {}, lambda: None, lambda: None)  # type: ignore[arg-type,return-value]
    watcher.probe_started(target, Variation(), "measure")
    watcher.close()
    assert out.getvalue().endswith("\x1b[2K")  # the line erased, and nothing after it


def session(verdict: Mapping[str, Any] | None, kind: str = "probe") -> StoredSession:
    spec = SessionSpec(kind, ("oombisect",), {}, "/repo", "a_recipe_with_a_long_name", "virtual:h100-80gb", "e" * 40, "f" * 40)  # fmt: skip  # noqa: E501
    return StoredSession("20260101-123", spec, SessionState.FINISHED, T0, T0, "1", int(ExitCode.CULPRIT), verdict)


@pytest.mark.parametrize(
    ("fits", "outcome", "word"),
    [(True, "exact", "fits"), (False, "exact", "does not fit"), (None, "unresolved", "unresolved")],
)
def test_sessions_in_words_and_whole_ids(fits: bool | None, outcome: str, word: str) -> None:
    one = session({"schema": 1, "reading": {"outcome": outcome, "fits": fits}})
    out = io.StringIO()
    render_sessions([one], Console(file=out, width=80))
    assert "20260101-123" in out.getvalue() and "eeeeeeeeee..ffffffffff" in out.getvalue()
    assert f"  {word}\n" in out.getvalue()
    assert session_json(one)["verdict"] == word


def test_sizes_subtract_to_the_difference_beside_them() -> None:
    """77.49 and 79.65 would make 2.16."""
    needed = {**FRAGMENTATION.evidence["needed_capacity"], "smaller_bytes": gib(77.494), "larger_bytes": gib(79.648)}
    grown = replace(FRAGMENTATION, evidence={**FRAGMENTATION.evidence, "needed_capacity": needed})
    verdict = replace(REPORT.verdict, kind="creep", steps=(grown,), growth={"allocated": gib(79.648) - gib(77.494)})
    report = replace(REPORT, verdict=verdict, good=reading(77.494, 78, fits=True), bad=reading(79.648, 80, fits=False))
    said = shown(report, 200, terminal=False)
    assert "+2.15 GiB" in said and "77.494 GiB before, 79.648 GiB with it" in said
    assert "77.494 GiB peak allocated" in said and "79.648 GiB peak allocated" in said


def test_values_of_a_config_are_written_as_configs_write_them() -> None:
    changes = [
        {"path": "a", "before": None, "after": True},
        {"path": "b", "before": "full", "after": {"x": None}},
        {"path": "c", "after": "a\x1bb"},
    ]
    lines = evidence_lines(replace(CAPACITY, evidence={"config_changes": changes}), "")
    assert [line for line in lines if line.startswith("config: ")] == [
        "config: a: null -> true",
        'config: b: full -> {"x": null}',
        "config: c: absent -> a?b",
    ]


@pytest.mark.parametrize(
    ("outcome", "explained", "said"),
    [
        (Outcome.EXACT, 0.25, "25% of"),
        (Outcome.EXACT, 0.0, "before any of"),
        (Outcome.UNRESOLVED, 0.0, "an end of the range was not measured"),
    ],
)
def test_a_spent_budget_tells_no_share_of_nothing(outcome: Outcome, explained: float, said: str) -> None:
    verdict = replace(REPORT.verdict, kind="budget", explained=explained, steps=())
    told = headline(replace(REPORT, verdict=verdict, bad=replace(REPORT.bad, outcome=outcome)))
    assert said in told and " 0% of" not in told and "+0 B" not in told
