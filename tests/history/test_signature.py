import hashlib
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oombisect.history.signature import canonical_json, finite, json_hash, signature

PARTS = st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.text()), min_size=1)


def test_it_is_the_hash_of_the_canonical_json() -> None:
    canonical = '{"config":"\\u00e9","tree":["a",1]}'
    assert signature({"tree": ["a", 1], "config": "é"}) == hashlib.sha256(canonical.encode()).hexdigest()


@settings(deadline=None)
@given(PARTS)
def test_the_order_of_the_parts_is_of_no_account(parts: dict[str, object]) -> None:
    assert signature(parts) == signature(dict(reversed(parts.items())))


@settings(deadline=None)
@given(PARTS, PARTS)
def test_other_parts_have_another_signature(one: dict[str, object], other: dict[str, object]) -> None:
    assert (signature(one) == signature(other)) == (one == other)


def test_parts_are_not_run_together() -> None:
    assert signature({"a": "b,c"}) != signature({"a": "b", "c": ""})
    assert signature({"a": 1}) != signature({"a": "1"})


def test_of_nothing_there_is_none() -> None:
    with pytest.raises(ValueError):
        signature({})


def test_what_json_lacks() -> None:
    value = {"a": [math.inf, -math.inf], "b": (math.nan, 1.5)}
    with pytest.raises(ValueError):
        json_hash(value)
    assert finite(value) == {"a": ["Infinity", "-Infinity"], "b": ["NaN", 1.5]}
    assert json.loads(canonical_json(finite(value)))["b"] == ["NaN", 1.5]
