"""What a person reads in a message, and the check that the reader reads the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oombisect.memory.oom_messages import LookAlike, OomRecord, Size, parse_message, read_messages

_PRINTED = (
    "requested", "capacity", "free", "allocated", "reserved", "unallocated", "private_pools", "allowed", "in_use",
)  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """A message and what it names.

    `named`: sizes as they are printed by the record's field (`reserved` where it is printed in total), `other PID` of
    other processes, and `rank`, `device`, `process`, `certainty` where they are not None and not certain.
    """

    text: str
    source: str
    named: Mapping[str, str | int] = field(default_factory=dict)
    memory: str = "device"


def check(expected: Expected) -> OomRecord:
    """The message is read as expected, and nothing else is found in it."""
    (found,) = read_messages([expected.text.encode()])
    assert isinstance(found, OomRecord)
    named = expected.named
    assert (found.source, found.memory) == (expected.source, expected.memory)
    assert (found.rank, found.device, found.process) == (named.get("rank"), named.get("device"), named.get("process"))
    assert found.certainty == named.get("certainty", "certain")
    for name in _PRINTED:
        if name in named:
            assert getattr(found, name) == Size.parse(str(named[name])), name
        elif name not in ("reserved", "unallocated") or "allocated" not in named:
            assert getattr(found, name) is None, name
    if found.source == "pytorch-mps":
        assert found.non_pytorch == Size.parse(str(named["non_pytorch"]))
    others = {f"other {use.pid}": use.in_use for use in found.others}
    assert others == {name: Size.parse(str(size)) for name, size in named.items() if name.startswith("other ")}
    return found


def check_none(text: str, why: str) -> None:
    """It is no error; `why` is in what is said of it, empty: nothing is said at all."""
    found = parse_message(text)
    if why:
        assert isinstance(found, LookAlike) and why in found.why
    else:
        assert found is None
