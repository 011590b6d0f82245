"""What a path leads to, looked at before it is opened: a device never ends, and a pipe waits for its other end."""

from __future__ import annotations

import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def irregular(path: Path) -> str:
    """What `path` leads to in the place of a regular file ("a directory", "a pipe", ...); "" where it is one.

    Raises:
        OSError: there is nothing, or it may not be looked at.
    """
    mode = path.stat().st_mode
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "something other")
