"""Two snapshots compared: what each holds at its peak, stack by stack, with the sources of both commits."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from oombisect import hints
from oombisect.errors import ExitCode, OombisectError
from oombisect.history.store import Store
from oombisect.memory.allocator.model import round_up
from oombisect.memory.allocator.rules import guess_rules
from oombisect.memory.allocator.settings import Settings, SettingsError
from oombisect.memory.definitions import Definition, Definitions
from oombisect.memory.difference import Entry, Held, Total, by_name, by_phase, difference
from oombisect.memory.line_map import CodeDiff, Edit, Hunk
from oombisect.memory.live_sets import NEVER, LiveSet, Phases, block_sizes, live_at_peak
from oombisect.memory.requests import Requests
from oombisect.memory.snapshots import SnapshotError, load, requests_of
from oombisect.memory.stacks import MACHINE_CODE, PACKAGE, Place, Places, Site, Sites, backward_node, keys, sites
from oombisect.memory.timeline import Timeline, timeline
from oombisect.memory.trace import Snapshot, Stack, Trace
from oombisect.readings import Outcome
from oombisect.recipes.config_diff import Change, diff
from oombisect.repo.bridge import BridgeRepository
from oombisect.repo.commits import CommitGraph
from oombisect.repo.line_map import ProjectAt, code_diffs, projects_at
from oombisect.session.snapshots_of import Located
from oombisect.units import format_bytes

BEFORE = "before the trace"
NO_STACK = "autograd backward (no Python stack)"
NOTHING_RECORDED = "no stacks were recorded"
NO_PHASES = "phase not known"
_PROJECTS = ("bridge", "megatron-lm", "repo")


_Diffs = tuple[Mapping[str, CodeDiff], Mapping[str, CodeDiff]]
"""The diffs of each project as they are, and without changes of white space."""


@dataclass(frozen=True, slots=True)
class ShownFrame:
    """A frame for people: `function` with its class where the source tells it, `source` the line's text if at hand.

    `hunk`: the piece of the diff that touched the line; `reindented`: in its white space alone.
    """

    project: str
    file: str
    line: int
    function: str
    source: str | None = None
    hunk: Hunk | None = None
    reindented: bool = False


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """An entry of the difference with its module and its stacks (innermost first) as they are in each run."""

    entry: Entry
    module: str
    first: tuple[ShownFrame, ...]
    second: tuple[ShownFrame, ...]

    @property
    def frames(self) -> tuple[ShownFrame, ...]:
        """The stack to show: the second run's, the first's where only that has it."""
        return self.second or self.first

    @property
    def touched(self) -> ShownFrame | None:
        """The innermost frame whose line was changed between the commits; one only re-indented if there is no other."""
        touched = [frame for frame in (*self.second, *self.first) if frame.hunk]
        return next((frame for frame in touched if not frame.reindented), touched[0] if touched else None)


@dataclass(slots=True)
class Side:
    """One run: its snapshot read, its live set, its sources where they are at hand.

    `device` is the one that is compared, `others` those that the snapshot tells of besides. `trace` are its events,
    `requests` what they ask for, `sizes` that of each block.
    """

    located: Located
    live: LiveSet
    table: tuple[Stack, ...]
    places: Places
    phases: Phases | None
    projects: Mapping[str, ProjectAt] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    device: int = 0
    others: tuple[int, ...] = ()
    trace: Trace = field(default_factory=Trace)
    requests: Requests = field(default_factory=Requests)
    sizes: Sequence[int] = ()
    _definitions: dict[Place, Definitions] = field(default_factory=dict)

    @property
    def peak_phase(self) -> str | None:
        """The phase in which the peak is reached; None where phases are not known."""
        return self.phases.name(self.live.allocation) if self.phases else None

    @property
    def censored(self) -> bool:
        """It ran out of memory, so that its peak is a lower bound."""
        reading = self.located.reading
        return reading is not None and reading.outcome is Outcome.CENSORED

    @property
    def simulated(self) -> bool:
        """A virtual device measured it; of a bare file that is not known, and not said."""
        reading = self.located.reading
        return reading is not None and reading.simulated

    def timeline(self) -> Timeline:
        """How much is allocated and reserved over the run."""
        rank = self.located.rank_reading
        return timeline(self.trace, self.requests, self.sizes, phases=rank.phases if rank and self.phases else None)

    def text(self, place: Place) -> str | None:
        """The source of a file at this side's commit; None where it is not at hand."""
        project = self.projects.get(place.repo)
        return project.text(place.path) if project else None

    def definition(self, site: Site) -> Definition | None:
        """The function a frame is in, by the source of this side's commit."""
        found = self._definitions.get(site.place)
        if found is None:
            found = self._definitions[site.place] = Definitions.of(self.text(site.place) or "")
        return found.at(site.line, site.function)

    def around(self, place: Place, function: str, line: int) -> tuple[str, int]:
        """See `stacks.Around`."""
        found = self.definition(Site(place, function, line))
        return (found.name, found.start) if found else (function, 0)


@dataclass(frozen=True, slots=True)
class SessionStep:
    """Which step of a session is compared.

    Args:
        point: the commit (of a roll the one inside that is compared), or what names its point.
        kind: its class.
        number, count: its place among the session's named steps, in the order of the report, from 1; and how many.
        why: what it was chosen for, a few words.
        others: the points of the other named steps, which `--step` takes. `crossing`: the one of all that crosses the
            limit.
        needed_bytes: needed capacities before and with it; None where they are not known.
    """

    session: str
    point: str
    kind: str
    number: int
    count: int
    why: str
    others: tuple[str, ...] = ()
    crossing: str | None = None
    needed_bytes: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; the contract in docs/json.md."""
        return {**asdict(self), "others": list(self.others), "needed_bytes": self.needed_bytes and [*self.needed_bytes]}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two peaks. Deltas are bytes, second minus first; those of each grouping sum to `delta`.

    `adjacent`: the first commit is a parent of the second, so that what changed was changed by the second. `step`: of a
    session, the step whose sides these are.
    """

    first: Side
    second: Side
    entries: tuple[ShownEntry, ...]
    modules: tuple[Total, ...]
    phases: tuple[Total, ...]
    config_changes: tuple[Change, ...] | None
    notes: tuple[str, ...]
    adjacent: bool = False
    step: SessionStep | None = None

    @property
    def about_layout(self) -> bool:
        """The live bytes do not tell the runs apart: the peaks are equal, or the step is one of the allocator's."""
        return self.delta == 0 or (self.step is not None and self.step.kind in ("fragmentation", "mixed"))

    @property
    def delta(self) -> int:
        """Peak allocated, second minus first, bytes."""
        return self.second.live.peak - self.first.live.peak

    @property
    def simulated(self) -> bool:
        """Whether a side is, and with it the difference."""
        return self.first.simulated or self.second.simulated


def compare(
    first: Located,
    second: Located,
    store: Store | None = None,
    repository: BridgeRepository | None = None,
    *,
    device: int | None = None,
) -> Comparison:
    """Compare what two snapshots hold at their peaks.

    Args:
        store: where the configurations of the probes are.
        repository: where their commits are; None: stacks are matched without it, and no sources are shown.
        device: of a snapshot of several devices, which one; None: the one with the longest history.

    Raises:
        OombisectError: a snapshot cannot be read, or holds no history.
    """
    known = next((s.reading.imported for s in (second, first) if s.reading and s.reading.imported), ())
    sides = [_open(located, known, device) for located in (first, second)]
    notes = _notes(*sides)
    adjacent = False
    diffs: dict[str, CodeDiff] = {}
    words: dict[str, CodeDiff] = {}
    stacks = [_live_stacks(side) for side in sides]
    if repository is not None and first.sources and second.sources:
        files = _project_files(list(stacks[0].values()) + list(stacks[1].values()))
        for side in sides:
            assert side.located.sources is not None
            side.projects = projects_at(repository, side.located.sources)
            for name, project in side.projects.items():
                project.load(files.get(name, ()))
        diffs = code_diffs(sides[0].projects, sides[1].projects, files)
        words = code_diffs(sides[0].projects, sides[1].projects, files, ignore_space=True)
        adjacent = _adjacent(repository, *sides)
        missing = sorted(files.keys() - diffs.keys())
        notes += [f"the sources of {name} are not at hand: its lines are matched by their order" for name in missing]
    elif first.point or second.point:
        notes.append("no repository to look the commits up in: lines are matched by their order, no source is shown")
    old, new = keys(list(stacks[0].values()), list(stacks[1].values()), words, sides[0].around, sides[1].around)
    held = [_held(side, dict(zip(stack, found))) for side, stack, found in zip(sides, stacks, (old, new), strict=True)]
    shown = tuple(_shown(entry, sides, stacks, (diffs, words)) for entry in difference(*held))
    names = {id(one.entry): one.module for one in shown}
    return Comparison(
        first=sides[0],
        second=sides[1],
        entries=shown,
        modules=by_name((one.entry for one in shown), lambda entry: names[id(entry)]),
        phases=by_phase(*held),
        config_changes=_config_changes(first, second, store),
        notes=tuple(notes),
        adjacent=adjacent,
    )


def _adjacent(repository: BridgeRepository, first: Side, second: Side) -> bool:
    """Whether the first point is a parent of the second: in its repository, or in the submodule of one commit of it."""
    old, new = (side.projects[repository.project].commit for side in (first, second))
    earlier, later = (side.projects.get("megatron-lm") for side in (first, second))
    if old != new:
        return old in repository.commit(new).parents
    if earlier is None or later is None:
        return False
    return earlier.commit in CommitGraph(later.mirror).commit(later.commit).parents


def _open(located: Located, imported: Sequence[str], device: int | None) -> Side:
    reading = located.reading
    if reading is not None and reading.outcome not in (Outcome.EXACT, Outcome.CENSORED):
        why = f", {reading.reason}" if reading.reason else ""
        raise OombisectError(
            f"{located.label} measured nothing: it is {reading.outcome}{why}",
            f"Name a probe that ran to its end, or out of memory; `{hints.command('show')}` lists a session's probes.",
        )
    try:
        snapshot = load(located.path)
    except SnapshotError as error:
        raise OombisectError(
            f"{located.path} is no snapshot that can be read: {error}",
            "Name a file that torch.cuda.memory._dump_snapshot wrote, or probe the point again.",
        ) from error
    except OSError as error:
        raise OombisectError(
            f"{located.path} cannot be read: {error.strerror or error}",
            "Check the file's permissions and the disk.",
            ExitCode.INFRASTRUCTURE,
        ) from error
    told = [memory for memory in snapshot.devices if len(memory.trace) or memory.segments]
    chosen = [memory for memory in told if device in (None, memory.device)]
    if told and not chosen:
        raise OombisectError(
            f"{located.path} holds nothing of device {device}",
            f"It has {', '.join(str(memory.device) for memory in told)}: name one of them with --device.",
        )
    memory = max(chosen, key=lambda memory: len(memory.trace), default=None)
    divisions, max_split = _settings(snapshot)
    requests, sizes, live = Requests(), array("Q"), None
    if memory is not None:
        requests = requests_of(memory, snapshot, failed=False)
        sizes = block_sizes(memory.trace, requests, lambda size: round_up(size, divisions), max_split)
        live = live_at_peak(memory, requests, sizes)
    if memory is None or live is None or not live.blocks:
        raise OombisectError(
            f"{located.path} holds no allocations",
            "Record a history: torch.cuda.memory._record_memory_history, before the first allocation.",
        )
    used = [frame.file for block in live.blocks if block.stack >= 0 for frame in snapshot.stacks[block.stack]]
    own = located.reading.imported if located.reading and located.reading.imported else imported
    rank = located.rank_reading
    return Side(
        located=located,
        live=live,
        table=snapshot.stacks,
        places=Places(used, own),
        phases=Phases.of(rank.phases, live) if rank else None,
        settings=snapshot.settings,
        device=memory.device,
        others=tuple(other.device for other in told if other is not memory),
        trace=memory.trace,
        requests=requests,
        sizes=sizes,
    )


def _settings(snapshot: Snapshot) -> tuple[tuple[int, ...], int]:
    try:
        found = Settings.of_snapshot(snapshot.settings, guess_rules(snapshot.settings))
    except SettingsError:
        return (), NEVER
    return found.roundup, found.max_split_size


def _live_stacks(side: Side) -> dict[int, Sites]:
    """The stacks of the live blocks, by their index in the snapshot."""
    used = dict.fromkeys(block.stack for block in side.live.blocks if block.stack >= 0)
    return {stack: sites(side.table[stack], side.places) for stack in used}


def _project_files(stacks: Iterable[Sites]) -> dict[str, set[str]]:
    files: dict[str, set[str]] = defaultdict(set)
    for place in {site.place for stack in stacks for site in stack}:
        if place.repo in _PROJECTS:
            files[place.repo].add(place.path)
    return files


def _held(side: Side, found: Mapping[int, Any]) -> list[Held]:
    return [
        Held(
            keys=found.get(block.stack, ()),
            size=block.size,
            phase=side.phases.name(block.allocation)
            if side.phases
            else BEFORE
            if block.allocation is None
            else NO_PHASES,
            stack=block.stack,
            before=block.allocation is None,
            requested=block.requested,
        )
        for block in side.live.blocks
    ]


def _shown(entry: Entry, sides: Sequence[Side], stacks: Sequence[Mapping[int, Sites]], diffs: _Diffs) -> ShownEntry:
    first, second = (found.get(part.stack, ()) for found, part in zip(stacks, (entry.first, entry.second)))
    if entry.before:
        module = BEFORE
    elif not (first or second):
        module = NO_STACK if any(stacks) else NOTHING_RECORDED
    else:
        module = module_of(second, sides[1]) if second else module_of(first, sides[0])
    return ShownEntry(
        entry,
        module,
        tuple(_frame(site, sides[0], diffs, old=True) for site in first),
        tuple(_frame(site, sides[1], diffs, old=False) for site in second),
    )


def _frame(site: Site, side: Side, diffs: _Diffs, *, old: bool) -> ShownFrame:
    place, function, line = site
    text = side.text(place)
    lines = text.split("\n") if text is not None else []
    found = side.definition(site) if text is not None else None
    edit, in_words = (_edit(site, changed.get(place.repo), old=old) for changed in diffs)
    return ShownFrame(
        project=place.repo,
        file=place.path,
        line=line,
        function=found.name if found else function,
        source=lines[line - 1].strip() if 0 < line <= len(lines) else None,
        hunk=edit.hunk if edit else None,
        reindented=edit is not None and in_words is None,
    )


def _edit(site: Site, changed: CodeDiff | None, *, old: bool) -> Edit | None:
    """The edit that touched the line of a frame, of the first run (`old`) or of the second."""
    file = (changed.by_old if old else changed.by_new).get(site.place.path) if changed else None
    if file is None:
        return None
    return file.edit_of_old(site.line) if old else file.edit_of_new(site.line)


def module_of(stack: Sites, side: Side) -> str:
    """Where in the model a stack is: the nearest method of a module around it; failing that, of any class, a function.

    Only project files count, whose sources tell classes; where there are none, the innermost file stands for itself. Of
    a backward pass that is the node of the graph.
    """
    if stack[0].place == MACHINE_CODE:
        return f"{MACHINE_CODE.path} {backward_node(stack) or stack[0].function}"
    project = [(site, side.definition(site)) for site in stack if side.text(site.place) is not None]
    for wanted in (lambda d: d.module, lambda d: d.cls is not None, lambda d: True):
        for site, definition in project:
            if definition is not None and wanted(definition):
                return f"{site.place.path} {definition.method}"
    nearest = next(
        (site for site in stack if site.place.repo not in (PACKAGE, "python", "probe", "generated")), stack[0]
    )
    return f"{nearest.place.path} {nearest.function}"


def _config_changes(first: Located, second: Located, store: Store | None) -> tuple[Change, ...] | None:
    """How the resolved configurations differ; None where one is not known."""
    if store is None or first.reading is None or second.reading is None:
        return None
    before, after = (
        store.config(reading.config_hash) if reading.config_hash else None
        for reading in (first.reading, second.reading)
    )
    return diff(before, after) if before is not None and after is not None else None


def _notes(first: Side, second: Side) -> list[str]:
    """What a reader of the numbers should know."""
    notes = []
    for side in (first, second):
        rank, name = side.located.rank_reading, side.located.label
        if rank is not None and side.live.peak != rank.peak_allocated:
            off = format_bytes(abs(rank.peak_allocated - side.live.peak))
            way = "less" if side.live.peak < rank.peak_allocated else "more"
            notes.append(f"{name}: its history shows {off} {way} at the peak than its counters")
        if side.live.unmatched_frees or side.live.missing:
            unknown = format_bytes(abs(side.live.missing))
            notes.append(
                f"{name}: the history is not complete ({side.live.unmatched_frees} frees of unknown memory, {unknown} "
                "unexplained at its end), so the peak may have been higher"
            )
        if any(block.allocation is None for block in side.live.blocks):
            notes.append(f"{name}: its history begins with memory allocated; a higher peak before that is not seen")
        if side.censored:
            notes.append(f"{name} ran out of memory: shown is the most it held until then")
        notes += side.located.notes
        if side.others:
            rest = ", ".join(str(other) for other in side.others)
            notes.append(f"{name}: device {side.device} is compared; it also has {rest} (--device chooses)")
        if side.phases is None:
            why = "its history does not begin with the run" if rank else "a bare snapshot has none"
            notes.append(f"{name}: phases are not known, {why}")
    return notes + _unlike(first, second)


def _unlike(first: Side, second: Side) -> list[str]:
    """Conditions in which the runs differ besides their code."""
    notes = []
    if first.located.rank != second.located.rank:
        notes.append(f"different ranks: {first.located.rank} and {second.located.rank}")
    one, other = first.located.reading, second.located.reading
    if one and other:
        for name, a, b in (
            ("devices", one.device, other.device),
            ("world sizes", one.world_size, other.world_size),
            ("attention backends", one.attention_backend, other.attention_backend),
        ):
            if a != b:
                notes.append(f"different {name}: {a} and {b}")
    if first.located.probe and second.located.probe:
        asked = [side.located.probe.spec for side in (first, second) if side.located.probe]
        if asked[0].recipe != asked[1].recipe:
            notes.append(f"different recipes were asked for: {asked[0].recipe} and {asked[1].recipe}")
        settings = [dict(spec.settings) for spec in asked]
        for key in sorted(settings[0].keys() | settings[1].keys()):
            a, b = (found.get(key) for found in settings)
            if a != b and key not in ("recipe", "ranks", "world_size"):
                notes.append(f"different {key}: {a} and {b}")
    conf = [str(side.settings.get("PYTORCH_CUDA_ALLOC_CONF") or "defaults") for side in (first, second)]
    if conf[0] != conf[1]:
        notes.append(f"different allocator settings: {conf[0]} and {conf[1]}; blocks may be cut differently")
    return notes
