"""Importing: each file read, its runs put in their places and recorded, one transaction a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from oombisect.errors import ExitCode, OombisectError
from oombisect.history.imported import ImportedReading, ImportKind, ImportSpec
from oombisect.history.store import Store
from oombisect.imports.content import Content, Problem, RunMemory, Unreadable
from oombisect.imports.files import MAX_FILE, SourceFile, look, read_file, too_large
from oombisect.imports.place import UNDATED, UNKNOWN, Place, Point, parse_begin, point_of

SCHEMA = 1
_EVENTS = "*tfevents*"


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of one source: `added` of its `readings` were new; `undone`: it was not imported, and why."""

    source: str
    readings: int
    added: int
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    undone: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values; the contract in docs/json.md."""
        return {
            "source": self.source,
            "readings": self.readings,
            "added": self.added,
            "known": self.readings - self.added if not self.undone else 0,
            "problems": [{"where": p.where, "what": p.what} for p in self.problems],
            "notes": list(self.notes),
            "not_imported": self.undone or None,
        }


@dataclass(frozen=True, slots=True)
class _Source:
    """A source that was read: its name, its hash, when it was last changed, what it tells."""

    name: str
    default_recipe: str
    sha256: str
    changed: datetime
    content: Content

    @property
    def point(self) -> Point:
        """Where it belongs if nothing tells: a point of its own, at the time the file was last changed."""
        return Point(UNDATED, f"file {self.sha256[:12]}", "", self.changed)


def import_logs(store: Store, files: Sequence[Path], place: Place, *, strict: bool = False) -> list[Imported]:
    """Training logs; see `training_log`."""
    from oombisect.imports.training_log import parse_log

    return _import(store, "log", (partial(_parsed, path, parse_log) for path in files), place, strict)


def import_wandb(store: Store, files: Sequence[Path], place: Place, *, strict: bool = False) -> list[Imported]:
    """Exports of Weights & Biases; see `export`."""
    from oombisect.imports.export import parse_export

    return _import(store, "wandb", (partial(_parsed, path, parse_export) for path in files), place, strict)


def import_csv(
    store: Store, files: Sequence[Path], place: Place, columns: str | None, unit: str, *, strict: bool = False
) -> list[Imported]:
    """Plain CSV; see `table`."""
    from oombisect.imports.table import columns_of, parse_table

    named = columns_of(columns)

    def parse(data: bytes) -> Content:
        return parse_table(data, named, unit)

    return _import(store, "csv", (partial(_parsed, path, parse) for path in files), place, strict)


def import_snapshots(store: Store, files: Sequence[Path], place: Place, *, strict: bool = False) -> list[Imported]:
    """CUDA snapshots; see `snapshot`."""
    from oombisect.imports.snapshot import read_snapshot

    def read(path: Path) -> _Source:
        look(path)
        if path.stat().st_size > MAX_FILE:
            raise too_large(path, MAX_FILE)
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return _Source(str(path), path.absolute().parent.name, sha256, changed, read_snapshot(path))

    return _import(store, "snapshot", (partial(read, path) for path in files), place, strict)


def import_tensorboard(store: Store, folder: Path, place: Place, *, strict: bool = False) -> list[Imported]:
    """The event files below a folder; those in one folder are one run.

    Raises:
        OombisectError: there is none.
    """
    from oombisect.imports.tensorboard import parse_events

    if not folder.is_dir():
        look(folder)
    try:
        files = sorted(path for path in folder.rglob(_EVENTS) if path.is_file()) if folder.is_dir() else [folder]
    except OSError as error:
        raise OombisectError(f"{str(folder)!r} cannot be read: {error.strerror}", "Check its permissions.") from error
    if not files:
        raise OombisectError(
            f"There are no event files ({_EVENTS}) below {str(folder)!r}", "Name the folder that TensorBoard is given."
        )
    runs: dict[Path, list[Path]] = {}
    for file in files:
        runs.setdefault(file.parent, []).append(file)

    def read(parent: Path, parts: Sequence[Path]) -> _Source:
        digest, contents, changed = hashlib.sha256(), [], []
        for path in parts:
            file = read_file(path)
            digest.update(file.sha256.encode())
            changed.append(file.changed)
            contents.append(parse_events(file.data, path.name))
        return _Source(str(parent), parent.absolute().name, digest.hexdigest(), max(changed), _merged(contents))

    return _import(store, "tensorboard", (partial(read, *run) for run in runs.items()), place, strict)


def import_goldens(
    store: Store, clone: Path, *, revision: str = "HEAD", since: str | None = None, strict: bool = False
) -> Imported:
    """The goldens in the history of a Megatron-LM clone; see `golden_history`."""
    from oombisect.imports.golden_history import mine
    from oombisect.imports.goldens import Name

    known = {origin: Name(*named) for origin, named in store.imported_from("goldens").items()}
    begin = None if since is None else parse_begin(since, datetime.now(UTC))
    mined = mine(clone, revision=revision, since=begin, known=known)
    silent = f"{mined.silent:,} of {mined.goldens:,} goldens tell no memory"
    result = Imported(str(clone), len(mined.readings), 0, mined.problems, (*mined.notes, silent))
    if strict and mined.problems:
        return replace(result, undone=_STRICT)
    spec = ImportSpec("goldens", str(clone), None, {"commit": mined.head, "since": since})
    return replace(result, added=store.add_import(spec, mined.readings))


_STRICT = "part of it cannot be read (--strict)"


def _parsed(path: Path, parse: Callable[[bytes], Content]) -> _Source:
    file: SourceFile = read_file(path)
    return _Source(str(path), file.stem, file.sha256, file.changed, parse(file.data))


def _merged(contents: Iterable[Content]) -> Content:
    """Event files of one run, put together: a run that was started again has several."""
    from oombisect.imports.content import run_of

    values: dict[str, dict[int, int]] = {}
    problems: list[Problem] = []
    dates = []
    told: dict[str, set[int | None]] = {name: set() for name in ("rank", "world_size")}
    for content in contents:
        problems += content.problems
        dates += [content.date] if content.date else []
        for run in content.runs:
            for name, numbers in told.items():
                numbers.add(getattr(run, name))
            for metric, sizes in run.values.items():
                values.setdefault(metric, {}).update(sizes)
    # Where they do not agree, whose the values are is not known.
    of_run = {name: next(iter(numbers)) for name, numbers in told.items() if len(numbers) == 1}
    return Content((run_of(values, **of_run),) if values else (), tuple(problems), min(dates, default=None))


def _import(
    store: Store, kind: ImportKind, sources: Iterable[Callable[[], _Source]], place: Place, strict: bool
) -> list[Imported]:
    return [_import_one(store, kind, read, place, strict) for read in sources]


def _import_one(store: Store, kind: ImportKind, read: Callable[[], _Source], place: Place, strict: bool) -> Imported:
    try:
        source = read()
    except Unreadable as error:
        return Imported(_name_of(read), 0, 0, undone=str(error))
    except OombisectError as error:
        if error.exit_code != ExitCode.USAGE:
            raise
        return Imported(_name_of(read), 0, 0, undone=f"{error.cause}. {error.way_out}")
    content = source.content
    problems = list(content.problems)
    if not content.runs:
        problems = problems or [Problem("", "it tells no memory of a device")]
        return Imported(source.name, 0, 0, tuple(problems), content.notes, "it tells no memory")
    readings = list(_readings(source, place, problems))
    result = Imported(source.name, len(readings), 0, tuple(problems), content.notes)
    if not readings:
        return replace(result, undone="none of what it tells can be put in its place")
    if strict and problems:
        return replace(result, undone=_STRICT)
    spec = ImportSpec(kind, source.name, source.sha256, place.to_json())
    return replace(result, added=store.add_import(spec, readings))


def _name_of(read: Callable[[], _Source]) -> str:
    return str(read.args[0]) if isinstance(read, partial) else ""


def _readings(source: _Source, place: Place, problems: list[Problem]) -> Iterator[ImportedReading]:
    points: dict[tuple[str | None, datetime | None], Point] = {}
    for run in source.content.runs:
        try:
            date = parse_begin(run.told["date"], datetime.now(UTC)) if "date" in run.told else source.content.date
            asked = run.told.get("commit"), date
            if asked not in points:
                points[asked] = point_of(place, *asked, source.point)
        except OombisectError as error:
            if place.commit:
                raise
            problems.append(Problem(run.where, error.cause))
            continue
        yield _reading(source, run, place, points[asked])


def _reading(source: _Source, run: RunMemory, place: Place, point: Point) -> ImportedReading:
    return ImportedReading(
        recipe=place.recipe or run.told.get("recipe") or run.run or source.default_recipe,
        device=place.device or run.told.get("device") or UNKNOWN,
        settings=place.settings,
        repo=point.repo,
        point=point.point,
        subject=point.subject,
        committed=point.committed,
        origin=f"{source.name}: {run.where}" if run.where else source.name,
        reason=run.reason,
        config=run.config,
        rank=run.rank,
        world_size=run.world_size,
        peak_allocated=run.peak_allocated,
        peak_reserved=run.peak_reserved,
        peak_device=run.peak_device,
        external=run.external,
        values=run.values,
    )
