"""The difference of two resolved configs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oombisect.recipes.config_diff import ABSENT, Change, diff


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({}, {}, []),
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"model": {"seq": 2048, "x": 1}}, {"model": {"x": 1, "seq": 4096}}, [("model.seq", 2048, 4096)]),
        ({"a": {"b": 1}}, {"a": {}}, [("a", ABSENT, {}), ("a.b", 1, ABSENT)]),
        ({"a": None}, {}, [("a", None, ABSENT)]),
        ({"a": [1, 2]}, {"a": [1, 3, 4]}, [("a[1]", 2, 3), ("a[2]", ABSENT, 4)]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, [("a[0].b", 1, 2)]),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": True}, [("a", 1, True)]),
        ({"a": float("nan")}, {"a": float("nan")}, []),
        ({"a": (1, 2)}, {"a": [1, 2]}, []),
        ({"a": []}, {"a": {}}, [("a", [], {})]),
        ({"a": "x"}, {"a": {"b": "x"}}, [("a", "x", ABSENT), ("a.b", ABSENT, "x")]),
    ],
)
def test_diff(before: dict[str, Any], after: dict[str, Any], changes: list[tuple[str, Any, Any]]) -> None:
    assert diff(before, after) == tuple(Change(*c) for c in changes)


def test_json() -> None:
    (change,) = diff({"a": 1}, {"a": 2})
    assert change.to_json() == {"path": "a", "before": 1, "after": 2} and str(change) == "a: 1 -> 2"
    (gone,) = diff({"a": None}, {})
    assert json.dumps(gone.to_json()) == '{"path": "a", "before": null}' and str(gone) == "a: None -> absent"


leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
nested = st.recursive(leaves, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from("xyz"), x))
configs = st.dictionaries(st.sampled_from("abc"), nested)


@given(configs)
def test_nothing_differs_from_itself(config: dict[str, Any]) -> None:
    assert diff(config, json.loads(json.dumps(config))) == ()


@given(configs, configs)
def test_differences_mirror_and_tell_configs_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    there, back = diff(one, other), diff(other, one)
    assert [(c.path, c.after, c.before) for c in there] == [(c.path, c.before, c.after) for c in back]
    canonical = [json.dumps(c, sort_keys=True) for c in (one, other)]
    assert (there == ()) == (canonical[0] == canonical[1])
