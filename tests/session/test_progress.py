"""How far a search has come, in a line: what is explained, where it looks, what is left."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from oombisect.probing.workload import PLAIN
from oombisect.reports.watch import ConsoleWatcher
from oombisect.search.observation import Exact, Metrics
from oombisect.search.options import Options
from oombisect.search.requests import Measure
from oombisect.search.state import State, observe, start
from oombisect.session.bisection import progress_text
from oombisect.session.measuring import Measured, Target

from .toy import mib
from .world import Quiet, World

GIB = 1 << 30
KEYS = [f"{index:02}" * 20 for index in range(17)]


def state(readings: dict[int, int], **options: Any) -> State:
    """A search over 17 points, of which some are measured: GiB by index."""
    now = start(17, Options(noise_bytes=0, **options))
    for index, size in readings.items():
        memory = Metrics(allocated=size * GIB, reserved=size * GIB, external=0)
        now = observe(now, Measure(index), Exact(memory, fits=size < 8))
    return now


def test_the_widest_open_interval_is_named_with_its_size_and_what_is_left() -> None:
    text = progress_text(state({0: 4, 16: 9}), KEYS, 30.0)
    assert text == (
        "0% of the movement explained, largest open interval 0000000000..1616161616 (16 changes, 5.00 GiB), "
        "about 4 probes to go, 2 min, then confirmation"
    )
    assert "about 4 probes to go, 60 s," in progress_text(state({0: 4, 16: 9}), KEYS, 30.0, at_once=2)
    assert "about 4 probes to go, then" in progress_text(state({0: 4, 16: 9}), KEYS, None)
    text = progress_text(state({0: 4, 16: 9, 8: 4}), KEYS, 6000.0)
    assert "0808080808..1616161616 (8 changes, 5.00 GiB), about 3 probes to go, 5.0 h" in text


def test_the_end_of_the_search_is_told_and_the_budget_counts_down() -> None:
    found = {0: 4, 16: 9, 8: 4, 12: 9, 10: 4, 11: 9}
    text = progress_text(state(found), KEYS, 1.0)
    assert text == "100% of the movement explained, confirming"
    assert progress_text(state(found, budget=9), KEYS, 1.0).endswith("confirming, 3 left of the budget")
    assert progress_text(state(found, budget=6), KEYS, 1.0).endswith("explained, 0 left of the budget")
    assert progress_text(state({0: 4}), KEYS, 1.0) == ""


class Told(Quiet):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def progress(self, text: str) -> None:
        self.texts.append(text)


def test_a_session_tells_it_after_every_round(world: World) -> None:
    watcher = Told()
    world.run([*(mib(8000, tag=i) for i in range(8)), *(mib(9800, tag=i) for i in range(8))], watcher=watcher)
    assert watcher.texts[0] == "" or "largest open interval" in watcher.texts[0]
    wide = [text for text in watcher.texts if "15 changes, 1.76 GiB" in text]
    assert wide and f"{world.shas[0][:10]}..{world.shas[15][:10]}" in wide[0] and "about 4 probes to go, 1 s" in wide[0]
    assert any(text.endswith("confirming") for text in watcher.texts)


@pytest.mark.parametrize("width", [60, 200])
def test_the_live_line_shows_all_running_probes_and_the_progress(width: int) -> None:
    out = StringIO()
    watcher = ConsoleWatcher(Console(file=out, width=width, force_terminal=True))
    targets = [
        Target(key=key, subject=f"change {n}", trees={}, call=lambda: None, lay_out=lambda *_: None)  # type: ignore[arg-type,return-value]
        for n, key in enumerate(KEYS[:2])
    ]
    watcher.progress(progress_text(state({0: 4, 16: 9}), KEYS, 30.0))
    for target in targets:
        watcher.probe_started(target, PLAIN, "measure")
    watcher.tick(12.0)
    watcher.close()
    shown = " ".join(out.getvalue().split())
    words = ("0000000000 change 0", "0101010101 change 1", "12 s", "5.00 GiB", "4 probes to go")
    for word in words:
        assert word.split()[0] in shown and word.split()[-1] in shown, word
    if width == 200:
        assert all(word in shown for word in words)
    watcher.probe_finished(targets[0], Measured(1, reading(), cached=False), "measure", 3.0)
    watcher.close()


def reading() -> Any:
    from oombisect.readings import Outcome, Reading

    return Reading(Outcome.UNRESOLVED, "no")


@pytest.mark.parametrize("terminal", [True, False])
def test_where_there_is_no_live_line_the_start_of_a_probe_and_each_minute_are_lines(terminal: bool) -> None:
    out = StringIO()
    watcher = ConsoleWatcher(Console(file=out, width=200, force_terminal=terminal, color_system=None))
    target = Target(key=KEYS[0], subject="change", trees={}, call=lambda: None, lay_out=lambda *_: None)  # type: ignore[arg-type,return-value]
    watcher.probe_started(target, PLAIN, "remeasure")
    if not terminal:
        assert out.getvalue() == "probing 0000000000 change (fresh, to confirm)\n", "it is told only when it is over"
    for seconds in (1.0, 59.0, 60.2, 61.0, 120.1, 121.0):
        watcher.tick(seconds)
    watcher.probe_finished(target, Measured(1, reading(), cached=False), "remeasure", 125.0)
    watcher.tick(180.5)
    watcher.probe_started(target, PLAIN, "measure")
    watcher.tick(60.5)
    watcher.close()
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    if terminal:
        assert "probing 0000000000 change (fresh, to confirm)" not in lines
    else:
        doing = "probing 0000000000 change"
        told = [line.partition("  ")[2] for line in lines if line.startswith(doing)]
        assert told == ["", "60 s", "120 s", "", "60 s"] and len(lines) == 6
