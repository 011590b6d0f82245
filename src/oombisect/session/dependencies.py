"""The packages by which the environments of two points differ."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from oombisect.axes.releases import Moved, moved
from oombisect.errors import OombisectError
from oombisect.probing.interpreter import Interpreter
from oombisect.session.measuring import ENVIRONMENT, CannotProbe, Target


def versions_of(interpreter: Interpreter) -> dict[str, str]:
    """Package -> version, as the interpreter has them."""
    pairs = (package.partition("==") for package in interpreter.packages)
    return {canonicalize_name(name): version for name, _, version in pairs}


def dependencies_between(parent: Target, point: Target, session: Interpreter) -> tuple[Moved, ...]:
    """The packages that differ between the environments of two targets; none where one of these does not build.

    Args:
        session: the interpreter of targets that have none of their own.
    """
    if parent.trees.get(ENVIRONMENT) == point.trees.get(ENVIRONMENT):
        return ()
    try:
        before, after = (target.interpreter() if target.interpreter else session for target in (parent, point))
    except (CannotProbe, OombisectError):
        return ()
    return moved(versions_of(before), versions_of(after))
