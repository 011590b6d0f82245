"""A `SessionDocument` as Markdown for a comment on GitHub: short enough for one, and nobody is pinged by it.

All text from elsewhere goes through `markdown_text`, which leaves nothing that Markdown, HTML or GitHub acts on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from oombisect.reports.config import value_text
from oombisect.reports.markdown_text import cell, code, escaped
from oombisect.reports.points import short
from oombisect.reports.report_document import VERDICT, Pair, SessionDocument
from oombisect.reports.report_lines import beside, ends_text, fits_text, source_line, step_lines, verdict_lines
from oombisect.units import counted, format_bytes, format_change, format_delta

MOST = 65_000
"""Characters; GitHub takes fewer than 65,536."""

_ROWS = {"stacks": 15, "probes": 40, "config": 25, "versions": 25}


def render_markdown(document: SessionDocument) -> str:
    """The whole comment, at most `MOST` characters: sections that do not fit are left out, and that is said."""
    parts: list[str] = []
    left_out: list[str] = []
    room = MOST - 400  # for what is said of those that are left out
    for title, text in _sections(document):
        if len(text) > room:
            left_out.append(title)
            continue
        parts.append(text)
        room -= len(text)
    if left_out:
        parts.append(f"Left out, for room: {', '.join(left_out)}. The HTML and the JSON report have them.\n")
    return "\n".join(parts)


def _sections(document: SessionDocument) -> Iterator[tuple[str, str]]:
    yield "verdict", _verdict(document)
    for pair in document.steps or ([document.pair] if document.pair and not document.pair.single else []):
        yield f"difference of {pair.title[:60]}", _difference(pair, document.label)
    if document.what_ifs is not None:
        yield "allocator settings", _settings(document.what_ifs, document.label)
    if document.config_changes:
        yield "resolved config", _config(document.config_changes)
    yield "environment", _environment(document)
    yield "reproduce", _reproduce(document.reproduce)
    yield "probes", _probes(document)
    if document.missing:
        gaps = [f"- {escaped(name)}: {escaped(why)}" for name, why in document.missing.items() if name != VERDICT]
        yield "what is missing", _fold("What is missing", "\n".join(gaps)) if gaps else ""


def _block(lines: Iterable[str]) -> str:
    """Lines as they are, in a fence that they cannot close."""
    clean = ["".join(c if c.isprintable() else "?" for c in line.expandtabs(4)) for line in lines]
    longest = max((len(run) for line in clean for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *clean, fence])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], most: int) -> str:
    """`rows` are escaped; those beyond `most` are counted."""
    sides = ["---:" if head.startswith(">") else "---" for head in heads]
    lines = [_row([head.lstrip(">") for head in heads]), _row(sides), *(_row(row) for row in rows[:most])]
    if len(rows) > most:
        lines.append(f"\n{counted(len(rows) - most, 'more row')}, in the HTML and the JSON report.")
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _fold(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>\n"


def _verdict(document: SessionDocument) -> str:
    session, report = document.session, document.report or {}
    lines = [f"### {escaped(document.headline)}", ""]
    told = [f"session {code(session['id'])}", escaped(session["recipe"]), escaped(session["device"])]
    if document.limit_bytes:
        told.append(f"limit {escaped(format_bytes(document.limit_bytes))}")
    if document.provenance:
        told.append(f"**{document.provenance}**")
    lines += [", ".join(filter(None, told)), ""]
    shown, ends = ends_text(document), document.ends
    rows = [[name, *_sizes(reading, document.label, shown[name])] for name, reading in ends.items() if reading]
    if rows:
        lines += [_table(["end", "outcome", ">peak allocated", ">peak reserved", ">outside PyTorch"], rows, 2), ""]
    steps = report.get("verdict", {}).get("steps", ())
    if steps:
        cells = [
            [
                f"{code(short(step['point']))} {cell(step['subject'])}",
                escaped(step["class"]) + (", **crosses the limit**" if step["crosses_limit"] else ""),
                *(
                    escaped(format_delta(step["delta_bytes"].get(name, 0)))
                    for name in ("allocated", "reserved", "external")
                ),
                escaped(step["confirmed"]),
            ]
            for step in steps
        ]
        heads = ["change", "class", ">allocated", ">reserved", ">outside", "confirmed"]
        lines += [_table(heads, cells, 20), ""]
    for entry in step_lines(document):
        lines.append(_fold(f"Evidence: {escaped(entry.title, 200)}", _block(entry.lines)))
    lines += [f"> {escaped(note)}\n" for note in (*verdict_lines(document), *document.notes)]
    return "\n".join(lines)


def _sizes(reading: Mapping[str, Any], label: str, shown: Mapping[str, str] | None = None) -> list[str]:
    if reading["outcome"] not in ("exact", "censored"):
        return [f"{escaped(reading['outcome'])}: {cell(reading['reason'])}", "", "", ""]
    bound = "at least " if reading["is_lower_bound"] else ""
    fits = fits_text(reading["fits"])
    texts = shown or {name: format_bytes(reading[name]) for name in ("peak_allocated", "peak_reserved", "external")}
    return [fits, *(escaped(f"{'' if name == 'external' else bound}{text}{label}") for name, text in texts.items())]


def _difference(pair: Pair, label: str) -> str:
    comparison = pair.comparison
    changed = [stack for stack in comparison["stacks"] if stack["delta_bytes"]]
    rows = []
    for stack in changed:
        part = stack["second"] or stack["first"]
        frame = source_line(part)
        place = f"{frame['file']}:{frame['line']} {frame['source'] or frame['function']}" if frame else ""
        where = f"<br>{code(place)}" if frame else ""
        sizes = [stack[side]["bytes"] if stack[side] else 0 for side in ("first", "second")]
        rows.append(
            [
                escaped(format_delta(stack["delta_bytes"]) + label),
                *map(escaped, format_change(*sizes)),
                f"{cell(stack['module'])}{where}",
            ]
        )
    total = f"{format_delta(comparison['delta_bytes'])} peak allocated{label}"
    heads = [">difference", *(f">{name}" for name in pair.names), "module and line"]
    text = _table(heads, rows, _ROWS["stacks"]) if rows else "What is live at the peaks is the same."
    hunks = comparison["hunks"]
    if hunks and rows:
        text += f"\n\n{code(hunks[0]['file'])}\n\n{_block(hunks[0]['text'].splitlines()[:40])}"
    return _fold(f"{escaped(pair.title, 200)}: {escaped(total)}", text)


def _settings(told: Mapping[str, Any], label: str) -> str:
    rows = []
    for row in told["settings"]:
        name = code(row["alloc_conf"] or "defaults") + (" (as recorded)" if row["recorded"] else "")
        if row["refused"]:
            rows.append([name, "", f"refused: {cell(row['refused'])}", ""])
            continue
        bound = "at least " if row["is_lower_bound"] else ""
        need = (
            "none"
            if row["min_limit_bytes"] is None
            else f"{bound}{beside(row['min_limit_bytes'], told['limit_bytes'])}{label}"
        )
        fits = fits_text(row["fits"])
        rows.append([name, escaped(need), fits, escaped(f"{bound}{format_bytes(row['peak_reserved'])}{label}")])
    perfect = format_bytes(told["perfect"]["min_limit_bytes"])
    rows.append(["a perfect allocator", escaped(perfect + label), "", ""])
    table = _table(["PYTORCH&#95;CUDA&#95;ALLOC&#95;CONF", ">needed", "fits", ">peak reserved"], rows, 30)
    return _fold(f"Allocator settings, by replay of {escaped(told['snapshot'])}", table)


def _config(changes: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [code(change["path"]), *(code(value_text(change, s, "absent")) for s in ("before", "after"))]
        for change in changes
    ]
    title = f"Resolved config: {counted(len(rows), 'difference')} between the ends"
    return _fold(title, _table(["key", "good", "bad"], rows, _ROWS["config"]))


def _environment(document: SessionDocument) -> str:
    ends = document.environments
    if not ends:
        return ""
    names = dict.fromkeys(name for told in ends.values() for name in told)
    rows = [[name, *(told.get(name, "") for told in ends.values())] for name in names]
    differing = [row for row in rows if len(set(row[1:])) > 1] if len(ends) > 1 else rows
    if not differing:
        return "The environment of both ends is the same.\n"
    cells = [[cell(row[0]), *(code(value) for value in row[1:])] for row in differing]
    title = "Environment" if len(ends) == 1 else f"Environment: {counted(len(cells), 'difference')}"
    return _fold(title, _table(["what", *ends], cells, _ROWS["versions"]))


def _reproduce(commands: Sequence[str]) -> str:
    return _fold("Reproduce", _block(commands))


def _probes(document: SessionDocument) -> str:
    rows = []
    for probe in document.probes:
        reading = probe["reading"]
        sizes = _sizes(reading, document.label) if reading else ["unfinished", "", "", ""]
        sizes[0] = escaped(reading["outcome"]) if reading and reading["ranks"] else sizes[0]
        rows.append([str(probe["id"]), f"{code(short(probe['point']))} {cell(probe['subject'][:60])}",
                     escaped(probe["request"]), *sizes[:3]])  # fmt: skip
    heads = [">probe", "point", "for", "outcome", ">allocated", ">reserved"]
    return _fold(counted(len(rows), "probe"), _table(heads, rows, _ROWS["probes"])) if rows else ""
