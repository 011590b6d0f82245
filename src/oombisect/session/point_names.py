"""Which points of a session's searches a person means by a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oombisect import hints
from oombisect.errors import OombisectError
from oombisect.session.config_line import name_in

_SHORTEST = 4
Resolve = Callable[[str], str]


class PointNames:
    """The points of searches: the keys of each from its good end to its bad one."""

    def __init__(self, searches: Sequence[Sequence[str]]) -> None:
        self._keys = list(dict.fromkeys(key for points in searches for key in points))
        self._ends = {end for points in searches if points for end in (points[0], points[-1])}

    def named(self, name: str, resolve: Resolve = lambda name: name) -> list[str]:
        """The keys of one point: it has several where it lies in several searches, such as a commit in two rolls.

        Args:
            name: its key, what people call it or a beginning of that (4 characters or more), or what `resolve` makes a
                key of.

        Raises:
            OombisectError: no such point, more than one, an end.
        """
        if not self._keys:
            raise OombisectError("The session has not begun its search: its points are not known", "Resume it first.")
        found = self._of(name) or self._of(resolve(name))
        if not found:
            raise OombisectError(
                f"{name!r} is no point of the session", f"`{hints.command('log', '--json')}` lists them under `points`."
            )
        meant = list(dict.fromkeys(map(_short, found)))
        if len(meant) > 1:
            some = ", ".join(meant[:4]) + (", ..." if len(meant) > 4 else "")
            raise OombisectError(f"{name!r} begins {len(meant)} points: {some}", "Write more of it.")
        if end := next((key for key in found if key in self._ends), None):
            raise OombisectError(
                f"{end} is an end of a range, which must be measured", "Start another session with another end."
            )
        return found

    def _of(self, name: str) -> list[str]:
        exact = [key for key in self._keys if name == key] or [key for key in self._keys if name == _short(key)]
        if exact or len(name) < _SHORTEST:
            return exact
        return [key for key in self._keys if _short(key).startswith(name)]


def _short(key: str) -> str:
    """What people call a point: of a state of configs its name, of `bridge+megatron` the commit of Megatron-LM.

    Packages that move together have `+` between them, and `==` in each.
    """
    return name_in(key) or (key if "==" in key else key.rpartition("+")[2])
