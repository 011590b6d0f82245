"""Which function plays the part a name asks for: on signatures of real releases, and on made-up ones for the rules."""

from __future__ import annotations

import pytest

from oombisect.errors import ExitCode, OombisectError
from oombisect.recipes.resolve import Request, UnknownRecipe, parse_request, resolve
from oombisect.recipes.scan import RecipeTable, scan_sources
from oombisect.recipes.untrusted import REQUEST_LIMIT
from tests.recipes.make_signatures import load

TABLES = load()
R = "megatron.bridge.recipes"


def call(text: str, release: str) -> str:
    return str(resolve(text, TABLES[release])).removeprefix(f"{R}.")


OLD, MIDDLE, NEW = ("v0.2.0", "v0.3.0"), ("v0.3.1", "v0.4.0", "v0.5.0"), ("v0.6.0", "head")


@pytest.mark.parametrize(
    ("name", "releases", "expected"),
    [
        # The drift of one workload through all releases.
        ("qwen3_8b_lora", OLD, "qwen.qwen3:qwen3_8b_finetune_config(peft='lora')"),
        ("qwen3_8b_lora", MIDDLE, "qwen.qwen3:qwen3_8b_peft_config(peft_scheme='lora')"),
        ("qwen3_8b_lora", NEW, "qwen.h100.qwen3:qwen3_8b_peft_1gpu_h100_bf16_config(peft_scheme='lora')"),
        ("qwen3_8b_dora", OLD, "qwen.qwen3:qwen3_8b_finetune_config(peft='dora')"),
        ("qwen3_8b_dora", MIDDLE, "qwen.qwen3:qwen3_8b_peft_config(peft_scheme='dora')"),
        ("qwen3_8b_dora", NEW, "qwen.h100.qwen3:qwen3_8b_peft_1gpu_h100_bf16_config(peft_scheme='dora')"),
        ("qwen3_8b_sft", OLD, "qwen.qwen3:qwen3_8b_finetune_config(peft=None)"),
        ("qwen3_8b_sft", MIDDLE, "qwen.qwen3:qwen3_8b_sft_config()"),
        ("qwen3_8b_sft", NEW, "qwen.h100.qwen3:qwen3_8b_sft_4gpu_h100_bf16_config()"),
        ("qwen3_8b_pretrain", OLD + MIDDLE, "qwen.qwen3:qwen3_8b_pretrain_config()"),
        # Bridge keeps the old name as an alias, of its choice among the 4 and 16 GPU variants.
        ("qwen3_8b_pretrain", NEW, "qwen.h100.qwen3:qwen3_8b_pretrain_16gpu_h100_bf16_config()"),
        ("qwen3_8b_pretrain_config", NEW, "qwen.h100.qwen3:qwen3_8b_pretrain_16gpu_h100_bf16_config()"),
        # The oldest layout: a module per model.
        ("llama3_8b_pretrain", ("v0.1.0a0",), "llama.llama3_8b:pretrain_config()"),
        ("llama3_8b_16k_pretrain", ("v0.1.0a0",), "llama.llama3_8b_16k:pretrain_config()"),
        # A variant's word stands before the mode in some releases, after it in others.
        ("llama3_8b_16k_pretrain", OLD + MIDDLE, "llama.llama3:llama3_8b_16k_pretrain_config()"),
        ("llama3_8b_16k_pretrain", NEW, "llama.h100.llama3:llama3_8b_pretrain_16gpu_h100_bf16_16k_config()"),
        ("llama3_8b_pretrain_16k", OLD + MIDDLE, "llama.llama3:llama3_8b_16k_pretrain_config()"),
        ("qwen3_600m_sft_128k", NEW, "qwen.h100.qwen3:qwen3_600m_sft_8gpu_h100_bf16_128k_config()"),
        # One with several hardware variants, none of them an alias: H100 first.
        ("glm52_sft", ("head",), "glm.h100.glm5:glm52_sft_416gpu_h100_bf16_config()"),
        # Asked for by hardware and count.
        ("glm52_sft_gb200", ("head",), "glm.gb200.glm5:glm52_sft_192gpu_gb200_bf16_config()"),
        ("qwen3_8b_pretrain_4gpu", NEW, "qwen.h100.qwen3:qwen3_8b_pretrain_4gpu_h100_bf16_config()"),
        ("gpt_oss_20b_lora", MIDDLE, "gpt_oss.gpt_oss:gpt_oss_20b_peft_config(peft_scheme='lora')"),
        ("gpt_oss_20b_lora", NEW, "gpt_oss.h100.gpt_oss:gpt_oss_20b_peft_1gpu_h100_bf16_config(peft_scheme='lora')"),
        # A benchmark recipe of that very word, and a library recipe: the library goes first.
        ("llama3_70b_lora", NEW, "llama.h100.llama3:llama3_70b_peft_8gpu_h100_bf16_config(peft_scheme='lora')"),
        # Exact names stay what they are.
        ("deepseek_v3_pretrain_config_32nodes", OLD, "deepseek.deepseek_v3:deepseek_v3_pretrain_config_32nodes()"),
        ("qwen3_8b_peft_config", MIDDLE, "qwen.qwen3:qwen3_8b_peft_config()"),
        ("qwen3_8b_finetune", OLD, "qwen.qwen3:qwen3_8b_finetune_config()"),
        # An old name at a new release plays its part there.
        ("qwen3_8b_finetune", MIDDLE, "qwen.qwen3:qwen3_8b_peft_config(peft_scheme='lora')"),
        ('qwen3_8b_finetune_config(peft="dora")', MIDDLE, "qwen.qwen3:qwen3_8b_peft_config(peft_scheme='dora')"),
        ('qwen3_8b_peft_config(peft_scheme="dora")', OLD, "qwen.qwen3:qwen3_8b_finetune_config(peft='dora')"),
        ("qwen3_8b_finetune_config(peft=None)", MIDDLE, "qwen.qwen3:qwen3_8b_sft_config()"),
        ("qwen3_8b_peft_1gpu_h100_bf16_config", NEW, "qwen.h100.qwen3:qwen3_8b_peft_1gpu_h100_bf16_config()"),
        # Arguments that the function takes go along.
        (
            "qwen3_8b_lora(seq_length=4096)",
            OLD,
            "qwen.qwen3:qwen3_8b_finetune_config(seq_length=4096, peft='lora')",
        ),
        # A data set of its own does not make it another workload.
        ("qwen3_vl_8b_pretrain", ("v0.5.0",), "qwen_vl.qwen3_vl:qwen3_vl_8b_pretrain_mock_config()"),
    ],
)
def test_real_releases(name: str, releases: tuple[str, ...], expected: str) -> None:
    assert {release: call(name, release) for release in releases} == dict.fromkeys(releases, expected)


@pytest.mark.parametrize("release", TABLES)
def test_every_name_of_every_release_means_itself(release: str) -> None:
    table = TABLES[release]
    for name in table.names:
        functions = table.named(name)
        if functions[0].required:
            with pytest.raises(UnknownRecipe, match="needs"):
                resolve(name, table)
            continue
        found = resolve(name, table)
        assert (found.module, found.function) == (functions[0].module, functions[0].function)
        qualified = resolve(functions[0].key, table)
        assert (qualified.module, qualified.function) == (functions[0].module, functions[0].function)


def stems(table: RecipeTable) -> set[tuple[str, str]]:
    """(model, mode) of every recipe name that has a mode."""
    found = set()
    for name in table.names:
        for mode, words in {"pretrain": ("pretrain",), "sft": ("sft",), "lora": ("peft", "lora", "finetune")}.items():
            for word in words:
                if f"_{word}_" in name:
                    found.add((name.split(f"_{word}_")[0], mode))
    return found


@pytest.mark.parametrize("release", TABLES)
def test_every_model_and_mode_resolves_or_names_near_ones(release: str) -> None:
    """No model is lost: what has a recipe for a mode resolves, or says which names come near."""
    table = TABLES[release]
    lost = {}
    for model, mode in sorted(stems(table)):
        try:
            found = resolve(f"{model}_{mode}", table)
        except UnknownRecipe as unknown:
            if " needs " not in unknown.cause:  # it is there, and wants an argument
                lost[f"{model}_{mode}"] = unknown.near
        else:
            assert f"{found.module}:{found.function}" in table.functions
    assert all(near for near in lost.values()), lost
    # Not every recipe is the plain one of its model: some exist with a variant's word only.
    assert len(lost) <= len(stems(table)) // 10, lost


def table(*functions: str, module: str = "a/b") -> RecipeTable:
    text = "\n".join(f"def {f} -> ConfigContainer: ..." for f in functions)
    return scan_sources({f"src/megatron/bridge/recipes/{module}.py": text.encode()})


@pytest.mark.parametrize(
    ("chosen", "other"),
    [
        ("m_sft_config", "m_sft_8gpu_h100_bf16_config"),
        ("m_sft_8gpu_h100_bf16_config", "m_sft_16gpu_h100_bf16_config"),
        ("m_sft_16gpu_h100_bf16_config", "m_sft_8gpu_h100_fp8cs_config"),
        ("m_sft_64gpu_h100_fp8cs_config", "m_sft_8gpu_b200_bf16_config"),
        ("m_sft_64gpu_h100_bf16_config", "m_sft_8gpu_h100_bf16_32k_config"),
        ("m_sft_64gpu_h100_bf16_config", "m_finetune_config"),
    ],
)
def test_order_of_preference(chosen: str, other: str) -> None:
    assert resolve("m_sft", table(f"{chosen}()", f"{other}()")).function == chosen
    assert resolve("m_sft", table(f"{other}()", f"{chosen}()")).function == chosen


def test_a_gpu_nobody_knows_yet_is_told_by_its_place() -> None:
    assert resolve("m_sft", table("m_sft_8gpu_xr900_bf16_config()")).function == "m_sft_8gpu_xr900_bf16_config"
    with pytest.raises(UnknownRecipe):
        resolve("m_sft", table("m_sft_8gpu_long_config()"))


def test_a_choice_is_told_of() -> None:
    many = [f"m_sft_{n}gpu_h100_bf16_config()" for n in (8, 16, 32, 64, 128)]
    assert resolve("m_sft", table(*many)).note == (
        "m_sft_8gpu_h100_bf16_config was chosen for m_sft; there are also m_sft_16gpu_h100_bf16_config, "
        "m_sft_32gpu_h100_bf16_config, m_sft_64gpu_h100_bf16_config and 1 more"
    )
    assert resolve("m_sft", table(many[0])).note == ""


def test_a_variant_is_never_taken_for_the_plain_recipe() -> None:
    with pytest.raises(UnknownRecipe) as told:
        resolve("m_sft", table("m_sft_8gpu_h100_bf16_32k_config()", "m_yarn_sft_config()"))
    assert set(told.value.near) == {"m_sft_8gpu_h100_bf16_32k_config", "m_yarn_sft_config"}
    assert "m_yarn_sft_config" in told.value.way_out


def test_a_peft_recipe_without_a_choice_of_scheme() -> None:
    fixed = table("m_peft_config()")
    found = resolve("m_lora", fixed)
    assert (found.function, found.kwargs) == ("m_peft_config", {}) and "no choice" in found.note
    with pytest.raises(UnknownRecipe, match="no choice of PEFT scheme"):
        resolve("m_dora", fixed)


def test_a_finetune_recipe_without_peft_is_sft() -> None:
    plain = table("m_finetune_config()")
    assert resolve("m_sft", plain).kwargs == {}
    with pytest.raises(UnknownRecipe, match="no choice of PEFT scheme"):
        resolve("m_lora", plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m_sft(seq_length=1)", "m_sft_config does not take seq_length"),
        ("m_pretrain", "m_pretrain_config needs recipe"),
        (f"{R}.a.b:m_sft_config(x=1)", "does not take x"),
        (f"{R}.a.b:m_nothing", "no function"),
        ("nothing_like_it", "no recipe 'nothing_like_it'"),
        ("z_lora", "plays the part of 'z_lora'"),
    ],
)
def test_refusals_are_typed_and_say_why(text: str, message: str) -> None:
    with pytest.raises(UnknownRecipe, match=message):
        resolve(text, table("m_sft_config()", "m_pretrain_config(recipe)"))


def test_a_required_argument_can_be_given() -> None:
    found = resolve('m_pretrain(recipe="fp8")', table("m_pretrain_config(recipe)"))
    assert str(found) == f"{R}.a.b:m_pretrain_config(recipe='fp8')"


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("qwen3_8b_lora", Request("qwen3_8b_lora")),
        (" a.b.c:f ", Request("f", "a.b.c")),
        ('f(x=1, y="a", z=None)', Request("f", "", {"x": 1, "y": "a", "z": None})),
        ('f(w=[1, {"k": -2.5}])', Request("f", "", {"w": [1, {"k": -2.5}]})),
        ("m:f()", Request("f", "m")),
        ('f(x="a(b)c")', Request("f", "", {"x": "a(b)c"})),
    ],
)
def test_parse(text: str, request_: Request) -> None:
    assert parse_request(text) == request_


@pytest.mark.parametrize(
    "text",
    [
        *("", "a b", "a-b", "a:b:c", "f(1)", "f(x=y)", "f(**k)", "f(x=__import__('os'))"),
        *("f(x=1", "f(x=1)(y=2)", "f(x=1, x=2)", "f()+1"),
    ],
)
def test_what_is_no_recipe_name(text: str) -> None:
    with pytest.raises(OombisectError) as told:
        parse_request(text)
    assert not isinstance(told.value, UnknownRecipe) and told.value.way_out


@pytest.mark.parametrize(
    "text",
    [
        *(f"toy(x={'-' * 50_000}1)", f"toy(x={'-' * 4000}1)", f"toy(x={'[' * 2000}{']' * 2000})", "t" * 5000),
        *("toy(x={[]: 1})", "toy(x={1})", "toy(x=b'a')", "toy(x=1j)", "toy(x=1e999)", f"toy(x=0x{'f' * 4000})"),
        *("toy(x='\0')(", "toy(x='\0'", "toy(x='\udcff)"),
    ],
    ids=range(13),
)
def test_hostile_text_is_a_usage_error(text: str) -> None:
    with pytest.raises(OombisectError) as told:
        parse_request(text)
    assert told.value.exit_code == ExitCode.USAGE and told.value.way_out
    assert len(told.value.cause) < 200  # the text is not thrown back whole


def test_the_longest_text_that_is_read() -> None:
    assert parse_request("t" * REQUEST_LIMIT).name == "t" * REQUEST_LIMIT
    with pytest.raises(OombisectError, match="4097 characters"):
        parse_request("t" * (REQUEST_LIMIT + 1))
