"""Recorded answers of the real allocator, so that its rules can be tested where a release of PyTorch is not at hand.

`python -m tests.memory.oracle.recorded PYTHON CACHE` records the answers of the PyTorch of that interpreter anew,
with the virtual GPU (built into the folder CACHE). A file holds a line for each program: the digest of the program,
which a seed makes again, and the answer, packed by column to be small.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from oombisect.memory.allocator import Rules, rules_for

from .compare import Answer
from .oracle import Oracle
from .program import Program, make_program

FOLDER = Path(__file__).with_name("recorded_answers")
RELEASES = {"2.9.1": 110, "2.12.1": 60, "2.14.1": 110}
"""How many programs are recorded."""
REQUESTS = 60
"""How long they are."""


@dataclass(frozen=True)
class Recording:
    """What one release answered."""

    torch: str
    names: list[str]
    cases: list[tuple[Program, Answer]]

    @property
    def rules(self) -> Rules:
        return rules_for(self.torch)


def programs(release: str) -> Iterator[Program]:
    """The programs that are recorded.

    Torch 2.12 makes tensors of its own in each capture: it gets programs without, and without what is newer than 2.9.
    """
    middle = release.startswith("2.12")
    newer = rules_for(release).large_segment_setting and not middle
    every = (make_program(seed, newer=newer, length=REQUESTS) for seed in count())
    fit = (each for each in every if not middle or all(operation[0] != "capture" for operation in each.operations))
    return islice(fit, RELEASES[release])


def load(release: str) -> Recording:
    """What was recorded of a release.

    Raises:
        AssertionError: the programs are others now, and must be recorded again.
    """
    lines = lzma.decompress((FOLDER / f"torch-{release}.jsonl.xz").read_bytes()).decode().splitlines()
    first = json.loads(lines[0])
    cases = []
    for program, line in zip(programs(release), lines[1:], strict=True):
        digest, packed = json.loads(line)
        assert digest == digest_of(program), "the programs have changed: record the answers again (recorded.py)"
        cases.append((program, unpack(packed, first["names"])))
    return Recording(first["torch"], first["names"], cases)


def digest_of(program: Program) -> str:
    return hashlib.sha256(program.line.encode()).hexdigest()[:16]


def record(oracle: Oracle) -> str:
    """The text of a file."""
    lines = [json.dumps({"torch": oracle.torch, "names": oracle.names})]
    for program, answer in oracle.ask_all(programs(oracle.torch.split("+")[0])):
        lines.append(json.dumps([digest_of(program), pack(answer, oracle.names)], separators=(",", ":")))
    return "\n".join(lines) + "\n"


def pack(answer: Answer, names: list[str]) -> Answer:
    """The events as columns of differences; a column like an earlier one is its number, what was freed is left out."""
    events = answer["events"]
    columns = [[0] * len(events) for _ in names]
    now = [0] * len(names)
    for at, event in enumerate(events):
        for index, value in _pairs(event):
            columns[index][at] = value - now[index]
            now[index] = value
    seen: dict[tuple[int, ...], int] = {}
    kept: list[list[int] | int] = [[event[0] for event in events]]
    for name, column in zip(names, columns, strict=True):
        if name.endswith(".freed"):
            allocated, current = (
                columns[names.index(name.replace(".freed", end))] for end in (".allocated", ".current")
            )
            assert column == [a - b for a, b in zip(allocated, current, strict=True)]
            continue
        earlier = seen.setdefault(tuple(column), len(kept))
        kept.append(column if earlier == len(kept) else earlier)
    return answer | {"events": kept}


def unpack(packed: Answer, names: list[str]) -> Answer:
    """The opposite of `pack`."""
    addresses, *kept = packed["events"]
    columns: dict[str, list[int]] = {}
    whole = [addresses, *kept]
    for name, column in zip((name for name in names if not name.endswith(".freed")), kept, strict=True):
        columns[name] = whole[column] if isinstance(column, int) else column
    for name in names:
        if name.endswith(".freed"):
            allocated, current = (columns[name.replace(".freed", end)] for end in (".allocated", ".current"))
            columns[name] = [a - b for a, b in zip(allocated, current, strict=True)]
    now = [0] * len(names)
    events = []
    for at, address in enumerate(addresses):
        event = [address]
        for index, name in enumerate(names):
            if difference := columns[name][at]:
                now[index] += difference
                event += (index, now[index])
        events.append(event)
    return packed | {"events": events}


def _pairs(event: list[int]) -> Iterator[tuple[int, int]]:
    return zip(event[1::2], event[2::2], strict=True)


def main() -> None:
    """Record the answers of the PyTorch of an interpreter."""
    from oombisect.virtual_gpu.build import prepare

    python = Path(sys.argv[1])
    with Oracle(python, prepare(python, Path(sys.argv[2]))) as oracle:
        text = record(oracle)
        path = FOLDER / f"torch-{oracle.torch.split('+')[0]}.jsonl.xz"
    FOLDER.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
