"""Tests of Megatron-LM's CI become commands: what decides memory stays, what needs files goes."""

from __future__ import annotations

import pytest

from oombisect.errors import OombisectError
from oombisect.recipes.megatron_ci import CiTest, UnreadableTest, asked, command_of_test

CONFIG = b"""
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
  PYTHONPATH: elsewhere
MODEL_ARGS:
  --num-layers: 12
  --bf16: true
  --no-such-flag: false
  --lr: 0.00015
  --min-lr: 1.0e-5
  --save: ${CHECKPOINT_SAVE_PATH}
  --data-path: ${DATA_PATH}/text
  --vocab-file: ${DATA_PATH}/bpe/vocab.json
  --rampup-batch-size: "[384 384 97656250]"
  --moe-layer-freq: ([0]*3+[1]*12)
  --recompute-modules: "mla_up_proj layernorm"
  --exit-interval: 100
TEST_TYPE: regular
"""
NEW, OLD = b"group.add_argument('--fake-process-group'", b"group.add_argument('--rank'"


def value(argv: tuple[str, ...], option: str) -> str:
    return argv[argv.index(option) + 1]


def test_arguments_that_decide_memory_stay_as_ci_writes_them() -> None:
    argv = command_of_test("gpt/a", CONFIG, NEW, 3).argv
    assert argv[:2] == ("python", "pretrain_gpt.py")
    assert value(argv, "--num-layers") == "12" and value(argv, "--lr") == "0.00015"
    assert "--bf16" in argv and value(argv, "--bf16").startswith("--")
    assert "--no-such-flag" not in argv
    at = argv.index("--rampup-batch-size")
    assert argv[at + 1 : at + 4] == ("384", "384", "97656250")
    assert value(argv, "--moe-layer-freq") == "([0]*3+[1]*12)"
    at = argv.index("--recompute-modules")
    assert argv[at + 1 : at + 3] == ("mla_up_proj", "layernorm")


def test_files_are_left_out_and_synthetic_data_asked_for() -> None:
    argv = command_of_test("gpt/a", CONFIG, NEW, 3).argv
    assert not {"--save", "--data-path", "--vocab-file"} & set(argv)
    assert "--mock-data" in argv and value(argv, "--tokenizer-type") == "NullTokenizer"
    assert value(argv, "--vocab-size") == "50256"  # NullTokenizer adds the end of a document
    assert argv.count("--exit-interval") == 1 and value(argv, "--exit-interval") == "4"


def test_the_fake_process_group_is_asked_for_where_the_commit_has_it() -> None:
    assert "--fake-process-group" in command_of_test("gpt/a", CONFIG, NEW, 3).argv
    assert "--fake-process-group" not in command_of_test("gpt/a", CONFIG, OLD, 3).argv


def test_variables_go_into_the_environment_but_for_those_of_the_probe() -> None:
    call = command_of_test("gpt/a", CONFIG, NEW, 3)
    assert call.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert call.config is not None and call.config["MODEL_ARGS"]["--num-layers"] == 12


@pytest.mark.parametrize(
    ("tokenizer", "size"),
    [
        (b"--tokenizer-model: ${DATA_PATH}/utils/nemotron_2_256k.model", "255999"),
        (b"--tokenizer-type: NullTokenizer\n  --vocab-size: 151936", "151936"),
    ],
)
def test_the_vocabulary_is_that_of_the_tests_tokenizer(tokenizer: bytes, size: str) -> None:
    config = CONFIG.replace(b"--vocab-file: ${DATA_PATH}/bpe/vocab.json", tokenizer)
    assert value(command_of_test("gpt/a", config, NEW, 3).argv, "--vocab-size") == size


@pytest.mark.parametrize(
    "config",
    [
        b"- 1",
        b"MODEL_ARGS: 3",
        b"MODEL_ARGS: {--a: [1, {b: 2}]}",
        b"MODEL_ARGS: {--tokenizer-model: unknown.model}",
        b"MODEL_ARGS: !!python/object/apply:os.system ['true']",
        b"MODEL_ARGS: {--vocab-size: many}",
        b"a: *nothing",
        b"[" * 5000,
        b"x" * (2 << 20),
    ],
)
def test_what_is_no_such_file_is_refused_and_nothing_in_it_runs(config: bytes) -> None:
    with pytest.raises(UnreadableTest):
        command_of_test("gpt/a", config, NEW, 3)


def test_a_recipe_may_name_a_test_and_the_commit_of_its_arguments() -> None:
    assert asked("qwen3_8b_lora") is None
    assert asked("ci:gpt/gpt3_x") == CiTest("gpt/gpt3_x")
    assert asked("ci:moe/gpt3_x@6e091e1b68") == CiTest("moe/gpt3_x", "6e091e1b68")


@pytest.mark.parametrize("recipe", ["ci:", "ci:gpt", "ci:gpt/../../etc", "ci:/gpt/x", "ci:gpt/a b", "ci:bert/x"])
def test_a_name_that_is_no_test_is_refused(recipe: str) -> None:
    with pytest.raises(OombisectError):
        asked(recipe)
