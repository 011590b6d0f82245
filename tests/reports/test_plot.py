"""Plots of characters: every reading has its letter at its place, whatever the terminal can show."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oombisect.history.imported import ImportedReading, ImportSpec
from oombisect.history.store import open_store
from oombisect.reports.plot import BOUND, FITS, OVER, READ, UNRESOLVED, Chart, Dot, chart_of_range, draw
from oombisect.units import GIB
from tests.cli.conftest import Command

from .toy_report import Reported

CHART = Chart(
    title="commits", unit="peak, GiB", count=41,
    dots=(Dot(0, FITS, 10 * GIB), Dot(10, UNRESOLVED, None), Dot(20, OVER, 20 * GIB), Dot(30, BOUND, 18 * GIB),
          Dot(40, READ, 15 * GIB)),
    names=((0, "good"), (40, "bad")), limit=16 * GIB, steps=((20, "culprit: +10.00 GiB, capacity"),),
)  # fmt: skip


def drawn(chart: Chart = CHART, **how: Any) -> str:
    return draw(chart, **({"width": 90, "height": 22, "colour": False, "ascii_only": False} | how))


def canvas(text: str) -> list[str]:
    """What is inside the frame, a line a row."""
    return [re.split("[│┤├]", line, maxsplit=1)[1] for line in text.splitlines()[3:] if re.search("[│┤├]", line)]


def test_every_reading_is_drawn_at_its_place_and_height() -> None:
    rows = canvas(drawn())
    at = {sign: [(row, line.index(sign)) for row, line in enumerate(rows) if sign in line] for sign in "oX^*?"}
    assert [len(found) for found in at.values()] == [1] * 5
    (fits,), (over,), (bound,), (read,), (unknown,) = at.values()
    assert over[0] < bound[0] < read[0] < fits[0] <= unknown[0], "higher is more, and what is not known lies below"
    assert fits[1] < unknown[1] < over[1] < bound[1] < read[1]
    assert abs(over[1] - (fits[1] + read[1]) / 2) <= 1


def test_what_the_letters_mean_is_said_and_the_limit_and_the_steps() -> None:
    text = drawn()
    for words in ("o fits", "X does not fit", "^ out of memory: at least", "* measured", "? could not be measured"):
        assert words in text
    assert "limit 16.00 GiB" in text and "step culprit: +10.00 GiB, capacity" in text
    assert "good" in text and "bad" in text and text.startswith("commits\npeak, GiB\n")
    assert "does not fit" not in drawn(replace(CHART, dots=CHART.dots[:1]))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_is_as_wide_as_the_terminal(width: int) -> None:
    frame = max(len(line) for line in drawn(width=width).splitlines() if "│" in line or "┌" in line)
    assert width - 3 <= frame <= width


def test_a_terminal_that_is_not_utf_8_gets_ascii_and_one_without_colour_no_codes() -> None:
    assert drawn(replace(CHART, title="\x1b[31mé\u202e"), ascii_only=True).isascii()
    assert "\x1b" not in drawn(replace(CHART, title="\x1b[31mé"))
    coloured = drawn(colour=True)
    assert "\x1b[" in coloured
    assert [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()] == drawn().splitlines()


def test_nothing_measured_and_one_point_are_drawn_too() -> None:
    assert "could not be measured" in drawn(Chart("t", "u", 1, (Dot(0, UNRESOLVED, None),), ((0, "a"),)))
    assert "o fits" in drawn(Chart("t", "u", 1, (Dot(0, FITS, 5),), ()))


def test_a_session_is_drawn_without_probes_under_other_settings(reported: Reported) -> None:
    (own,) = reported.document.ranges
    chart = chart_of_range(own, "allocated", reported.document.limit_bytes, " (simulated)")
    plain = [m for m in own.marks if not m.varied and m.request != "revert" and m.probe is not None]
    assert len(plain) < len(own.marks)
    assert [(dot.place, dot.size) for dot in chart.dots] == [(m.index, m.allocated) for m in plain]
    assert {dot.letter for dot in chart.dots} == {FITS, OVER, UNRESOLVED}
    assert [place for place, _ in chart.steps] == [5]


def test_the_command_draws_a_session_and_a_recipe(
    command: Command, reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--db", reported.database)
    said = command("plot", reported.report.session, *where)
    assert said.code == 0 and "step " in said.out and "device memory, GiB (simulated)" in said.out
    assert "\x1b" not in said.out and "limit 6.84 GiB" in said.out
    assert (
        "peak allocated, GiB (simulated)"
        in command("plot", reported.report.session, "--metric", "allocated", *where).out
    )
    told = command("plot", "--recipe", "toy_1b_pretrain", "--metric", "allocated", *where)
    assert told.code == 0 and "toy_1b_pretrain on virtual:toy" in told.out and "* measured" in told.out
    command("plot", "last", "--recipe", "x", *where).refused(2, "two things")
    command("plot", "--gpu", "virtual:toy", *where).refused(2, "goes with --recipe or --workload")
    command("plot", "--where", "world_size=1", *where).refused(2, "goes with --recipe or --workload")
    command("plot", "--recipe", "nonsense", *where).refused(2, "nonsense")


def test_a_workload_is_chosen_as_in_history_and_drawn_in_a_metric_that_was_read(
    command: Command, tmp_path: Path
) -> None:
    database = tmp_path / "oombisect.db"
    with open_store(database, clock=lambda: datetime(2026, 11, 30, tzinfo=UTC)) as store:
        for workload in range(4):
            readings = [
                ImportedReading(
                    "golden", "dgx_h100", "megatron-lm", f"{n:040x}", f"{workload}/{n}",
                    peak_allocated=(workload + n + 1) * GIB, position=n, settings={"environment": f"e{workload}"},
                )
                for n in range(3)
            ]  # fmt: skip
            store.add_import(ImportSpec("csv", "a.csv"), readings)
    where = ("--db", database)
    command("plot", "--recipe", "golden", *where).refused(2, "Choose with --workload N")
    for chosen in (("--workload", 3), ("--recipe", "golden", "--where", "environment=e2")):
        said = command("plot", *chosen, *where)
        assert (
            said.code == 0
            and "peak allocated, GiB (imported)" in said.out
            and "golden on dgx_h100, 3 points" in said.out
        )
    command("plot", "--workload", 3, "--metric", "device", *where).refused(
        2, "There is allocated: draw it with --metric"
    )
    command("plot", "last", "--workload", 3, *where).refused(2, "two things")
