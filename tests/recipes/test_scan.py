"""Recipe tables from source text."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from oombisect.errors import OombisectError
from oombisect.recipes.scan import RecipeFunction, RecipeScanner, RecipeTable, scan_sources
from oombisect.recipes.untrusted import FILE_LIMIT
from oombisect.repo.bridge import open_repository
from tests.recipes.make_signatures import load
from tests.repo.history import RECIPE
from tests.repo.project import Project

ROOT = "src/megatron/bridge/recipes"
MODULE = "megatron.bridge.recipes.qwen.qwen3"


def scan(**files: str) -> RecipeTable:
    """A table of files named by keyword: `qwen__qwen3="..."` is recipes/qwen/qwen3.py."""
    return scan_sources({f"{ROOT}/{name.replace('__', '/')}.py": text.encode() for name, text in files.items()})


def only(table: RecipeTable) -> RecipeFunction:
    (found,) = table.functions.values()
    return found


def test_signature() -> None:
    found = only(
        scan(
            qwen__qwen3='''
def qwen3_8b_sft_config(
    first, /, size: int = 3, *, name: str = "x", scale=1.5, flag=False, layout=None, made=list()
) -> ConfigContainer:
    """Never run: """ + undefined
'''
        )
    )
    assert found.key == f"{MODULE}:qwen3_8b_sft_config" and found.is_library
    assert found.params == ("first", "size", "name", "scale", "flag", "layout", "made")
    assert found.required == ("first",)
    assert found.defaults == {"size": 3, "name": "x", "scale": 1.5, "flag": False, "layout": None}
    assert not found.var_keywords and not found.accepts("other") and found.accepts("scale")


COMMON = """
from typing import TypedDict
class Base(TypedDict, total=False):
    hf_path: str
class CommonKwargs(Base, total=False):
    seq_length: int
"""


def test_typed_keywords_of_bases_and_other_modules() -> None:
    table = scan(
        qwen__common=COMMON,
        qwen__qwen3="""
from megatron.bridge.recipes.qwen.common import CommonKwargs as Common
class FinetuneKwargs(Common, total=False):
    peft: str | None
def qwen3_8b_finetune_config(**user_kwargs: Unpack[FinetuneKwargs]) -> ConfigContainer: ...
def qwen3_8b_pretrain_config(**user_kwargs: typing_extensions.Unpack[Common]) -> ConfigContainer: ...
def qwen3_4b_pretrain_config(**user_kwargs) -> ConfigContainer: ...
def qwen3_14b_pretrain_config(**user_kwargs: Unpack[FromElsewhere]) -> ConfigContainer: ...
""",
    )
    by_name = {f.function: f for f in table.functions.values()}
    assert by_name["qwen3_8b_finetune_config"].keywords == {"hf_path", "seq_length", "peft"}
    assert by_name["qwen3_8b_finetune_config"].accepts("peft")
    assert by_name["qwen3_8b_pretrain_config"].keywords == {"hf_path", "seq_length"}
    assert not by_name["qwen3_8b_pretrain_config"].accepts("peft")
    for untyped in ("qwen3_4b_pretrain_config", "qwen3_14b_pretrain_config"):
        assert by_name[untyped].keywords is None and by_name[untyped].accepts("anything")


def test_what_is_no_recipe() -> None:
    table = scan(
        qwen__qwen3="""
def _qwen3_common() -> ConfigContainer: ...
def helper(x: int) -> int: ...
def prepare(config: ConfigContainer) -> ConfigContainer: ...
class Recipe:
    def qwen3_8b_pretrain_config(self) -> ConfigContainer: ...
if TYPE_CHECKING:
    def qwen3_4b_pretrain_config() -> ConfigContainer: ...
async def qwen3_1b_pretrain_config() -> ConfigContainer: ...
""",
        utils__finetune="def default_peft_config(scheme) -> ConfigContainer: ...",
        common="def base_pretrain_config() -> ConfigContainer: ...",
    )
    assert table == RecipeTable({}, {})


def test_the_oldest_layout_is_known_by_its_module() -> None:
    table = scan(llama__llama3_8b="def pretrain_config(dir: str | None = None) -> ConfigContainer: ...")
    assert only(table).name == "llama3_8b_pretrain_config" and only(table).function == "pretrain_config"
    assert table.named("llama3_8b_pretrain_config") == (only(table),)


def test_aliases_lead_to_definitions() -> None:
    definition = "def qwen3_8b_peft_1gpu_h100_bf16_config(peft_scheme='lora') -> ConfigContainer: ..."
    table = scan(
        qwen__h100__qwen3=definition,
        qwen__h100____init__="from .qwen3 import *\nfrom .qwen3 import qwen3_8b_peft_1gpu_h100_bf16_config",
        qwen__qwen3="""
from megatron.bridge.recipes.qwen.h100.qwen3 import qwen3_8b_peft_1gpu_h100_bf16_config as qwen3_8b_peft_config
from megatron.bridge.recipes.qwen.h100.qwen3 import qwen3_8b_peft_1gpu_h100_bf16_config as private_use
from megatron.bridge.training.config import ConfigContainer
qwen_peft_config = qwen3_8b_peft_config
__all__ = ["qwen3_8b_peft_config", "qwen_peft_config"]
""",
        qwen____init__="from .qwen3 import qwen3_8b_peft_config\nfrom . import qwen3 as nothing",
    )
    found = only(table)
    assert found.module == "megatron.bridge.recipes.qwen.h100.qwen3"
    assert set(table.names) == {"qwen3_8b_peft_1gpu_h100_bf16_config", "qwen3_8b_peft_config", "qwen_peft_config"}
    assert table.named("qwen_peft_config") == (found,)


def test_what_a_benchmark_module_imports_is_no_name_of_it() -> None:
    benchmark = b"""
from megatron.bridge.recipes.a import a_sft_8gpu_config as a_sft_config
def b_sft_config() -> ConfigContainer: ...
c_sft_config = b_sft_config
"""
    library = b"def a_sft_8gpu_config() -> ConfigContainer: ..."
    table = scan_sources({f"{ROOT}/a.py": library, "src/megatron/bridge/perf_recipes/b.py": benchmark})
    assert set(table.names) == {"a_sft_8gpu_config", "b_sft_config", "c_sft_config"}


def test_import_cycles_and_dead_ends() -> None:
    table = scan(
        a="from megatron.bridge.recipes.b import x_config\nfrom nowhere import y_config",
        b="from megatron.bridge.recipes.a import x_config\nz_config = z_config",
    )
    assert table == RecipeTable({}, {})


def test_a_broken_file_takes_nobody_along() -> None:
    table = scan(bad="def broken(:\n", nul="x = '\0'", qwen__qwen3="def q_sft_config() -> ConfigContainer: ...")
    assert list(table.names) == ["q_sft_config"]


GOOD = "def q_sft_config() -> ConfigContainer: ..."
DEEP = "-" * 100_000 + "1"
SUM = "+".join(["a"] * 900)  # parsed without trouble; a walk down its tree is another matter


@pytest.mark.parametrize(
    "text",
    [
        f"x = {DEEP}",
        f"x = {'(' * 5000}",
        f"x = {'9' * 5000}",
        f"def p_sft_config() -> {DEEP}: ...",
        f"__all__ = [{SUM}]",
        "__all__ = [{[]: 1}]",
        f"class K(TypedDict, {DEEP}): ...",
    ],
    ids=["minus signs", "brackets", "digits", "annotation", "all", "unhashable", "base"],
)
def test_a_hostile_file_takes_nobody_along(text: str) -> None:
    assert list(scan(bad=text, qwen__qwen3=GOOD).names) == ["q_sft_config"]


def test_an_annotation_too_deep_to_be_written_out_costs_that_function_alone() -> None:
    deep = f"a{'.b' * 900}"
    with pytest.raises(RecursionError):  # it is parsed without trouble, but not written out
        ast.unparse(ast.parse(deep))
    both = scan(qwen__qwen3=f"def p_sft_config(x: {deep}) -> ConfigContainer: ...\n{GOOD}")
    assert list(both.names) == ["q_sft_config"]


def test_a_file_beyond_the_limit_is_skipped() -> None:
    padding = "#" * (FILE_LIMIT - len(GOOD) - 1)
    assert list(scan(qwen__qwen3=f"{GOOD}\n{padding}").names) == ["q_sft_config"]
    assert not scan(qwen__qwen3=f"{GOOD}\n{padding}#").names


def test_a_default_of_thousands_of_digits_is_not_kept() -> None:
    table = scan(qwen__qwen3=f"def q_sft_config(x=0x{'f' * 5000}, y=7) -> ConfigContainer: ...")
    assert only(table).params == ("x", "y") and only(table).defaults == {"y": 7}
    assert RecipeTable.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_the_warnings_of_somebodys_source_are_not_the_users(recwarn: pytest.WarningsRecorder) -> None:
    assert scan(qwen__qwen3=f'x = "\\d"\n{GOOD}').names
    assert not recwarn.list


def test_json_round_trip() -> None:
    for table in load().values():
        assert RecipeTable.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_of_a_commit(project: Project) -> None:
    repository = project.open()
    scanner = RecipeScanner(repository, project.cache)
    assert list(scanner.table("main").names) == ["qwen3_8b_pretrain_config"]
    project.bridge.commit("more", {RECIPE: "def qwen3_8b_sft_config() -> ConfigContainer: ..."})
    tip = project.bridge.tip()
    assert tip is not None
    assert list(scanner.table(tip).names) == ["qwen3_8b_sft_config"]
    orphan = project.bridge.commit("nothing", {"README": ""}, branch="orphan")
    assert scanner.table(orphan) == RecipeTable({}, {})


def test_a_table_is_kept_on_disk_by_its_trees(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    table = RecipeScanner(project.open(), project.cache).table("main")
    (kept,) = (project.cache / "recipes").iterdir()
    assert kept.stem == project.bridge.git("rev-parse", "main:src/megatron/bridge/recipes")
    fresh = RecipeScanner(project.open(), project.cache)
    monkeypatch.setattr("oombisect.recipes.scan._table", lambda _: pytest.fail("scanned again"))
    assert fresh.table("main") == table
    monkeypatch.undo()
    for damage in ("", "[]", "{}", '{"format": -1}', kept.read_text().replace("params", "what")):
        kept.write_text(damage)
        assert RecipeScanner(project.open(), project.cache).table("main") == table


def test_a_cache_that_cannot_be_written_is_done_without(project: Project) -> None:
    (project.cache).mkdir()
    (project.cache / "recipes").write_text("a file")
    assert list(RecipeScanner(project.open(), project.cache).table("main").names) == ["qwen3_8b_pretrain_config"]


def test_a_partial_clone_without_its_remote_is_told_of(project: Project, tmp_path: Path) -> None:
    from tests.repo.history import git

    project.bridge.git("config", "uploadpack.allowFilter", "true")
    url = f"file://{project.bridge.path}"
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", "--no-checkout", url, str(tmp_path / "partial"))
    whole = open_repository(tmp_path / "partial", tmp_path, project.cache)
    assert list(RecipeScanner(whole).table("origin/main").names) == ["qwen3_8b_pretrain_config"]
    project.bridge.path.rename(tmp_path / "gone")
    cut_off = open_repository(tmp_path / "partial", tmp_path, tmp_path / "other-cache")
    with pytest.raises(OombisectError, match="fetch file contents"):
        RecipeScanner(cut_off).table("origin/main")


@pytest.mark.skipif("OOMBISECT_BRIDGE_REPO" not in os.environ, reason="wants a clone of Megatron Bridge")
def test_the_real_releases_read_as_recorded(tmp_path: Path) -> None:
    clone = Path(os.environ["OOMBISECT_BRIDGE_REPO"])
    scanner = RecipeScanner(open_repository(clone, clone, tmp_path))
    for name, table in load().items():
        if name != "head":
            assert scanner.table(name) == table, name
