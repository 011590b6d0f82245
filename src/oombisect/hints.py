"""The command lines that messages tell people to run: on the database that this command was given."""

from __future__ import annotations

import shlex
from pathlib import Path

_given: list[Path] = []  # of the whole process, threads included


def use_database(path: Path | None) -> None:
    """What `--db` said; None: it was not given."""
    _given[:] = [path.absolute()] if path else []


def database_option() -> list[str]:
    """`--db FILE` where it was given, for a command line that is to use the same database."""
    return ["--db", str(_given[0])] if _given else []


def command(*words: str) -> str:
    """`command("resume", "20261130-1")` -> `oombisect resume 20261130-1`, with `--db FILE` where it was given."""
    return shlex.join(["oombisect", *words, *database_option()])
