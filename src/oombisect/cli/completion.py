"""What a shell is offered for the word being typed. A shell waits for it: quick, and silent if anything is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

Offer = tuple[str, str]  # a word, and what it is

Complete = Callable[[typer.Context, str], list[Offer]]


def _silent(find: Callable[[typer.Context], Iterable[Offer]]) -> Complete:
    """What `find` has that begins like the word so far; nothing where it fails."""

    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        try:
            return [(word, about) for word, about in find(ctx) if word.startswith(incomplete)]
        except Exception:
            return []

    return complete


def _database(ctx: typer.Context) -> Path:
    """The one that the line names, else the usual one."""
    from oombisect.history.location import default_database

    named = ctx.params.get("database")
    return Path(named) if named else default_database()


def _rows(ctx: typer.Context, query: str) -> list[Offer]:
    """What a query of ours finds, read without the store's checks, which take longer than one cares to wait."""
    import sqlite3
    from contextlib import closing

    from oombisect.printable import printable

    path = _database(ctx)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.2)) as db:
        return [(str(word), printable(str(about))) for word, about in db.execute(query)]


@_silent
def sessions(ctx: typer.Context) -> list[Offer]:
    """The newest sessions."""
    newest = (
        "SELECT id, kind || ' ' || recipe || ', ' || state FROM sessions ORDER BY created DESC, rowid DESC LIMIT 30"
    )
    return [("last", "the newest bisection"), *_rows(ctx, newest)]


@_silent
def recipes(ctx: typer.Context) -> list[Offer]:
    """Recipes that the database has readings of."""
    return _rows(ctx, "SELECT DISTINCT recipe, 'measured before' FROM workloads ORDER BY recipe")


@_silent
def gpus(_: typer.Context) -> list[Offer]:
    """The machine's own, and those that are simulated."""
    from oombisect.units import format_bytes
    from oombisect.virtual_gpu.profiles import PROFILES

    told = [
        (f"virtual:{name}", f"simulated, {format_bytes(profile.total_bytes)}") for name, profile in PROFILES.items()
    ]
    return [("cuda", "this machine's GPUs"), *told]


@_silent
def queries(_: typer.Context) -> list[Offer]:
    """The questions that `query` knows."""
    from oombisect.history.queries import queries as known

    return [(name, query.about) for name, query in known().items()]
