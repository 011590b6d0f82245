"""A `SessionDocument` as one HTML page that needs nothing besides itself.

Everything in it is escaped by the template engine; data for scripts is JSON that no HTML parser can leave. A policy in
the page allows its own scripts, by their hashes, and no request of any kind.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from oombisect import __version__
from oombisect.reports.points import short
from oombisect.reports.report_document import SessionDocument
from oombisect.reports.report_figures import figures
from oombisect.reports.report_lines import (
    beside,
    ends_text,
    out_of_memory_lines,
    source_line,
    step_lines,
    verdict_lines,
)
from oombisect.units import counted, format_bytes, format_change, format_delta

_PAGE = Path(__file__).with_name("page")
_MOST_STACKS = 100
_MOST_FRAMES = 24
_TITLES = {
    "verdict": "Verdict", "range": "Memory over the range", "timelines": "Allocations over time",
    "treemap": "Live at the peak", "difference": "What makes up the difference", "settings": "Allocator settings",
    "config": "Resolved config", "ranks": "Ranks", "environment": "Environment", "reproduce": "Reproduce",
    "probes": "Probes",
}  # fmt: skip
"""The page's sections by their ids, in order."""


def render_html(document: SessionDocument) -> str:
    """The whole page."""
    scripts = {"plotly": Markup(_plotly()), "page": Markup((_PAGE / "report.js").read_text())}  # noqa: S704  # our own
    return (
        _environment()
        .get_template("report.html")
        .render(
            document=document,
            titles=_TITLES,
            figures=figures(document),
            steps=list(step_lines(document)),
            lines=verdict_lines(document),
            pairs=list(_pairs(document)),
            failure=out_of_memory_lines(document),
            environments=_environments(document),
            ends=ends_text(document),
            policy=_policy(scripts),
            scripts=scripts,
            style=Markup((_PAGE / "report.css").read_text()),  # noqa: S704  # our own
            version=__version__,
        )
    )


def _plotly() -> str:
    """plotly.js, whole: the partial bundles have no treemap."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _policy(scripts: Mapping[str, str]) -> str:
    """Content-Security-Policy: these scripts, style in the page, pictures that plots are saved as; no request."""
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts.values())
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    """Of a script, as the policy wants it: of the text as the browser has it, line ends unified."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": format_bytes, "delta": format_delta, "short": short, "counted": counted}
    environment.filters |= {"value": _value, "beside": beside, "change": lambda sizes: format_change(*sizes)}
    environment.filters["indent_of"] = lambda line: min(3, (len(line) - len(line.lstrip())) // 2)
    return environment


def _visible(value: Any) -> Any:
    """Text from elsewhere without what cannot be seen: control characters, and those that turn the writing around."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in value.expandtabs(4))


def _value(change: Mapping[str, Any], side: str) -> str:
    """One side of a config change."""
    return repr(change[side]) if side in change else "absent"


def _pairs(document: SessionDocument) -> Iterator[dict[str, Any]]:
    """What is compared, each pair with the stacks that differ; the steps first, then the ends."""
    ends = (document.pair,) if document.pair is not None and not document.pair.single else ()
    told = False  # one that has something to show is opened
    for number, pair in enumerate((*document.steps, *ends)):
        stacks = _stacks(pair.comparison)
        yield {"id": f"pair-{number}", "pair": pair, "stacks": stacks, "open": not number or not told}
        told = told or bool(stacks["rows"])


def _stacks(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """The stacks that differ, the largest first, with the line and the hunk to show of each."""
    changed = [stack for stack in comparison["stacks"] if stack["delta_bytes"]]
    told: set[int] = set()
    rows = []
    for stack in changed[:_MOST_STACKS]:
        frames = (stack["second"] or stack["first"])["frames"]
        touched = next((frame for frame in frames if frame["hunk"] is not None), None)
        hunk = None
        if touched is not None and touched["hunk"] not in told:
            told.add(touched["hunk"])
            hunk = comparison["hunks"][touched["hunk"]]
        rows.append(
            {
                "stack": stack,
                "frames": frames[:_MOST_FRAMES],
                "cut": max(0, len(frames) - _MOST_FRAMES),
                "top": source_line(stack["second"] or stack["first"]),
                "touched": touched,
                "hunk": hunk,
            }
        )
    rest = changed[_MOST_STACKS:]
    return {
        "rows": rows,
        "rest": len(rest),
        "rest_bytes": sum(stack["delta_bytes"] for stack in rest),
        "same": len(comparison["stacks"]) - len(changed),
    }


def _environments(document: SessionDocument) -> list[dict[str, Any]]:
    """A row for each thing that either end tells of."""
    told = document.environments
    names = dict.fromkeys(name for end in told.values() for name in end)
    rows = [{"name": name, "values": [end.get(name, "") for end in told.values()]} for name in names]
    return [row | {"differs": len(set(row["values"])) > 1} for row in rows]
