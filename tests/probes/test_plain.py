"""A configuration as JSON: equal configurations give equal text, wherever and whenever they are described."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe_support.plain import canonical, config_hash, plain


class Backend(Enum):
    FUSED = 1


@dataclass
class Inner:
    size: int = 1
    act: Any = len


@dataclass
class Outer:
    inner: Inner = field(default_factory=Inner)
    backend: Backend = Backend.FUSED
    names: set[str] = field(default_factory=lambda: {"b", "a", "c"})
    extra: Any = None


class Opaque:
    pass


def test_dataclasses_enums_callables_and_sets() -> None:
    described = plain(Outer())
    assert described["inner"] == {"_type": f"{__name__}.Inner", "size": 1, "act": "builtins.len"}
    assert described["backend"] == "Backend.FUSED"
    assert described["names"] == ["a", "b", "c"]


def test_no_address_is_left_in_it() -> None:
    bound = functools.partial(max, 1, key=len)
    text = canonical(plain(Outer(extra=[Opaque(), lambda: 1, bound, Opaque, object()])))
    assert "0x" not in text
    assert "builtins.max" in text and f"{__name__}.Opaque" in text


def test_two_equal_configurations_have_one_hash() -> None:
    assert config_hash(plain(Outer())) == config_hash(plain(Outer()))
    assert config_hash(plain(Outer())) != config_hash(plain(Outer(inner=Inner(size=2))))


def test_torch_types_are_named() -> None:
    torch = pytest.importorskip("torch")
    assert plain({"dtype": torch.bfloat16, "device": torch.device("cpu")}) == {
        "dtype": "torch.bfloat16",
        "device": "cpu",
    }


def test_paths_and_odd_floats_are_json() -> None:
    described = plain({"path": Path("/a/b"), "inf": float("inf"), 1: "key"})
    assert json.loads(json.dumps(described, allow_nan=False)) == {"path": "/a/b", "inf": "inf", "1": "key"}


def test_a_configuration_that_contains_itself_ends() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    assert json.dumps(plain(loop))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_plain_json_describes_itself(value: Any) -> None:
    assert plain(value) == value


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    assert config_hash(value) == config_hash(dict(reversed(list(value.items()))))
