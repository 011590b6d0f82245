"""World size, ranks, micro-batches, what a probe sets, overrides and frozen configurations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from probe_support import configuration, data  # noqa: E402
from probe_support.configuration import Layout  # noqa: E402
from probe_support.job import Job, Recipe  # noqa: E402
from probe_support.outcome import Unresolved  # noqa: E402
from probe_support.plain import plain  # noqa: E402


class Backend(Enum):
    auto = 1
    fused = 2


@dataclass
class Model:
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    pipeline_model_parallel_layout: Any = None
    num_layers_in_first_pipeline_stage: int | None = None
    seq_length: int = 2048
    vocab_size: int | None = 1000
    params_dtype: Any = torch.bfloat16
    attention_backend: Backend = Backend.auto
    recompute_modules: list[str] | None = None


@dataclass
class Packing:
    packed_sequence_size: int = 2048


@dataclass
class Dataset:
    seq_length: int = 2048
    dataloader_type: str = "batch"
    offline_packing_specs: Packing | None = field(default_factory=Packing)
    enable_offline_packing: bool = True


@dataclass
class Train:
    train_iters: int = 1000
    global_batch_size: int = 128
    micro_batch_size: int = 1
    eval_interval: int = 10
    eval_iters: int = 32


@dataclass
class Config:
    model: Model = field(default_factory=Model)
    dataset: Dataset = field(default_factory=Dataset)
    train: Train = field(default_factory=Train)
    peft: Any = None


def job(function: str = "qwen3_8b_sft_config", **values: Any) -> Job:
    return Job(recipe=Recipe("module", function), out="/out", **values)


def laid_out(model: Model, job: Job) -> tuple[Layout, list[str]]:
    notes: list[str] = []
    return configuration.layout(Config(model=model), job, notes), notes


def test_world_size_of_the_job_wins_over_the_name_and_the_name_over_the_model() -> None:
    model = Model(tensor_model_parallel_size=2)
    assert laid_out(model, job("x_8gpu_h100_bf16_config", world_size=4))[0].dp == 2
    assert laid_out(model, job("x_8gpu_h100_bf16_config"))[0].world_size == 8
    assert laid_out(model, job("x_sft_config"))[0].world_size == 2


def test_a_name_that_no_longer_fits_gives_way_and_says_so() -> None:
    layout, notes = laid_out(Model(tensor_model_parallel_size=2), job("x_1gpu_h100_config"))
    assert layout.world_size == 2 and "1 of the recipe's name" in notes[0]


@pytest.mark.parametrize(
    ("sizes", "world"),
    [
        ({"tensor_model_parallel_size": 4, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1}, 4),
        ({"tensor_model_parallel_size": 2, "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1}, 8),
        ({"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 3, "context_parallel_size": 2}, 12),
        ({"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4}, 8),  # experts split by tensor too
    ],
)
def test_the_smallest_world_holds_both_groups_of_ranks(sizes: dict[str, int], world: int) -> None:
    assert laid_out(Model(**sizes), job())[0].world_size == world


def test_impossible_worlds_and_ranks_are_refused() -> None:
    with pytest.raises(Unresolved, match="multiple of 2"):
        laid_out(Model(tensor_model_parallel_size=2), job(world_size=3))
    with pytest.raises(Unresolved, match="rank 2"):
        laid_out(Model(tensor_model_parallel_size=2), job(world_size=2, rank=2))


def test_one_rank_of_the_first_and_of_the_last_stage() -> None:
    layout = Layout(tp=2, pp=4, vpp=None, cp=1, ep=1, etp=2, dp=4)
    assert configuration.suggested_ranks(layout, Model()) == [0, 24]
    assert configuration.suggested_ranks(replace(layout, pp=1), Model()) == [0]
    uneven = Model(num_layers_in_first_pipeline_stage=3)
    assert configuration.suggested_ranks(layout, uneven) == [0, 8, 16, 24]


@pytest.mark.parametrize(
    ("layout", "global_batch", "wanted", "count"),
    [
        ({"pp": 1}, 128, None, 2),
        ({"pp": 1}, 1, None, 1),
        ({"pp": 4}, 128, None, 5),
        ({"pp": 4, "vpp": 3}, 128, None, 8),
        ({"pp": 4}, 3, None, 3),
        ({"pp": 1}, 128, 16, 16),
        ({"pp": 1, "dp": 64}, 128, 16, 2),
    ],
)
def test_micro_batches_are_capped_and_never_more_than_the_recipes(
    layout: dict[str, int], global_batch: int, wanted: int | None, count: int
) -> None:
    sizes = {"tp": 1, "pp": 1, "vpp": None, "cp": 1, "ep": 1, "etp": 1, "dp": 1, **layout}
    config = Config(train=Train(global_batch_size=global_batch))
    assert configuration.micro_batches(config, Layout(**sizes), wanted) == count  # type: ignore[arg-type]


def test_settling_touches_only_fields_that_exist() -> None:
    config = Config()
    owners = SimpleNamespace(
        checkpoint=SimpleNamespace(save="x", load="y", pretrained_checkpoint=None),
        logger=SimpleNamespace(tensorboard_dir="z"),
        rng=SimpleNamespace(seed=1),
        scheduler=SimpleNamespace(lr_warmup_iters=50),
        **vars(config),
    )
    configuration.settle(owners, job(seed=7), Layout(1, 1, None, 1, 1, 1, 2), 3, "/empty")
    assert (owners.train.train_iters, owners.train.global_batch_size) == (3, 6)
    assert (owners.checkpoint.save, owners.checkpoint.load, owners.checkpoint.pretrained_checkpoint) == (
        None,
        None,
        "/empty",
    )
    assert owners.rng.seed == 7 and owners.scheduler.lr_warmup_iters == 0
    assert not hasattr(owners, "profiling") and not hasattr(owners.train, "exit_interval")


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("model.seq_lenght=1", "model.seq_length"),
        ("modle.seq_length=1", "model"),
        ("peft.dim=4", "peft is not set by this recipe"),
        ("dataset.offline_packing_specs.size=4", "unknown key 'dataset.offline_packing_specs.size'"),
    ],
)
def test_an_override_of_nothing_names_its_neighbours(override: str, near: str) -> None:
    with pytest.raises(Unresolved, match=near):
        configuration.apply_overrides(Config(), (override,), [])


def keep(config: Config, *overrides: str) -> list[str]:
    notes: list[str] = []
    before = {"model.seq_length": 2048}
    configuration._keep_sequence_lengths_equal(config, before, overrides, notes)
    return notes


def test_the_data_follow_an_overridden_model_and_the_model_the_data() -> None:
    config = Config(model=Model(seq_length=8192))
    notes = keep(config, "model.seq_length=8192")
    assert config.dataset.seq_length == 8192 and len(notes) == 2
    assert config.dataset.offline_packing_specs is not None
    assert config.dataset.offline_packing_specs.packed_sequence_size == 8192
    config = Config(dataset=Dataset(seq_length=4096, offline_packing_specs=None))
    keep(config, "dataset.seq_length=4096")
    assert config.model.seq_length == 4096


def test_lengths_overridden_apart_are_left_for_bridge_to_reject() -> None:
    config = Config(model=Model(seq_length=8192), dataset=Dataset(seq_length=1024))
    keep(config, "model.seq_length=8192", "dataset.seq_length=1024")
    assert (config.model.seq_length, config.dataset.seq_length) == (8192, 1024)


def test_a_frozen_configuration_comes_back_with_its_types() -> None:
    frozen = plain(
        Config(
            model=Model(params_dtype=torch.float32, attention_backend=Backend.fused, recompute_modules=["mlp"]),
            train=Train(micro_batch_size=4),
        )
    )
    frozen["model"]["gone"] = 1
    config, notes = Config(), list[str]()
    configuration.freeze(config, frozen, notes)
    assert config.model.params_dtype is torch.float32 and config.model.attention_backend is Backend.fused
    assert config.model.recompute_modules == ["mlp"] and config.train.micro_batch_size == 4
    assert len(notes) == 1 and "model.gone" in notes[0]


def test_the_name_of_a_function_does_not_take_the_place_of_another() -> None:
    config, notes = Config(), list[str]()
    config.model.pipeline_model_parallel_layout = test_the_name_of_a_function_does_not_take_the_place_of_another
    frozen = plain(config)
    assert frozen["model"]["pipeline_model_parallel_layout"].endswith("of_another")
    frozen["model"]["recompute_modules"] = "megatron.bridge.models.gpt_provider.default_layer_spec"
    config.model.pipeline_model_parallel_layout = pytest.raises
    config.model.attention_backend = Backend.fused
    frozen["model"]["attention_backend"] = "Backend.gone"
    configuration.freeze(config, frozen, notes)
    assert config.model.pipeline_model_parallel_layout is pytest.raises
    assert config.model.attention_backend is Backend.fused
    assert config.model.recompute_modules is None, "what is not set here is not set to a name either"
    assert "model.attention_backend, model.pipeline_model_parallel_layout" in notes[0]


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_a_complete_configuration_may_lack_here_what_is_off_there(value: Any) -> None:
    notes = list[str]()
    configuration.freeze(Config(), {"model": {"gone": value, "seq_length": 4096}}, notes, complete=True)
    assert "model.gone" in notes[0]


def test_a_complete_configuration_names_what_is_not_here() -> None:
    frozen = {"model": {"gone": 1, "lost": "x" * 500, "off": None}, "new": {"size": 2}}
    configuration.freeze(Config(), frozen, [])
    with pytest.raises(
        Unresolved, match=r"sets model.gone=1, model.lost='x{20,70}, new={'size': 2}, which this commit"
    ):
        configuration.freeze(Config(), frozen, [], complete=True)


def test_a_frozen_part_that_is_absent_here_is_made_or_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "_PROJECTS", (__name__.partition(".")[0],))
    frozen = plain(Config(dataset=Dataset(offline_packing_specs=Packing(4096))))
    frozen["peft"] = {"_type": "no.such.Thing", "dim": 4}
    config, notes = Config(dataset=Dataset(offline_packing_specs=None)), list[str]()
    configuration.freeze(config, frozen, notes)
    assert config.dataset.offline_packing_specs == Packing(4096)
    assert config.peft is None and "peft" in notes[0]


def test_batches_have_the_shape_of_the_recipe() -> None:
    config = Config()
    config.train.micro_batch_size = 2
    batch = next(data.iterator_for(config, 3, current_packing_keys=False))
    assert batch["tokens"].shape == (6, 2048) and batch["cu_seqlens"].tolist()[0] == [0, 512, 1024, 1536, 2048]
    assert int(batch["max_seqlen"][0]) == 512
    batch = next(data.iterator_for(config, 3, current_packing_keys=True))
    assert {"cu_seqlens_q", "cu_seqlens_kv", "max_seqlen_q"} <= set(batch)
    config.dataset.offline_packing_specs, config.dataset.dataloader_type = None, "single"
    batch = next(data.iterator_for(config, 3, current_packing_keys=True))
    assert batch["tokens"].shape == (2, 2048) and "cu_seqlens_q" not in batch


def test_a_vocabulary_nobody_states_is_asked_for() -> None:
    config = SimpleNamespace(model=Model(vocab_size=None), tokenizer=SimpleNamespace(vocab_size=None))
    with pytest.raises(Unresolved, match="vocab_size"):
        data.tokenizer_for(config)
    assert data.tokenizer_for(SimpleNamespace(model=Model(), tokenizer=None)).vocab_size == 1000


@dataclass
class Overlap:
    backend: Backend = Backend.auto
    size: int = 1


def test_an_object_of_the_project_is_made_from_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(peft=Overlap(Backend.fused, 3))
    frozen = plain(config)
    foreign, notes = Config(), list[str]()
    configuration.freeze(foreign, frozen, notes)
    assert foreign.peft is None and "peft" in notes[0]  # not a class of the project: not even imported
    monkeypatch.setattr(configuration, "_PROJECTS", (__name__.partition(".")[0],))
    own = Config()
    configuration.freeze(own, frozen, [])
    assert own.peft == Overlap(Backend.fused, 3)


def test_a_module_named_by_a_configuration_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "megatronic.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = Config()
    configuration.freeze(config, {"peft": {"_type": "megatronic.Anything", "dim": 4}}, [])
    assert config.peft is None


@dataclass
class Inner:
    recompute_granularity: str | None = None
    seq_length: int = 1


@dataclass
class Outer:
    """A model configuration that passes the fields of another one off as its own."""

    transformer: Inner = field(default_factory=Inner)
    seq_length: int = 2048

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "transformer"), name)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("model.recompute_granularity=full", "model.transformer.recompute_granularity=full"),
        ("model.transformer.recompute_granularity=full", "model.transformer.recompute_granularity=full"),
        ("model.seq_length=4096", "model.seq_length=4096"),
        ("model.recompute=full", "model.recompute=full"),
        ("train.train_iters=3", "train.train_iters=3"),
        ("peft.dim=3", "peft.dim=3"),
    ],
)
def test_an_override_is_of_the_place_where_the_field_is_kept(written: str, meant: str) -> None:
    config = SimpleNamespace(model=Outer(), train=Train(), peft=None)
    assert configuration._spelled_out(config, written) == meant
