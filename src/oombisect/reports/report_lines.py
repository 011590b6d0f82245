"""What a report says of a verdict in lines, as the terminal does: shared by the page and the Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oombisect.reports.config import config_lines
from oombisect.reports.descent import descent_lines
from oombisect.reports.packages import package_lines
from oombisect.reports.points import short
from oombisect.reports.reading import class_lines
from oombisect.reports.report_document import SessionDocument
from oombisect.reports.stranded import failure_lines
from oombisect.reports.terminal import evidence_lines, metric_words, who_made
from oombisect.session.verdict import StepVerdict
from oombisect.units import format_apart, format_bytes, format_change


@dataclass(frozen=True, slots=True)
class StepLines:
    """A step and its evidence; `within` names the repository it was found in where that is not the session's own."""

    step: StepVerdict
    lines: Sequence[str]
    within: str = ""

    @property
    def title(self) -> str:
        """The point and its subject."""
        return " ".join(filter(None, [self.within, short(self.step.point), self.step.subject]))


def step_lines(document: SessionDocument) -> Iterator[StepLines]:
    """The steps of the verdict in its order, each followed by those found inside it."""
    if document.report is None or "verdict" not in document.report:
        return
    verdict, label = document.report["verdict"], document.label
    across = "limit" if verdict.get("threshold_bytes") is None else "threshold"
    for outer in map(StepVerdict.from_json, verdict["steps"]):
        more = [*package_lines(outer, *metric_words(outer), label), *descent_lines(outer, *metric_words(outer), label)]
        yield StepLines(outer, [*evidence_lines(outer, label, across), *more])
        for inside in outer.inside:
            yield StepLines(inside, evidence_lines(inside, label, across), who_made(inside).strip())


def verdict_lines(document: SessionDocument) -> list[str]:
    """What else the verdict says: of a config diff, of why a single probe does not fit, and its notes."""
    report = document.report or {}
    config, found = report.get("config"), report.get("classification")
    return [
        *(config_lines(config, document.label) if config else ()),
        *class_lines(found, document.label),
        *report.get("verdict", {}).get("notes", ()),
    ]


def out_of_memory_lines(document: SessionDocument) -> list[str]:
    """Where the run runs out of memory when it is replayed, and what is stranded then."""
    found = (document.what_ifs or {}).get("first_oom")
    return failure_lines(found, document.label) if found else []


def beside(size: int, limit: int | None) -> str:
    """A size that is compared with a limit: it looks like it only if it is the same."""
    return format_apart(size, *([] if limit is None else [limit]))[0]


def ends_text(document: SessionDocument) -> dict[str, dict[str, str]]:
    """The peaks of each end, with as many digits as it takes for them to subtract to the growth beside them."""
    told = {name: reading for name, reading in document.ends.items() if reading}
    found: dict[str, dict[str, str]] = {name: {} for name in told}
    for key in ("peak_allocated", "peak_reserved", "external"):
        sizes = [reading[key] for reading in told.values()]
        for name, text in zip(told, format_change(*sizes) if len(sizes) == 2 else map(format_bytes, sizes)):
            found[name][key] = text
    return found


def fits_text(fits: bool | None) -> str:
    """Whether something fits, in words."""
    return {True: "fits", False: "does not fit", None: "not known to fit"}[fits]


def source_line(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The frame of a stack to show in one line: the innermost of the project, else the innermost."""
    frames: Sequence[Mapping[str, Any]] = part["frames"]
    own = [frame for frame in frames if frame["project"] not in ("package", "python", "probe")]
    return next(iter([*own, *frames]), None)
