"""What `oombisect history` shows: the workloads that are meant, and their series with steps and creep."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oombisect import hints
from oombisect.errors import OombisectError
from oombisect.history.fit import Fit, fit
from oombisect.history.measurements import Line, Metric, Order, PointReading, lines, load
from oombisect.history.sqlite import Database
from oombisect.printable import quoted

Places = Mapping[int, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class WorkloadInfo:
    """A workload that has measurements: how many, of whom, and between which dates (ISO 8601)."""

    id: int
    recipe: str
    device: str
    settings: Mapping[str, Any]
    provenance: str
    measurements: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which workloads are asked for; None, or nothing, is any.

    Args:
        recipe: as asked for in a run, or the name of an imported test or run.
        overrides: `KEY=VALUE`, each among the workload's own.
        settings: `NAME=VALUE` of the workload's other settings.
    """

    recipe: str | None = None
    device: str | None = None
    provenance: str | None = None
    workload: int | None = None
    overrides: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A key of a config, as JSON texts; None: it is not there."""

    path: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one workload along one line of commits; `rank` None is the worst of all that were read.

    Args:
        config_changes: by the point of a step, what differs between the configs of its two sides, where both are told.
    """

    workload: WorkloadInfo
    repo: str
    line: str
    ordered_by: Order
    metric: Metric
    rank: int | None
    readings: tuple[PointReading, ...]
    fit: Fit
    config_changes: Mapping[str, tuple[ConfigChange, ...]] = field(default_factory=dict)

    @property
    def provenance(self) -> str:
        return self.workload.provenance


_WORKLOADS = """
SELECT workloads.id, workloads.recipe, workloads.device, workloads.settings,
  CASE WHEN json_extract(workloads.settings, '$.imported') IS NOT NULL THEN 'imported'
    WHEN workloads.simulated THEN 'simulated' ELSE 'measured' END AS provenance,
  (SELECT count(*) FROM measurements WHERE measurements.workload = workloads.id) AS measurements
FROM workloads WHERE recipe IN (SELECT value FROM json_each(?)) ORDER BY recipe, device, workloads.id"""


def workloads(db: Database, wanted: Wanted) -> list[WorkloadInfo]:
    """The workloads that are meant and have measurements: of the very recipe, else of what comes near enough.

    Raises:
        OombisectError: there is none; near names are listed.
    """
    known = [row[0] for row in db.execute("SELECT DISTINCT recipe FROM workloads ORDER BY recipe")]
    if not known:
        raise OombisectError(
            "The database holds no measurements yet", f"Start with `{hints.command('run', 'GOOD..BAD')}`."
        )
    recipes = known if wanted.recipe is None else named(wanted.recipe, known)
    rows = list(db.query(_WORKLOADS, [json.dumps(recipes)]))
    found = [WorkloadInfo(**{**row, "settings": json.loads(row["settings"])}) for row in rows]
    found = [workload for workload in found if workload.measurements]
    left = [workload for workload in found if _is_meant(workload, wanted)]
    if not found:
        raise OombisectError(
            f"{quoted(wanted.recipe)} has no measurements that make a series: no plain probe of it ended",
            f"Probe it: `{hints.command('probe', 'HEAD', '--recipe', 'NAME')}`.",
        )
    if not left:
        has = sorted({f"{workload.device} ({workload.provenance})" for workload in found})
        more = f", and {len(has) - 6} more" if len(has) > 6 else ""
        raise OombisectError(
            f"No workload of {quoted(wanted.recipe) if wanted.recipe else 'this database'} is like that: "
            f"{_asked(wanted)}",
            f"There is {', '.join(has[:6])}{more}; without the options all workloads are listed.",
        )
    return left


def named(recipe: str, known: Sequence[str]) -> list[str]:
    """The recipes that a name means: itself, else as it is spelled otherwise, else those that it is a part of.

    Raises:
        OombisectError: none.
    """
    if recipe in known:
        return [recipe]
    plain = _plain(recipe)
    for near in (
        [name for name in known if _plain(name) == plain],
        [name for name in known if sorted(_plain(name).split("_")) == sorted(plain.split("_"))],
        [name for name in known if plain and plain in _plain(name)],
    ):
        if near:
            return near
    close = difflib.get_close_matches(recipe, known, n=4, cutoff=0.5)
    way_out = f"Did you mean {', '.join(close)}?" if close else f"There is {', '.join(known[:6])}."
    raise OombisectError(f"No recipe {quoted(recipe)} was ever measured in this database", way_out)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").removesuffix("_config")


def _is_meant(workload: WorkloadInfo, wanted: Wanted) -> bool:
    overrides = [str(item) for item in workload.settings.get("overrides") or ()]
    settings = [item.partition("=") for item in wanted.settings]
    return (
        wanted.workload in (None, workload.id)
        and wanted.device in (None, workload.device, workload.device.removeprefix("virtual:"))
        and wanted.provenance in (None, workload.provenance)
        and all(override in overrides for override in wanted.overrides)
        and all(_is(workload.settings.get(name), value) for name, _, value in settings)
    )


def _is(setting: Any, text: str) -> bool:
    """Whether a setting is what was written: as text, or as JSON."""
    if isinstance(setting, str) and setting == text:
        return True
    try:
        return bool(setting == json.loads(text))
    except ValueError:
        return False


def _asked(wanted: Wanted) -> str:
    options = [
        ("--gpu", wanted.device),
        ("--provenance", wanted.provenance),
        ("--workload", wanted.workload),
        *(("--set", override) for override in wanted.overrides),
        *(("--where", setting) for setting in wanted.settings),
    ]
    return " ".join(f"{name} {value}" for name, value in options if value is not None) or "none"


def differences(found: Sequence[WorkloadInfo]) -> list[str]:
    """For each of several workloads, what tells it from the others, as `NAME=VALUE`, by name."""
    names = sorted({name for workload in found for name in workload.settings} - {"recipe", "imported"})
    texts = {name: [json.dumps(workload.settings.get(name), sort_keys=True) for workload in found] for name in names}
    telling = [name for name in names if len(set(texts[name])) > 1]
    return [" ".join(f"{name}={texts[name][n]}" for name in telling) for n in range(len(found))]


def series(
    db: Database, workload: WorkloadInfo, metric: Metric, rank: int | None = None, places: Places | None = None
) -> list[Series]:
    """The series of a workload, one for each line of commits.

    Args:
        places: of points, instead of those that are stored.
    """
    measurements = load(db, workload.id, rank)
    if places is not None:
        measurements = [
            replace(m, line=places[m.point_id][0], place=places[m.point_id][1]) if m.point_id in places else m
            for m in measurements
        ]
    return [one for line in lines(measurements) if (one := _series(db, workload, line, metric, rank)) is not None]


def _series(db: Database, workload: WorkloadInfo, line: Line, metric: Metric, rank: int | None) -> Series | None:
    readings = line.readings(metric)
    if not readings:
        return None
    found = fit(line.samples(readings), exact=line.provenance == "simulated")
    return Series(
        workload, line.repo, line.name, line.by, metric, rank, tuple(readings), found, _changes(db, readings, found)
    )


def _changes(db: Database, readings: Sequence[PointReading], found: Fit) -> dict[str, tuple[ConfigChange, ...]]:
    of = {reading.of.point: reading.of.config for reading in readings}
    pairs = {step.point: (of[step.previous], of[step.point]) for step in found.steps}
    wanted = [number for pair in pairs.values() if len(set(pair)) > 1 for number in pair if number is not None]
    rows = db.execute(
        "SELECT id, config FROM configs WHERE id IN (SELECT value FROM json_each(?))", [json.dumps(wanted)]
    )
    configs = {number: _flat(json.loads(text)) for number, text in rows.fetchall()}
    return {
        point: config_changes(configs[before], configs[after])
        for point, (before, after) in pairs.items()
        if before != after and before in configs and after in configs
    }


def config_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ConfigChange, ...]:
    """The keys, by name, whose texts differ."""
    return tuple(
        ConfigChange(path, before.get(path), after.get(path))
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    )


def _flat(config: Any, path: str = "") -> dict[str, str]:
    """The leaves of a config as JSON texts, by path; an empty object is a leaf."""
    if not isinstance(config, dict) or not config:
        return {path: json.dumps(config, sort_keys=True)}
    inside = [_flat(value, f"{path}.{name}" if path else str(name)) for name, value in config.items()]
    return {name: text for leaves in inside for name, text in leaves.items()}
