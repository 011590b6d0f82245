from __future__ import annotations

import json

import pytest

from oombisect.imports.content import Unreadable
from oombisect.imports.goldens import Change, Series, name_of, parse_golden, series_of


def told(document: object) -> dict[str, dict[int, int]]:
    return parse_golden(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("value", "sizes"),
    [
        ({"start_step": 0, "end_step": 100, "step_interval": 5, "values": [1, 2.0, 3]}, {0: 1, 5: 2, 10: 3}),
        ({"start_step": 1, "end_step": 2, "step_interval": 1, "values": {"1": 7, "2": 8.0}}, {1: 7, 2: 8}),
        ({"values": {"1": "nan", "2": None, "3": 9}}, {3: 9}),
        ({"1": 4, "2": 5}, {1: 4, 2: 5}),
        ([4, 5], {0: 4, 1: 5}),
        (1234, {0: 1234}),
        ({"values": {"1": "nan"}}, None),
        ("nan", None),
    ],
    ids=str,
)
def test_every_shape_there_was(value: object, sizes: dict[int, int] | None) -> None:
    assert told({"lm loss": {"values": ["x"]}, "mem-max-allocated-bytes": value}) == (
        {} if sizes is None else {"peak_allocated": sizes}
    )


def test_all_memory_is_read_and_nothing_else() -> None:
    found = told(
        {"mem-allocated-bytes": 1, "mem-reserved-bytes": 2, "mem-max-reserved-bytes": 3, "mem-foo-bytes": 4}
        | {"mem-allocated-count": 5, "iteration-time": 6}
    )
    assert found == {"allocated": {0: 1}, "reserved": {0: 2}, "peak_reserved": {0: 3}, "foo": {0: 4}}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"<<<<<<< HEAD", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"mem-allocated-bytes": {"values": {"x": 1}}}', "shape"),
        (b'{"mem-allocated-bytes": {"start_step": "0", "values": [1]}}', "shape"),
        (b'{"mem-allocated-bytes": {"values": {"1": "many"}}}', "'many' at step 1"),
        (b'{"mem-allocated-bytes": {"values": {"1": -5}}}', "-5"),
        (b'{"mem-allocated-bytes": {"values": {"1": 1e30}}}', "1e"),
        (b'{"mem-allocated-bytes": {"values": {"1": Infinity}}}', "inf"),
        (b" " * (17 << 20), "no golden has"),
    ],
    ids=lambda value: str(value[:30]),
)
def test_what_is_no_golden_is_named(data: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        parse_golden(data)


@pytest.mark.parametrize(
    ("path", "hardware", "environment"),
    [
        ("gpt/a/golden_values_dev_dgx_h100.json", "dgx_h100", "dev"),
        ("gpt/a/golden_values_lts_dgx_a100_2nd.json", "dgx_a100", "lts"),
        ("gpt/a/golden_values_lts_dgxa100_dracooci-ord.json", "dgxa100_dracooci-ord", "lts"),
        ("gpt/a/golden_values_0.13.0_PyT25.05_dgx_a100_dev.json", "dgx_a100", "dev"),
        ("gpt/a_dgx_a100_1N8G/golden_values_lts.json", "dgx_a100", "lts"),
        ("gpt/a_dgx_a100_1N8G/golden_values_dev_dgx_h100.json", "dgx_h100", "dev"),
        ("gpt/a/golden_values.json", "unknown", None),
    ],
)
def test_names_tell_hardware_and_environment(path: str, hardware: str, environment: str | None) -> None:
    name = name_of(Series([f"tests/functional_tests/test_cases/{path}"]))
    file = path.rpartition("/")[2]
    assert (name.test, name.hardware) == (path.rpartition("/")[0], hardware)
    assert name.settings == {"environment": environment, "golden": file}


def test_a_path_that_is_used_again_does_not_take_over_a_series_that_moved() -> None:
    changes = [
        Change("1", "a", "x"), Change("2", "b", "x", moved_from="a"), Change("3", "a", "y"), Change("4", "b", "z"),
    ]  # fmt: skip
    first, second = series_of(changes)
    assert [(golden.commit, golden.path) for golden in first.goldens] == [("1", "a"), ("4", "b")]
    assert [(golden.commit, golden.path) for golden in second.goldens] == [("3", "a")]
