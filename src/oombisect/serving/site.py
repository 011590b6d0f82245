"""A Datasette of one database of ours: read-only, with the canned questions, facets, and plots of every workload."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from datasette.app import Datasette
from datasette.database import Database
from datasette.plugins import pm

from oombisect.history.connection import Connection
from oombisect.history.queries import Parameter, Query, queries
from oombisect.serving import plugin

NAME = "oombisect"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_FACETS = {
    "series": ["provenance", "metric", "repo", "line", "ordered_by", "latest_outcome"],
    "steps": ["metric", "state", "at_least"],
    "creeps": ["metric"],
    "readings": ["recipe", "device", "simulated", "outcome", "request"],
    "measurements": ["provenance", "outcome", "repo"],
    "workloads": ["recipe", "device", "simulated"],
    "sessions": ["kind", "state", "recipe", "device"],
    "probes": ["outcome", "request"],
    "ooms": ["phase"],
    "imports": ["kind"],
}
_SETTINGS = {
    "sql_time_limit_ms": 10_000,
    "facet_time_limit_ms": 1_000,
    "allow_download": False,
    "max_returned_rows": 2_000,
    "default_page_size": 50,
    "suggest_facets": False,
}
_CASTS = {"integer": "INTEGER", "size": "INTEGER", "real": "REAL"}

Scope = Mapping[str, Any]
App = Callable[[Scope, Any, Callable[[dict[str, Any]], Awaitable[None]]], Awaitable[None]]


def site(path: Path, connection: Connection) -> App:
    """The ASGI application; whoever asks for another host than this machine gets nothing.

    Args:
        path: the database.
        connection: to it, read-only; tells how it can be opened.
    """
    from datasette import handle_exception  # as the first of its modules it would not find its plugins

    if not pm.is_registered(plugin):
        pm.register(plugin, name=NAME)
    # Where it has rich, Datasette prints a traceback of every refusal, and fails where that is raised by no `except`.
    vars(handle_exception)["rich"] = None
    datasette = Datasette(
        files=[],
        metadata=metadata(),
        settings=_SETTINGS,
        template_dir=str(Path(__file__).parent / "templates"),
        cache_headers=False,
    )
    datasette.remove_database("_memory")
    datasette.add_database(Database(datasette, path=str(path), is_mutable=not connection.immutable), name=NAME)
    return _for_this_machine(datasette.app())


def metadata() -> dict[str, Any]:
    """Titles, facets, descriptions, and the canned questions."""
    about = "Sizes are bytes in JSON and CSV. Every number says where it is from: measured, simulated or imported."
    return {
        "title": "oombisect: GPU memory over commits",
        "description": about,
        "databases": {
            NAME: {
                "description": "docs/database.md says what the tables and columns are.",
                "tables": {table: {"facets": facets, "size": 50} for table, facets in _FACETS.items()},
                "queries": {name: _canned(query) for name, query in queries().items()},
            }
        },
    }


def _canned(query: Query) -> dict[str, Any]:
    told = "; ".join(
        f"{one.name}: {one.meaning}{'' if one.default is None else f' (else {one.default})'}"
        for one in query.parameters
    )
    about = f"{query.about} Parameters: {told}."
    return {"title": query.name, "description": about, "sql": with_defaults(query), "hide_sql": True}


def with_defaults(query: Query) -> str:
    """The SQL of a question for a form: what is left empty is its default, and all that is typed there is text."""
    sql = query.sql
    for parameter in query.parameters:
        sql = re.sub(rf":{parameter.name}\b", _value(parameter), sql)
    head = re.compile(r"\A(--[^\n]*\n)+")
    return head.sub("", sql)


def _value(parameter: Parameter) -> str:
    default = "''" if parameter.default is None else _literal(parameter.value(parameter.default))
    value = f"coalesce(nullif(:{parameter.name}, ''), {default})"
    cast = _CASTS.get(parameter.type)
    return f"CAST({value} AS {cast})" if cast else value


def _literal(value: Any) -> str:
    return str(value) if isinstance(value, int | float) else "'" + str(value).replace("'", "''") + "'"


def _for_this_machine(app: App) -> App:
    """A page of another site may make a browser ask here under that site's name; it gets no answer."""

    async def answer(scope: Scope, receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        if scope["type"] == "http":
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or re.sub(r":\d+\Z", "", hosts[0]) not in LOOPBACK:
                await send(
                    {"type": "http.response.start", "status": 421, "headers": [(b"content-type", b"text/plain")]}
                )
                await send({"type": "http.response.body", "body": b"Ask for localhost.\n"})
                return
        await app(scope, receive, send)

    return answer
