"""What a config diff says besides its steps."""

from __future__ import annotations

from typing import Any

from oombisect.reports.config import config_lines

GIB = 1 << 30


def told(**changes: Any) -> list[str]:
    config: dict[str, Any] = {
        "revision": "a" * 40,
        "keys": [
            {"path": "model.a", "before": 1, "after": 2, "point": "model.a"},
            {"path": "logger.b", "before": 1, "after": 2, "point": "logger.b"},
            {"path": "train.c", "before": 1, "after": 2, "point": "(rest)", "not_alone": "the probe sets it itself"},
            {"path": "model.d", "before": "x", "point": "(rest)", "not_alone": "no assignment makes it"},
        ],
        "moved_together": [],
        "rejected": [],
        "quiet_keys": "yes",
        "effects": [effect()],
        "interactions": [],
        "minimal_revert": None,
    }
    return config_lines(config | changes, " (simulated)")


def sizes(allocated: int, reserved: int | None = None) -> dict[str, int]:
    return {"allocated": allocated, "reserved": allocated if reserved is None else reserved, "external": 0}


def effect(**changes: Any) -> dict[str, Any]:
    plain = {
        "point": "model.a", "chain_bytes": sizes(GIB), "own_bytes": sizes(GIB), "interacts": False,
        "returned_with": [], "fits_without": True, "rejected": None,
    }  # fmt: skip
    return plain | changes


def test_keys_are_told_by_what_became_of_them() -> None:
    assert told() == [
        "4 keys differ at aaaaaaaaaa",
        "nothing moved with: logger.b",
        "set by the probe itself: train.c",
        "set by no assignment, so moved last: model.d",
    ]


def test_what_to_take_back_is_told_with_its_proof() -> None:
    minimal = {
        "goal": "fits", "points": ["model.a"], "smallest": True, "ruled_out_by_size": 0, "probe": 7, "fits": True,
        "keys": [{"path": "model.a", "value": 1}, {"path": "env:X"}, {"path": "model.s", "value": "full"}],
        "peak_allocated": 3 * GIB, "peak_reserved": 4 * GIB, "external": 0, "simulated": True,
    }  # fmt: skip
    head, *lines = told(minimal_revert=minimal)[:4]
    assert head == (
        "take back the fewest keys with which it fits again "
        "(probe 7: 3.00 GiB peak allocated, 4.00 GiB peak reserved (simulated); fits the limit):"
    )
    assert lines == ["  model.a = 1", "  env:X = unset", "  model.s = full"]
    assert "fewer may do" in told(minimal_revert=minimal | {"smallest": False})[0]


def test_an_effect_is_told_in_the_quantity_that_differs() -> None:
    (line, *_) = told(effects=[effect(interacts=True, own_bytes=sizes(GIB, 3 * GIB))])
    assert line == "model.a adds +3.00 GiB peak reserved to the bad config, and added +1.00 GiB in its turn (simulated)"


def test_an_interaction_is_told_with_its_sign() -> None:
    pair = {"points": ["model.a", "model.b"], "bytes": sizes(-GIB)}
    assert (
        "model.a and model.b together add 1.00 GiB less peak allocated than each adds without the other (simulated)"
        in (told(interactions=[pair]))
    )


def test_names_and_reasons_cannot_write_to_the_terminal() -> None:
    lines = told(rejected=[{"point": "model.a", "reason": "\x1b[31mred\nnext"}])
    assert all("\x1b" not in line and "\n" not in line for line in lines)


def test_keys_that_do_something_on_the_bad_side_only_are_named() -> None:
    late = effect(point="logger.b", chain_bytes=sizes(0), own_bytes=sizes(GIB), interacts=True)
    *_, line = told(quiet_keys="moved", effects=[effect(), late])
    assert line == "keys that did nothing in their turn do something beside others: logger.b"
    *_, line = told(quiet_keys="moved")  # they move memory there, and no single one was found to
    assert line == "keys that did nothing in their turn do something beside others"
