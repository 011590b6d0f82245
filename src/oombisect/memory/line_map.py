"""Where the lines of one version of a file are in another, from a diff; and the lines a function covers.

Lines count from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Hunk:
    """A piece of a diff as people read it: its `@@` line, and its lines with their leading ' ', '-' or '+'."""

    header: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it as git prints it, without a line break at its end."""
        return "\n".join((self.header, *self.lines))


@dataclass(frozen=True, slots=True)
class Edit:
    """`old_count` lines from `old_start` on were replaced by `new_count` from `new_start` on.

    Where a count is 0 the start is the line that follows.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    hunk: Hunk = field(repr=False)

    def covers_old(self, line: int) -> bool:
        """Whether an old line, from 1, was changed or deleted by it."""
        return self.old_start <= line < self.old_start + self.old_count

    def covers_new(self, line: int) -> bool:
        """Whether a new line, from 1, was brought by it."""
        return self.new_start <= line < self.new_start + self.new_count


@dataclass(frozen=True)
class FileDiff:
    """How one file changed. `old` is None if it was added, `new` if it was deleted; both differ if it was renamed."""

    old: str | None
    new: str | None
    edits: tuple[Edit, ...] = ()

    def new_line(self, line: int) -> int | None:
        """Where an old line is now; None if it was changed or deleted."""
        shift = 0
        for edit in self.edits:
            if edit.covers_old(line):
                return None
            if edit.old_start + edit.old_count <= line:
                shift += edit.new_count - edit.old_count
        return None if self.new is None else line + shift

    def edit_of_old(self, line: int) -> Edit | None:
        """The edit that changed or deleted an old line."""
        return next((edit for edit in self.edits if edit.covers_old(line)), None)

    def edit_of_new(self, line: int) -> Edit | None:
        """The edit that brought a new line."""
        return next((edit for edit in self.edits if edit.covers_new(line)), None)


@dataclass(frozen=True)
class CodeDiff:
    """How the files of one repository changed; files that are not in it did not."""

    files: tuple[FileDiff, ...] = ()

    @cached_property
    def by_old(self) -> Mapping[str, FileDiff]:
        """The changed files by the names they had; those that were added have none."""
        return {file.old: file for file in self.files if file.old is not None}

    @cached_property
    def by_new(self) -> Mapping[str, FileDiff]:
        """The changed files by the names they have now; those that were deleted have none."""
        return {file.new: file for file in self.files if file.new is not None}


def parse_diff(text: str) -> tuple[FileDiff, ...]:
    """The files of a unified diff as git writes it with `a/` and `b/`; files with quoted names are left out."""
    found: list[FileDiff] = []
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        if not lines[at].startswith("diff --git "):
            at += 1
            continue
        at += 1
        old: str | None = None
        new: str | None = None
        named = False
        edits: list[Edit] = []
        while at < len(lines) and not lines[at].startswith("diff --git "):
            line = lines[at]
            if line.startswith("@@ "):
                hunk_edits, at = _hunk(lines, at)
                edits += hunk_edits
                continue
            at += 1
            match line.split(" ", 1):
                case ["---", name]:
                    old, named = _name(name, "a/"), True
                case ["+++", name]:
                    new, named = _name(name, "b/"), True
                case ["rename", rest]:
                    side, _, name = rest.partition(" ")
                    old, new = (name, new) if side == "from" else (old, name)
                    named = True
        if named and not any(name is not None and name.startswith('"') for name in (old, new)):
            found.append(FileDiff(old, new, tuple(edits)))
    return tuple(found)


def _name(text: str, prefix: str) -> str | None:
    name = text.removesuffix("\t")  # git marks the end of a name with a space in it
    return None if name == "/dev/null" else name.removeprefix(prefix)


def _hunk(lines: Sequence[str], at: int) -> tuple[list[Edit], int]:
    """The edits of the hunk whose `@@` line is at `at`, and where the next line after it is."""
    header = lines[at]
    before, after = header.split(" ", 3)[1:3]
    old, old_left = _range(before)
    new, new_left = _range(after)
    # A range without lines is told by the line before it.
    old, new = old + (old_left == 0), new + (new_left == 0)
    body: list[str] = []
    runs: list[list[int]] = []
    within = False
    at += 1
    while at < len(lines) and (old_left > 0 or new_left > 0 or lines[at].startswith("\\")):
        mark = lines[at][:1]
        body.append(lines[at])
        at += 1
        if mark == "\\":
            continue
        if mark not in ("-", "+"):
            old, new, old_left, new_left, within = old + 1, new + 1, old_left - 1, new_left - 1, False
            continue
        if not within:
            runs.append([old, 0, new, 0])
            within = True
        if mark == "-":
            runs[-1][1] += 1
            old, old_left = old + 1, old_left - 1
        else:
            runs[-1][3] += 1
            new, new_left = new + 1, new_left - 1
    hunk = Hunk(header, tuple(body))
    return [Edit(first, gone, start, come, hunk) for first, gone, start, come in runs], at


def _range(text: str) -> tuple[int, int]:
    start, _, count = text[1:].partition(",")
    return int(start), int(count) if count else 1


def align(old: Iterable[int], new: Iterable[int]) -> dict[int, int]:
    """Pairs positions of two sorted lists, in order, so that as many as possible are paired and those the nearest.

    Equally many on both sides are paired one by one; otherwise those are left out that bring the rest closest together.
    """
    left, right = sorted(set(old)), sorted(set(new))
    if len(left) > len(right):
        return {a: b for b, a in align(right, left).items()}
    # cost[i][j]: the least sum of distances with the first i of the shorter list paired among the first j of the longer
    infinite = float("inf")
    cost = [[0.0] * (len(right) + 1)] + [[infinite] * (len(right) + 1) for _ in left]
    for i, a in enumerate(left, 1):
        for j, b in enumerate(right, 1):
            cost[i][j] = min(cost[i][j - 1], cost[i - 1][j - 1] + abs(a - b))
    pairs: dict[int, int] = {}
    i, j = len(left), len(right)
    while i:
        if cost[i][j] == cost[i][j - 1]:
            j -= 1
        else:
            pairs[left[i - 1]] = right[j - 1]
            i, j = i - 1, j - 1
    return pairs
