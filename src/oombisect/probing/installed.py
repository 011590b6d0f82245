"""What an interpreter has installed, and what needs what there: asked of it, never imported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from oombisect.errors import OombisectError
from oombisect.printable import printable
from oombisect.probing.interpreter import Interpreter

_ASK_SECONDS = 120
# The first distribution of a name on the path is the one Python imports.
_ASK = """
import importlib.metadata, json, os, sys
found = {}
for d in importlib.metadata.distributions():
    name = (d.metadata["Name"] or "").lower()
    if name and name not in found:
        files = [str(f) for f in d.files or ()]
        found[name] = {"version": d.version or "", "requires": list(d.requires or ()),
                       "compiled": any(".so" in f.rpartition("/")[2] for f in files)}
sites = [e for e in sys.path if os.path.basename(e) in ("site-packages", "dist-packages") and os.path.isdir(e)]
print(json.dumps({"sites": sites, "packages": found}))
"""


@dataclass(frozen=True, slots=True)
class Package:
    """One installed distribution: its version, what it says it needs, whether it brings compiled code."""

    version: str
    requires: tuple[str, ...] = ()
    compiled: bool = False


@dataclass(frozen=True, slots=True)
class Installed:
    """All distributions by canonical name, and the folders they lie in, in the order of `sys.path`."""

    packages: Mapping[str, Package]
    sites: tuple[Path, ...] = ()

    def orphans(self, after: Installed, replaced: str) -> tuple[str, ...]:
        """Of what both hold: packages that only this version of `replaced` needed, and nothing needs any more.

        Args:
            after: this environment with other versions of some packages.
            replaced: the package whose leavings are sought; where its version is the same there are none.
        """
        if self.packages.get(replaced) == after.packages.get(replaced):
            return ()
        candidates = (self._reach({replaced}) - {replaced}) & after.packages.keys()
        return tuple(sorted(candidates - after._reach(after.packages.keys() - candidates)))

    def part_compiled(self, name: str) -> bool:
        """Whether a package, or one that is a part of it by its name, brings compiled code."""
        return any(p.compiled for n, p in self.packages.items() if n == name or n.startswith(f"{name}-"))

    def does_without(self, name: str, packages: Iterable[str]) -> bool:
        """Whether one of `packages` is there and `name` is a part of it, by its name, that is not.

        Transformer Engine's Python package alone over the probe's stand-in must not get its compiled part.
        """
        return name not in self.packages and any(
            name.startswith(f"{whole}-") and whole in self.packages for whole in packages
        )

    def _reach(self, names: Iterable[str]) -> set[str]:
        """`names` and all they need, extras asked for included."""
        pending = [(name, "") for name in names]
        seen: set[tuple[str, str]] = set()
        while pending:
            name, extra = pending.pop()
            if (name, extra) in seen or name not in self.packages:
                continue
            seen.add((name, extra))
            for requirement in _applying(self.packages[name].requires, extra):
                wanted = canonicalize_name(requirement.name)
                pending += [(wanted, other) for other in ("", *requirement.extras)]
        return {name for name, _ in seen}


def _applying(requires: Iterable[str], extra: str) -> list[Requirement]:
    """The requirements that hold on this machine with `extra` asked for."""
    found = []
    environment = {"extra": extra}
    for text in requires:
        try:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate(environment):
                found.append(requirement)
        except (InvalidRequirement, UndefinedEnvironmentName):
            continue  # whoever wrote it: no other tool can follow it either
    return found


def survey(interpreter: Interpreter) -> Installed:
    """Ask an interpreter what it has.

    Raises:
        OombisectError: it does not answer.
    """
    try:
        done = subprocess.run(
            [str(interpreter.path), "-c", _ASK],
            capture_output=True, timeout=_ASK_SECONDS, stdin=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        told = json.loads(done.stdout)
        packages: dict[str, Package] = {
            canonicalize_name(name): Package(p["version"], tuple(p["requires"]), p["compiled"])
            for name, p in told["packages"].items()
        }
        return Installed(packages, tuple(Path(site) for site in told["sites"]))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OombisectError(
            f"{printable(str(interpreter.path))} does not tell what is installed in it: {printable(str(error))}",
            "Name a working Python with --python.",
        ) from error
