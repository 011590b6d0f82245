"""A Datasette of one database of ours: read-only, with the canned questions, facets, and plots of every workload."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from datasette.app import Datasette
from datasette.database import Database
from datasette.plugins import pm
from markupsafe import Markup, escape

from oombisect.errors import OombisectError
from oombisect.history.connection import Connection
from oombisect.history.queries import Parameter, Query, found_in, queries
from oombisect.history.reader import Reader
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
    return _for_this_machine(_checked(datasette.app(), path))


def metadata() -> dict[str, Any]:
    """Titles, facets, descriptions, and the canned questions."""
    about = "Sizes are bytes in JSON and CSV. Every number says where it is from: measured, simulated or imported."
    return {
        "title": "oombisect: GPU memory over commits",
        "description_html": f"<p>{escape(about)}</p>{_questions()}",
        "databases": {
            NAME: {
                "description": "docs/database.md says what the tables and columns are.",
                "tables": {table: {"facets": facets, "size": 50} for table, facets in _FACETS.items()},
                "queries": {name: _canned(query) for name, query in queries().items()},
            }
        },
    }


def _questions() -> Markup:
    """The canned questions as links, for the first page."""
    item = Markup('<li><a href="/{}/{}">{}</a>: {}</li>')
    items = Markup("").join(item.format(NAME, name, name, query.about) for name, query in queries().items())
    return Markup("<h2>Questions</h2><ul>{}</ul>").format(items)


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


def _checked(app: App, path: Path) -> App:
    """The parameters of questions are those of the command line: what is none is refused, a size may have a unit."""
    known = re.compile(rf"/{NAME}/([a-z-]+)(\.\w+)?")

    async def answer(scope: Scope, receive: Any, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        asked = known.fullmatch(scope["path"]) if scope["type"] == "http" else None
        query = queries().get(asked[1]) if asked else None
        if query is not None:
            try:
                given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
                told = await asyncio.get_running_loop().run_in_executor(None, _read, path, query, given)
            except OombisectError as error:
                await send(
                    {
                        "type": "http.response.start",
                        "status": 400,
                        "headers": [(b"content-type", b"text/plain; charset=utf-8")],
                    }
                )
                text = f"{error.cause}\n{error.way_out}\n".replace("--param ", "")
                await send({"type": "http.response.body", "body": text.encode("ascii", "replace")})
                return
            scope = {**scope, "query_string": urlencode(told).encode()}
        await app(scope, receive, send)

    return answer


def _read(path: Path, query: Query, given: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What was typed into a form, as SQL takes it; an empty field is left empty.

    Raises:
        OombisectError: a value is none of its parameter.
    """
    parameters = {one.name: one for one in query.parameters}
    typed = [name for name, text in given if name in parameters and text]
    told = [(n, str(parameters[n].value(t)) if n in typed and t else t) for n, t in given]
    some = replace(query, parameters=tuple(parameters[name] for name in dict.fromkeys(typed)))
    if typed:
        with Reader(Connection(path, lambda: "", 5.0, readonly=True)) as reader:
            found_in(some, dict(told), lambda sql, values: reader.ask(sql, values).rows, lambda _: ())
    return told


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
