"""Which allocations make up the difference of two live sets, call stack by call stack, to the byte."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from oombisect.memory.stacks import Keys

_SAME_SIZES = 0.5  # how alike two stacks must be to be one that moved, if they hold the same sizes
_OTHER_SIZES = 0.75  # and if they do not


@dataclass(frozen=True, slots=True)
class Held:
    """A block of a live set: the stack that allocated it as comparable keys, its size and its phase.

    `size` is what the allocator counts, `requested` what was asked for, bytes. `stack` is an index of the caller's, of
    this run's own stacks. `keys` empty: no stack was recorded, or (`before`) the block was there before the trace.
    """

    keys: Keys
    size: int
    phase: str
    stack: int = -1
    before: bool = False
    requested: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What one run holds of an entry: bytes, bytes asked for, blocks by size, bytes by phase, one of its stacks."""

    size: int = 0
    requested: int = 0
    sizes: Mapping[int, int] = field(default_factory=dict)
    phases: Mapping[str, int] = field(default_factory=dict)
    stack: int = -1

    @property
    def count(self) -> int:
        """How many blocks."""
        return sum(self.sizes.values())


@dataclass(frozen=True, slots=True)
class Entry:
    """One call stack in both runs.

    `keys` are those of the second run where it has the stack. `moved`: the runs' stacks differ, and were taken for one
    because they are alike (a renamed or wrapped function); `first_keys` are then those of the first run.
    """

    keys: Keys
    first: Part
    second: Part
    before: bool = False
    moved: bool = False
    first_keys: Keys = ()

    @property
    def delta(self) -> int:
        """Bytes, second minus first."""
        return self.second.size - self.first.size


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of some entries under one name, bytes and blocks of both runs."""

    name: str
    first: int
    second: int
    first_count: int
    second_count: int

    @property
    def delta(self) -> int:
        """Bytes, second minus first."""
        return self.second - self.first


def difference(first: Iterable[Held], second: Iterable[Held]) -> tuple[Entry, ...]:
    """Every stack of either run, the largest difference first. The deltas sum to the difference of the live sets."""
    sides = [_parts(first), _parts(second)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    entries = [
        Entry(keys, sides[0].get((keys, before), Part()), sides[1].get((keys, before), Part()), before)
        for keys, before in names
    ]
    return tuple(sorted(_paired(entries), key=_order))


def _order(entry: Entry) -> tuple[int, int, Keys]:
    return -abs(entry.delta), -entry.second.size, entry.keys


def _parts(blocks: Iterable[Held]) -> dict[tuple[Keys, bool], Part]:
    grouped: dict[tuple[Keys, bool], list[Held]] = defaultdict(list)
    for block in blocks:
        grouped[block.keys, block.before].append(block)
    return {name: _part(group) for name, group in grouped.items()}


def _part(group: Sequence[Held]) -> Part:
    phases: Counter[str] = Counter()
    for block in group:
        phases[block.phase] += block.size
    sizes = Counter(block.size for block in group)
    asked = sum(block.requested for block in group)
    return Part(sum(block.size for block in group), asked, dict(sizes), dict(phases), group[0].stack)


def _paired(entries: Sequence[Entry]) -> list[Entry]:
    """Stacks that only one run has, joined where two are one that moved: same sizes first, then the most alike."""
    firsts = [e for e in entries if e.keys and not e.second.sizes]
    seconds = [e for e in entries if e.keys and not e.first.sizes]
    partner: dict[int, Entry] = {}
    for bucket, least in ((_same_sizes, _SAME_SIZES), (_same_place, _OTHER_SIZES)):
        _pair(firsts, seconds, partner, bucket, least)
    joined = []
    for entry in entries:
        other = partner.get(id(entry))
        if other is None:
            joined.append(entry)
        elif entry.first.sizes:  # told once, from the first run's side
            joined.append(replace(other, first=entry.first, moved=True, first_keys=entry.keys))
    return joined


def _pair(
    firsts: Sequence[Entry],
    seconds: Sequence[Entry],
    partner: dict[int, Entry],
    bucket: Callable[[Entry], object],
    least: float,
) -> None:
    candidates: dict[object, list[Entry]] = defaultdict(list)
    for entry in seconds:
        if id(entry) not in partner:
            candidates[bucket(entry)].append(entry)
    scored = [
        (likeness(one.keys, other.keys), one, other)
        for one in firsts
        if id(one) not in partner
        for other in candidates[bucket(one)]
    ]
    scored.sort(key=lambda pair: (-pair[0], pair[1].keys, pair[2].keys))
    for score, one, other in scored:
        if score >= least and id(one) not in partner and id(other) not in partner:
            partner[id(one)], partner[id(other)] = other, one


def _same_sizes(entry: Entry) -> object:
    return entry.before, frozenset((entry.first.sizes or entry.second.sizes).items())


def _same_place(entry: Entry) -> object:
    innermost = entry.keys[0]
    return entry.before, innermost.place, innermost.function


def likeness(one: Keys, other: Keys) -> float:
    """How alike two stacks are, 0 to 1: the frames they share in order, lines aside, of the longer one's."""
    names, others = ([(key.place, key.function) for key in keys] for keys in (one, other))
    shared = SequenceMatcher(None, names, others, autojunk=False).get_matching_blocks()
    return sum(block.size for block in shared) / max(len(names), len(others), 1)


def by_name(entries: Iterable[Entry], name: Callable[[Entry], str]) -> tuple[Total, ...]:
    """The entries summed under the names given to them, the largest difference first."""
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[name(entry)].append(entry)
    totals = (
        Total(
            label,
            sum(e.first.size for e in group),
            sum(e.second.size for e in group),
            sum(e.first.count for e in group),
            sum(e.second.count for e in group),
        )
        for label, group in groups.items()
    )
    return tuple(sorted(totals, key=lambda total: (-abs(total.delta), -total.second, total.name)))


def by_phase(first: Iterable[Held], second: Iterable[Held]) -> tuple[Total, ...]:
    """Both live sets summed by the phase of the allocation, in the order of the phases."""
    sums = [_phase_sums(blocks) for blocks in (first, second)]
    names = dict.fromkeys([*sums[1], *sums[0]])
    return tuple(
        Total(
            name,
            *(side.get(name, (0, 0))[0] for side in sums),
            *(side.get(name, (0, 0))[1] for side in sums),
        )
        for name in names
    )


def _phase_sums(blocks: Iterable[Held]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for block in blocks:
        size, count = found.get(block.phase, (0, 0))
        found[block.phase] = size + block.size, count + 1
    return found
