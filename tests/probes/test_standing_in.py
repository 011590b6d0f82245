"""Declared routing, shipped model configurations, symbols of the stand-in, the files a run imported."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from probe_support import deep_ep_stand_in, environment, hf_configs, moe, te_functions, te_stand_in  # noqa: E402
from probe_support.command import megatron_lm  # noqa: E402

MODEL_CONFIGS = Path(__file__).resolve().parents[2] / "probes" / "model_configs"


@given(st.integers(0, 10**7), st.integers(1, 512))
def test_shares_are_equal_and_lose_nothing(total: int, parts: int) -> None:
    shares = moe.share(total, parts)
    assert shares.sum() == total and shares.max() - shares.min() <= 1


def test_tokens_received_lie_between_none_shared_and_all_shared() -> None:
    # 128 experts on 4 ranks, 8 per token: a token misses a given rank with probability C(96,8)/C(128,8) = 0.0917.
    assert deep_ep_stand_in.received(1000, 4, 128, 8) == pytest.approx(4000 * (1 - 0.0917), rel=0.001)
    assert deep_ep_stand_in.received(1000, 1, 128, 8) == 1000
    assert deep_ep_stand_in.received(1000, 128, 128, 1) == 1000


def test_symbols_are_equal_to_themselves_only() -> None:
    mask, bias = te_stand_in._symbols("NVTE_Mask_Type"), te_stand_in._symbols("NVTE_Bias_Type")
    assert mask.NVTE_NO_MASK == mask.NVTE_NO_MASK and mask.NVTE_NO_MASK != mask.NVTE_CAUSAL_MASK
    assert mask.NVTE_NO_MASK != bias.NVTE_NO_BIAS and {mask.NVTE_NO_MASK: 1}[mask.NVTE_NO_MASK] == 1
    forward = te_stand_in._symbols("FP8FwdTensors")
    assert [int(forward.GEMM1_INPUT), int(forward.GEMM1_WEIGHT), int(forward.GEMM2_INPUT)] == [0, 1, 3]
    with pytest.raises(te_stand_in.MissingStandIn, match="CommOverlap"):
        te_stand_in._symbols("CommOverlap")(1)


def test_symbols_are_what_an_enumeration_of_numbers_is() -> None:
    """TE's router looks a member up among the values of its enumeration, and asks whether it is one of it."""
    form, mask = te_stand_in._symbols("NVTERoutingMapFormat"), te_stand_in._symbols("NVTE_Mask_Type")
    assert form.BITMAP_U8 in frozenset({0, 1}) and int(form.BITMAP_U8) == 1 and int(form.BYTEMAP) == 0
    assert isinstance(form.BYTEMAP, form) and not isinstance(mask.NVTE_NO_MASK, form) and not isinstance(0, form)


@pytest.mark.parametrize(("form", "map_shape"), [(0, (6, 20)), (1, (6, 3))])
def test_routing_in_one_kernel_allocates_what_it_keeps(
    monkeypatch: pytest.MonkeyPatch, form: int, map_shape: tuple[int, int]
) -> None:
    monkeypatch.setattr(te_functions, "_empty", lambda shape, dtype: torch.empty(tuple(shape), dtype=dtype))
    router = te_functions._router()
    logits = torch.empty((6, 20), dtype=torch.bfloat16)
    topk, backward = (router[f"fused_topk_with_score_function_{way}"] for way in ("fwd", "bwd"))
    probs, routing, kept = topk(logits, 2, False, None, None, None, "softmax", None, form, None)
    assert (probs.dtype, routing.shape, kept.dtype) == (torch.bfloat16, map_shape, torch.float32)
    assert backward(routing, kept, probs, logits, 2, False, None, "softmax", False, form) is None
    assert backward(6, 20, routing, kept, probs, 2, False, None, "softmax").shape == (6, 20)  # before TE 2.11 or so
    scores, routing, kept = router["fused_score_for_moe_aux_loss_fwd"](
        logits=logits, topk=2, score_function="softmax", routing_map_format=form
    )
    assert (scores.dtype, routing.shape, kept.shape) == (torch.float32, map_shape, (6, 20))
    indices = torch.empty((6, 2), dtype=torch.int64)
    assert topk(logits, 2, False, None, None, None, "softmax", None, form, indices)[1] is indices


def test_a_function_without_a_stand_in_refuses_by_name() -> None:
    module = te_stand_in._StandIn("transformer_engine_torch")
    with pytest.raises(te_stand_in.MissingStandIn, match=r"transformer_engine_torch\.newton_schulz"):
        module.newton_schulz(1)


@pytest.mark.parametrize(
    ("layout", "shapes"), [("NVTE_SBHD_SBHD_SBHD", (2, 4, 64, 1)), ("NVTE_THD_THD_THD", (128, 4, 1))]
)
@pytest.mark.parametrize(("switches", "statistics"), [((), 1), ((False, True), 1), ((True, False), 2)])
def test_attention_that_tells_its_largest_logits_keeps_one_more_tensor(
    monkeypatch: pytest.MonkeyPatch, layout: str, shapes: tuple[int, ...], switches: tuple[bool, ...], statistics: int
) -> None:
    """`switches`: return_max_logit and cuda_graph, which TE 2.9 and later pass after the numbers of the generator."""
    monkeypatch.setattr(te_functions, "_empty", lambda shape, dtype: torch.empty(tuple(shape), dtype=dtype))
    forward = te_functions._attention()["fused_attn_fwd"]
    q = torch.empty((128, 4, 8) if "THD" in layout else (64, 2, 4, 8), dtype=torch.bfloat16)
    cu_seqlens = torch.arange(3, dtype=torch.int32) * 64
    kind = getattr(te_stand_in._symbols("NVTE_QKV_Layout"), layout)
    out, *kept, rng_state = forward(64, 64, True, 1.0, kind, cu_seqlens, cu_seqlens, q, q, q, None, 16, *switches)
    assert out.shape == q.shape and rng_state.dtype is torch.int64
    assert [tuple(one.shape) for one in kept] == [shapes] * statistics


def test_ranks_that_are_not_there_agree_with_this_one() -> None:
    """Megatron-LM's test mode asserts that weights are those of other ranks; what is compared is still made."""
    compared = list[bool]()

    class SelfAttention:
        def run_realtime_tests(self) -> None:
            same = torch.zeros(2) == torch.ones(2)
            compared.append(bool(same.any()))
            assert torch.all(same), "Discrepancy between q_w in DP ranks 0 and 1"

    module: Any = types.SimpleNamespace(SelfAttention=SelfAttention)
    megatron_lm._replicas_agree(module)
    module.SelfAttention().run_realtime_tests()
    assert compared == [False]
    assert not torch.all(torch.zeros(2) == torch.ones(2))
    older: Any = types.SimpleNamespace(SelfAttention=type("SelfAttention", (), {}))
    megatron_lm._replicas_agree(older)
    assert not hasattr(older.SelfAttention, "run_realtime_tests")


@pytest.mark.parametrize("path", sorted(MODEL_CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_configurations_hold_what_shapes_a_model(path: Path) -> None:
    config = json.loads(path.read_text())
    assert "--" in path.stem
    assert config["hidden_size"] % config["num_attention_heads"] == 0 or "head_dim" in config
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert min(config[name] for name in ("num_hidden_layers", "intermediate_size", "vocab_size")) > 0
    assert config["tie_word_embeddings"] in (True, False) and config["architectures"][0].endswith("ForCausalLM")


def test_a_shipped_configuration_is_served_under_any_revision(tmp_path: Path) -> None:
    notes: list[str] = []
    served = hf_configs.ModelConfigs(str(MODEL_CONFIGS), tmp_path, notes)
    revision = "ab" * 20
    for asked, folder in ((revision, revision), ("main", "0" * 40), (revision, revision)):
        path = served._place("Qwen/Qwen3-8B", asked)
        assert path is not None and Path(path).parent.name == folder
        assert json.loads(Path(path).read_text())["num_hidden_layers"] == 36
    assert len(notes) == 2 and "shipped" in notes[0]
    assert served._place("Qwen/Nobody", "main") is None


def test_an_unknown_model_without_a_network_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: Any, **kwargs: Any) -> Any:
        raise OSError("no network")

    served = hf_configs.ModelConfigs(str(MODEL_CONFIGS), tmp_path, [])
    monkeypatch.setattr(served, "_in_own_cache", lambda repo, revision: False)
    monkeypatch.setattr(hf_configs, "_hub_answers", lambda: False)
    wrapped = served._in_front_of(offline)
    with pytest.raises(hf_configs.Unresolved, match=r"hf download a/b config\.json"):
        wrapped("a/b", "config.json", revision="main")
    monkeypatch.setattr(hf_configs, "_hub_answers", lambda: True)
    with pytest.raises(hf_configs.Unresolved, match=r"hf download c/d config\.json"):
        wrapped("c/d", "config.json")
    with pytest.raises(OSError, match="no network"):
        wrapped("a/b", "model.safetensors")


def test_a_copy_in_the_users_cache_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = hf_configs.ModelConfigs(str(MODEL_CONFIGS), tmp_path, [])
    monkeypatch.setattr(served, "_in_own_cache", lambda repo, revision: True)
    assert served._in_front_of(lambda *args, **kwargs: "own")("Qwen/Qwen3-8B", "config.json") == "own"


def test_imported_files_are_named_by_their_deepest_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "bridge" / "3rdparty" / "Megatron-LM"
    for number, file in enumerate(
        (tmp_path / "bridge" / "src" / "a.py", inner / "megatron" / "b.py", tmp_path / "c.py")
    ):
        module = types.ModuleType(f"imported_{number}")
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found = environment.imported({"bridge": str(tmp_path / "bridge"), "megatron-lm": str(inner)})
    assert found == ["bridge:src/a.py", "megatron-lm:megatron/b.py"]


def test_a_recipes_variables_never_replace_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_TEST_SET", "mine")
    monkeypatch.delenv("PROBE_TEST_NEW", raising=False)
    assert environment.apply_variables({"PROBE_TEST_SET": 1, "PROBE_TEST_NEW": 2}) == {"PROBE_TEST_NEW": "2"}
    monkeypatch.delenv("PROBE_TEST_NEW")


def test_only_variables_read_at_import_need_a_new_start() -> None:
    late = ("NCCL_NVLS_ENABLE", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_NCCL_HIGH_PRIORITY")
    assert not environment.read_at_import(late)
    assert environment.read_at_import((*late, "NVTE_FUSED_ATTN"))


def test_a_fork_in_which_torch_refuses_the_gpu_starts_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.9 does where an import of the worker counted devices."""
    import bridge_train

    class Afresh(Exception):
        pass

    def start_afresh() -> None:
        raise Afresh

    path = tmp_path / "job.json"
    path.write_text(json.dumps({"simulated": True, "process_group": "fake"}))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(bridge_train, "_exec", start_afresh)
    monkeypatch.setattr(bridge_train, "run", lambda _: 0)
    assert bridge_train.run_forked(str(path)) == 0
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(Afresh):
        bridge_train.run_forked(str(path))
