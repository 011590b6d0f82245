"""The decoder of a probe's result: a wrong field is named, never guessed, and nothing but ResultError escapes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oombisect.probing.collect import classify_death, read_result
from oombisect.probing.guard import Ended, Limits
from oombisect.probing.result_file import ProbeResult, ResultError, parse_result
from oombisect.readings import Outcome

ENDED = Ended(0, None, 1.0, 1)
PHASE = {"allocated_peak": 5, "allocated_end": 4, "reserved_peak": 7, "reserved_end": 7, "seconds": 0.5}
CONFIG = {"model": {"width": 4, "name": "Ü"}, "rate": 1e-4}
CONFIG_HASH = hashlib.sha256(
    json.dumps(CONFIG, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
).hexdigest()
OOM = {"phase": "step_1", "message": "CUDA out of memory", "requested": 1, "capacity": None}


def valid(**changes: Any) -> dict[str, Any]:
    result = {
        "schema": 1, "outcome": "exact", "reason": None, "rank": 2, "world_size": 4, "suggested_ranks": [0, 3],
        "phases": {"step_1": dict(PHASE), "step_2": dict(PHASE)}, "external": 3, "oom": None,
        "recipe_function": "a:b()", "config": CONFIG, "config_hash": CONFIG_HASH, "attention_backend": None,
        "versions": {"torch": "2"}, "imported": ["bridge:a.py"], "allocator_settings": "", "snapshot": None,
        "trace_hash": "0f", "cold_compile": False, "notes": ["a"], "seconds": {"total": 1.5},
    }  # fmt: skip
    return result | changes


def phases(**changes: Any) -> dict[str, Any]:
    return {"phases": {"step_1": PHASE | changes}}


def test_a_valid_result_keeps_every_number() -> None:
    result = parse_result(valid(oom=OOM), 2)
    assert result.reading is not None
    assert (result.reading.peak_allocated, result.reading.peak_reserved, result.reading.peak_device) == (5, 7, 10)
    assert (result.world_size, result.suggested_ranks, result.config_hash) == (4, (0, 3), CONFIG_HASH)
    assert result.reading.oom is not None and result.reading.oom.requested == 1


MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 512.00 MiB is "
    "free. Including non-PyTorch memory, this process has 78.60 GiB memory in use. Of the allocated memory 76.00 GiB "
    "is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated."
)


def test_sizes_the_allocator_did_not_give_are_read_from_the_message() -> None:
    result = parse_result(valid(oom={"phase": "step_1", "message": MESSAGE, "requested": 7, "free": 0}), 2)
    assert result.reading is not None and result.reading.oom is not None
    oom = result.reading.oom
    assert (oom.requested, oom.free) == (7, 0), "exact sizes overrule the rounded ones"
    assert (oom.capacity, oom.allocated, oom.reserved) == (round(79.11 * 2**30), 76 << 30, round(77.5 * 2**30))


@pytest.mark.parametrize("message", ["CUDA error: out of memory", "", f"Tried to allocate {'9' * 20} GiB (GPU 0;"])
def test_a_message_without_usable_sizes_has_none(message: str) -> None:
    result = parse_result(valid(oom={"phase": "step_1", "message": message}), 2)
    assert result.reading is not None and result.reading.oom is not None
    oom = result.reading.oom
    assert {oom.requested, oom.capacity, oom.free, oom.allocated, oom.reserved} == {None}


@pytest.mark.parametrize(
    "value", [True, 1.0, float("nan"), float("inf"), -1, 1 << 63, 1 << 20000, "5", None, [], {}], ids=range(11)
)
@pytest.mark.parametrize("name", ["allocated_peak", "reserved_peak", "inactive_split_end", "allocations", "ooms"])
def test_a_size_or_count_is_a_whole_number_that_fits(name: str, value: Any) -> None:
    with pytest.raises(ResultError, match=rf"phases\.step_1\.{name}"):
        parse_result(valid(**phases(**{name: value})), 2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema": 2}, "schema"),
        ({"rank": 1}, "rank 1"),
        ({"rank": True}, "rank"),
        ({"outcome": "fine"}, "outcome"),
        ({"outcome": ["exact"]}, "outcome"),
        ({"reason": 5}, "reason"),
        ({"recipe_function": 5}, "recipe_function"),
        ({"allocator_settings": {}}, "allocator_settings"),
        ({"attention_backend": 1}, "attention_backend"),
        ({"world_size": 0}, "world_size"),
        ({"world_size": "4"}, "world_size"),
        ({"suggested_ranks": [4]}, "suggested_ranks"),
        ({"suggested_ranks": [-1]}, "suggested_ranks"),
        ({"suggested_ranks": "0"}, "suggested_ranks"),
        ({"phases": {}}, "phases"),
        ({"phases": {}, "outcome": "censored"}, "phases"),
        ({"phases": [PHASE]}, "phases"),
        ({"phases": {"step_1": 5}}, "phases.step_1"),
        ({"phases": {"\x1b[2J": PHASE}}, "phases"),
        ({"phases": {"step_1": {"allocated_peak": 1}}}, "phases.step_1.reserved_peak"),
        (phases(surprise=1), "surprise"),
        (phases(seconds=float("nan")), "phases.step_1.seconds"),
        (phases(seconds=1 << 2000), "phases.step_1.seconds"),
        (phases(device_used=1.5), "phases.step_1.device_used"),
        (phases(reserved_peak=(1 << 63) - 1), "reserved_peak and external"),
        ({"external": -1}, "external"),
        ({"external": None}, "external"),
        ({"oom": "yes"}, "oom"),
        ({"oom": {"phase": "a"}}, "oom.message"),
        ({"oom": OOM | {"free": 1.5}}, "oom.free"),
        ({"oom": OOM | {"surprise": 1}}, "surprise"),
        ({"snapshot": "../../etc/passwd"}, "snapshot"),
        ({"snapshot": "/etc/passwd"}, "snapshot"),
        ({"snapshot": ".."}, "snapshot"),
        ({"snapshot": ""}, "snapshot"),
        ({"snapshot": 5}, "snapshot"),
        ({"trace_hash": "xyz"}, "trace_hash"),
        ({"trace_hash": 7}, "trace_hash"),
        ({"config": [1]}, "config"),
        ({"config_hash": "0" * 64}, "config_hash"),
        ({"config": None}, "config_hash"),
        ({"versions": {"torch": 2}}, "versions.torch"),
        ({"versions": ["torch"]}, "versions"),
        ({"imported": [1]}, "imported"),
        ({"notes": "a note"}, "notes"),
        ({"notes": [None]}, "notes"),
        ({"cold_compile": "no"}, "cold_compile"),
        ({"seconds": {"total": float("inf")}}, "seconds.total"),
        ({"seconds": 5}, "seconds"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ResultError, match=named.replace(".", r"\.")):
        parse_result(valid(**changes), 2)


@pytest.mark.parametrize("outcome", ["infra", "unresolved"])
@pytest.mark.parametrize("reason", [None, "", " \n"])
def test_a_failure_has_a_reason(outcome: str, reason: str | None) -> None:
    assert parse_result(valid(outcome=outcome, reason=reason, phases={}), 2).reason


def test_no_control_character_gets_through() -> None:
    evil = "a\x1b[2J\nb\x9b1m\u202e\x00\ud800"
    result = parse_result(
        valid(
            outcome="censored", reason=evil, recipe_function=evil, attention_backend=evil, allocator_settings=evil,
            versions={evil: evil}, imported=[evil], notes=[evil], oom=OOM | {"phase": evil, "message": evil},
        ),
        2,
    )  # fmt: skip
    assert result.reason == "a?[2J b?1m???"
    assert result.reading is not None and result.reading.oom is not None
    texts = [result.recipe_function, result.attention_backend, result.allocator_settings, *result.imported]
    texts += [*result.notes, *result.versions, *result.versions.values()]
    texts += [result.reading.oom.phase, result.reading.oom.message]
    assert set(texts) == {result.reason}


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@given(data=_JSON | st.dictionaries(st.sampled_from(sorted(valid())), _JSON).map(lambda changes: valid(**changes)))
def test_only_result_errors_escape(data: Any) -> None:
    try:
        result = parse_result(data, 2)
    except ResultError as error:
        assert str(error).isprintable()
    else:
        assert isinstance(result, ProbeResult)


@given(changes=st.dictionaries(st.sampled_from(["allocated_peak", "reserved_peak", "seconds", "device_used"]), _JSON))
def test_only_result_errors_escape_from_a_phase(changes: dict[str, Any]) -> None:
    try:
        assert parse_result(valid(**phases(**changes)), 2).reading
    except ResultError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "5", "\xff", "[" * 100_000, '{"rank": ' + "1" * 5000 + "}",
        json.dumps(valid(snapshot="snapshot-2.pickle.gz")),  # a file that is not there
        json.dumps(valid(**phases(allocated_peak=float("nan")))),
    ],
)  # fmt: skip
def test_a_broken_file_is_an_unresolved_probe(tmp_path: Path, text: str) -> None:
    (tmp_path / "result-2.json").write_bytes(text.encode("latin-1"))
    result = read_result(tmp_path, 2, ENDED)
    assert result is not None
    assert (result.outcome, result.reading) == (Outcome.UNRESOLVED, None)
    assert result.reason.startswith("the probe wrote an unreadable result-2.json: ")
    assert result.reason.isprintable()


def test_a_snapshot_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "snapshot").symlink_to(tmp_path / "secret")
    (tmp_path / "result-2.json").write_text(json.dumps(valid(snapshot="snapshot")))
    result = read_result(tmp_path, 2, ENDED)
    assert result is not None and result.outcome is Outcome.UNRESOLVED


@pytest.mark.parametrize(("number", "name"), [(6, "SIGABRT"), (40, "signal 40"), (99, "signal 99")])
def test_a_signal_is_named(tmp_path: Path, number: int, name: str) -> None:
    result = classify_death(tmp_path, 0, Ended(-number, None, 1.0, 1), Limits())
    assert result.outcome is Outcome.UNRESOLVED
    assert name in result.reason


def test_the_last_line_of_a_log_is_printable(tmp_path: Path) -> None:
    (tmp_path / "log-0.txt").write_bytes(b"first\n\x1b]0;title\x07 ended \xff\n")
    assert classify_death(tmp_path, 0, Ended(3, None, 1.0, 1), Limits()).reason.isprintable()
