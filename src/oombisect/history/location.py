"""Where the database and the cache lie when the user names neither.

`$OOMBISECT_HOME` holds both if it is set; else the XDG base directory specification decides.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from oombisect.errors import OombisectError


def _home(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    """The XDG folder `variable`, or `fallback` in the home folder; the specification ignores relative values."""
    named = Path(environ.get(variable, ""))
    if named.is_absolute():
        return named
    try:
        home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    except RuntimeError:
        raise OombisectError(
            "The home folder of this user is unknown", "Set OOMBISECT_HOME to a folder, or name the database with --db."
        ) from None
    return home / fallback


def default_database(environ: Mapping[str, str] = os.environ) -> Path:
    """`$OOMBISECT_HOME/oombisect.db`, else `$XDG_DATA_HOME/oombisect/oombisect.db`, else under `~/.local/share`."""
    if own := environ.get("OOMBISECT_HOME"):
        return Path(own).expanduser().absolute() / "oombisect.db"
    return _home(environ, "XDG_DATA_HOME", ".local/share") / "oombisect" / "oombisect.db"


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """`$OOMBISECT_HOME/cache`, else `$XDG_CACHE_HOME/oombisect`, else `~/.cache/oombisect`; may be deleted at will."""
    if own := environ.get("OOMBISECT_HOME"):
        return Path(own).expanduser().absolute() / "cache"
    return _home(environ, "XDG_CACHE_HOME", ".cache") / "oombisect"
