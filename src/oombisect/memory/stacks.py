"""Call stacks of two runs made comparable: files named without the folders they lay in, lines as in the second run.

A frame is its file (project and path in it), its function and its line. The line of a project file is carried over by
the diff between the two commits; a line that was changed is matched with the nearest observed one of the same function
within the same edit. Where there is no diff (other packages, snapshots without a commit) the observed lines of a
function are matched by their order.

Frames of Python, torch and the probe say how a call was passed on, not what was allocated: they count only as the
innermost one. Frames of machine code, which PyTorch records unless it is told not to, count only where there is no
other (backward passes run on a thread without Python), less those of the recorder, the allocator and the dispatcher.
Nothing is lost by it: every block still belongs to exactly one stack.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from oombisect.memory.line_map import CodeDiff, Edit, align
from oombisect.memory.trace import Frame, Stack

PACKAGE, PYTHON, PROBE, GENERATED, NATIVE, UNKNOWN = "package", "python", "probe", "generated", "native", ""
_PASSING_ON = (PYTHON, PROBE, GENERATED)
_PROBE = re.compile(
    r".*/probes/((?:bridge_train|worker)\.py|(?:probe_support|command_hook|flash_attn_stand_in)/.*)", re.DOTALL
)
_PACKAGE = re.compile(r".*/(?:site|dist)-packages/(.*)", re.DOTALL)
_PYTHON = re.compile(r".*/lib(?:64)?/python3[^/]*/(.*)", re.DOTALL)
# What torch.compile wrote: the file's name is a hash of its contents.
_INDUCTOR = re.compile(r".*/(?:([a-z0-9]{2})/c\1[a-z0-9]{20,}\.py)", re.DOTALL)
# Files of machine code: none told, a library, or a source of a compiled language.
_NATIVE = re.compile(r"(\?\?)?|.*\.(c|cc|cpp|cxx|cu|cuh|h|hpp|hxx|inc|rs|s|so[.0-9]*)", re.DOTALL | re.IGNORECASE)
# Functions of machine code that say only how memory was asked for, by short name.
_PLUMBING = re.compile(
    r"torch::(unwind|CapturedTraceback|cuda::gather)|c10::|std::|at::(detail|impl|meta)::|at::TensorIterator"
    r"|at::(native::|_ops::)?empty|at::_ops::\w+::redispatch|at::(wrapper_|structured_\w+::set_output|create_out)"
    r"|torch::autograd::(VariableType|Engine|Node|python)::|(?!.*::)"
)
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply")
_NUMBERED = re.compile(r"(<[^>]*>)\.\d+")


class Place(NamedTuple):
    """A file: `repo` is a project's name (`bridge`, `megatron-lm`), or one of the kinds above; `path` is within it."""

    repo: str
    path: str


class Site(NamedTuple):
    """A frame as it was recorded, its file's place known."""

    place: Place
    function: str
    line: int


class Key(NamedTuple):
    """A frame as it is compared: `line` is one of the second run, or negative: a line only the first run has."""

    place: Place
    function: str
    line: int


MACHINE_CODE = Place(NATIVE, "C++")
Sites = tuple[Site, ...]
Keys = tuple[Key, ...]


class Places:
    """Names the files of one run.

    Args:
        roots: folder of each project, by name, where known.
        imported: project files the run imported, as `project:path`; they tell the roots that are not known.
        files: the files of the run's stacks.
    """

    def __init__(
        self, files: Iterable[str], imported: Iterable[str] = (), roots: Mapping[str, str] | None = None
    ) -> None:
        found = dict(roots) if roots is not None else _roots(files, imported)
        self._roots = sorted(((root.rstrip("/") + "/", name) for name, root in found.items()), key=lambda r: -len(r[0]))
        self._known: dict[str, Place] = {}

    @property
    def knows_projects(self) -> bool:
        """Whether the folder of any project is known."""
        return bool(self._roots)

    def of(self, file: str) -> Place:
        """The place of a file."""
        place = self._known.get(file)
        if place is None:
            place = self._known[file] = self._find(file)
        return place

    def _find(self, file: str) -> Place:
        for root, name in self._roots:
            if file.startswith(root):
                return Place(name, file.removeprefix(root))
        if match := _PROBE.fullmatch(file):
            return Place(PROBE, match[1])
        if match := _PACKAGE.fullmatch(file):
            return Place(PACKAGE, match[1])
        if _NATIVE.fullmatch(file):
            return MACHINE_CODE
        if _INDUCTOR.fullmatch(file):
            return Place(GENERATED, "torch.compile")
        if match := _NUMBERED.fullmatch(file):
            return Place(GENERATED, match[1])
        if file.startswith("<"):
            return Place(PYTHON, file)
        if match := _PYTHON.fullmatch(file):
            return Place(PYTHON, match[1])
        return Place(UNKNOWN, file)


def _roots(files: Iterable[str], imported: Iterable[str]) -> dict[str, str]:
    """The folder of each project: the one below which most of its imported files are found."""
    by_name: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for item in imported:
        name, _, path = item.partition(":")
        by_name[path.rpartition("/")[2]].append((name, path))
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for file in set(files):
        fitting = [(path, name) for name, path in by_name[file.rpartition("/")[2]] if file.endswith(f"/{path}")]
        if fitting:
            path, name = max(fitting, key=lambda fit: (len(fit[0]), fit[1]))
            votes[name][file.removesuffix(f"/{path}")] += 1
    return {name: max(sorted(count), key=lambda root: count[root]) for name, count in votes.items()}


def pair_unknown(first: Iterable[Place], second: Iterable[Place]) -> dict[Place, Place]:
    """For files of unknown projects: which of the second run's each of the first run's is.

    Two are one file if they end alike more than any other two of that name, at least in the name.
    """
    ours, theirs = ({p for p in places if p.repo == UNKNOWN} for places in (first, second))
    scores: list[tuple[int, Place, Place]] = []
    by_name: dict[str, list[Place]] = defaultdict(list)
    for place in theirs:
        by_name[place.path.rpartition("/")[2]].append(place)
    for place in ours:
        scores += [(_alike(place.path, other.path), place, other) for other in by_name[place.path.rpartition("/")[2]]]
    best: Counter[Place] = Counter()
    for score, *pair in scores:
        for place in pair:
            best[place] = max(best[place], score)
    tops = [(one, other) for score, one, other in scores if score == best[one] == best[other]]
    once = Counter(place for pair in tops for place in set(pair))
    return {one: other for one, other in tops if one == other or (once[one] == 1 and once[other] == 1)}


def _alike(one: str, other: str) -> int:
    """How many last parts two paths share."""
    count = 0
    for a, b in zip(reversed(one.split("/")), reversed(other.split("/"))):
        if a != b:
            break
        count += 1
    return count


def sites(stack: Stack, places: Places) -> Sites:
    """A recorded stack, innermost frame first, without the frames that only pass a call on."""
    found = [_site(frame, places) for frame in stack]
    told = [site for site in found if site.place != MACHINE_CODE] or _operators(found)
    return tuple(site for index, site in enumerate(told) if index == 0 or not passes_on(site.place))


def _site(frame: Frame, places: Places) -> Site:
    if "::" in frame.function or (place := places.of(frame.file)) == MACHINE_CODE:
        return Site(MACHINE_CODE, _short(frame.function), 0)
    return Site(place, frame.function, 0 if place.repo == GENERATED else frame.line)


def _operators(found: Sequence[Site]) -> list[Site]:
    """Of a stack of machine code what it computes; all of it where nothing tells."""
    return [site for site in found if not _PLUMBING.match(site.function)] or list(found)


def backward_node(stack: Sites) -> str | None:
    """The node of the autograd graph whose backward pass a stack of machine code is in; None: it is in none."""
    return next((match[1] for site in stack if (match := _NODE.match(site.function))), None)


@lru_cache(maxsize=4096)
def _short(function: str) -> str:
    """The name of a C++ function without its return type, template arguments and parameters."""
    depth, kept = 0, []
    for letter in function.replace("(anonymous namespace)::", ""):
        depth += (letter == "<") - (letter == ">" and depth > 0)
        if depth == 0 and letter != ">":
            kept.append(letter)
    return "".join(kept).partition("(")[0].rpartition(" ")[2] or function


def place_text(site: Site) -> str:
    """Where a frame is, for people: `path:line`, without a line where none is known."""
    return f"{site.place.path}:{site.line}" if site.line else site.place.path


def passes_on(place: Place) -> bool:
    """Whether a file's frames say nothing but how a call came about, unless they are innermost."""
    return place.repo in _PASSING_ON or (place.repo == PACKAGE and place.path.startswith("torch/"))


Around = Callable[[Place, str, int], tuple[str, int]]
"""The function around a line of a file: place, bare name, line -> its full name, its first line."""


def _anywhere(place: Place, function: str, line: int) -> tuple[str, int]:
    """Where sources are not at hand: a function of its bare name, lines from the file's beginning."""
    return function, 0


def keys(
    first: Sequence[Sites],
    second: Sequence[Sites],
    diffs: Mapping[str, CodeDiff],
    around_first: Around = _anywhere,
    around_second: Around = _anywhere,
) -> tuple[list[Keys], list[Keys]]:
    """The stacks of both runs, comparable: equal stacks have equal keys.

    Args:
        diffs: how each project changed from the first run's commit to the second's; a project that is not in it is
            matched by the order of its lines.
        around_first, around_second: functions in the sources of both, to find a line's place in one that was edited.
    """
    ours, theirs = _observed(first), _observed(second)
    unknown = pair_unknown((place for place, _ in ours), (place for place, _ in theirs))
    table: dict[Site, Key] = {}
    for (place, function), lines in ours.items():
        diff = diffs.get(place.repo)
        if diff is not None:
            carried = _by_diff(place, function, lines, diff, theirs, around_first, around_second)
        else:
            there = unknown.get(place, place)
            pairs = _by_order(lines, theirs.get((there, function), set()))
            carried = {line: Key(there, function, pairs.get(line, -line)) for line in lines}
        table |= {Site(place, function, line): key for line, key in carried.items()}
    return [tuple(table[site] for site in stack) for stack in first], [tuple(Key(*site) for site in s) for s in second]


_Lines = Mapping[tuple[Place, str], set[int]]


def _observed(stacks: Iterable[Sites]) -> _Lines:
    """The lines seen of each function of each file."""
    found: dict[tuple[Place, str], set[int]] = defaultdict(set)
    for site in {site for stack in stacks for site in stack}:
        found[site.place, site.function].add(site.line)
    return found


def _by_order(ours: set[int], theirs: set[int]) -> dict[int, int]:
    """Lines of a function in two versions of a file of which nothing is known: the same ones if they can be."""
    if ours <= theirs or theirs <= ours:
        return {line: line for line in ours & theirs}
    base_ours, base_theirs = min(ours), min(theirs)
    pairs = align((line - base_ours for line in ours), (line - base_theirs for line in theirs))
    return {old + base_ours: new + base_theirs for old, new in pairs.items()}


def _by_diff(
    place: Place,
    function: str,
    lines: set[int],
    diff: CodeDiff,
    theirs: _Lines,
    around_first: Around,
    around_second: Around,
) -> dict[int, Key]:
    """Lines of a function carried over by the diff."""
    file = diff.by_old.get(place.path)
    if file is None:
        return {line: Key(place, function, line) for line in lines}
    if file.new is None:
        return {line: Key(place, function, -line) for line in lines}
    there = Place(place.repo, file.new)
    carried: dict[int, int] = {}
    changed: dict[tuple[Edit, str], dict[int, int]] = defaultdict(dict)
    for line in lines:
        edit = file.edit_of_old(line)
        if edit is None:
            carried[line] = file.new_line(line) or -line
        else:
            name, start = around_first(place, function, line)
            changed[edit, name][line - start] = line
    for (edit, name), old in changed.items():
        new: dict[int, int] = {}
        for line in theirs.get((there, function), ()):
            name_there, start = around_second(there, function, line)
            if edit.covers_new(line) and name_there == name:
                new[line - start] = line
        carried |= {old[one]: new[other] for one, other in align(old, new).items()}
    return {line: Key(there, function, carried.get(line, -line)) for line in lines}
