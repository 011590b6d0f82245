"""Stacks of two runs are matched although folders and lines differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oombisect.memory.line_map import CodeDiff, parse_diff
from oombisect.memory.stacks import (
    GENERATED,
    MACHINE_CODE,
    PACKAGE,
    PROBE,
    PYTHON,
    UNKNOWN,
    Place,
    Places,
    Site,
    backward_node,
    keys,
    pair_unknown,
    place_text,
    sites,
)
from oombisect.memory.trace import Frame

SLOT = "/cache/slots/bridge-1/slot-0"
MLM = f"{SLOT}/3rdparty/Megatron-LM"
IMPORTED = (
    "bridge:src/megatron/bridge/__init__.py",
    "bridge:src/megatron/bridge/training/train.py",
    "megatron-lm:megatron/core/utils.py",
    "megatron-lm:megatron/core/__init__.py",
)


@pytest.mark.parametrize(
    ("file", "place"),
    [
        (f"{SLOT}/src/megatron/bridge/training/train.py", Place("bridge", "src/megatron/bridge/training/train.py")),
        (f"{SLOT}/src/megatron/bridge/never_seen.py", Place("bridge", "src/megatron/bridge/never_seen.py")),
        (f"{MLM}/megatron/core/utils.py", Place("megatron-lm", "megatron/core/utils.py")),
        (f"{MLM}/megatron/training/x.py", Place("megatron-lm", "megatron/training/x.py")),
        ("/v/lib/python3.12/site-packages/torch/_ops.py", Place(PACKAGE, "torch/_ops.py")),
        ("/usr/lib/python3/dist-packages/te/x.py", Place(PACKAGE, "te/x.py")),
        ("/usr/lib/python3.12/contextlib.py", Place(PYTHON, "contextlib.py")),
        ("<frozen runpy>", Place(PYTHON, "<frozen runpy>")),
        ("/a/probes/bridge_train.py", Place(PROBE, "bridge_train.py")),
        (
            "/v/lib/python3.12/site-packages/oombisect/_shipped/probes/probe_support/data.py",
            Place(PROBE, "probe_support/data.py"),
        ),
        ("/a/probes/command_hook/sitecustomize.py", Place(PROBE, "command_hook/sitecustomize.py")),
        ("/c/inductor/sz/cszd35j7pwo7j7kl42x452pzzes25vw27v2djy2uxgi4omuxo4xf.py", Place(GENERATED, "torch.compile")),
        ("<eval_with_key>.12", Place(GENERATED, "<eval_with_key>")),
        ("/home/me/train.py", Place(UNKNOWN, "/home/me/train.py")),
    ],
)
def test_where_a_file_is(file: str, place: Place) -> None:
    seen = [f"{SLOT}/src/megatron/bridge/training/train.py", f"{MLM}/megatron/core/utils.py"]
    assert Places(seen, IMPORTED).of(file) == place


def test_known_roots_need_no_imports_and_the_longest_wins() -> None:
    places = Places([], roots={"bridge": SLOT, "megatron-lm": MLM})
    assert places.of(f"{MLM}/a.py") == Place("megatron-lm", "a.py")
    assert places.of(f"{SLOT}/a.py") == Place("bridge", "a.py")
    assert places.of(f"{SLOT}-2/a.py").repo == UNKNOWN


def test_frames_that_pass_a_call_on_count_only_as_the_innermost() -> None:
    module = "/v/lib/python3.12/site-packages/torch/nn/modules/module.py"
    stack = (Frame(module, 1, "_call_impl"), Frame(module, 2, "_call_impl"), Frame("/p/a.py", 3, "f"))
    assert [site.function for site in sites(stack, Places([]))] == ["_call_impl", "f"]


STACKS: dict[str, list[list[Any]]] = json.loads(Path(__file__).with_name("default_stacks.json").read_text())
"""As PyTorch records them by default, C++ frames and all (tests/e2e/record_defaults.py)."""


def shown(name: str) -> list[str]:
    stack = tuple(Frame(file, line, function) for file, line, function in STACKS[name])
    return [f"{site.function} {place_text(site)}" for site in sites(stack, Places(frame.file for frame in stack))]


def test_of_a_stack_with_cpp_frames_the_python_ones_count() -> None:
    first, *rest = shown("forward")
    assert first.startswith("forward torch/nn/modules/linear.py:")
    assert [text.partition(" ")[0] for text in rest] == ["forward", "train", "<module>"]
    assert all("/home/user/record_defaults.py:" in text for text in rest)


def test_of_a_backward_pass_the_operators_count() -> None:
    assert shown("backward") == [
        "at::_ops::mm::call C++",
        "torch::autograd::generated::details::mm_mat1_backward C++",
        "torch::autograd::generated::AddmmBackward0_apply_functional C++",
        "torch::autograd::generated::AddmmBackward0::apply C++",
    ]
    assert shown("relu")[0] == "at::_ops::threshold_backward::call C++"


def test_a_stack_of_nothing_but_plumbing_is_kept() -> None:
    stack = (Frame("??", 0, "torch::unwind::unwind()"), Frame("libc10.so", 0, "c10::Free<int(*)(long)>(c10::Block*)"))
    assert [site.function for site in sites(stack, Places([]))] == ["torch::unwind::unwind", "c10::Free"]


def test_the_node_of_a_backward_pass() -> None:
    stack = tuple(Frame(file, line, function) for file, line, function in STACKS["backward"])
    assert backward_node(sites(stack, Places([]))) == "AddmmBackward0"
    assert backward_node((Site(MACHINE_CODE, "at::_ops::mm::call", 0),)) is None


def test_files_of_unknown_projects_are_paired_by_how_they_end() -> None:
    def unknown(*paths: str) -> list[Place]:
        return [Place(UNKNOWN, path) for path in paths]

    ours = unknown("/a/one/model/layer.py", "/a/one/train.py", "/a/one/data/load.py")
    theirs = unknown("/b/two/model/layer.py", "/b/two/train.py", "/b/two/x/load.py", "/b/two/y/load.py")
    assert pair_unknown(ours, theirs) == dict(zip(ours[:2], theirs[:2]))  # which load.py it is, nothing tells


A = Place("bridge", "a.py")


def diff_of(old: str, new: str, *, to: str = "a.py") -> CodeDiff:
    """The diff of two texts given as one letter a line."""
    import difflib

    body = "\n".join(difflib.unified_diff(list(old), list(new), "a/a.py", f"b/{to}", lineterm=""))
    rename = f"rename from a.py\nrename to {to}\n" if to != "a.py" else ""
    return CodeDiff(parse_diff(f"diff --git a/a.py b/{to}\n{rename}{body}\n"))


def at(*lines: int, place: Place = A, function: str = "f") -> list[tuple[Site, ...]]:
    return [(Site(place, function, line),) for line in lines]


def test_lines_are_carried_over_by_the_diff() -> None:
    ours, theirs = keys(at(1, 3), at(1, 5), {"bridge": diff_of("abc", "axxbc")})
    assert ours == theirs


def test_without_a_change_a_file_keeps_its_lines() -> None:
    ours, theirs = keys(at(1, 3), at(1, 4), {"bridge": CodeDiff()})
    assert [one == other for one, other in zip(ours, theirs)] == [True, False]


def test_a_changed_line_is_the_nearest_observed_one_of_its_edit() -> None:
    diff = {"bridge": diff_of("abcdef", "abXYZef")}
    ours, theirs = keys(at(3, 4), at(3, 5), diff)
    assert ours == theirs
    ours, theirs = keys(at(3), at(6), diff)  # outside of the edit nothing stands for it
    assert ours != theirs and ours[0][0].line == -3


def test_a_changed_line_stays_in_its_function() -> None:
    diff = {"bridge": diff_of("abcd", "aXYd")}

    def around(place: Place, function: str, line: int) -> tuple[str, int]:
        return ("One.f", 1) if line < 3 else ("Two.f", 3)

    ours, theirs = keys(at(2), at(3), diff, around, around)
    assert ours != theirs
    ours, theirs = keys(at(2, 3), at(2, 3), diff, around, around)
    assert ours == theirs


def test_a_renamed_file_is_the_same_and_a_deleted_one_is_not() -> None:
    there = Place("bridge", "b.py")
    ours, theirs = keys(at(2), at(3, place=there), {"bridge": diff_of("ab", "xab", to="b.py")})
    assert ours == theirs
    gone = CodeDiff(parse_diff("diff --git a/a.py b/a.py\n--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"))
    ours, theirs = keys(at(1), at(1), {"bridge": gone})
    assert ours != theirs


def test_a_function_that_was_renamed_is_another() -> None:
    ours, theirs = keys(at(1), at(1, function="g"), {"bridge": CodeDiff()})
    assert ours != theirs


def test_without_a_diff_lines_are_matched_by_their_order() -> None:
    ours, theirs = keys(at(10, 20), at(13, 22), {})
    assert ours == theirs
    ours, theirs = keys(at(10, 20), at(10, 15, 20), {})  # those both have are the same
    assert ours == [theirs[0], theirs[2]]


def test_functions_are_matched_each_by_itself() -> None:
    mine = [*at(10), *at(50, function="g")]
    other = [*at(12), *at(49, function="g")]
    ours, theirs = keys(mine, other, {})
    assert ours == theirs


def test_recursion_keeps_its_depth() -> None:
    site = Site(A, "f", 4)
    ours, theirs = keys([(site, site), (site,)], [(site,)], {"bridge": CodeDiff()})
    assert ours[1] == theirs[0] != ours[0]
