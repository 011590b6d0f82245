"""The axis of a package's releases, and that of the packages which a change of environment moved. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from oombisect.axes.point import Point
from oombisect.errors import OombisectError

REPO = "package"
# What can hold device memory: looked into first.
_FRAMEWORKS = re.compile(r"torch|triton|transformer-engine.*|transformers|megatron-.*|flash-.*|nvidia-.*|deep-ep|apex")
_OTHER_WEIGHT = 0.1


def package_name(text: str) -> str:
    """The canonical name of a package.

    Raises:
        OombisectError: it is no such name.
    """
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", text):
        raise OombisectError(f"{text!r} is no name of a package", "Write it as pip does, for example torch.")
    return canonicalize_name(text)


def parse_releases(text: str) -> tuple[str, str]:
    """`2.9.1..2.14.1` -> the versions of both ends.

    Raises:
        OombisectError: it is no such range, or not an ascending one.
    """
    good, dots, bad = text.strip().partition("..")
    try:
        ends = Version(good), Version(bad)
    except InvalidVersion as error:
        raise OombisectError(
            f"{text!r} is no range of releases: {error}", "Write it GOOD..BAD, for example 2.9.1..2.14.1."
        ) from error
    assert dots  # a text without them has no version behind them
    if ends[0] == ends[1]:
        raise OombisectError(f"{good} and {bad} are the same release", "Give two releases, the good one first.")
    if ends[0] > ends[1]:
        raise OombisectError(
            f"The range is reversed: {bad} comes before {good}",
            f"Swap them: {bad}..{good}; --find improvement looks for what brought memory down.",
        )
    return str(ends[0]), str(ends[1])


def release_points(package: str, versions: Sequence[str]) -> tuple[Point, ...]:
    """The releases of `package` as points, in the order given."""
    first = Point(versions[0], versions[0], f"{package} {versions[0]}", repo=REPO)
    rest = (Point(b, b, f"{package} {a} -> {b}", repo=REPO, parent=a) for a, b in pairwise(versions))
    return (first, *rest)


@dataclass(frozen=True, slots=True, order=True)
class Moved:
    """A package whose version differs between two environments; None: it is not there."""

    package: str
    before: str | None
    after: str | None

    def to_json(self) -> dict[str, str | None]:
        return {"package": self.package, "before": self.before, "after": self.after}

    def __str__(self) -> str:
        return f"{self.package} {self.before or 'none'} -> {self.after or 'none'}"


def moved(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Moved, ...]:
    """What differs between two environments (package -> version), by name."""
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return tuple(Moved(name, before.get(name), after.get(name)) for name in names)


def weight(packages: Collection[str]) -> float:
    """How likely a change of these packages is to have moved device memory, against a framework's."""
    return sum(1.0 if _FRAMEWORKS.fullmatch(name) else _OTHER_WEIGHT for name in packages)


def arrange(
    changes: Sequence[Moved], before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]
) -> tuple[tuple[Moved, ...], ...]:
    """The changes one after another, in an order in which no package is left with another that it refuses.

    Packages that no order serves move together. What is likely to matter moves first where the order is free.

    Args:
        before: package -> its requirements, as pip writes them, in the environment before all changes.
        after: the same after all of them.
    """
    by_name = {change.package: change for change in changes}
    waits = {name: set[str]() for name in by_name}  # what must have moved before, or with it
    for name, change in by_name.items():
        for other, specifier in _specifiers(before.get(name, ())):
            if other in by_name and not _accepts(specifier, by_name[other].after) and change.before is not None:
                waits[other].add(name)
        for other, specifier in _specifiers(after.get(name, ())):
            if other in by_name and not _accepts(specifier, by_name[other].before) and change.after is not None:
                waits[name].add(other)
    closed = _closure(waits)
    groups = {frozenset({name, *(other for other in closed[name] if name in closed[other])}) for name in by_name}
    done, chain = set[str](), list[tuple[Moved, ...]]()
    while len(done) < len(by_name):
        ready = [g for g in groups if not g & done and all(closed[name] - g <= done for name in g)]
        chosen = min(ready, key=lambda group: (-weight(group), sorted(group)))
        chain.append(tuple(by_name[name] for name in sorted(chosen)))
        done |= chosen
    return tuple(chain)


def _closure(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    closed = dict[str, set[str]]()
    for name in edges:
        pending, seen = list(edges[name]), set[str]()
        while pending:
            at = pending.pop()
            if at not in seen:
                seen.add(at)
                pending += edges[at]
        closed[name] = seen
    return closed


def _specifiers(requires: Sequence[str]) -> list[tuple[str, Requirement]]:
    found = list[tuple[str, Requirement]]()
    for text in requires:
        try:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                found.append((canonicalize_name(requirement.name), requirement))
        except InvalidRequirement:
            continue  # no tool can follow it
    return found


def _accepts(requirement: Requirement, version: str | None) -> bool:
    try:
        return version is not None and requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return True
