"""Goldens of Megatron-LM's functional tests: what a file holds, and which files over its history are one series. Pure.

A golden is what CI once measured on real GPUs: `mem-max-allocated-bytes` and others by step, of the last rank. Through
the years a metric was a list with `start_step` and `step_interval`, a mapping of steps, or (inference) one number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from oombisect.imports.content import Unreadable
from oombisect.imports.metrics import in_bytes, metric_of

FOLDER = "tests/functional_tests"
CASES = f"{FOLDER}/test_cases/"
PATTERN = f":(glob){FOLDER}/**/golden_values*.json"
MAX_GOLDEN = 16 << 20
_STEP = re.compile(r"[0-9]{1,9}", re.ASCII)
_HARDWARE = re.compile(r"dgx_?[a-z]{1,4}[0-9]{1,4}", re.ASCII)
_ENVIRONMENTS = ("dev", "lts")
_UNKNOWN = "unknown"


def parse_golden(data: bytes) -> dict[str, dict[int, int]]:
    """The memory in a golden: sizes in bytes by metric and step; empty: it tells none.

    Raises:
        Unreadable: it is no JSON, or a memory metric has no shape that is known.
    """
    if len(data) > MAX_GOLDEN:
        raise Unreadable(f"it has {len(data):,} bytes, which no golden has")
    try:
        told = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable("it is empty" if not data.strip() else f"it is no JSON: {str(error)[:100]}") from error
    found: dict[str, dict[int, int]] = {}
    for key, value in told.items() if isinstance(told, dict) else ():
        if named := metric_of(key):
            metric, unit = named
            found[metric] = dict(_sizes(key, value, unit))
    return {metric: sizes for metric, sizes in found.items() if sizes}


def _sizes(key: str, value: Any, unit: int) -> Iterator[tuple[int, int]]:
    for step, number in _steps(key, value):
        if number is None or number == "nan" or number != number:
            continue
        size = in_bytes(number, unit)
        if size is None:
            raise Unreadable(f"{key} is {str(number)[:40]!r} at step {step}")
        yield step, size


def _steps(key: str, value: Any) -> Iterator[tuple[int, Any]]:
    if isinstance(value, int | float | str) or value is None:
        yield 0, value
        return
    about = value if isinstance(value, dict) and "values" in value else {"values": value}
    values, start, interval = about["values"], about.get("start_step", 0), about.get("step_interval", 1)
    if isinstance(values, dict) and all(map(_STEP.fullmatch, values)):
        yield from ((int(step), number) for step, number in values.items())
    elif isinstance(values, list) and all(isinstance(n, int) and 0 <= n < 1 << 31 for n in (start, interval)):
        yield from ((start + interval * index, number) for index, number in enumerate(values))
    else:
        raise Unreadable(f"{key} has a shape that is not known")


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit did to a golden: its blob from then on ("": it was removed), and its path before, if it moved."""

    commit: str
    path: str
    blob: str
    moved_from: str = ""


@dataclass(frozen=True, slots=True)
class Golden:
    """A golden as a commit wrote it."""

    commit: str
    path: str
    blob: str

    @property
    def origin(self) -> str:
        """What names it for good."""
        return f"{self.path}@{self.commit}"


@dataclass(slots=True)
class Series:
    """The goldens of one test on one machine, oldest first. Its name is its newest path's."""

    paths: list[str]
    goldens: list[Golden] = field(default_factory=list)


def series_of(changes: Iterable[Change]) -> list[Series]:
    """The series in a history, whose changes come oldest first. A file that moved, unchanged, keeps its series."""
    living: dict[str, Series] = {}
    all_: list[Series] = []
    for change in changes:
        series = living.pop(change.moved_from, None) if change.moved_from else living.get(change.path)
        if series is None:
            series = Series([])
            all_.append(series)
        if change.blob:
            living[change.path] = series
            if not series.paths or series.paths[-1] != change.path:
                series.paths.append(change.path)
            if not change.moved_from:
                series.goldens.append(Golden(change.commit, change.path, change.blob))
    return [series for series in all_ if series.goldens]


@dataclass(frozen=True, slots=True)
class Name:
    """A series as a workload: the test, the hardware as it is named there, and what else it holds fixed."""

    test: str
    hardware: str
    settings: Mapping[str, Any]


def name_of(series: Series) -> Name:
    """The name of a series: the newest of its paths that tells a thing tells it."""
    newest = series.paths[-1]
    folder, _, file = newest.removeprefix(CASES).rpartition("/")
    told = [_told(path) for path in reversed(series.paths)]
    hardware = next((hardware for hardware, _ in told if hardware), _UNKNOWN)
    environment = next((environment for _, environment in told if environment), None)
    return Name(folder, hardware, {"environment": environment, "golden": file})


def _told(path: str) -> tuple[str, str]:
    """The hardware and the environment that a path tells: `golden_values_dev_dgxh100_eos.json`, `..._dgx_a100_1N8G`."""
    folder, _, file = path.rpartition("/")
    words = file.removesuffix(".json").removeprefix("golden_values").strip("_").split("_")
    environment = next((word for word in words if word in _ENVIRONMENTS), "")
    plain = "_".join(word for word in words if word not in (*_ENVIRONMENTS, "2nd"))
    at = re.search(r"dgx", plain)
    if at:
        return plain[at.start() :], environment
    in_folder = _HARDWARE.search(folder)
    return in_folder[0] if in_folder else "", environment


def config_path(golden: str) -> str:
    """Where the configuration of a golden's test lies."""
    return f"{golden.rpartition('/')[0]}/model_config.yaml"
