"""Megatron-LM's own functional tests as training commands.

A test is `tests/functional_tests/test_cases/<TEST>/model_config.yaml`: `MODEL_ARGS`, the arguments its CI gives to
`pretrain_gpt.py`, and `ENV_VARS`. The script and the arguments that decide memory stay as they are; data, tokenizer,
checkpoints and loggers, which need files that are nowhere, are left out, and synthetic data is asked for instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from oombisect.errors import OombisectError
from oombisect.probing.command_call import CommandCall

TRANSLATION_VERSION = 1  # part of what identifies a measurement: another translation is another command
PREFIX = "ci:"
FOLDER = "tests/functional_tests/test_cases"
ARGUMENTS = "megatron/training/arguments.py"
SCRIPT = "pretrain_gpt.py"
PREPARATIONS = ("absent-packages", "flash-attn", "transformer-engine", "megatron-lm", "moe-routing")
WORLD_SIZE = 8
_MOST_BYTES = 1 << 20
# The tests' tokenizers are files that are nowhere: how many ids each has, by the end of its path.
_VOCABULARIES = {
    "bpe/vocab.json": 50257,
    "nemotron_2_256k.model": 256_000,
    "multiMixV8.gpt4o_nc_sd.500000.128k.vocab.json": 131_072,
}
GROUPS = ("gpt", "moe", "mixtral")  # whose tests run pretrain_gpt.py

_DATA = (
    *("--data-path", "--split", "--data-cache-path", "--per-split-data-args-path", "--data-args-path"),
    *("--train-data-path", "--valid-data-path", "--test-data-path", "--mock-data", "--no-mmap-bin-files", "--fim-data"),
    *("--vocab-file", "--merge-file", "--tokenizer-type", "--tokenizer-model", "--vocab-size"),
)
_CHECKPOINTS = (
    *("--save", "--load", "--pretrained-checkpoint", "--async-save", "--use-persistent-ckpt-worker", "--finetune"),
    *("--ckpt-fully-parallel-load", "--load-main-params-from-ckpt", "--use-checkpoint-opt_param-scheduler"),
    *("--auto-detect-ckpt-format", "--check-weight-hash-across-dp-replicas-interval", "--verify-integrity"),
)
_LOGS_AND_ENDS = (
    *("--tensorboard-dir", "--wandb-project", "--wandb-exp-name", "--wandb-entity", "--wandb-save-dir"),
    *("--log-validation-ppl-to-tensorboard", "--exit-interval", "--exit-duration-in-mins"),
)
LEFT_OUT = frozenset((*_DATA, *_CHECKPOINTS, *_LOGS_AND_ENDS))
_NOT_EXPORTED = frozenset(("SKIP_PYTEST", "N_REPEAT", "PYTHONPATH", "LD_PRELOAD"))


class UnreadableTest(Exception):
    """The test's configuration is not what such a file should be; the message says where."""


@dataclass(frozen=True, slots=True)
class CiTest:
    """A test by its name (`gpt/gpt3_mcore_te_tp1_pp1`); its arguments are those of `revision`, else of each commit."""

    name: str
    revision: str = ""


def asked(recipe: str) -> CiTest | None:
    """The test that `ci:TEST` or `ci:TEST@REVISION` means; None where the recipe is no test.

    Raises:
        OombisectError: that is no name of a test.
    """
    if not recipe.startswith(PREFIX):
        return None
    name, _, revision = recipe.removeprefix(PREFIX).partition("@")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+", name) or ".." in name.split("/"):
        raise OombisectError(
            f"{recipe!r} names no test of Megatron-LM", f"Write ci:GROUP/TEST, the folder below {FOLDER}."
        )
    if name.split("/")[0] not in GROUPS:
        raise OombisectError(f"{recipe!r} is no test of {SCRIPT}", f"Name one of the groups {', '.join(GROUPS)}.")
    return CiTest(name, revision)


def configuration_path(test: str) -> str:
    """Where a test's configuration lies in Megatron-LM."""
    return f"{FOLDER}/{test}/model_config.yaml"


def command_of_test(test: str, configuration: bytes, arguments_source: bytes, iterations: int) -> CommandCall:
    """The command of a test.

    Args:
        configuration: the contents of its `model_config.yaml`.
        arguments_source: Megatron-LM's `arguments.py` of the commit: it says which options there are.

    Raises:
        UnreadableTest: the configuration holds no MODEL_ARGS, or values that are no arguments.
    """
    told = _parsed(configuration)
    model = _mapping(told.get("MODEL_ARGS"), "MODEL_ARGS")
    variables = _mapping(told.get("ENV_VARS") or {}, "ENV_VARS")
    argv = ["python", SCRIPT]
    for name, value in model.items():
        if name.startswith("--") and name not in LEFT_OUT:
            argv += _argument(name, value)
    argv += ["--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", str(_vocabulary(model))]
    argv += ["--exit-interval", str(iterations + 1), "--distributed-timeout-minutes", "1"]
    if b"--fake-process-group" in arguments_source:
        argv.append("--fake-process-group")
    env = {name: _scalar(name, value) for name, value in variables.items() if name not in _NOT_EXPORTED}
    return CommandCall(
        argv=tuple(argv),
        name=f"ci:{test}",
        env=env,
        prepare=PREPARATIONS,
        config={"MODEL_ARGS": _plain(model), "ENV_VARS": _plain(variables)},
    )


def _parsed(configuration: bytes) -> Mapping[str, Any]:
    if len(configuration) > _MOST_BYTES:
        raise UnreadableTest(f"it is {len(configuration)} bytes long")
    try:
        return _mapping(yaml.safe_load(configuration), "the file")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableTest(f"it is no YAML: {' '.join(str(error).split())[:200]}") from error


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise UnreadableTest(f"{where} is no mapping of names")
    return value


def _argument(name: str, value: object) -> list[str]:
    """One option as CI's own script writes it: true is a flag, a list in brackets several words."""
    if value is None or value is False or value == "":
        return []
    if isinstance(value, list):
        return [name, *(_scalar(name, item) for item in value)]
    text = _scalar(name, value)
    if text.lower() == "true":
        return [name]
    if listed := re.fullmatch(r"\[([^]]+)\]", text):
        return [name, *re.split(r"[,\s]+", listed[1].strip())]
    if name in _SEVERAL_WORDS:
        return [name, *text.split()]
    return [name, text.replace("\\", "")]


_SEVERAL_WORDS = frozenset(("--recompute-modules", "--cuda-graph-scope", "--cuda-graph-modules", "--offload-modules"))


def _scalar(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float) or "\0" in str(value):
        raise UnreadableTest(f"{name} is no text and no number")
    return str(value).strip()


def _vocabulary(model: Mapping[str, Any]) -> int:
    """What NullTokenizer is given: it adds one id, for the end of a document, to what it is told."""
    size = model.get("--vocab-size")
    if size is None:
        file = str(model.get("--tokenizer-model") or model.get("--vocab-file") or "")
        known = (number for name, number in _VOCABULARIES.items() if file.endswith(name))
        size = next(known, None)
        if size is None:
            raise UnreadableTest(f"how many ids the tokenizer {file!r} has is not known")
    if isinstance(size, bool) or not isinstance(size, int):
        raise UnreadableTest(f"--vocab-size {size!r} is no number")
    return size if "--vocab-size" in model and model.get("--tokenizer-type") == "NullTokenizer" else size - 1


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping as JSON types, to be compared between commits."""
    return {name: item if isinstance(item, bool | int | float | str) else str(item) for name, item in value.items()}
