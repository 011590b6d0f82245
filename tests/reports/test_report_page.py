"""The page in a real browser: it runs nothing foreign, asks nobody, draws all there is, and works for everybody."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from oombisect.reports.report_document import SessionDocument
from oombisect.reports.report_html import render_html
from oombisect.units import GIB

from .toy_report import SUBJECT, Reported

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync")  # fmt: skip
SECTIONS = ("verdict", "range", "timelines", "treemap", "difference", "settings", "config", "ranks", "environment",
            "reproduce", "probes")  # fmt: skip

if not CHROMIUM.exists():
    pytest.skip(f"there is no browser {CHROMIUM} (apt-get install chromium)", allow_module_level=True)


class Seen:
    """A page with everything that it said and asked for."""

    def __init__(self, page: Any, file: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
        self.plots = page.locator("[data-plot]").count()
        page.wait_for_function(
            "n => document.querySelectorAll('[data-plot] .main-svg').length >= n", arg=self.plots, timeout=60_000
        )

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def traces(self, plot: str) -> list[dict[str, Any]]:
        """What is drawn in a plot."""
        found: list[dict[str, Any]] = self.run(
            """name => document.querySelector(`[data-plot="${name}"]`).data.map(t => ({
                name: t.name, mode: t.mode, type: t.type, x: [...(t.x || [])], y: [...(t.y || [])],
                values: t.values, ids: t.ids, labels: t.labels, color: t.marker && t.marker.color,
                symbol: t.marker && t.marker.symbol, font: null}))""",
            plot,
        )
        return found

    def choose(self, group: str, value: str) -> None:
        self.page.locator(f'input[name="{group}"][value="{value}"]').check(force=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(reported: Reported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render_html(with_hunk(reported.document)), encoding="utf-8")
    return path


HUNK = "@@ -1,2 +1,2 @@ def f():\n-    kept = None\n+    kept = <script>window.pwned=4</script>\n " + "wide " * 80


def with_hunk(document: SessionDocument) -> SessionDocument:
    """As if a line of the largest difference had been changed: the toy's frames are in no file of its repository."""
    (pair,) = document.steps
    comparison = deepcopy(dict(pair.comparison))
    comparison["stacks"][0]["second"]["frames"][0]["hunk"] = 0
    comparison["hunks"] = [{"project": "bridge", "file": "kept.py", "text": HUNK}]
    return replace(document, steps=(replace(pair, comparison=comparison),))


@pytest.fixture(scope="module")
def seen(browser: Any, file: Path) -> Seen:
    return Seen(browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light"), file)


def test_nothing_foreign_runs_and_nothing_is_asked_for(seen: Seen, file: Path) -> None:
    seen.page.wait_for_timeout(500)
    assert seen.run("window.pwned") is None and seen.said == []
    assert [url for url in seen.requests if not url.startswith(("data:", "blob:"))] == [file.as_uri()]
    assert seen.run("document.querySelectorAll('script').length") == 3
    assert seen.run("document.querySelectorAll('main img, main iframe, main object, main form, [onerror]').length") == 0
    hrefs = seen.run(
        "[...document.querySelectorAll('a')].map(a => a.getAttribute('href') || a.getAttribute('xlink:href'))"
    )
    assert all(href.startswith("#") for href in hrefs if href)
    assert SUBJECT.partition("<a")[0].strip() in " ".join(seen.page.locator("#probes").inner_text().split())
    assert "octocat" in seen.page.locator("[data-plot=treemap]").inner_html()


def test_all_sections_are_there_and_say_something(seen: Seen) -> None:
    ids = seen.run("[...document.querySelectorAll('main > section')].map(s => s.id)")
    assert ids == list(SECTIONS)
    assert seen.run("[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))") == ids
    for name in SECTIONS:
        assert len(seen.page.locator(f"#{name}").inner_text()) > 40, name
    text = seen.page.locator("#verdict").inner_text()
    assert "2.93 GiB" in text and "capacity" in text and "simulated" in text and "crosses the limit" in text


def test_every_probe_is_drawn(seen: Seen, reported: Reported) -> None:
    (own,) = reported.document.ranges
    marks = [mark for mark in own.marks if mark.probe is not None]
    drawn = [trace for trace in seen.traces("range-0") if trace["mode"] == "markers"]
    assert sum(len(trace["x"]) for trace in drawn) == len(marks)
    names = {trace["name"]: trace for trace in drawn}
    assert len(names["fits"]["x"]) == sum(m.fits is True and m.request != "revert" and not m.varied for m in marks)
    assert names["could not be measured"]["x"] == [3]
    assert sorted(set(names["fits"]["y"])) == [(5000 + 500) * (1 << 20) / GIB]
    shown = seen.run("document.querySelectorAll('[data-plot=\"range-0\"] .scatterlayer .point').length")
    assert shown == len(marks)
    seen.choose("show-range-0", "allocated")
    names = {trace["name"]: trace for trace in seen.traces("range-0")}
    assert set(names["fits"]["y"]) == {reported.report.good.peak_allocated / GIB}
    seen.choose("show-range-0", "device")


def test_the_timelines_have_the_exact_peaks(seen: Seen, reported: Reported) -> None:
    for choice in ("time", "phase"):
        seen.choose("show-timelines", choice)
        traces = {trace["name"]: trace for trace in seen.traces("timelines") if trace["mode"] == "lines"}
        assert list(traces) == ["good: reserved", "good: allocated", "bad: reserved", "bad: allocated"]
        for name, reading in (("good", reported.report.good), ("bad", reported.report.bad)):
            assert max(traces[f"{name}: allocated"]["y"]) * GIB == reading.peak_allocated
            assert max(traces[f"{name}: reserved"]["y"]) * GIB == reading.peak_reserved


def test_the_treemap_shows_either_end(seen: Seen, reported: Reported) -> None:
    roots = []
    for side in ("first", "second"):
        seen.choose("show-treemap", side)
        (trace,) = seen.traces("treemap")
        roots.append(dict(zip(trace["ids"], trace["values"]))["root"])
        assert seen.page.locator("[data-plot=treemap] .slice").count() > 2
    assert roots == [reported.report.good.peak_allocated, reported.report.bad.peak_allocated]


def test_themes_follow_the_system_and_the_button(browser: Any, file: Path) -> None:
    dark = Seen(browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="dark"), file)
    look = """() => [getComputedStyle(document.body).backgroundColor,
                     document.querySelector('[data-plot=timelines]')._fullLayout.font.color]"""
    seen_first = dark.run(look)
    dark.page.locator("#theme").click()
    seen_then = dark.run(look)
    dark.page.locator("#theme").click()
    assert dark.run(look) == seen_first
    assert brightness(seen_first[0]) < 60 < 200 < brightness(seen_then[0])
    assert brightness(seen_first[1]) > 200 > 60 > brightness(seen_then[1])
    dark.page.emulate_media(color_scheme="light")
    dark.page.wait_for_timeout(200)
    assert brightness(dark.run(look)[0]) < 60, "the button holds"
    assert dark.said == []
    dark.page.close()


def brightness(colour: str) -> float:
    """0 to 255."""
    if colour.startswith("#"):
        return sum(int(colour[at : at + 2], 16) for at in (1, 3, 5)) / 3
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_tables_sort_by_bytes_and_by_letters(seen: Seen) -> None:
    table = "#probes table"
    column = """([table, at]) => [...document.querySelectorAll(table + ' tbody tr')].map(r => {
        const c = r.cells[at]; return c.dataset.sort === undefined ? c.textContent.trim() : c.dataset.sort; })"""
    seen.page.locator(f"{table} th button", has_text="allocated").click()
    sizes = [int(text) for text in seen.run(column, [table, 4]) if text]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) > 1
    head = seen.page.locator(f"{table} th", has_text="allocated")
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").press("Enter")
    sizes = [int(text) for text in seen.run(column, [table, 4]) if text]
    assert sizes == sorted(sizes) and head.get_attribute("aria-sort") == "ascending"
    seen.page.locator(table).get_by_role("button", name="for", exact=True).click()
    words = seen.run(column, [table, 2])
    assert words == sorted(words) and head.get_attribute("aria-sort") == "none"


def test_the_difference_is_shown_by_stack_module_and_phase(seen: Seen) -> None:
    tabs = seen.page.locator("#difference .pair").first.locator("[data-tab]")
    assert [tab.is_visible() for tab in tabs.all()] == [True, False, False]
    assert "+2.93 GiB" in tabs.nth(0).inner_text()
    seen.choose("tab-pair-0", "by module")
    assert [tab.is_visible() for tab in tabs.all()] == [False, True, False]
    assert "+2.93 GiB" in tabs.nth(1).inner_text()
    seen.choose("tab-pair-0", "by stack")


def test_the_hunk_is_shown_line_by_line_and_scrolls_in_itself(seen: Seen) -> None:
    lines = seen.page.locator("#difference .hunk").first.locator("span")
    assert lines.all_inner_texts() == HUNK.split("\n")
    boxes = [line.bounding_box() for line in lines.all()]
    assert all(one["y"] + one["height"] <= other["y"] + 1 for one, other in pairwise(boxes))
    assert len({one["x"] for one in boxes}) == 1
    assert seen.run(
        "() => { const t = document.querySelector('#difference .scroll'); return t.scrollWidth <= t.clientWidth + 1; }"
    )


def test_commands_are_copied(seen: Seen, reported: Reported) -> None:
    commands = seen.page.locator(".command code").all_inner_texts()
    assert commands == list(reported.document.reproduce)
    button = seen.page.locator(".copy").first
    button.click()
    assert button.inner_text() in ("Copied", "Selected")


@pytest.mark.parametrize("width", [390, 1280])
def test_no_width_overflows(seen: Seen, width: int) -> None:
    seen.page.set_viewport_size({"width": width, "height": 844})
    seen.page.wait_for_timeout(300)
    assert seen.run("document.documentElement.scrollWidth") <= width
    wide = seen.run(
        """() => [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1
             && !e.closest('.scroll, .hunk, svg, .plot, nav')).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert wide == []


def test_the_keyboard_reaches_everything(seen: Seen) -> None:
    seen.page.locator(".skip").focus()
    box = seen.page.locator(".skip").bounding_box()
    assert box is not None and box["x"] >= 0, "seen when it is reached"
    seen.page.locator('input[name="show-treemap"]:checked').focus()
    seen.page.keyboard.press("ArrowRight")
    assert seen.run("document.activeElement.checked")
    skipped = seen.run(
        """() => [...document.querySelectorAll('button, summary, input, a[href], .scroll')]
            .filter(e => e.tabIndex < 0 && !e.ariaHidden).map(e => e.outerHTML)"""
    )
    assert skipped == []


def test_print_shows_the_sections_without_the_controls(seen: Seen) -> None:
    seen.page.emulate_media(media="print")
    assert not seen.page.locator("nav").is_visible() and not seen.page.locator(".copy").first.is_visible()
    assert all(tab.is_visible() for tab in seen.page.locator("#difference .pair").first.locator("[data-tab]").all())
    seen.page.emulate_media(media="screen")
    assert seen.said == []


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        opened.settimeout(0.3)
        yield opened


def test_the_policy_stops_what_would_get_in(seen: Seen, listener: socket.socket) -> None:
    where = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    blocked = seen.run("url => fetch(url).then(() => 'sent', () => 'blocked')", where)
    seen.run(
        """url => {
            const add = (name, about) => document.body.append(Object.assign(document.createElement(name), about));
            add('script', {textContent: 'window.pwned = 9'});
            add('script', {src: url});
            add('img', {src: url});
        }""",
        where,
    )
    with pytest.raises(TimeoutError):
        listener.accept()
    assert blocked == "blocked" and seen.run("window.pwned") is None
    assert any("Content Security Policy" in said for said in seen.said)
