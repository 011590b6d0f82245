"""The differential test notices when a rule is wrong: with each mutant the model disagrees with recorded answers."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from oombisect.memory.allocator import Rules

from .compare import compare
from .mutants import MUTANTS, Mutant, mutated
from .recorded import RELEASES, Recording, load


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    return [load(release) for release in RELEASES]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_wrong_rule_is_noticed(
    mutant: Mutant, recordings: list[Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with mutated(mutant, tmp_path, MUTANTS.index(mutant)) as package:
        found = next(
            (
                mismatch
                for recording in recordings
                for program, answer in recording.cases
                if (mismatch := compare(program, answer, recording.names, recording.rules, package))
            ),
            None,
        )
    assert found, f"nothing notices this: {mutant.name}"


SWITCHES = [field.name for field in fields(Rules) if field.type in (bool, "bool")]


@pytest.mark.parametrize("switch", SWITCHES)
def test_the_rules_of_another_release_are_noticed(switch: str, recordings: list[Recording]) -> None:
    """For each release whose recorded programs can show it: those that only set what older ones refuse cannot."""
    noticed = []
    for recording in recordings:
        wrong = replace(recording.rules, **{switch: not getattr(recording.rules, switch)})
        if any(compare(program, answer, recording.names, wrong) for program, answer in recording.cases):
            noticed.append(recording.torch)
    assert noticed, f"nothing notices a wrong {switch}"
