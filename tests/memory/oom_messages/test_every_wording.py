"""Every wording there is, read in a message of its own; and all of them in one log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oombisect.memory.oom_messages import LookAlike, OomRecord, Size, parse_message, read_messages
from oombisect.memory.oom_messages.wordings import ON_ONE_LINE, WRAPPED
from tests.memory.oom_messages.expected import Expected, check, check_none
from tests.memory.oom_messages.texts import DEVICE, HOST, NONE, PYTORCH

ERRORS: dict[str, Expected] = {
    **PYTORCH,
    **DEVICE,
    **{name: replace(expected, memory="host") for name, expected in HOST.items()},
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error(name: str) -> None:
    check(ERRORS[name])


@pytest.mark.parametrize("name", NONE)
def test_what_only_sounds_like_one(name: str) -> None:
    check_none(*NONE[name])


def test_no_wording_is_without_a_text() -> None:
    known = {wording.name for _, wordings in (*WRAPPED, *ON_ONE_LINE) for wording in wordings}
    texts = [expected.text for expected in ERRORS.values()] + [text for text, _ in NONE.values()]
    found = [one for text in texts for one in read_messages([text.encode()])]
    assert {one.wording for one in found} == known


def test_all_in_one_log_whose_ranks_take_turns() -> None:
    """Each from a rank of its own; two that name a rank themselves are that rank's."""
    numbered = list(enumerate(ERRORS.values(), start=100))
    texts = {number: expected.text.split("\n") for number, expected in numbered}
    log = []
    while any(texts.values()):
        log += [f"[rank{number}]: {lines.pop(0)}" for number, lines in texts.items() if lines]
    found = [one for one in read_messages(["\n".join(log).encode()]) if isinstance(one, OomRecord)]
    assert [(one.rank, one.source) for one in found] == [
        (expected.named.get("rank", number), expected.source) for number, expected in numbered
    ]


@pytest.mark.parametrize(
    ("name", "reserved", "non_pytorch"),
    [
        ("1.0", "6.1406 GiB", None),  # `cached` leaves out what is allocated
        ("1.4", "9.90 GiB", None),  # it does not
        ("2.5", "29.25 GiB", "1.25 GiB"),
        ("2.5, in a container", "29.25 GiB", "1.25 GiB"),
        ("2.5, wrapped and cut", None, None),
        # the free blocks of private pools are counted in what is printed as allocated
        ("2.5, beside another process", "29.25 GiB", "0.75 GiB"),
        ("fragment: this process has", "29.25 GiB", "1.25 GiB"),
    ],
)
def test_what_is_derived(name: str, reserved: str | None, non_pytorch: str | None) -> None:
    found = check(ERRORS[name])
    for size, text in ((found.reserved, reserved), (found.non_pytorch, non_pytorch)):
        near = Size.parse(text) if text else None
        assert (size is None) == (near is None)
        assert size is None or near is None or abs(size.bytes - near.bytes) <= (1 << 30) // 10_000 + size.precision


def test_a_look_alike_says_why() -> None:
    found = parse_message(NONE["garbage"][0])
    assert isinstance(found, LookAlike) and found.text and found.line == 1
