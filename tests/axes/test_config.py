"""Keys of a config diff, the rules that order them, and what rejected states teach."""

from __future__ import annotations

from typing import Any

import pytest

from oombisect.axes.config import REST, Chain, arrange, broken_rules, differing, moved
from oombisect.axes.config_rules import RULES, Settings
from oombisect.search import Options

from .config_world import GIB, MIB, ConfigWorld, name

MODEL: dict[str, Any] = {
    "num_layers": 80,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 4,
    "virtual_pipeline_model_parallel_size": 5,
    "sequence_parallel": False,
    "cpu_offloading": False,
    "seq_length": 2048,
    "cuda_graph_impl": "none",
}


def settings(env: dict[str, str] | None = None, env_vars: dict[str, Any] | None = None, **model: Any) -> Settings:
    config = {"model": MODEL | model, "dataset": {"seq_length": 2048}, "ddp": {"nccl_ub": False}}
    return Settings(config | ({"env_vars": env_vars} if env_vars is not None else {}), env or {})


def put(side: Settings, path: str, value: Any) -> Settings:
    section, _, key = path.partition(".")
    return Settings({**side.config, section: {**side.config[section], key: value}}, side.env)


def names(chain: Chain) -> list[str]:
    return [group.name for group in chain.groups]


def arranged(good: Settings, bad: Settings) -> list[str]:
    return names(arrange(good, bad, differing(good, bad)))


def test_a_key_is_the_smallest_thing_that_can_be_set() -> None:
    good = Settings({"a": {"list": [1, 2], "object": None, "same": {"_type": "A", "x": 1}, "one": 1}}, {})
    bad = Settings(
        {"a": {"one": 1.0, "list": [1, 3], "object": {"_type": "B", "x": 1}, "same": {"_type": "A", "x": 2}}}, {}
    )
    assert [(key.name, key.before, key.after) for key in differing(good, bad)] == [
        ("a.list", [1, 2], [1, 3]),
        ("a.object", None, {"_type": "B", "x": 1}),
        ("a.same.x", 1, 2),
    ]


def test_an_object_of_another_class_is_one_key() -> None:
    good, bad = (Settings({"model": {"_type": kind, "x": x}}, {}) for kind, x in (("A", 1), ("B", 2)))
    assert [key.name for key in differing(good, bad)] == ["model"]


def test_names_with_dots_keep_their_paths() -> None:
    good, bad = (Settings({"quant": {"*.linear.fc1": bits}}, {}) for bits in (8, 4))
    (key,) = differing(good, bad)
    assert moved(good, bad, [key]) == bad


def test_a_variable_is_one_key_wherever_it_is_set() -> None:
    good = settings(env={"A": "1", "B": "2"}, env_vars={"A": 1, "C": 3, "D": 4})
    bad = settings(env={"A": "1", "C": "9"}, env_vars={"B": 2, "C": 3})
    keys = differing(good, bad)
    # A is 1 and B is 2 on both sides, though not in the same place.
    assert [str(key) for key in keys] == ["env:C: 3 -> 9", "env:D: 4 -> unset"]
    then = moved(good, bad, keys)
    assert (then.env, then.config["env_vars"]) == ({"A": "1", "B": "2", "C": "9"}, {"A": 1, "C": 3})
    assert moved(then, good, keys) == good


def test_moving_all_keys_makes_the_other_side() -> None:
    good = settings(env={"A": "1"}, env_vars={"X": 1})
    bad = settings(env={"B": "1"}, env_vars={"X": 2, "Y": 3}, seq_length=1, cuda_graph_impl="local")
    keys = differing(good, bad)
    assert moved(good, bad, keys) == bad
    assert moved(bad, good, keys) == good


@pytest.mark.parametrize(
    ("before", "after", "order"),
    [
        # Each alone where an order serves ...
        ({}, {"sequence_parallel": True, "tensor_model_parallel_size": 2},
         ["model.tensor_model_parallel_size", "model.sequence_parallel"]),
        ({"sequence_parallel": True, "tensor_model_parallel_size": 2},
         {"tensor_model_parallel_size": 1, "sequence_parallel": False},
         ["model.sequence_parallel", "model.tensor_model_parallel_size"]),
        ({}, {"cpu_offloading": True, "pipeline_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": None},
         ["model.virtual_pipeline_model_parallel_size", "model.pipeline_model_parallel_size", "model.cpu_offloading"]),
        ({}, {"pipeline_model_parallel_size": 8, "virtual_pipeline_model_parallel_size": 10},
         ["model.pipeline_model_parallel_size", "model.virtual_pipeline_model_parallel_size"]),
        # ... and together where none does.
        ({"num_layers": 12, "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 3},
         {"num_layers": 12, "pipeline_model_parallel_size": 3, "virtual_pipeline_model_parallel_size": 4},
         ["model.pipeline_model_parallel_size+model.virtual_pipeline_model_parallel_size"]),
        ({"num_layers": 15, "pipeline_model_parallel_size": 3, "virtual_pipeline_model_parallel_size": 5},
         {"num_layers": 16, "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 4},
         ["model.num_layers+model.pipeline_model_parallel_size+model.virtual_pipeline_model_parallel_size"]),
    ],
)  # fmt: skip
def test_no_state_on_the_way_breaks_a_known_rule(
    before: dict[str, Any], after: dict[str, Any], order: list[str]
) -> None:
    good, bad = settings(**before), settings(**{**before, **after})
    chain = arrange(good, bad, differing(good, bad))
    assert names(chain) == order
    for point in range(chain.count):
        state = moved(good, bad, [key for group in chain.groups[:point] for key in group.keys])
        assert broken_rules(good, bad, state) == ()


def test_a_rule_that_an_end_breaks_is_no_rule() -> None:
    good = settings(sequence_parallel=True)  # accepted all the same, it seems
    bad = settings(sequence_parallel=True, tensor_model_parallel_size=2, seq_length=2048)
    assert broken_rules(good, bad, good) == ()


def test_sequence_lengths_of_model_and_data_move_together() -> None:
    good = settings()
    bad = put(settings(seq_length=4096), "dataset.seq_length", 4096)
    assert arranged(good, bad) == ["dataset.seq_length+model.seq_length"]


def test_a_data_sets_other_name_for_its_length_may_lag_behind() -> None:
    def side(length: int) -> Settings:
        return put(put(settings(seq_length=length), "dataset.seq_length", length), "dataset.sequence_length", 2048)

    assert arranged(side(2048), side(4096)) == ["dataset.seq_length+model.seq_length"]


def test_expandable_segments_against_user_buffers_and_graphs() -> None:
    on = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    good, bad = settings(env_vars=on), put(settings(env_vars={}), "ddp.nccl_ub", True)
    assert arranged(good, bad) == ["env:PYTORCH_CUDA_ALLOC_CONF", "ddp.nccl_ub"]
    good, bad = settings(env_vars=on), settings(env=on | {"NCCL_GRAPH_REGISTER": "0"}, cuda_graph_impl="local")
    assert arranged(good, bad) == ["env:NCCL_GRAPH_REGISTER", "model.cuda_graph_impl"]


def test_both_names_of_the_allocators_settings_are_one_thing() -> None:
    both = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    good, bad = (settings(env=dict.fromkeys(both, conf)) for conf in ("max_split_size_mb:64", "max_split_size_mb:32"))
    assert arranged(good, bad) == ["env:PYTORCH_ALLOC_CONF+env:PYTORCH_CUDA_ALLOC_CONF"]


def test_fields_of_an_inner_config_obey_the_rules_too() -> None:
    def side(tp: int, sp: bool) -> Settings:
        return Settings({"model": {"transformer": {"tensor_model_parallel_size": tp, "sequence_parallel": sp}}}, {})

    good, bad = side(1, False), side(2, True)
    assert arranged(good, bad) == [
        "model.transformer.tensor_model_parallel_size",
        "model.transformer.sequence_parallel",
    ]


def test_every_rule_holds_where_nothing_is_told() -> None:
    empty = Settings({}, {})
    assert all(rule.holds(empty) for rule in RULES)


def test_the_rest_moves_last_and_takes_what_goes_with_it() -> None:
    good, bad = settings(), settings(num_layers=40, seq_length=1, cuda_graph_impl="local")
    keys = differing(good, bad)
    chain = arrange(good, bad, keys[:2], rest=keys[2:], bonds=[frozenset({keys[0].name, REST})])
    assert names(chain) == [keys[1].name, REST]
    assert {key.name for key in chain.groups[-1].keys} == {keys[0].name, keys[2].name}


def test_two_keys_are_learned_to_go_together_and_those_between_stay_apart() -> None:
    """Key 2 is rejected without key 9; only 5, between them, adds memory, and is named alone."""
    world = ConfigWorld(12, adds={5: GIB}, needs=[(2, 9)])
    chain, _, conclusion = world.search()
    assert [chain.groups[step.index - 1].name for step in conclusion.steps if step.named] == [name(5)]
    assert f"{name(2)}+{name(9)}" in names(chain)


def test_a_culprit_that_needs_another_key_is_named_with_it() -> None:
    world = ConfigWorld(16, adds={3: 2 * GIB}, needs=[(3, 12)])
    chain, _, conclusion = world.search()
    (step,) = conclusion.steps
    assert chain.groups[step.index - 1].names == {name(3), name(12)} and step.named
    assert step.delta.allocated == 2 * GIB


def test_a_smallest_set_of_two_keys_is_proved_by_a_probe() -> None:
    world = ConfigWorld(8, adds={1: 4 * GIB, 4: 3 * GIB, 6: 2 * GIB}, limit=43 * GIB)
    chain, state, conclusion = world.search(Options(min_step_bytes=2 * MIB))
    effects = world.effects(chain, state, conclusion)
    smallest = effects.smallest()
    assert smallest is not None and smallest.proven
    assert smallest.names == {name(1), name(4)}
    # 4 + 2 is as much as is needed: it may not be left out; 3 + 2 is less.
    assert smallest.names in effects.without
