"""From recipe to the configuration a probe runs: build it, override it, settle what a probe needs, describe it."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib
import inspect
import math
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch

from .job import Job, Recipe
from .outcome import Unresolved

_NEVER = 10**9  # an interval that no probe reaches


@dataclass(frozen=True)
class Layout:
    """How the model is spread over ranks: sizes of tensor, pipeline (virtual), context, expert and data parallelism."""

    tp: int
    pp: int
    vpp: int | None
    cp: int
    ep: int
    etp: int
    dp: int

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.cp * self.dp


def build(recipe: Recipe, notes: list[str]) -> Any:
    """Calls the recipe function of this commit."""
    try:
        module = importlib.import_module(recipe.module)
    except ModuleNotFoundError as error:
        if error.name and recipe.module.startswith(error.name):
            raise Unresolved(f"recipe module {recipe.module} does not exist here") from error
        raise Unresolved(f"importing {recipe.module} needs the missing package {error.name!r}") from error
    function = getattr(module, recipe.function, None)
    if function is None:
        near = difflib.get_close_matches(recipe.function, dir(module), n=3)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise Unresolved(f"{recipe.module} has no recipe {recipe.function}{hint}")
    unknown = sorted(set(recipe.kwargs) - set(inspect.signature(function).parameters))
    if unknown and not _takes_any(function):
        raise Unresolved(f"{recipe.function} takes no argument {', '.join(unknown)}")
    try:
        return function(**recipe.kwargs)
    except AttributeError as error:
        if not _answer_moved_attribute(error):
            raise
        notes.append(f"{error.name} of Hugging Face configurations was read from rope_parameters, where it moved to")
        return function(**recipe.kwargs)


def _answer_moved_attribute(error: AttributeError) -> bool:
    """Lets Hugging Face configurations answer for `rope_theta` as they did before transformers 5, if that was missing.

    Bridge before v0.3 reads it; only then is it added, so that no newer Bridge sees anything but the real class.
    """
    from transformers import PretrainedConfig

    if error.name != "rope_theta" or not isinstance(error.obj, PretrainedConfig):
        return False
    if "__getattr__" in vars(PretrainedConfig):
        return False

    def __getattr__(self: Any, name: str) -> Any:
        parameters = self.__dict__.get("rope_parameters") if name == "rope_theta" else None
        if not parameters or "rope_theta" not in parameters:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return parameters["rope_theta"]

    PretrainedConfig.__getattr__ = __getattr__
    return True


def _takes_any(function: Any) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())


def apply_overrides(config: Any, overrides: tuple[str, ...], notes: list[str]) -> None:
    """Applies Hydra-style overrides (`model.seq_length=8192`) with Bridge's own parser of this commit."""
    if not overrides:
        return
    overrides = tuple(_spelled_out(config, override) for override in overrides)
    for override in overrides:
        _check_key(config, override)
    from megatron.bridge.training.utils import omegaconf_utils as bridge

    before = {key: _read(config, key) for key in _SEQUENCE_KEYS}
    # Bridge's conversion leaves callable objects out, and adapters (`peft`) are callable: set their fields directly.
    direct = [override for override in overrides if callable(getattr(config, _key_of(override).split(".")[0], None))]
    through = [override for override in overrides if override not in direct]
    try:
        if through:
            from omegaconf import OmegaConf

            tree, excluded = bridge.create_omegaconf_dict_config(config)
            tree = bridge.parse_hydra_overrides(tree, through)
            bridge.apply_overrides(config, OmegaConf.to_container(tree, resolve=True), excluded)
    except bridge.OverridesError as error:
        raise Unresolved(f"override rejected by Bridge: {error}") from error
    for override in direct:
        _set_directly(config, override)
    _keep_sequence_lengths_equal(config, before, overrides, notes)


def _spelled_out(config: Any, override: str) -> str:
    """An override by the place where its field is kept: some model configurations hold another one (`transformer`) and
    pass its fields off as their own, which recipes rely on and Bridge's parser does not know."""
    key = _key_of(override)
    *path, name = key.split(".")
    owner = config
    for part in path:
        owner = getattr(owner, part, None)
    if not path or not dataclasses.is_dataclass(owner) or name in _field_names(owner) or not hasattr(owner, name):
        return override
    kept = [part for part in _field_names(owner) if dataclasses.is_dataclass(inner := getattr(owner, part, None))
            and name in _field_names(inner)]  # fmt: skip
    return override.replace(key, ".".join([*path, kept[0], name]), 1) if kept else override


def _set_directly(config: Any, override: str) -> None:
    """Sets one existing field to the value of a Hydra override, in Hydra's own grammar."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        value = OverridesParser.create().parse_override(override).value()
    except HydraException as error:
        raise Unresolved(f"override {override!r} is not understood: {' '.join(str(error).split())}") from error
    *path, name = _key_of(override).split(".")
    owner = config
    for part in path:
        owner = owner[part] if isinstance(owner, dict) else getattr(owner, part)
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, _from_plain(value, getattr(owner, name, None)))


def _key_of(override: str) -> str:
    return override.split("=", 1)[0].lstrip("+~").strip()


def _check_key(config: Any, override: str) -> None:
    """Refuses an override of something that is not there, naming the nearest keys; `+key=value` may add."""
    if override.startswith("+"):
        return
    value, seen = config, []
    for part in _key_of(override).split("."):
        if isinstance(value, dict):
            names = [str(name) for name in value]
        elif isinstance(value, (list, tuple)):
            names = [str(index) for index in range(len(value))]
        else:
            names = _field_names(value)
        if part not in names:
            near = [".".join([*seen, name]) for name in difflib.get_close_matches(part, names, n=3, cutoff=0.6)]
            hint = f"; did you mean {', '.join(near)}" if near else ""
            what = ".".join([*seen, part])
            if value is None:
                hint = f"; {'.'.join(seen)} is not set by this recipe"
            raise Unresolved(f"override of unknown key {what!r}{hint}")
        seen.append(part)
        if isinstance(value, dict):
            value = value[part]
        elif isinstance(value, (list, tuple)):
            value = value[int(part)]
        else:
            value = getattr(value, part, None)


def _field_names(value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [f.name for f in dataclasses.fields(value)]
    return [name for name in vars(value) if not name.startswith("_")] if hasattr(value, "__dict__") else []


_SEQUENCE_KEYS = ("model.seq_length", "dataset.seq_length", "dataset.sequence_length")


def _read(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part, None)
    return config


def _sequence_field(dataset: Any) -> str | None:
    return next((name for name in ("seq_length", "sequence_length") if hasattr(dataset, name)), None)


def _keep_sequence_lengths_equal(
    config: Any, before: dict[str, Any], overrides: tuple[str, ...], notes: list[str]
) -> None:
    """Bridge demands equal sequence lengths of model and dataset: where one alone was overridden, the other follows."""
    keys = {_key_of(override) for override in overrides}
    name = _sequence_field(config.dataset)
    old = before["model.seq_length"]
    if name is None:
        return
    by_model = "model.seq_length" in keys
    by_data = bool(keys & {"dataset.seq_length", "dataset.sequence_length"})
    if by_model and not by_data:
        setattr(config.dataset, name, config.model.seq_length)
        notes.append(f"dataset.{name} follows model.seq_length={config.model.seq_length}")
    elif by_data and not by_model:
        config.model.seq_length = getattr(config.dataset, name)
        notes.append(f"model.seq_length follows dataset.{name}={config.model.seq_length}")
    specs, where = packing_specs(config.dataset)
    packed = getattr(specs, "packed_sequence_size", None)
    key = f"dataset.{where}.packed_sequence_size"
    if packed is not None and packed == old and packed != config.model.seq_length and key not in keys:
        specs.packed_sequence_size = config.model.seq_length
        notes.append(f"{key} follows model.seq_length={config.model.seq_length}")


_PACKING_FIELDS = ("offline_packing_specs", "packed_sequence_specs")


def packing_specs(dataset: Any) -> tuple[Any, str]:
    """The offline-packing settings of a dataset and their field's name; (None, "") where sequences are not packed."""
    for name in _PACKING_FIELDS:
        specs = getattr(dataset, name, None)
        if specs is not None:
            return specs, name
    return None, ""


def layout(config: Any, job: Job, notes: list[str]) -> Layout:
    """The parallel layout, with the world size of the job, else of the recipe's name, else the smallest that works."""
    model = config.model
    tp = int(getattr(model, "tensor_model_parallel_size", 1) or 1)
    pp = int(getattr(model, "pipeline_model_parallel_size", 1) or 1)
    cp = int(getattr(model, "context_parallel_size", 1) or 1)
    ep = int(getattr(model, "expert_model_parallel_size", 1) or 1)
    etp = int(getattr(model, "expert_tensor_parallel_size", None) or tp)
    vpp = getattr(model, "virtual_pipeline_model_parallel_size", None)
    smallest = math.lcm(tp * pp * cp, etp * ep * pp)
    world = job.world_size
    if world is None:
        named = re.search(r"_(\d+)gpus?_", f"{job.recipe.function}_")
        world = int(named[1]) if named else smallest
        if world % smallest:
            notes.append(f"world size {smallest}, not the {world} of the recipe's name: parallel sizes were overridden")
            world = smallest
    if world % smallest:
        raise Unresolved(f"world size {world} does not fit: the parallel sizes need a multiple of {smallest}")
    if not 0 <= job.rank < world:
        raise Unresolved(f"rank {job.rank} does not exist in a world of {world}")
    return Layout(tp=tp, pp=pp, vpp=int(vpp) if vpp else None, cp=cp, ep=ep, etp=etp, dp=world // (tp * pp * cp))


def suggested_ranks(layout: Layout, model: Any) -> list[int]:
    """One rank per pipeline stage that can differ in memory, the first rank of each: always the first and last stage.

    Megatron orders ranks tensor first, then context, then data, then pipeline. Stages in between hold equal layers but
    fewer micro-batches the later they come, so only a hand-made layout makes one of them worth a look.
    """
    per_stage = layout.world_size // layout.pp
    stages = {0, layout.pp - 1}
    uneven = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    uneven += ("pipeline_model_parallel_layout",)
    if any(getattr(model, name, None) is not None for name in uneven):
        stages |= set(range(layout.pp))
    return sorted(stage * per_stage for stage in stages)


def micro_batches(config: Any, layout: Layout, wanted: int | None) -> int:
    """How many micro-batches a step runs: what the recipe says, capped at the fewest that show the steady peak.

    One pipeline stage: 2 (the second runs with the first's gradients in place). A 1F1B pipeline: one more than stages,
    so that the first stage holds all its warm-up activations and runs one forward in the steady state. Interleaved:
    two rounds of all stages (the first stage warms up 2 * (pp - 1) + (vpp - 1) * pp chunks). `docs/probe.md` has the
    measurements behind this.
    """
    train = config.train
    full = max(1, int(train.global_batch_size) // (int(train.micro_batch_size) * layout.dp))
    if wanted is None:
        if layout.pp == 1:
            wanted = 2
        elif layout.vpp and layout.vpp > 1:
            wanted = 2 * layout.pp
        else:
            wanted = layout.pp + 1
    return min(full, wanted)


def settle(config: Any, job: Job, layout: Layout, count: int, empty_checkpoint: str) -> None:
    """Sets what a probe needs: few steps, `count` micro-batches, its seed; no checkpoint, evaluation, logs to disk."""
    _set(config.train, train_iters=job.iterations, global_batch_size=count * config.train.micro_batch_size * layout.dp)
    _set(config.train, rampup_batch_size=None, exit_duration_in_mins=None, exit_interval=None, train_samples=None)
    for owner in (config.train, getattr(config, "validation", None)):
        _set(owner, eval_iters=0, eval_interval=_NEVER, eval_global_batch_size=None)
    pretrained = empty_checkpoint if is_finetuning(config) else None
    _set(config.checkpoint, save=None, load=None, pretrained_checkpoint=pretrained, save_interval=_NEVER)
    _set(config.checkpoint, async_save=False, non_persistent_save_interval=None)
    _set(config.logger, tensorboard_dir=None, wandb_project=None, wandb_entity=None, comet_project=None)
    _set(config.logger, mlflow_experiment=None, log_timers_to_tensorboard=False, log_progress=False)
    _set(config.rng, seed=job.seed)
    _set(config.scheduler, lr_warmup_iters=0, lr_warmup_samples=0, lr_warmup_fraction=None, lr_decay_samples=None)
    for name in ("profiling", "straggler", "nvrx_straggler", "inprocess_restart", "ft"):
        _set(config, **{name: None})


def is_finetuning(config: Any) -> bool:
    """Whether Bridge would be called as `finetune()`: adapters, or a dataset whose loader gives whole batches."""
    return getattr(config, "peft", None) is not None or getattr(config.dataset, "dataloader_type", "") == "batch"


def _set(owner: Any, **values: Any) -> None:
    """Sets the fields this commit has; older and newer ones lack some."""
    if owner is None:
        return
    for name, value in values.items():
        if hasattr(owner, name):
            setattr(owner, name, value)


def freeze(config: Any, frozen: dict[str, Any], notes: list[str], complete: bool = False) -> None:
    """Makes `config` equal to a plain configuration recorded at another commit, field by field.

    What this commit has no field for, and what cannot be made from plain JSON (callables, classes), stays and is noted.
    With `complete` a field that is not there must be off in `frozen` (None, false, empty): a commit that does not know
    a feature does without it.

    Raises:
        Unresolved: it is not.
    """
    missed: list[str] = []
    absent: dict[str, Any] = {}
    _freeze(config, frozen, "", missed, absent)
    _freeze_packing(config, frozen, notes)
    needed = sorted(path for path, value in absent.items() if value not in _OFF)
    if complete and needed:
        more = f" and {len(needed) - 3} more" if len(needed) > 3 else ""
        shown = ", ".join(f"{path}={absent[path]!r}"[:80] for path in needed[:3])
        raise Unresolved(
            f"the frozen configuration sets {shown}{more}, which this commit does not have; --set {needed[0]}=null "
            "leaves it out"
        )
    missed += absent
    if missed:
        shown = ", ".join(sorted(missed)[:20])
        notes.append(f"{len(missed)} fields of the frozen configuration could not be applied here: {shown}")


_OFF = (None, False, "", [], {})


def _freeze_packing(config: Any, frozen: dict[str, Any], notes: list[str]) -> None:
    """The size of packs, which decides memory, under whichever name this commit has for it."""
    dataset = frozen.get("dataset") or {}
    told = next((dataset[name] for name in _PACKING_FIELDS if isinstance(dataset.get(name), dict)), None)
    specs, where = packing_specs(config.dataset)
    size = (told or {}).get("packed_sequence_size")
    if specs is None or size is None or getattr(specs, "packed_sequence_size", size) == size:
        return
    specs.packed_sequence_size = size
    notes.append(f"dataset.{where}.packed_sequence_size is {size}, as in the frozen configuration")


def _freeze(owner: Any, frozen: dict[str, Any], prefix: str, missed: list[str], absent: dict[str, Any]) -> None:
    from .plain import plain

    for name, value in frozen.items():
        path = f"{prefix}{name}"
        if name == "_type":
            continue
        if not hasattr(owner, name):
            absent[path] = value
            continue
        current = getattr(owner, name)
        if plain(current) == value:
            continue
        if isinstance(value, dict) and (dataclasses.is_dataclass(current) or hasattr(current, "__dict__")):
            _freeze(current, value, f"{path}.", missed, absent)
            continue
        made = _from_plain(value, current)
        if plain(made) == value and not _is_name(made, current):
            setattr(owner, name, made)
        else:
            missed.append(path)


_CODE = re.compile(r"(?:megatron|torch|transformer_engine)(?:\.[\w<>]+)+")


def _is_name(made: Any, current: Any) -> bool:
    """Whether a text names a function or class, which makes none: by its look, or by what it would replace."""
    if not isinstance(made, str):
        return False
    return bool(_CODE.fullmatch(made)) or not isinstance(current, (str, int, float, PurePath, type(None)))


def _from_plain(value: Any, like: Any) -> Any:
    """The object `value` stands for, of the kind of `like` where that says more than JSON does."""
    if isinstance(value, str):
        if value.startswith("torch.") and isinstance(getattr(torch, value[6:], None), torch.dtype):
            return getattr(torch, value[6:])
        kind, _, member = value.partition(".")
        if isinstance(like, enum.Enum) and type(like).__name__ == kind and member in type(like).__members__:
            return type(like)[member]
    if isinstance(value, list) and isinstance(like, tuple):
        return tuple(value)
    if isinstance(value, dict) and "_type" in value:
        return _made(value)
    return value


_PROJECTS = ("megatron",)  # whose classes may be made: naming a module must not be enough to have it run


def _made(value: dict[str, Any]) -> Any:
    """A new object of the dataclass a plain one names, where it is the project's, is there, and takes the fields."""
    module, _, name = str(value["_type"]).rpartition(".")
    if module.partition(".")[0] not in _PROJECTS:
        return None
    try:
        kind = getattr(importlib.import_module(module), name)
        fields = [f for f in dataclasses.fields(kind) if f.init and f.name in value]
        return kind(**{f.name: _from_plain(value[f.name], f.default) for f in fields})
    except Exception:
        return None
