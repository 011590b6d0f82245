"""The plots of a report, as plain figures of plotly.

Text in a figure is written in a small part of HTML, so all of it is escaped on the way out, but for what is `Markup`:
what this module wrote itself. Colours are names of the page's style (`var(--...)`), which has them for each theme.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from oombisect.memory.timeline import shared_widths
from oombisect.printable import printable
from oombisect.reports.points import short
from oombisect.reports.report_document import Mark, Pair, Range, Run, SessionDocument
from oombisect.units import GIB, format_bytes, format_delta

Figure = dict[str, Any]
"""`data` and `layout` of plotly; `choices`: what a control chooses between, by the traces' `meta`; first is `shown`."""

METRICS: Mapping[str, tuple[str, Callable[[Mark], int | None]]] = {
    "device": ("device memory (reserved + outside PyTorch)", lambda mark: mark.device),
    "reserved": ("peak reserved", lambda mark: mark.reserved),
    "allocated": ("peak allocated", lambda mark: mark.allocated),
}
_STARTS = {"allocated": "allocated", "reserved": "reserved"}  # what is followed -> what is shown first
_MOST_NODES = 300
_SMALLEST_SHARE = 0.002
_SUBJECT = 90

_FITS, _OVER, _BOUND, _UNKNOWN = (
    {"name": "fits", "color": "var(--fits)", "symbol": "circle"},
    {"name": "does not fit", "color": "var(--over)", "symbol": "square"},
    {"name": "out of memory: at least", "color": "var(--bound)", "symbol": "arrow-up"},
    {"name": "measured, not known to fit", "color": "var(--muted)", "symbol": "diamond"},
)
_NOT_MEASURED = {"name": "could not be measured", "color": "var(--muted)", "symbol": "x"}
_VARIED = {"name": "other settings or an enforced limit", "color": "var(--varied)", "symbol": "cross-thin-open"}
_REVERTED = {"name": "bad end without the change", "color": "var(--good)", "symbol": "star-diamond-open"}
STYLES = (_FITS, _OVER, _BOUND, _UNKNOWN, _NOT_MEASURED, _VARIED, _REVERTED)
"""How the classes of probes look: each has a colour and a shape of its own."""


def figures(document: SessionDocument) -> dict[str, Figure]:
    """The plots by name: `range-N` of each axis, `timelines`, `treemap`; escaped, plain values."""
    found = {f"range-{number}": range_figure(one, document) for number, one in enumerate(document.ranges)}
    if document.runs:
        found["timelines"] = timelines_figure(document)
    if document.pair is not None:
        found["treemap"] = treemap_figure(document.pair)
    return {name: _escaped(figure) for name, figure in found.items()}


def _escaped(value: Any) -> Any:
    """Every text in a figure, but for what is `Markup`, on one line and with nothing that plotly takes for HTML."""
    if isinstance(value, Markup):
        return str(value)
    if isinstance(value, str):
        return str(escape(printable(value)))
    if isinstance(value, Mapping):
        return {key: _escaped(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(inner) for inner in value]
    return value


def gib(size: int) -> float:
    """Bytes in GiB, exactly."""
    return size / GIB


def _layout(**more: Any) -> dict[str, Any]:
    return {
        "margin": {"l": 64, "r": 32, "t": 28, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "var(--text)", "size": 13, "family": "var(--font)"},
        "hoverlabel": {"align": "left", "bgcolor": "var(--panel)", "bordercolor": "var(--line)",
                       "font": {"color": "var(--text)"}},
        "legend": {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
        **more,
    }  # fmt: skip


def _axis(**more: Any) -> dict[str, Any]:
    return {"gridcolor": "var(--grid)", "linecolor": "var(--line)", "zeroline": False, "automargin": True, **more}


# Memory over the range


def style_of(mark: Mark) -> Mapping[str, str]:
    """How a probe looks."""
    if mark.allocated is None:
        return _NOT_MEASURED
    if mark.request == "revert":
        return _REVERTED
    if mark.varied:
        return _VARIED
    if mark.is_lower_bound:
        return _BOUND
    return {True: _FITS, False: _OVER, None: _UNKNOWN}[mark.fits]


def range_figure(one: Range, document: SessionDocument) -> Figure:
    """Memory over an axis: every probe at its point, the limit, the steps."""
    verdict = (document.report or {}).get("verdict", {})
    shown = _STARTS.get(verdict.get("metric", ""), "device")
    data: list[Figure] = []
    choices = []
    for metric, (words, value) in METRICS.items():
        bottom, top = _extent([size for mark in one.marks if (size := value(mark)) is not None], document.limit_bytes)
        data += _range_traces(one, document, metric, value, (bottom, top))
        y = {"range": [bottom, top], "title": {"text": f"{words.partition(' (')[0]}, GiB"}}
        choices.append({"value": metric, "label": words, "layout": {"yaxis": y}})
    width = max(1, one.count - 1)
    layout = _layout(
        xaxis=_axis(range=[-0.04 * width - 0.2, 1.04 * width + 0.2], **_ticks(one)),
        yaxis=_axis(),
        shapes=[_step_shape(step.index, step.kind) for step in one.steps]
        + [_band(first, last) for first, last in one.unresolved],
        annotations=_step_notes(one),
        margin={"l": 64, "r": 32, "t": 28 + 18 * min(3, len(one.steps)), "b": 48},
        hovermode="closest",
    )
    return {"data": data, "layout": layout, "choices": choices, "shown": shown}


def _extent(sizes: Sequence[int], limit: int | None) -> tuple[float, float]:
    """The bottom and the top of the axis in GiB: room below for what was not measured, and above for arrows.

    A limit far from all that was measured is left out, so that what moved can be seen.
    """
    low, high = within_sight(sizes, limit)
    span = max(high - low, 0.02 * high, 1e-6)
    return max(0.0, low - 0.22 * span) if low else 0.0, high + 0.14 * span


def within_sight(sizes: Sequence[int], limit: int | None) -> tuple[float, float]:
    """The least and the most of the sizes, and of the limit if it is near enough to be drawn with them; GiB."""
    values = [gib(size) for size in sizes]
    if limit is not None:
        low, high = min(values, default=gib(limit)), max(values, default=gib(limit))
        room = 2 * max(high - low, 0.02 * high)
        values += [gib(limit)] if low - room <= gib(limit) <= high + room else []
    return min(values, default=0.0), max(values, default=1.0)


def _range_traces(
    one: Range,
    document: SessionDocument,
    metric: str,
    value: Callable[[Mark], int | None],
    extent: tuple[float, float],
) -> list[Figure]:
    traces: list[Figure] = []
    bottom, top = extent
    if document.limit_bytes is not None:
        limit, name = gib(document.limit_bytes), f"limit {format_bytes(document.limit_bytes)}"
        name += ", above" if limit > top else ", below" if limit < bottom else ""
        traces.append(
            {
                "type": "scatter", "mode": "lines", "meta": metric, "name": name,
                "x": [-0.5 - one.count, 2 * one.count], "y": [limit, limit], "hoverinfo": "skip",
                "line": {"color": "var(--over)", "dash": "dash", "width": 1.5},
            }
        )  # fmt: skip
    measured = sorted({mark.index: mark for mark in reversed(one.marks) if _plain(mark)}.items())
    traces.append(
        {
            "type": "scatter", "mode": "lines", "meta": metric, "showlegend": False, "hoverinfo": "skip",
            "x": [index for index, _ in measured], "y": [gib(value(mark) or 0) for _, mark in measured],
            "line": {"color": "var(--muted)", "dash": "dot", "width": 1},
        }
    )  # fmt: skip
    for style in STYLES:
        marks = [mark for mark in one.marks if mark.probe is not None and style_of(mark) is style]
        if not marks:
            continue
        traces.append(
            {
                "type": "scatter", "mode": "markers", "meta": metric, "name": style["name"],
                "x": [_place(mark, one) for mark in marks],
                "y": [bottom if (size := value(mark)) is None else gib(size) for mark in marks],
                "customdata": [_told(mark) for mark in marks],
                "hovertemplate": Markup(
                    "<b>%{customdata[0]}</b> %{customdata[1]}<br>%{customdata[2]}<br>%{customdata[3]}<extra></extra>"
                ),
                "cliponaxis": False,
                "marker": {
                    "color": style["color"], "symbol": style["symbol"],
                    "size": 15 if style is _BOUND else 11,
                    "line": {"width": 2 if style["symbol"].endswith("open") else 1,
                             "color": style["color"] if style["symbol"].endswith("open") else "var(--panel)"},
                },
            }
        )  # fmt: skip
    return traces


def _plain(mark: Mark) -> bool:
    """A measurement of the point as it is, to its end."""
    asked = mark.request in ("measure", "remeasure") and not mark.varied
    return asked and mark.allocated is not None and not mark.is_lower_bound


def _place(mark: Mark, one: Range) -> int:
    return one.count - 1 if mark.request == "revert" else mark.index


def _told(mark: Mark) -> list[str]:
    """What is said of a probe when the pointer is over it."""
    label = " (simulated)" if mark.simulated else ""
    bound = "at least " if mark.is_lower_bound else ""
    if mark.allocated is None or mark.reserved is None or mark.external is None:
        sizes = f"{mark.outcome}: {mark.reason}"[:160]
    else:
        sizes = (
            f"{bound}{format_bytes(mark.allocated)} allocated, {bound}{format_bytes(mark.reserved)} reserved,"
            f" {format_bytes(mark.external)} outside PyTorch{label}"
        )
    fits = {True: "fits", False: "does not fit", None: ""}[mark.fits]
    how = ["from the database" if mark.cached else "", "" if mark.request == "measure" else mark.request, fits]
    told = ", ".join([f"probe {mark.probe}" if mark.probe else "no probe", *filter(None, how)])
    return [short(mark.point) or f"change {mark.index}", mark.subject[:_SUBJECT], sizes, told]


def _ticks(one: Range) -> dict[str, Any]:
    """Labels at the ends and at the steps, as far as they do not lie on each other."""
    wanted = [0, *(step.index for step in one.steps), one.count - 1]
    if one.count <= 8:
        wanted = list(range(one.count))
    chosen: list[int] = []
    for index in dict.fromkeys([one.count - 1, *wanted]):
        if index >= 0 and all(abs(index - other) * 9 >= one.count for other in chosen):
            chosen.append(index)
    named = {mark.index: mark.point for mark in one.marks if mark.request != "revert"}
    keys = [one.points[index] if index < len(one.points) else named.get(index, "") for index in chosen]
    return {
        "tickmode": "array",
        "tickvals": chosen,
        "ticktext": [_cut(short(key.rpartition("+")[2]), 22) or f"point {index}" for key, index in zip(keys, chosen)],
        "title": {"text": f"{one.title}, good to bad ({one.count:,} points)", "standoff": 8},
    }


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _step_shape(index: int, kind: str) -> Figure:
    line = {"color": "var(--step)", "width": 1.5}
    return {"type": "line", "x0": index, "x1": index, "yref": "paper", "y0": 0, "y1": 1, "line": line, "layer": "below"}


def _band(first: int, last: int) -> Figure:
    return {
        "type": "rect", "x0": first - 0.5, "x1": last + 0.5, "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
        "fillcolor": "var(--band)", "line": {"width": 0},
    }  # fmt: skip


def _step_notes(one: Range) -> list[Figure]:
    notes = []
    for number, step in enumerate(sorted(one.steps, key=lambda step: step.index)):
        name, size = max(step.delta.items(), key=lambda item: abs(item[1]), default=("", 0))
        words = {"external": "outside"}.get(name, name)
        notes.append(
            {
                "x": step.index, "yref": "paper", "y": 1, "yanchor": "bottom", "yshift": 18 * (number % 3),
                "xanchor": "left" if step.index * 2 < one.count else "right", "showarrow": False,
                "text": f"{format_delta(size)} {words}, {step.kind}{'' if step.named else ', not named'}",
                "font": {"color": "var(--step)", "size": 12},
            }
        )  # fmt: skip
    return notes


# Allocations over time


def timelines_figure(document: SessionDocument) -> Figure:
    """Allocated and reserved memory of both runs, along their phases or along the time."""
    single = len(document.runs) == 1
    colours = ("var(--second)",) if single else ("var(--first)", "var(--second)")
    names = ("",) if single or document.pair is None else tuple(f"{name}: " for name in document.pair.names)
    data: list[Figure] = []
    positions = document.positions()
    for run, colour, name, places in zip(document.runs, colours, names, positions):
        moments = run.timeline
        for choice, x in (("phase", places), ("time", moments.seconds)):
            for what, sizes, dash, width in (
                ("reserved", moments.reserved, "dot", 1.2),
                ("allocated", moments.allocated, "solid", 1.6),
            ):
                data.append(
                    {
                        "type": "scatter", "mode": "lines", "meta": choice,
                        "name": f"{name}{what}", "x": list(x), "y": [gib(size) for size in sizes],
                        "line": {"color": colour, "dash": dash, "width": width, "shape": "hv"},
                        "hovertemplate": Markup("%{y:.3f} GiB<extra>%{fullData.name}</extra>"),
                    }
                )  # fmt: skip
            data.append(_peak_mark(run, x, colour, f"{name}peak allocated", choice))
    bands, labels = _phase_bands(document)
    choices = [
        {
            "value": "phase",
            "label": "phases side by side",
            "layout": {
                "xaxis": {"title": {"text": "allocations, in order" if not bands else "allocations, phase by phase"}},
                "shapes": bands,
                "annotations": labels,
            },
        },
        {
            "value": "time",
            "label": "time",
            "layout": {
                "xaxis": {"title": {"text": "seconds since the first allocation"}},
                "shapes": [],
                "annotations": [],
            },
        },
    ]
    layout = _layout(
        xaxis=_axis(showgrid=False),
        yaxis=_axis(title={"text": f"GiB{document.label}"}, rangemode="tozero"),
        hovermode="x",
    )
    return {"data": data, "layout": layout, "choices": choices, "shown": "phase"}


def _peak_mark(run: Run, x: Sequence[float], colour: str, name: str, choice: str) -> Figure:
    moments = run.timeline
    at = moments.allocated.index(moments.peak_allocated) if moments.allocated else None
    bound = "at least " if run.censored else ""
    text = f"{bound}{format_bytes(moments.peak_allocated)}"
    return {
        "type": "scatter", "mode": "markers", "meta": choice, "name": f"{name} {text}",
        "x": [] if at is None else [x[at]], "y": [] if at is None else [gib(moments.peak_allocated)],
        "marker": {"color": colour, "size": 10, "symbol": "diamond", "line": {"color": "var(--panel)", "width": 1}},
        "hovertemplate": Markup("%{y:.3f} GiB<extra>%{fullData.name}</extra>"),
    }  # fmt: skip


def _phase_bands(document: SessionDocument) -> tuple[list[Figure], list[Figure]]:
    """A band for each phase of the common axis, every other one tinted, and its name."""
    widths = shared_widths([run.timeline for run in document.runs]) or {}
    total = sum(widths.values())
    bands, labels, offset = [], [], 0
    for number, (name, width) in enumerate(widths.items()):
        if number % 2 == 0:
            bands.append(
                {
                    "type": "rect", "x0": offset, "x1": offset + width, "yref": "paper", "y0": 0, "y1": 1,
                    "fillcolor": "var(--band)", "line": {"width": 0}, "layer": "below",
                }
            )  # fmt: skip
        if width * 14 >= total:
            labels.append(
                {
                    "x": offset + width / 2, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False,
                    "text": name, "font": {"color": "var(--muted)", "size": 12},
                }
            )  # fmt: skip
        offset += width
    return bands, labels


# What is live at the peak


def treemap_figure(pair: Pair) -> Figure:
    """What is live at each run's peak, by module and stack; coloured by how much of it the other run has not."""
    sides = {"second": pair.names[1]} if pair.single else {"second": pair.names[1], "first": pair.names[0]}
    data = [_treemap(pair, side) for side in sides]
    choices = [{"value": side, "label": name, "layout": {}} for side, name in sides.items()]
    layout = _layout(margin={"l": 0, "r": 0, "t": 4, "b": 0}, uniformtext={"minsize": 9, "mode": "hide"})
    return {"data": data, "layout": layout, "choices": [] if pair.single else choices, "shown": "second"}


def _treemap(pair: Pair, side: str) -> Figure:
    """One run's live bytes; what is too small to be seen is summed, so that every level adds up."""
    comparison = pair.comparison
    other = "first" if side == "second" else "second"
    total = comparison[side]["peak_allocated"]
    modules: dict[str, list[Mapping[str, Any]]] = {}
    for stack in comparison["stacks"]:
        if stack[side]:
            modules.setdefault(stack["module"], []).append(stack)
    nodes = [("root", "", f"live at the peak of {comparison[side]['name']}", total, _other(comparison, other), "")]
    rest: list[Mapping[str, Any]] = []
    for number, (module, stacks) in enumerate(sorted(modules.items(), key=lambda item: -_sum(item[1], side))):
        size = _sum(stacks, side)
        if number >= _MOST_NODES or size < total * _SMALLEST_SHARE:
            rest += stacks
            continue
        name = f"m{number}"
        nodes.append((name, "root", _short_module(module), size, _sum(stacks, other), module))
        small: list[Mapping[str, Any]] = []
        for place, stack in enumerate(sorted(stacks, key=lambda stack: -stack[side]["bytes"])):
            if stack[side]["bytes"] < total * _SMALLEST_SHARE / 2:
                small.append(stack)
            else:
                leaf = (f"{name}s{place}", name, _leaf(stack[side]), stack[side]["bytes"], _sum([stack], other))
                nodes.append((*leaf, _frames(stack[side])))
        if small:
            nodes.append((f"{name}r", name, f"{len(small)} smaller stacks", _sum(small, side), _sum(small, other), ""))
    if rest:
        modules_left = len({stack["module"] for stack in rest})
        nodes.append(("rest", "root", f"{modules_left} smaller modules", _sum(rest, side), _sum(rest, other), ""))
    sign = 1 if side == "second" else -1
    return {
        "type": "treemap", "meta": side, "branchvalues": "total", "sort": True,
        "ids": [node[0] for node in nodes], "parents": [node[1] for node in nodes],
        "labels": [node[2] for node in nodes], "values": [node[3] for node in nodes],
        "customdata": [
            [format_bytes(size), "" if pair.single else f"{format_delta(size - there)} to the other run", frames]
            for _, _, _, size, there, frames in nodes
        ],
        "texttemplate": Markup("<b>%{label}</b><br>%{customdata[0]}<br>%{percentRoot:.1%}"),
        "hovertemplate": Markup(
            "<b>%{label}</b><br>%{customdata[0]}, %{percentRoot:.1%} of the peak<br>%{customdata[1]}"
            "<br>%{customdata[2]}<extra></extra>"
        ),
        "marker": {
            "colors": [_share(size, there, sign) for _, _, _, size, there, _ in nodes],
            "cmin": -1, "cmax": 1,
            "colorscale": [[0, "var(--less)"], [0.5, "var(--same)"], [1, "var(--more)"]],
            "line": {"color": "var(--panel)", "width": 1},
        },
        "tiling": {"packing": "squarify", "pad": 2},
        "pathbar": {"visible": True},
        "maxdepth": 3,
    }  # fmt: skip


def _other(comparison: Mapping[str, Any], side: str) -> int:
    return int(comparison[side]["peak_allocated"])


def _sum(stacks: Sequence[Mapping[str, Any]], side: str) -> int:
    return sum(stack[side]["bytes"] for stack in stacks if stack[side])


def _share(size: int, there: int, sign: int) -> float:
    """How much of it the other run has not, -1 to 1: above 0 the second run has more."""
    return round(max(-1.0, min(1.0, sign * (size - there) / max(size, 1))), 3)


def _short_module(module: str) -> str:
    """`MLP.forward` of `path/mlp.py MLP.forward`."""
    path, _, method = module.rpartition(" ")
    return method if path.endswith(".py") else module


def _leaf(part: Mapping[str, Any]) -> str:
    """A stack in a few words: where in the project it allocates."""
    frame = _innermost(part["frames"])
    if frame is None:
        return "no stack"
    return f"{frame['file'].rpartition('/')[2]}:{frame['line']}"


def _innermost(frames: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    known = [frame for frame in frames if frame["project"] in ("bridge", "megatron-lm", "repo")]
    return next(iter([*known, *frames]), None)


def _frames(part: Mapping[str, Any]) -> Markup:
    """The innermost frames, a line each."""
    lines = [printable(f"{frame['file']}:{frame['line']} {frame['function']}") for frame in part["frames"][:8]]
    return Markup("<br>").join(lines)
