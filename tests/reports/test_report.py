"""Reports: what is gathered, its figures, its Markdown and its JSON."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oombisect.cli.sessions_of import clock
from oombisect.history.records import SessionState
from oombisect.history.store import open_store
from oombisect.memory.timeline import PhaseSpan, Timeline
from oombisect.reports.report_document import RUNS, WHAT_IFS, Mark, Range, SessionDocument
from oombisect.reports.report_figures import STYLES, figures, range_figure, style_of
from oombisect.reports.report_gathering import Sources, gather
from oombisect.reports.report_html import render_html
from oombisect.reports.report_markdown import MOST, render_markdown
from oombisect.units import GIB
from tests.cli.conftest import Command
from tests.session.memories import add_probe, session_spec

from .toy_report import ATTACK, LIMIT, SUBJECT, VALUE, Reported, document_of

MIB = 1 << 20


def test_the_document_has_all_of_the_session(reported: Reported) -> None:
    document, report, shas = reported.document, reported.report, reported.world.shas
    assert document.provenance == "simulated" and document.limit_bytes == LIMIT
    assert document.report == report.to_json()
    assert [probe["id"] for probe in document.probes] == list(range(1, report.probes + 1))
    (own,) = document.ranges
    assert own.points == tuple(shas) and own.count == 7
    (step,) = own.steps
    assert (own.points[step.index], step.kind) == (shas[5], "capacity")
    assert own.unresolved == ((3, 3),)
    for mark in own.marks:
        assert mark.request == "revert" or own.points[mark.index] == mark.point
    assert {mark.probe for mark in own.marks} - {None} == {probe["id"] for probe in document.probes}
    assert [run.point for run in document.runs] == [shas[0], shas[-1]]
    for run, reading in zip(document.runs, (report.good, report.bad)):
        assert run.timeline.peak_allocated == run.peak_allocated == reading.peak_allocated
        assert run.timeline.peak_reserved == run.peak_reserved == reading.peak_reserved
    (pair,) = document.steps
    assert pair.comparison["delta_bytes"] == report.verdict.steps[0].delta["allocated"] == 3000 * MIB
    assert document.pair is not None and document.pair.comparison["delta_bytes"] == 3000 * MIB
    assert document.config_changes is not None
    assert [change["path"] for change in document.config_changes] == ["name"]
    assert document.what_ifs is not None and document.what_ifs["limit_bytes"] == LIMIT
    assert document.environments["good"]["torch (version)"] == "toy"
    assert document.reproduce == report.reproduce and not document.missing


def test_gathering_twice_tells_the_same(reported: Reported) -> None:
    again = document_of(reported.world, reported.report.session)
    assert again.to_json() == reported.document.to_json() and render_html(again) == render_html(reported.document)


def test_the_json_is_plain(reported: Reported) -> None:
    told = reported.document.to_json()
    assert json.loads(json.dumps(told)) == json.loads(json.dumps(told, sort_keys=True))
    assert set(told) == documented()
    assert list(told["runs"][0]["timeline"]["allocated"]) == list(reported.document.runs[0].timeline.allocated)


def documented() -> set[str]:
    """The keys that docs/json.md lists for `report`."""
    text = (Path(__file__).parents[2] / "docs/json.md").read_text()
    block = text.split("## `report`")[1].split("```")[1]
    return set(re.findall(r'^  "(\w+)"', block, re.MULTILINE))


# What is not there


def test_recordings_that_were_pruned_are_missed_in_their_places(reported: Reported) -> None:
    artifacts = reported.database.with_suffix(".artifacts")
    snapshots = list(artifacts.rglob("snapshot-*"))
    aside = [path.rename(path.with_name(f"x-{path.name}")) for path in snapshots]
    try:
        document = document_of(reported.world, reported.report.session)
    finally:
        for path in aside:
            path.rename(path.with_name(path.name.removeprefix("x-")))
    assert snapshots and document.pair is None and document.runs == () and document.steps == ()
    assert "is gone" in document.missing[RUNS] and "is gone" in document.missing[WHAT_IFS]
    page = render_html(document)
    assert page.count("is gone") >= 4 and "No single change" not in page
    assert document.ranges == reported.document.ranges and document.probes == reported.document.probes
    assert "is gone" in html.unescape(render_markdown(document))


def test_a_session_that_is_not_finished_says_so_and_shows_what_there_is(reported: Reported) -> None:
    with open_store(reported.database, clock=clock) as store:
        first = store.session(reported.report.session)
        begun = store.create_session(first.spec)
        for event in store.events(first.id)[:3]:
            store.append_event(begun.id, event.kind, event.payload)
        store.interrupt_session(begun.id, 130)
        assert store.session(begun.id).state is SessionState.INTERRUPTED
    document = document_of(reported.world, begun.id)
    assert document.report is None and document.headline.startswith("Not finished: 0 probes")
    assert "interrupted" in document.missing["verdict"]
    assert document.reproduce[0] == f"oombisect resume {begun.id}"
    (own,) = document.ranges
    assert len(own.marks) == 2 and own.count == 7
    assert [reading and reading["fits"] for reading in document.ends.values()] == [True, False]
    assert [run.point for run in document.runs] == [reported.world.shas[0], reported.world.shas[-1]]
    for text in (render_html(document), render_markdown(document)):
        assert "Not finished" in html.unescape(text) and "oombisect resume" in html.unescape(text)


def test_a_single_probe_is_reported_by_itself(tmp_path: Path) -> None:
    database = tmp_path / "o.db"
    with open_store(database, clock=clock) as store:
        spec = session_spec(tmp_path, "a" * 40, "a" * 40, kind="probe", command=("/x/oombisect", "probe", "HEAD"))
        session = store.create_session(spec).id
        add_probe(store, session, "a" * 40, [(4096, [("/x/a.py", 1, "f")])] * 3)
        later = add_probe(store, session, "a" * 40, [(512, ())], request="expandable")
        reading = store.reading(later - 1).with_fits(True).to_json()
        found = {"schema": 1, "point": "a" * 40, "limit_bytes": LIMIT, "reading": reading}
        store.finish_session(session, 0, {**found, "classification": None, "rank_findings": None})
    with open_store(database, clock=clock, readonly=True) as store:
        sources = Sources(store, database, tmp_path, clock, lambda _: None)
        document = gather(store.session(session), sources)
    assert document.headline.startswith("aaaaaaaaaa fits in 6.84 GiB (simulated): 12288 B peak allocated")
    assert [run.peak_allocated for run in document.runs] == [3 * 4096], "not the probe under other settings"
    assert document.pair is not None and document.pair.single and document.steps == () and document.ranges == ()
    assert document.missing["range"] == "A single probe has no range." and list(document.ends) == ["bad"]
    assert document.reproduce == ("oombisect probe HEAD",)
    page = render_html(document)
    assert "There is one run" in page and "A single probe has no range." in page
    assert {trace["meta"] for trace in figures(document)["treemap"]["data"]} == {"second"}
    assert "aaaaaaaaaa fits in" in html.unescape(render_markdown(document))


# Figures


def mark(index: int, **changes: Any) -> Mark:
    plain = Mark(index, f"{index:040x}", "s", "measure", index + 1, False, "exact", "", True, False, True, False,
                 2 * GIB, 3 * GIB, GIB)  # fmt: skip
    return replace(plain, **changes)


MARKS = (
    mark(0),
    mark(1, fits=False, allocated=5 * GIB, reserved=6 * GIB),
    mark(2, outcome="censored", is_lower_bound=True, fits=False),
    mark(3, fits=None),
    mark(4, outcome="unresolved", allocated=None, reserved=None, external=None),
    mark(5, varied=True),
    mark(6, request="revert"),
)


def test_every_class_of_probe_has_a_colour_and_a_shape_of_its_own(reported: Reported) -> None:
    styles = [style_of(one) for one in MARKS]
    for name in ("name", "symbol"):
        assert len({style[name] for style in styles}) == len(MARKS) == len(STYLES)
    seen = [style["color"] for style in styles if style["symbol"] not in ("diamond", "x")]
    assert len(set(seen)) == len(seen)
    assert style_of(MARKS[2])["symbol"] == "arrow-up" and style_of(MARKS[4])["color"] == "var(--muted)"


def test_every_probe_is_drawn_where_it_belongs(reported: Reported) -> None:
    one = Range("", "commits", 10, (), MARKS)
    figure = range_figure(one, reported.document)
    for choice, sizes in (("device", [4, 7, 4, 4, None, 4, 4]), ("allocated", [2, 5, 2, 2, None, 2, 2])):
        traces = [t for t in figure["data"] if t["meta"] == choice and t["mode"] == "markers"]
        drawn = {t["name"]: (t["x"], t["y"]) for t in traces}
        layout = next(c["layout"] for c in figure["choices"] if c["value"] == choice)
        bottom, top = layout["yaxis"]["range"]
        for one_mark, size in zip(MARKS, sizes):
            x = 9 if one_mark.request == "revert" else one_mark.index
            assert drawn[style_of(one_mark)["name"]] == ([x], [bottom if size is None else size])
            assert bottom <= drawn[style_of(one_mark)["name"]][1][0] < top
        (limit,) = [t for t in figure["data"] if t["meta"] == choice and t.get("name", "").startswith("limit")]
        assert limit["y"] == [LIMIT / GIB] * 2 and bottom < LIMIT / GIB < top


def test_a_limit_far_away_does_not_flatten_what_moved(reported: Reported) -> None:
    one = Range("", "commits", 10, (), (mark(0, allocated=30 * GIB), mark(1, allocated=31 * GIB)))
    for limit, words in ((32 * GIB, ""), (80 * GIB, ", above"), (10 * GIB, ", below")):
        figure = range_figure(one, replace(reported.document, limit_bytes=limit))
        choice = next(choice for choice in figure["choices"] if choice["value"] == "allocated")
        bottom, top = choice["layout"]["yaxis"]["range"]
        assert top - bottom < 5 and bottom < 30 and top > 31
        (name,) = {
            t["name"] for t in figure["data"] if t.get("name", "").startswith("limit") and t["meta"] == "allocated"
        }
        assert name.endswith(words or "GiB")


def test_the_figures_are_what_plotly_takes(reported: Reported) -> None:
    from plotly.graph_objects import Figure

    found = figures(reported.document)
    assert set(found) == {"range-0", "timelines", "treemap"}
    for figure in found.values():
        Figure(data=[colourless(trace) for trace in figure["data"]], layout=colourless(figure["layout"]))
        for choice in figure["choices"]:
            Figure(layout=colourless(choice["layout"]))


def colourless(value: Any) -> Any:
    """Names of colours as some colour."""
    if isinstance(value, dict):
        return {key: colourless(inner) for key, inner in value.items() if key != "family"}
    if isinstance(value, list):
        return [colourless(inner) for inner in value]
    return "#000" if isinstance(value, str) and value.startswith("var(--") else value


def test_text_in_a_figure_is_text(reported: Reported) -> None:
    for name, figure in figures(reported.document).items():
        text = json.dumps(figure)
        assert "<script" not in text and "<img" not in text and "<a " not in text, name
        assert "\u202e" not in text and "\u2028" not in text
    assert "&lt;img" in json.dumps(figures(reported.document)["treemap"])


def test_a_treemap_adds_up_on_every_level(reported: Reported) -> None:
    for trace in figures(reported.document)["treemap"]["data"]:
        sizes = dict(zip(trace["ids"], trace["values"]))
        inside: dict[str, int] = {}
        for parent, size in zip(trace["parents"], trace["values"]):
            inside[parent] = inside.get(parent, 0) + size
        run = reported.document.runs[trace["meta"] == "second"]
        assert sizes["root"] == run.peak_allocated
        assert all(sizes[parent] == size for parent, size in inside.items() if parent)
    (shown, _) = figures(reported.document)["treemap"]["data"]
    grown = [label for label, share in zip(shown["labels"], shown["marker"]["colors"]) if share == 1]
    assert any("octocat" in label for label in grown)


def test_phases_are_bands_on_the_common_axis(reported: Reported) -> None:
    def phased(*counts: int) -> Timeline:
        begin = [sum(counts[:number]) for number in range(len(counts))]
        spans = tuple(PhaseSpan(f"step_{n}", b, c) for n, (b, c) in enumerate(zip(begin, counts)))
        return Timeline((0, sum(counts)), (0.0, 1.0), (0, 512), (0, 512), 2, spans)

    runs = tuple(replace(run, timeline=phased(100, n)) for run, n in zip(reported.document.runs, (50, 80)))
    figure = figures(replace(reported.document, runs=runs))["timelines"]
    layout = figure["choices"][0]["layout"]
    assert [(band["x0"], band["x1"]) for band in layout["shapes"]] == [(0, 100)]
    assert [(label["text"], label["x"]) for label in layout["annotations"]] == [("step_0", 50), ("step_1", 140)]


# Markdown


def test_markdown_pings_nobody_and_injects_nothing(reported: Reported) -> None:
    text = render_markdown(reported.document)
    prose = re.sub(r"^(```+)text$.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert prose != text and "```" not in prose
    tags = set(re.findall(r"<[^>]*>", prose))
    assert tags <= {"<details>", "</details>", "<summary>", "</summary>", "<code>", "</code>", "<br>"}
    for sign in ("@", "octocat |", "`"):
        assert sign not in prose.replace(" | ", "\n")
    shown = html.unescape(re.sub(r"<code>.*?</code>", "", prose))
    assert "octocat" in shown and "@octocat" not in shown and not re.search(r"#\d|gh-\d", shown)
    assert "octocat" in html.unescape(text) and ATTACK in html.unescape(text)


def test_a_fence_is_longer_than_any_in_it(reported: Reported) -> None:
    steps = [{**step, "evidence": {**step["evidence"], "config_changes": [
        {"path": "a", "before": "````", "after": "x\n```\n@octocat"}
    ]}} for step in reported.document.report["verdict"]["steps"]]  # type: ignore[index]  # fmt: skip
    report = {**reported.document.report, "verdict": {**reported.document.report["verdict"], "steps": steps}}  # type: ignore[dict-item,index]
    text = render_markdown(replace(reported.document, report=report))
    assert "\n`````text\n" in text and "\n`````\n" in text


@pytest.mark.parametrize("times", [1, 500], ids=["as-it-is", "huge"])
def test_markdown_fits_a_comment_and_says_what_was_cut(reported: Reported, times: int) -> None:
    document: SessionDocument = reported.document
    probes = list(document.probes) * times
    changes = [{"path": SUBJECT * 3, "before": VALUE, "after": VALUE * 9}] * times
    reproduce = tuple("oombisect probe " + "x" * 500 for _ in range(times))
    text = render_markdown(replace(document, probes=probes, config_changes=changes, reproduce=reproduce))
    assert len(text) < 65_536 and len(text) <= MOST
    if times > 1:
        assert f"{len(probes) - 40:,} more rows" in text or "Left out" in text
        assert "Left out, for room: reproduce" in text
        assert html.unescape(text).startswith("### " + reported.document.headline[:10])


def test_sizes_subtract_to_the_difference_beside_them(reported: Reported) -> None:
    """72.277 and 72.281 GiB look alike in two digits, and 4.0 MiB lie between them."""
    document = reported.document
    assert document.pair is not None and document.report is not None
    first, second = 77_606_000_000, 77_606_000_000 + 4 * MIB
    ends = {
        name: {**(reading or {}), "peak_allocated": size}
        for (name, reading), size in zip(document.ends.items(), (first, second))
    }
    comparison = {**document.pair.comparison, "delta_bytes": second - first}
    for name, size in (("first", first), ("second", second)):
        comparison[name] = {**comparison[name], "peak_allocated": size}
    total = {"name": "m", "delta_bytes": second - first, "first_bytes": first, "second_bytes": second,
             "first_blocks": 1, "second_blocks": 1}  # fmt: skip
    comparison["modules"] = [total]
    changed = replace(document, ends=ends, pair=replace(document.pair, comparison=comparison), steps=())
    page = render_html(changed)
    assert page.count(">72.276 GiB<") == page.count(">72.280 GiB<") == 3 and ">72.28 GiB<" not in page
    assert "72.276 GiB" in render_markdown(changed)


def test_rows_left_out_are_counted(reported: Reported) -> None:
    probes = list(reported.document.probes) * 20
    assert f"{len(probes) - 40:,} more rows" in render_markdown(replace(reported.document, probes=probes))


# The command


def test_the_command_writes_the_page_and_prints_one_format(
    command: Command,
    reported: Reported,
    tmp_path: Path,
) -> None:
    session = reported.report.session
    where = ("--db", reported.database)
    said = command("report", session, "--html", "page.html", "--md", *where)
    assert said.code == 0 and said.out == render_markdown(reported.document)
    page = (tmp_path / "page.html").read_text()
    assert page == render_html(reported.document) and len(page.encode()) < 6_000_000
    assert list(tmp_path.glob(".*.part")) == [] and "page.html: " in said.err
    told = command("report", "last", "--json", *where).document
    assert told["session"]["id"] and told["schema"] == 1


def test_the_command_refuses_what_it_cannot_do(command: Command, reported: Reported, tmp_path: Path) -> None:
    where = ("--db", reported.database)
    command("report", *where).refused(2, "--html FILE, --md or --json")
    said = command("report", "--md", "--json", *where)
    assert said.code == 2 and "both print to stdout" in said.document["error"]["cause"]
    command("report", "--html", tmp_path, *where).refused(2, "is a folder")
    command("report", "--html", "no/such/folder/page.html", *where).refused(2, "no folder")
    command("report", "20200101-1", "--md", *where).refused(2, "20200101-1")
