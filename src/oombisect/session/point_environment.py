"""The Python environment of a point, as its `uv.lock` has it: what of the lock is honoured, and what is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.version import InvalidVersion, Version

from oombisect.probing.environments import NEEDED, CannotBuild, Change, Environments
from oombisect.probing.interpreter import Interpreter
from oombisect.probing.uv_lock import Locked, Pin, UnusableLock, read_lock
from oombisect.repo.bridge import BridgeRepository
from oombisect.repo.trees import batch
from oombisect.session.measuring import ENVIRONMENT, CannotProbe, Target


@dataclass(frozen=True)
class PointEnvironment:
    """The session's environment with `pins` (package -> requirement) over it. `problem`: why there is none.

    `dependencies`: what the pins need comes with them (`Change`). `notes`: what of a lock is not honoured.
    """

    environments: Environments
    pins: Mapping[str, str] = field(default_factory=dict)
    dependencies: bool = False
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def change(self) -> Change:
        return Change(tuple(sorted(self.pins.values())), self.dependencies)

    @property
    def trees(self) -> dict[str, Any]:
        """What it adds to what a probe sees; nothing where it is the session's own."""
        if self.problem:
            return {ENVIRONMENT: self.problem}
        if not self.pins:
            return {}
        told: dict[str, Any] = {"requirements": list(self.change.requirements)}
        return {ENVIRONMENT: told | ({"with": "dependencies"} if self.dependencies else {})}

    def interpreter(self) -> Interpreter:
        """Its Python, built on first use.

        Raises:
            CannotProbe: there is no such environment.
            OombisectError: uv, the network or the disk fails.
        """
        if self.problem:
            raise CannotProbe(self.problem)
        try:
            return self.environments.interpreter(self.change)
        except CannotBuild as error:
            raise CannotProbe(f"its environment cannot be built: {error}") from error

    def around(self, target: Target) -> Target:
        """`target` in this environment, whichever it was in."""
        code = {name: tree for name, tree in target.trees.items() if name != ENVIRONMENT}
        return replace(target, trees=code | self.trees, interpreter=self.interpreter, notes=self.notes)

    def with_pins(self, pins: Mapping[str, str]) -> PointEnvironment:
        """The same, with other pins."""
        return replace(self, pins=dict(pins))

    def without(self, before: PointEnvironment, after: PointEnvironment) -> PointEnvironment:
        """This environment with what changed from `before` to `after` taken back, where it is still as in `after`."""
        pins = dict(self.pins)
        for name in changed(before.pins, after.pins):
            if pins.get(name) == after.pins.get(name):
                pins.pop(name, None)
                pins |= {name: before.pins[name]} if name in before.pins else {}
        return self.with_pins(pins)


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The packages whose pins differ, by name."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


@dataclass
class LockEnvironments:
    """The environment that each commit's `uv.lock` asks for, over the session's own."""

    environments: Environments
    repository: BridgeRepository
    _known: dict[str, PointEnvironment] = field(default_factory=dict)

    def of(self, env_lock: str) -> PointEnvironment:
        """That of a commit with the files `env_lock` (`RelevantTrees.env_lock`). Nothing is built yet."""
        blob = env_lock.partition(":")[0]
        if blob not in self._known:
            self._known[blob] = self._read(blob)
        return self._known[blob]

    def _read(self, blob: str) -> PointEnvironment:
        text = next(iter(batch(self.repository.mirror.local, [blob])), None) if blob else None
        if text is None:
            return PointEnvironment(self.environments, problem="the commit has no uv.lock to build an environment from")
        try:
            locked = read_lock(text, NEEDED, self.environments.base.version)
        except UnusableLock as error:
            return PointEnvironment(self.environments, problem=str(error))
        return self._over_session(locked)

    def _over_session(self, locked: Locked) -> PointEnvironment:
        """Only what differs from what is there is installed; what the lock takes from elsewhere is judged by that."""
        there = self.environments.installed
        foreign = [pin for pin in locked.pins if there.does_without(pin.name, NEEDED)]
        notes = [
            f"uv.lock has {pin.name} {pin.version}, which the session's environment does without" for pin in foreign
        ]
        pins = {p.name: p.requirement for p in locked.pins if p not in foreign and not _is(there.packages, p)}
        kept = [f"{name} {there.packages[name].version}" for name in locked.left_out if name in there.packages]
        if kept:
            notes.append(f"uv.lock leaves to the container, so kept as in the session's environment: {', '.join(kept)}")
        for name, pin in sorted(locked.sources.items()):
            if name not in there.packages:
                continue
            mine = there.packages[name].version
            if there.part_compiled(name) or "+" in mine:
                notes.append(f"uv.lock builds {name} {pin.version} from source: the session's own {mine} is kept")
                continue
            notes.append(f"uv.lock builds {name} {pin.version} from source: the newest release up to it stands in")
            if not _is(there.packages, pin):
                pins[name] = pin.requirement
        return PointEnvironment(self.environments, pins, notes=tuple(notes))


def _is(packages: Mapping[str, Any], pin: Pin) -> bool:
    """Whether a package is there at the very version."""
    try:
        return pin.name in packages and Version(packages[pin.name].version) == Version(pin.version)
    except InvalidVersion:
        return False
