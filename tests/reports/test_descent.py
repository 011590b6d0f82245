"""The commit of Megatron-LM inside a roll is what people are told."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from oombisect.reports.points import short
from oombisect.reports.terminal import headline, render
from oombisect.session.verdict import StepVerdict

from .test_terminal import REPORT, SIZE, gib

OLD, NEW, ROLL, BEFORE, CORE = "a" * 40, "b" * 40, "1" * 40, "2" * 40, "c" * 40


def metrics(size: float) -> dict[str, int]:
    return {"allocated": gib(size), "reserved": gib(size), "external": 0}


INSIDE = StepVerdict(CORE, OLD, "Keep a copy", "megatron-lm", metrics(1.5), "capacity", "yes", crosses_limit=True)
CORNER = {"bridge": BEFORE, "megatron-lm": NEW, "environment": None, "outcome": "exact", "reason": None}
DESCENT: dict[str, Any] = {
    "kind": "culprit",
    "pins": {"before": OLD, "after": NEW, "move": "forward", "merge_base": None, "commits": 57},
    "corners": [
        {**CORNER, "peak_allocated": gib(77.5), "peak_reserved": gib(78), "external": 0, "fits": False},
        {**CORNER, "bridge": ROLL, "megatron-lm": OLD, "outcome": "unresolved", "reason": "ImportError: no",
         "peak_allocated": None, "peak_reserved": None, "external": None, "fits": None},
    ],
    "shares_bytes": {"bridge": metrics(0.25), "dependencies": metrics(0), "megatron-lm": metrics(1.75)},
    "interaction_bytes": metrics(0.5),
    "environment": {"held_fixed": True, "lock_changed": True},
    "base": {"bridge": ROLL},
    "crossing": CORE,
    "steps": [INSIDE.to_json()],
    "notes": ["the environment is held fixed", "1.25 GiB more"],
    "probes": 12,
}  # fmt: skip


def report(descent: dict[str, Any]) -> Any:
    roll = StepVerdict(
        ROLL, BEFORE, "Roll Megatron-LM", "bridge", metrics(2), "capacity", "conflict",
        {"descent": descent, "submodule": {"before": OLD, "after": NEW}}, crosses_limit=True,
    )  # fmt: skip
    return replace(REPORT, verdict=replace(REPORT.verdict, steps=(roll,), crossing=ROLL))


def test_the_headline_names_the_commit_of_megatron_lm_and_the_roll() -> None:
    said = headline(report(DESCENT))
    assert said.startswith('Megatron-LM cccccccccc "Keep a copy": +1.50 GiB (simulated) peak allocated and pushed')
    assert 'Bridge rolled it in with 1111111111 "Roll Megatron-LM".' in said


@pytest.mark.parametrize(
    "changed",
    [
        {"shares_bytes": {"bridge": metrics(1.75), "dependencies": metrics(0), "megatron-lm": metrics(0.25)}},
        {"steps": []},
        {"steps": [replace(INSIDE, named=False).to_json()]},
    ],
)
def test_the_headline_stays_at_the_roll_where_megatron_lm_is_not_most_of_it(changed: dict[str, Any]) -> None:
    assert headline(report(DESCENT | changed)).startswith('1111111111 "Roll Megatron-LM": +2.00 GiB')


def rendered(descent: dict[str, Any], width: int) -> str:
    out = io.StringIO()
    render(report(descent), Console(file=out, width=width, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 200])
def test_the_report_tells_shares_corners_and_steps(width: int) -> None:
    text = rendered(DESCENT, width)
    assert "Megatron-LM +1.75 GiB, Bridge's source +0.25 GiB, of which +0.50 GiB only together (simulated)" in text
    assert "Bridge 2222222222 with Megatron-LM bbbbbbbbbb: 77.50 GiB peak allocated (simulated); does not fit" in text
    assert "Bridge 1111111111 with Megatron-LM aaaaaaaaaa: unresolved: ImportError: no" in text
    assert "Megatron-LM aaaaaaaaaa..bbbbbbbbbb: 57 commits, walked under Bridge 1111111111" in text
    assert "  Megatron-LM cccccccccc Keep a copy" in text and "the environment is held fixed" in text
    for line in text.splitlines():
        if SIZE.search(line):
            assert "simulated" in line or "sizes of the steps" in text


def test_dependencies_are_told_where_they_were_not_held_fixed() -> None:
    descent = DESCENT | {"environment": {"held_fixed": False, "lock_changed": True}}
    assert "Bridge's source +0.25 GiB, dependencies +0 B" in rendered(descent, 200)


def test_a_descent_that_came_to_nothing_says_why() -> None:
    descent = {"kind": "not-possible", "pins": {}, "corners": [], "shares_bytes": None, "base": None, "notes": ["no."]}
    assert "note: no." in rendered(descent, 200)


@pytest.mark.parametrize(
    ("point", "told"),
    [
        (OLD, "aaaaaaaaaa"),
        (f"{OLD}-{NEW}", "aaaaaaaaaa without bbbbbbbbbb"),
        (f"{OLD}+{NEW}", "aaaaaaaaaa+bbbbbbbbbb"),
        (f"{OLD}+{NEW}-{CORE}", "aaaaaaaaaa+bbbbbbbbbb without cccccccccc"),
        (f"{OLD}+{NEW}@{ROLL}", "aaaaaaaaaa+bbbbbbbbbb@1111111111"),
        ("model.seq_length-x", "model.seq_length-x"),
    ],
)
def test_points_are_shortened(point: str, told: str) -> None:
    assert short(point) == told
