"""What a `uv.lock` pins of the packages a probe needs, read as text: nothing is resolved or downloaded here.

Bridge's lock is made for a container. It leaves packages that the container brings out (torch, marked for a platform
that never is), takes others from git, and one name may be locked at several versions for different Pythons.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_FORMAT = 1
# Answered by the probe whatever is installed (docs/probe.md), so what they need is not needed.
NEVER_IMPORTED = frozenset({"datasets", "diffusers", "onnxscript"})


class UnusableLock(Exception):
    """The text is no lock that says anything for this Python; the message says why."""


@dataclass(frozen=True, slots=True, order=True)
class Pin:
    """A package and its locked version, which has no local part. Not `exact`: the newest release up to it is meant."""

    name: str
    version: str
    exact: bool = True

    @property
    def requirement(self) -> str:
        """As pip writes it."""
        return f"{self.name}{'==' if self.exact else '<='}{self.version}"


@dataclass(frozen=True, slots=True)
class Locked:
    """What a lock says of some packages and all they need.

    `pins` can be had from a package index. `sources` are pins of a build from elsewhere (git), for which the release
    of that version may stand in; `left_out` are names that the lock leaves to the machine (a container).
    """

    pins: tuple[Pin, ...]
    sources: Mapping[str, Pin]
    left_out: tuple[str, ...]


def read_lock(text: bytes, roots: Collection[str], python: str) -> Locked:
    """What the lock pins of `roots` and of all they need under Python `python` (e.g. `3.12.1`) on Linux x86-64.

    Raises:
        UnusableLock: it is no such lock, of another format, or for other Pythons.
    """
    try:
        lock = tomllib.loads(text.decode())
        return _Graph(lock, python).walk(roots)
    except (ValueError, RecursionError) as error:
        raise UnusableLock(f"uv.lock cannot be read: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise UnusableLock(f"uv.lock is not of the form uv writes ({type(error).__name__}: {error})") from error


class _Graph:
    def __init__(self, lock: Mapping[str, Any], python: str) -> None:
        if lock.get("version") != _FORMAT:
            raise UnusableLock(f"uv.lock is of format {lock.get('version')!r}, not {_FORMAT}")
        wanted = lock.get("requires-python", "")
        try:
            if not SpecifierSet(wanted).contains(python, prereleases=True):
                raise UnusableLock(f"uv.lock is for Python {wanted}, and probes run in {python}")
        except InvalidSpecifier as error:
            raise UnusableLock(f"uv.lock is for Python {wanted!r}, which is no version") from error
        self._environment: dict[str, str] = {
            "platform_release": "", "platform_version": "",
            "extra": "", "implementation_name": "cpython", "implementation_version": python, "os_name": "posix",
            "platform_machine": "x86_64", "platform_python_implementation": "CPython", "platform_system": "Linux",
            "python_full_version": python, "python_version": ".".join(python.split(".")[:2]), "sys_platform": "linux",
        }  # fmt: skip
        self._packages: dict[str, list[Mapping[str, Any]]] = {}
        for package in lock.get("package", []):
            if self._here(package.get("resolution-markers")):
                self._packages.setdefault(canonicalize_name(package["name"]), []).append(package)
        self._unwanted = self._never_needed()

    def walk(self, roots: Collection[str]) -> Locked:
        """From `roots` along what each needs; where nothing is to be had from an index the walk ends."""
        pins: dict[str, Pin] = {}
        sources: dict[str, Pin] = {}
        left_out: set[str] = set()
        pending: list[tuple[str, str]] = [(canonicalize_name(root), "") for root in sorted(roots)]
        seen: set[tuple[str, str]] = set()
        while pending:
            name, version = pending.pop()
            if (name, version) in seen or name in NEVER_IMPORTED:
                continue
            seen.add((name, version))
            package = self._package(name, version)
            if package is None:
                continue
            pin = _pin(name, package)
            if "registry" not in package["source"]:
                if pin is not None:
                    sources[name] = pin
            elif pin is None or name in self._unwanted or not (package.get("wheels") or package.get("sdist")):
                left_out.add(name)
            else:
                pins[name] = pin
                pending += self._needs(package)
        return Locked(tuple(sorted(pins.values())), sources, tuple(sorted(left_out)))

    def _never_needed(self) -> set[str]:
        """Packages that others need elsewhere only: the lock leaves them out here, whatever its files."""
        wanted, unwanted = set[str](), set[str]()
        for package in (package for packages in self._packages.values() for package in packages):
            groups = [package.get("dependencies", [])]
            for kind in ("optional-dependencies", "dev-dependencies"):
                groups += package.get(kind, {}).values()
            for edge in (edge for group in groups for edge in group):
                here = self._here([edge["marker"]] if "marker" in edge else None)
                (wanted if here else unwanted).add(canonicalize_name(edge["name"]))
        return unwanted - wanted

    def _package(self, name: str, version: str) -> Mapping[str, Any] | None:
        found = [p for p in self._packages.get(name, ()) if not version or p.get("version") == version]
        return found[0] if found else None

    def _needs(self, package: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for edge in package.get("dependencies", []):
            if not self._here([edge["marker"]] if "marker" in edge else None):
                continue
            name = canonicalize_name(edge["name"])
            version = edge.get("version", "")
            yield name, version
            needed = self._package(name, version)
            for extra in edge.get("extra", []) if needed else ():
                assert needed is not None
                yield from self._needs({"dependencies": needed.get("optional-dependencies", {}).get(extra, [])})

    def _here(self, markers: Any) -> bool:
        """Whether one of the markers holds for the probes' Python; no markers hold anywhere."""
        try:
            return not markers or any(Marker(marker).evaluate(self._environment) for marker in markers)
        except InvalidMarker as error:
            raise UnusableLock(f"uv.lock has a marker that cannot be read: {error}") from error


def _pin(name: str, package: Mapping[str, Any]) -> Pin | None:
    """The pin of a locked package; None where it has no version of its own (a folder)."""
    try:
        version = Version(package["version"])
    except KeyError:
        return None
    except InvalidVersion as error:
        raise UnusableLock(f"uv.lock locks {name} at {package['version']!r}, which is no version") from error
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise UnusableLock(f"uv.lock locks {name!r}, which is no name of a package")
    on_index = "registry" in package["source"]
    return Pin(name, str(version) if on_index else version.public, exact=on_index)
