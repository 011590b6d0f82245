"""What Datasette asks of a plugin: plots of a workload, sizes in GiB, links between tables, and no writing at all."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from importlib.resources import files
from pathlib import Path
from typing import Any

from datasette import hookimpl
from datasette.utils.asgi import NotFound, Response
from markupsafe import Markup, escape

from oombisect.history.asking import Series, Wanted, series, workloads
from oombisect.history.connection import Connection
from oombisect.history.measurements import STORED_METRICS
from oombisect.history.reader import bar
from oombisect.reports.points import short
from oombisect.units import GIB, format_bytes

_NAME = "oombisect"
_LONGEST = 200
_PLOTLY = "/-/oombisect/plotly.js"


@hookimpl  # type: ignore[untyped-decorator]
def prepare_connection(conn: sqlite3.Connection, database: str) -> None:
    """The bars of `oombisect sql`, besides those of Datasette."""
    if database == _NAME:
        bar(conn)


@hookimpl  # type: ignore[untyped-decorator]
def register_routes() -> list[tuple[str, Any]]:
    """Plots, and the library that draws them: nothing comes from elsewhere."""
    return [(r"/-/oombisect/workload/(?P<workload>\d{1,18})$", workload_page), (f"{_PLOTLY}$", plotly_js)]


@hookimpl  # type: ignore[untyped-decorator]
def render_cell(value: Any, column: str, table: str | None, database: str, datasette: Any) -> Any:
    """Sizes in GiB, hashes short (a pointer over one shows it whole), and a link from a workload to its plot."""
    if database != _NAME:
        return None
    if isinstance(value, str) and len(value) <= _LONGEST and short(value) != value:
        return Markup('<span title="{}">{}</span>').format(value, short(value))
    if not isinstance(value, int):
        return None
    if column == "workload" or (column == "id" and table == "workloads"):
        path = datasette.urls.path(f"/-/oombisect/workload/{value}")
        return Markup('<a href="{}">{} (plot)</a>').format(path, value)
    if column.endswith("_bytes") or column.startswith("peak_") or column == "external":
        return Markup('<span title="{} bytes">{}</span>').format(value, format_bytes(value))
    return None


async def plotly_js() -> Response:
    """The library as its package ships it."""
    path = Path(str(files("plotly"))) / "package_data" / "plotly.min.js"
    return Response(path.read_text(encoding="utf-8"), content_type="text/javascript; charset=utf-8")


async def workload_page(datasette: Any, request: Any) -> Response:
    """Every series of a workload over commits, with steps."""
    number = int(request.url_vars["workload"])
    path = Path(datasette.get_database(_NAME).path)
    found = await asyncio.get_running_loop().run_in_executor(None, _series, path, number)
    if not found:
        raise NotFound(f"There is no series of a workload {number}")
    workload = found[0].workload
    shown = {
        "workload": workload,
        "settings": json.dumps(dict(workload.settings), sort_keys=True),
        "plotly": datasette.urls.path(_PLOTLY),
        # Inside a script no tag may end it.
        "figure": Markup(json.dumps(figure(found)).replace("<", "\\u003c")),  # noqa: S704  # JSON, made safe
    }
    return Response.html(await datasette.render_template("oombisect_workload.html", shown, request=request))


def _series(path: Path, number: int) -> list[Series]:
    connection = Connection(path, lambda: "", 5.0, readonly=True)
    try:
        with connection.reading() as db:
            if not db.execute("SELECT 1 FROM workloads WHERE id = ?", [number]).fetchone():
                return []
            (workload,) = workloads(db, Wanted(workload=number))
            return [one for metric in STORED_METRICS for one in series(db, workload, metric)]
    finally:
        connection.close()


def figure(found: list[Series]) -> dict[str, Any]:
    """What Plotly draws: a trace for each series, one for what ran out of memory, and a mark at each step."""
    traces: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    for one in found:
        where = f" on {one.line}" if one.line else ""
        name = f"{one.metric}{where} ({one.provenance})"
        hidden = one.metric != "allocated"
        for outcome, label, symbol in (("exact", "", "circle"), ("censored", ", out of memory: at least", "x")):
            told = [(n, r) for n, r in enumerate(one.readings) if r.outcome == outcome and r.value is not None]
            if not told:
                continue
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers" if outcome == "exact" else "markers",
                    "line": {"shape": "hv"},
                    "marker": {"symbol": symbol, "size": 7},
                    "name": f"{name}{label}",
                    "visible": "legendonly" if hidden else True,
                    "x": [n for n, _ in told],
                    "y": [(r.value or 0) / GIB for _, r in told],
                    "text": [_about(r.of.point, r.of.committed, r.of.subject, r.value or 0) for _, r in told],
                    "hovertemplate": "%{text}<extra></extra>",
                }
            )
        if not hidden:
            at = {r.of.point: n for n, r in enumerate(one.readings)}
            marks += [
                {"type": "line", "xref": "x", "yref": "paper", "x0": at[s.point], "x1": at[s.point], "y0": 0, "y1": 1,
                 "line": {"width": 1, "dash": "dot", "color": "#c33" if s.delta_bytes >= 0 else "#393"}}
                for s in one.fit.steps
            ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "readings, oldest first"}},
        "yaxis": {"title": {"text": "GiB"}},
        "shapes": marks,
        "legend": {"orientation": "h", "y": -0.2},
        "margin": {"t": 20},
    }
    return {"data": traces, "layout": layout}


def _about(point: str, committed: str | None, subject: str, value: int) -> str:
    """For Plotly, which takes some tags: none of the repository's making."""
    return "<br>".join(str(escape(text)) for text in (point[:10], (committed or "")[:10], subject, format_bytes(value)))
