"""The job file: what it must say, and that a probe refuses what it does not understand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from probe_support.job import Job, Recipe
from probe_support.outcome import Unresolved

MINIMAL: dict[str, Any] = {
    "schema": 1,
    "kind": "bridge_train",
    "recipe": {"requested": "qwen3_8b_lora", "module": "m", "function": "f", "kwargs": {"peft_scheme": "lora"}},
    "out": "/out",
}


def test_defaults_are_a_simulated_rank_0_of_three_iterations() -> None:
    job = Job.from_json(MINIMAL)
    assert (job.rank, job.iterations, job.process_group, job.simulated) == (0, 3, "fake", True)
    assert job.world_size is None and job.micro_batches is None and job.record_history


def test_a_recipe_reads_as_the_call_it_is() -> None:
    recipe = Recipe(module="a.b", function="f", kwargs={"z": 1, "a": "lora"})
    assert str(recipe) == "a.b:f(a='lora', z=1)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema"),
        ({"kind": "other"}, "kind"),
        ({"iterations": 1}, "iterations"),
        ({"process_group": "gloo"}, "process_group"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Unresolved, match=message):
        Job.from_json({**MINIMAL, **change})


def test_a_job_file_is_read_with_its_lists_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**MINIMAL, "overrides": ["a.b=1"], "env": {"N": 1}, "source_paths": ["/x"]}))
    job = Job.load(path)
    assert job.overrides == ("a.b=1",) and job.source_paths == ("/x",) and job.env == {"N": "1"}
