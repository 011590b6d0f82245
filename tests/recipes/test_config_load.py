"""YAML configs as Bridge saves them: plain values, nothing looked up, nothing called."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from oombisect.errors import OombisectError
from oombisect.recipes import config_load
from oombisect.recipes.config_load import load_config


def loaded(folder: Path, text: str) -> dict[str, Any]:
    file = folder / "config.yaml"
    file.write_text(text)
    return load_config(file)


def test_bridges_notation_becomes_that_of_probes(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        """
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.qwen.Qwen3ModelProvider
  _builder_: megatron.training.models.gpt.GPTModelBuilder
  seq_length: 4096
  params_dtype: {_target_: torch.bfloat16, _call_: false}
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  attention_backend:
    _target_: megatron.core.transformer.enums.AttnBackend
    _call_: true
    _args_: [5]
    _name_: auto
  init_method: {_target_: torch.nn.init.normal_, _partial_: true, _args_: [], mean: 0.0, std: 0.02}
  generation_config:
    _target_: transformers.generation.GenerationConfig.from_dict
    _call_: true
    config_dict: {temperature: 0.6}
  hooks: []
  opaque: {_target_: some.Thing, _call_: true}
  when: 2026-01-01
  big: .inf
peft: null
env_vars: {NCCL_NVLS_ENABLE: 0}
""",
    )
    assert config == {
        "_type": "megatron.bridge.training.config.ConfigContainer",
        "model": {
            "_type": "megatron.bridge.models.qwen.Qwen3ModelProvider",
            "seq_length": 4096,
            "params_dtype": "torch.bfloat16",
            "activation_func": "torch.nn.functional.silu",
            "attention_backend": "AttnBackend.auto",
            "init_method": {"_partial": "torch.nn.init.normal_", "args": [], "kwargs": {"mean": 0.0, "std": 0.02}},
            "generation_config": {"_type": "transformers.generation.GenerationConfig", "temperature": 0.6},
            "hooks": [],
            "opaque": "some.Thing",
            "when": "2026-01-01",
            "big": "inf",
        },
        "peft": None,
        "env_vars": {"NCCL_NVLS_ENABLE": 0},
    }


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch {marker}']",
        "a: !!python/object/new:subprocess.Popen [['touch', '{marker}']]",
        "a: !!python/name:os.system ",
        "_target_: os.system\n_call_: true\n_args_: ['touch {marker}']",
        "a: {{_target_: os.system, _partial_: true, _args_: ['touch {marker}']}}",
    ],
)
def test_nothing_is_executed(tmp_path: Path, text: str) -> None:
    marker = tmp_path / "executed"
    with contextlib.suppress(OombisectError):
        loaded(tmp_path, text.format(marker=marker))
    assert not marker.exists()


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "values"),
        ("a: &a [*a]\n", "nested"),
        ("a: " + "[" * 200 + "]" * 200, "nested"),
        ("a: !!binary aGk=\n", "bytes"),
        ("- 1\n- 2\n", "no mapping"),
        ("", "no mapping"),
        ("a: [1\n", "no config"),
        ("a: !unknown 3\n", "no config"),
        ("a: 1\nb: {x: 1, y: 2, x: 3}\n", "'x' stands twice in the mapping at line 2"),
        ("1: a\n'1': b\n", "'1' stands twice"),
        ("a: 0x" + "f" * 5000, "64 bits"),
        ('env_vars: {A: "x\\0y"}\n', "NUL"),
    ],
)
def test_what_is_no_config_is_an_error_that_says_why(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(OombisectError, match=why) as caught:
        loaded(tmp_path, text)
    assert "to_yaml" in caught.value.way_out


def test_anchors_and_merge_keys_are_plain_values(tmp_path: Path) -> None:
    assert loaded(tmp_path, "b: &b {x: 1}\nc: *b\na:\n  <<: *b\n  x: 2\n") == {
        "b": {"x": 1}, "c": {"x": 1}, "a": {"x": 2},
    }  # fmt: skip


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OombisectError, match="No such file"):
        load_config(tmp_path / "none.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    for path, kind in ((tmp_path / "pipe.yaml", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a directory")):
        with pytest.raises(OombisectError, match=kind):
            load_config(path)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(OombisectError, match="no config"):
        load_config(tmp_path / "latin.yaml")
    monkeypatch.setattr(config_load, "MAX_FILE", 3)
    with pytest.raises(OombisectError, match="larger"):
        loaded(tmp_path, "a: 1234\n")
