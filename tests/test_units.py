"""Sizes as people write them."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oombisect.errors import OombisectError
from oombisect.units import (
    GIB,
    KIB,
    MAX_BYTES,
    MIB,
    counted,
    format_apart,
    format_bytes,
    format_change,
    format_delta,
    parse_bytes,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("79.6GiB", round(79.6 * GIB)),
        ("80 GB", 80 * 10**9),
        ("81559MiB", 81559 * MIB),
        (" 1k ", KIB),
        ("5B", 5),
        ("1048576", MIB),
        ("9007199254740993", 9007199254740993),  # more than a float can hold
        (f"{MAX_BYTES}", MAX_BYTES),
    ],
)
def test_a_size_is_read_exactly(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("", "GiB", "-1GiB", "0GiB", "0.1B", "1e-3GiB", "nan", "inf", "12 parsecs", "٣GiB", "²GiB", "1.GiB"),
        *("1" * 400, f"{MAX_BYTES + 1}", "9" * 30 + "TiB", "8388608TiB"),
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(OombisectError):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["79", "80.5", "81559", "1048575"])
def test_a_small_number_needs_a_unit(text: str) -> None:
    with pytest.raises(OombisectError, match="has no unit") as caught:
        parse_bytes(text)
    assert f"Write {text}GiB" in caught.value.way_out


def test_no_memory_is_a_size_where_it_may_be() -> None:
    assert [parse_bytes(text, least=0) for text in ("0", "0GiB", "0.0 MiB", "2GiB")] == [0, 0, 0, 2 * GIB]
    for text in ("", "-1", "x", "1"):
        with pytest.raises(OombisectError):
            parse_bytes(text, least=0)


def test_counts_agree_with_their_nouns() -> None:
    told = [counted(count, "event") for count in (0, 1, 2000)]
    assert told == ["0 events", "1 event", "2,000 events"] and counted(2, "address", "addresses") == "2 addresses"


@given(st.integers(MIB, MAX_BYTES))
def test_plain_bytes_come_back(size: int) -> None:
    assert parse_bytes(str(size)) == size


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    with contextlib.suppress(OombisectError):
        assert 0 < parse_bytes(text) <= MAX_BYTES


def test_sizes_are_shown_with_their_unit() -> None:
    assert [format_bytes(size) for size in (5, 1536 * KIB, 1288490188)] == ["5 B", "1.5 MiB", "1.20 GiB"]
    assert [format_delta(size) for size in (-GIB, 0)] == ["-1.00 GiB", "+0 B"]


def test_sizes_beside_each_other_look_different_if_they_are() -> None:
    assert format_apart(GIB, 2 * GIB) == ("1.00 GiB", "2.00 GiB")
    assert format_apart(80 * GIB, 80 * GIB + 2 * MIB, 80 * GIB) == ("80.000 GiB", "80.002 GiB", "80.000 GiB")
    assert format_apart(80 * GIB, 80 * GIB + 1) == ("85,899,345,920 B", "85,899,345,921 B")
    assert format_apart(50 * MIB, 50 * MIB + 512) == ("50.0000 MiB", "50.0005 MiB")
    assert format_apart() == ()


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (round(77.494 * GIB), round(79.648 * GIB), ("77.494 GiB", "79.648 GiB")),  # +2.15, of 77.49 and 79.65
        (GIB, 3 * GIB, ("1.00 GiB", "3.00 GiB")),
        (0, GIB, ("0 B", "1.00 GiB")),
        (80 * GIB, 80 * GIB + 2 * MIB, ("80.000 GiB", "80.002 GiB")),
    ],
)
def test_a_difference_is_that_of_the_sizes_beside_it(before: int, after: int, shown: tuple[str, str]) -> None:
    assert format_change(before, after) == shown


@given(st.integers(0, 200 * GIB), st.integers(0, 200 * GIB))
def test_a_reader_who_subtracts_gets_the_difference(before: int, after: int) -> None:
    numbers = []
    for text in (*format_change(before, after), format_delta(after - before)):
        number, unit = text.replace(",", "").split()
        factor = {"B": 1, "MiB": MIB, "GiB": GIB}[unit]
        numbers.append((Fraction(number) * factor, Fraction(factor, 10 ** len(number.partition(".")[2]))))
    (first, _), (last, _), (change, _) = numbers
    assert abs(last - first - change) * 2 <= max(step for _, step in numbers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "must be more than 0"),
        ("0GiB", "must be more than 0"),
        ("-1", "must be more than 0"),
        ("-79.6GiB", "must be more than 0"),
        ("1e99", "too large"),
        ("1e999GiB", "too large"),
        ("9" * 900, "too large"),
        ("1e9999", "is not a memory size"),
        ("x" * 5000, "is not a memory size"),
    ],
)
def test_what_is_wrong_with_a_size_is_said(text: str, words: str) -> None:
    with pytest.raises(OombisectError, match=words) as caught:
        parse_bytes(text)
    assert len(caught.value.cause) < 150
