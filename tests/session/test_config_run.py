"""Whole sessions over config diffs: the store, the processes and the search are real, the trainings are toys."""

from __future__ import annotations

from pathlib import Path

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.session.config_request import SideRequest
from oombisect.session.verdict import Report

from . import toy
from .config_toy import ConfigWorld, Stopping, Truth, run_here
from .toy import MIB

CONFIG = {
    "_type": "toy.Config",
    "model": {"seq_length": 2048, "hidden": 64, "tp": 1, "sp": False, "dtype": "torch.float32", "kind": "toy.Plain"},
    "dataset": {"seq_length": 2048},
    "train": {"micro_batch_size": 1, "iters": 100},
    "optimizer": {"lr": 0.1, "betas": [0.9, 0.99]},
    "logger": {"every": 1},
    "env_vars": {"CUDA_DEVICE_MAX_CONNECTIONS": 1},
}
GOOD = SideRequest(toy.RECIPE)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConfigWorld:
    monkeypatch.setattr("oombisect.session.opening.open_device", lambda *_: toy.ToyDevice())
    monkeypatch.setattr("oombisect.probing.prober.run_guarded", run_here)
    return ConfigWorld(tmp_path)


def bad(*overrides: str, **env: str) -> SideRequest:
    return SideRequest(toy.RECIPE, overrides, env)


def named(report: Report) -> dict[str, int]:
    return {step.point: step.delta["allocated"] for step in report.verdict.steps if step.named}


def told(report: Report) -> dict[str, object]:
    assert report.config is not None
    return dict(report.config)


def test_every_key_is_named_with_its_bytes_and_the_fewest_to_take_back(world: ConfigWorld) -> None:
    truth = Truth(CONFIG, adds={"train.micro_batch_size=4": 900 * MIB, "model.dtype=torch.float64": 1600 * MIB})
    changed = bad(
        "train.micro_batch_size=4", "model.dtype=torch.float64", "optimizer.lr=0.2", "logger.every=5", "model.hidden=65"
    )
    report = world.diff(truth, GOOD, changed)
    assert report.exit_code is ExitCode.CULPRIT
    assert named(report) == {"train.micro_batch_size": 900 * MIB, "model.dtype": 1600 * MIB}
    assert all((step.kind, step.confirmed, step.repo) == ("capacity", "yes", "config") for step in report.verdict.steps)
    config = told(report)
    assert config["interactions"] == []
    assert config["quiet_keys"] == "yes"
    # 8000 + 2500 + 500 outside PyTorch is above 10000: either takes it back, and one key is enough.
    minimal = config["minimal_revert"]
    assert isinstance(minimal, dict)
    assert (minimal["points"], minimal["goal"], minimal["fits"], minimal["smallest"]) == (
        ["model.dtype"], "fits", True, True,
    )  # fmt: skip
    assert minimal["keys"] == [{"path": "model.dtype", "value": "torch.float32"}]
    (probed,) = [p for p in world.probes() if p["config"]["model"]["dtype"] == "torch.float32"
                 and p["config"]["train"]["micro_batch_size"] == 4][-1:]  # fmt: skip
    assert probed["config"]["optimizer"]["lr"] == 0.2


def test_variables_of_recipe_and_process_are_keys(world: ConfigWorld) -> None:
    truth = Truth(CONFIG, adds={"env:NCCL_BUFFSIZE=8": 800 * MIB, "env:CUDA_DEVICE_MAX_CONNECTIONS=32": 1000 * MIB})
    changed = bad("env_vars.CUDA_DEVICE_MAX_CONNECTIONS=32", "optimizer.lr=0.2", NCCL_BUFFSIZE="8")
    report = world.diff(truth, GOOD, changed)
    assert named(report) == {"env:NCCL_BUFFSIZE": 800 * MIB, "env:CUDA_DEVICE_MAX_CONNECTIONS": 1000 * MIB}
    before = next(s for s in report.verdict.steps if s.point == "env:NCCL_BUFFSIZE").evidence["keys"]
    assert before == [{"path": "env:NCCL_BUFFSIZE", "after": "8"}]


def test_keys_that_only_go_together_are_joined_after_a_rejection(world: ConfigWorld) -> None:
    truth = Truth(
        CONFIG,
        adds={"model.sp=True": 2000 * MIB},
        needs=[("model.sp=True", "train.micro_batch_size=2"), ("model.hidden=65", "train.micro_batch_size=2")],
    )
    changed = bad("model.sp=true", "model.hidden=65", "train.micro_batch_size=2", "optimizer.lr=0.2")
    report = world.diff(truth, GOOD, changed)
    assert report.exit_code is ExitCode.CULPRIT
    (step,) = report.verdict.steps
    assert step.named and "model.sp" in step.point.split("+")
    assert step.delta["allocated"] == 2000 * MIB
    config = told(report)
    assert config["moved_together"] and config["rejected"]
    assert all("optimizer.lr" not in together["keys"] for together in config["moved_together"])  # type: ignore[attr-defined]


def test_sequence_lengths_move_together_without_a_rejected_probe(world: ConfigWorld) -> None:
    truth = Truth(
        CONFIG,
        adds={"model.seq_length=4096": 2000 * MIB},
        needs=[
            ("model.seq_length=4096", "dataset.seq_length=4096"),
            ("dataset.seq_length=4096", "model.seq_length=4096"),
        ],
    )
    changed = bad("model.seq_length=4096", "dataset.seq_length=4096", "optimizer.lr=0.2", "logger.every=2")
    report = world.diff(truth, GOOD, changed)
    assert named(report) == {"dataset.seq_length+model.seq_length": 2000 * MIB}
    assert told(report)["rejected"] == []


def test_an_interaction_is_told_with_its_bytes(world: ConfigWorld) -> None:
    truth = Truth(
        CONFIG,
        adds={"model.hidden=65": 700 * MIB, "train.micro_batch_size=2": 300 * MIB},
        together=[("model.hidden=65", "train.micro_batch_size=2", 1100 * MIB)],
    )
    report = world.diff(truth, GOOD, bad("model.hidden=65", "train.micro_batch_size=2", "optimizer.lr=0.2"))
    assert named(report) == {"model.hidden": 700 * MIB, "train.micro_batch_size": 1400 * MIB}
    config = told(report)
    (pair,) = config["interactions"]  # type: ignore[misc]
    assert pair["points"] == ["model.hidden", "train.micro_batch_size"]
    assert pair["bytes"] == {"allocated": 1100 * MIB, "reserved": 1100 * MIB, "external": 0}
    own = {effect["point"]: effect["own_bytes"]["allocated"] for effect in config["effects"]}  # type: ignore[attr-defined]
    assert own == {"model.hidden": 1800 * MIB, "train.micro_batch_size": 1400 * MIB}


def test_a_key_that_adds_nothing_but_beside_another_is_found(world: ConfigWorld) -> None:
    truth = Truth(CONFIG, together=[("model.hidden=65", "train.micro_batch_size=2", 2100 * MIB)])
    report = world.diff(truth, GOOD, bad("model.hidden=65", "train.micro_batch_size=2", "optimizer.lr=0.2"))
    assert named(report) == {"train.micro_batch_size": 2100 * MIB}
    config = told(report)
    assert config["quiet_keys"] == "moved"
    assert {effect["point"] for effect in config["effects"]} == {"model.hidden", "train.micro_batch_size"}  # type: ignore[attr-defined]
    (pair,) = config["interactions"]  # type: ignore[misc]
    assert pair["bytes"]["allocated"] == 2100 * MIB


def test_a_key_that_only_allocates_more_often_does_nothing(world: ConfigWorld) -> None:
    """Another number of allocations may hide what cancels, so it is looked into; by itself it is no memory."""
    truth = Truth(
        CONFIG,
        adds={"model.hidden=65": 700 * MIB, "logger.every=5": MIB // 5},
        allocates={"optimizer.lr=0.2": 7},
    )
    report = world.diff(truth, GOOD, bad("model.hidden=65", "logger.every=5", "optimizer.lr=0.2"))
    assert named(report) == {"model.hidden": 700 * MIB}
    config = told(report)
    assert config["quiet_keys"] == "yes"
    assert [effect["point"] for effect in config["effects"]] == ["model.hidden"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("keys", [("train.a_mode", "train.a_size"), ("train.a_mode", "model.hidden")])
def test_a_key_that_cannot_be_taken_back_alone_is_taken_back_with_its_partner(
    world: ConfigWorld, keys: tuple[str, str]
) -> None:
    """The good mode needs the good size: the chain never meets that, the bad side does."""
    key, partner = keys
    config = {**CONFIG, "train": CONFIG["train"] | {"a_mode": 1, "a_size": 1}}  # type: ignore[operator]
    first = {"train.a_size": 1, "model.hidden": 64}[partner]
    truth = Truth(config, adds={f"{key}=2": 2100 * MIB}, needs=[(f"{key}=1", f"{partner}={first}")])
    report = world.diff(truth, GOOD, bad(f"{key}=2", f"{partner}=9", "optimizer.lr=0.2", "train.zeta=1"))
    assert sum(named(report).values()) == 2100 * MIB
    minimal = told(report)["minimal_revert"]
    assert isinstance(minimal, dict) and minimal["fits"] is True
    assert {found["path"] for found in minimal["keys"]} >= {key, partner}


def test_what_the_probe_sets_itself_and_what_no_assignment_makes_move_last(world: ConfigWorld) -> None:
    truth = Truth(CONFIG, adds={"model.kind=toy.Fat": 2000 * MIB}, settled={"train.iters": 3}, fixed=["model.kind"])
    report = world.diff(truth, GOOD, bad("model.kind=toy.Fat", "train.iters=500", "optimizer.lr=0.2"))
    assert named(report) == {"(rest)": 2000 * MIB}
    why = {key["path"]: key.get("not_alone") for key in told(report)["keys"]}  # type: ignore[attr-defined]
    assert why == {
        "model.kind": "no assignment makes it", "train.iters": "the probe sets it itself", "optimizer.lr": None,
    }  # fmt: skip


def test_a_yaml_of_bridge_is_a_side(world: ConfigWorld) -> None:
    file = world.folder / "run_config.yaml"
    file.write_text(
        "_target_: toy.Config\nmodel:\n  dtype: {_target_: torch.float64, _call_: false}\n  seq_length: 2048\n"
        "optimizer: {betas: [0.9, 0.99], lr: 0.1}\n"
    )
    truth = Truth(CONFIG, adds={"model.dtype=torch.float64": 2000 * MIB})
    report = world.diff(truth, GOOD, SideRequest(str(file), ("optimizer.lr=0.5",)))
    assert named(report) == {"model.dtype": 2000 * MIB}
    # What the file spells out and what it leaves out is no difference.
    assert [key["path"] for key in told(report)["keys"]] == ["model.dtype", "optimizer.lr"]  # type: ignore[attr-defined]


def test_a_probe_is_a_side(world: ConfigWorld) -> None:
    truth = Truth(CONFIG, adds={"model.hidden=65": 2000 * MIB}, settled={"train.iters": 3})
    first = world.diff(truth, GOOD, bad("model.hidden=65", "optimizer.lr=0.2"))
    with world.store() as store:
        probe = next(p for p in store.probes(first.session) if "@model.hidden " in p.spec.point)
    again = world.diff(truth, GOOD, SideRequest(f"{first.session}/{probe.id}"), probe={"recipe": ""})
    assert named(again) == {"model.hidden": 2000 * MIB}


def test_equal_sides_are_an_error_before_any_training(world: ConfigWorld) -> None:
    with pytest.raises(OombisectError, match="same config") as caught:
        world.diff(Truth(CONFIG), GOOD, bad("model.hidden=64"))
    assert caught.value.exit_code == ExitCode.USAGE
    assert world.probes() == []


def test_a_yaml_without_a_recipe_is_an_error(world: ConfigWorld) -> None:
    file = world.folder / "a.yaml"
    file.write_text("model: {hidden: 3}\n")
    with pytest.raises(OombisectError, match="which recipe") as caught:
        world.diff(Truth(CONFIG), SideRequest(str(file)), SideRequest(str(file)), probe={"recipe": ""})
    assert "--recipe" in caught.value.way_out


def test_a_test_of_the_ci_is_no_config(world: ConfigWorld) -> None:
    with pytest.raises(OombisectError, match="has no config"):
        world.diff(Truth(CONFIG), GOOD, bad("model.hidden=65"), probe={"recipe": "ci:moe/gpt3"})


def test_an_improvement_is_the_mirror_image(world: ConfigWorld) -> None:
    truth = Truth(CONFIG, adds={"model.hidden=64": 1000 * MIB})
    report = world.diff(truth, GOOD, bad("model.hidden=65", "optimizer.lr=0.2"), find="improvement")
    assert named(report) == {"model.hidden": -1000 * MIB}


def test_movement_either_way_can_be_looked_for(world: ConfigWorld) -> None:
    truth = Truth(CONFIG, adds={"model.hidden=64": 1000 * MIB, "train.micro_batch_size=4": 1500 * MIB})
    changed = bad("model.hidden=65", "train.micro_batch_size=4", "optimizer.lr=0.2")
    report = world.diff(truth, GOOD, changed, find="any")
    assert named(report) == {"model.hidden": -1000 * MIB, "train.micro_batch_size": 1500 * MIB}


def test_nothing_is_measured_twice_by_a_second_session(world: ConfigWorld) -> None:
    truth = Truth(CONFIG, adds={"model.hidden=65": 2000 * MIB})
    changed = bad("model.hidden=65", "optimizer.lr=0.2", "logger.every=3")
    first = world.diff(truth, GOOD, changed)
    count = len(world.probes())
    second = world.diff(truth, GOOD, changed)
    assert second.verdict.to_json() == first.verdict.to_json()
    assert len(world.probes()) - count <= 3  # what is fresh by its nature


def test_a_session_goes_on_where_it_was_stopped(world: ConfigWorld) -> None:
    truth = Truth(
        CONFIG,
        adds={"model.hidden=65": 900 * MIB, "train.micro_batch_size=2": 900 * MIB},
        needs=[("model.sp=True", "model.tp=2")],
    )
    changed = bad("model.hidden=65", "optimizer.lr=0.2", "logger.every=3", "train.micro_batch_size=2", "model.sp=true",
                  "model.tp=2")  # fmt: skip
    whole = world.diff(truth, GOOD, changed)
    count = len(world.probes())
    for stop_at in (3, count - 1):
        folder = world.folder / f"stopped-{stop_at}"
        folder.mkdir()
        other = ConfigWorld(folder)
        begun: list[str] = []
        with pytest.raises(Stopping):
            other.diff(truth, GOOD, changed, on_session=begun.append, stop_after=stop_at)
        report = other.diff(truth, GOOD, changed, session=begun[0])
        assert named(report) == named(whole)
        config, same = told(report), told(whole)
        assert {**config, "minimal_revert": None, "revision": "", "ends": {}} == {
            **same, "minimal_revert": None, "revision": "", "ends": {},
        }  # fmt: skip
        assert len(other.probes()) == count
