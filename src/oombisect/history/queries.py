"""The canned questions of `db/queries`: their names, what they ask, and their parameters.

The head of each file is comments: one sentence, then a line for each parameter, `-- :name type = default -- meaning`.
Without a default the parameter must be given. The meaning of a `choice` is what there is to choose from. What a
`recipe`, `gpu` or `point` may be the database tells: `found_in` refuses others.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from oombisect import hints
from oombisect.errors import OombisectError
from oombisect.printable import quoted
from oombisect.resources import db_dir
from oombisect.units import parse_bytes

_PARAMETER = re.compile(r"-- :(?P<name>\w+) (?P<type>\w+)(?: = (?P<default>.*?))?(?: -- (?P<meaning>.*))?")
_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")
TYPES = ("text", "choice", "integer", "real", "size", "date", "point", "recipe", "gpu")
_NAMES = {
    "recipe": "SELECT DISTINCT recipe FROM workloads ORDER BY recipe",
    "gpu": "SELECT name FROM gpus ORDER BY capacity_bytes, name",
}
_POINTS = """
SELECT DISTINCT key FROM points
WHERE key = :key OR (key >= :key AND key < :key || 'g' AND length(:key) >= 7 AND key NOT GLOB '*[^0-9a-f]*')"""

Ask = Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""The rows of a statement, given the values of its parameters."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `default` None: it must be given. A `size` is bytes, a `point` a commit or another key."""

    name: str
    type: str
    default: str | None
    meaning: str

    def value(self, text: str) -> Any:
        """What SQLite is given for `text`.

        Raises:
            OombisectError: it is nothing of the type.
        """
        match self.type:
            case "integer":
                if not re.fullmatch(r"-?\d{1,18}", text):
                    raise OombisectError(
                        f"--param {self.name}={quoted(text)} is no whole number", "Write one, like 20."
                    )
                return int(text)
            case "real":
                if not re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", text):
                    raise OombisectError(f"--param {self.name}={quoted(text)} is no number", "Write one, like 0.1.")
                return float(text)
            case "size":
                return parse_bytes(text, least=0)
            case "date":
                return self._date(text)
            case "choice" if text not in self.choices:
                raise OombisectError(
                    f"--param {self.name}={quoted(text)} is none of what can be chosen", f"Write {self.meaning}."
                )
        return text

    @property
    def choices(self) -> tuple[str, ...]:
        """What a `choice` may be, as its meaning lists it, a note in brackets aside."""
        if self.type != "choice":
            return ()
        return tuple(re.split(r", | or ", re.sub(r" \(.*\)", "", self.meaning)))

    def _date(self, text: str) -> str:
        error = OombisectError(f"--param {self.name}={quoted(text)} is no date", "Write it like 2026-01-31.")
        if not _DATE.fullmatch(text):
            raise error
        if len(text) == len("2026-01-31"):
            try:
                date.fromisoformat(text)
            except ValueError:
                raise error from None
        return text


@dataclass(frozen=True, slots=True)
class Query:
    """A canned question: `about` it in one sentence, and its SQL."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    sql: str

    def values(self, given: Sequence[str]) -> dict[str, Any]:
        """The values of all parameters.

        Args:
            given: `NAME=VALUE` texts.

        Raises:
            OombisectError: one is unknown, missing, given twice or of the wrong type.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        texts: dict[str, str] = {}
        for item in given:
            name, _, text = item.partition("=")
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {near[0]}?" if near else f"It has {', '.join(known) or 'none'}."
                raise OombisectError(f"{self.name} has no parameter {quoted(name)}", hint)
            if name in texts:
                raise OombisectError(f"--param {name} is given twice", "Give it once.")
            texts[name] = text
        if missing := [p.name for p in self.parameters if p.default is None and p.name not in texts]:
            raise OombisectError(
                f"{self.name} needs {' and '.join(missing)}",
                f"Add {' '.join(f'--param {name}={known[name].type.upper()}' for name in missing)}.",
            )
        return {p.name: p.value(texts.get(p.name, p.default or "")) for p in self.parameters}


@cache
def queries(folder: Path | None = None) -> Mapping[str, Query]:
    """The canned questions by name, in alphabetical order."""
    files = sorted((folder or db_dir() / "queries").glob("*.sql"))
    return {file.stem: parse_query(file.stem, file.read_text(encoding="utf-8")) for file in files}


def parse_query(name: str, text: str) -> Query:
    """A file of `db/queries`.

    Raises:
        ValueError: its head is not as this module's text says.
    """
    lines = text.splitlines()
    head = lines[: next(n for n, line in enumerate(lines) if not line.startswith("--"))]
    if not head or not head[0].startswith("-- ") or head[0].startswith("-- :"):
        raise ValueError(f"{name}: the first line does not say what it asks")
    parameters = []
    for line in head[1:]:
        match = _PARAMETER.fullmatch(line)
        if match is None or match["type"] not in TYPES:
            raise ValueError(f"{name}: {line!r} is no parameter")
        parameter = Parameter(match["name"], match["type"], match["default"], match["meaning"] or "")
        if parameter.type == "choice" and parameter.default not in (None, *parameter.choices):
            raise ValueError(f"{name}: {line!r} has a default that is none of its choices")
        parameters.append(parameter)
    return Query(name, head[0].removeprefix("-- "), tuple(parameters), text)


def query_named(name: str) -> Query:
    """Raises: OombisectError: there is none of that name."""
    known = queries()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"Did you mean {', '.join(near)}?" if near else f"`{hints.command('query', '--list')}` lists them."
    raise OombisectError(f"There is no query {quoted(name)}", hint)


def found_in(
    query: Query, values: Mapping[str, Any], ask: Ask, commits: Callable[[str], Iterable[str]]
) -> dict[str, Any]:
    """The values, with what names a recipe, a GPU or a point found in the database; an answer with no rows is no typo.

    Args:
        commits: those that the repositories at hand know by a name.

    Raises:
        OombisectError: the database has nothing of that name.
    """
    found = dict(values)
    for parameter in query.parameters:
        text = values[parameter.name]
        if parameter.type == "point":
            found[parameter.name] = _point(parameter, text, ask, commits)
        elif parameter.type in _NAMES and text != parameter.default:
            known = [row[0] for row in ask(_NAMES[parameter.type], {})]
            if text not in known:
                raise _unknown(parameter, text, known)
    return found


def _unknown(parameter: Parameter, text: str, known: Sequence[str]) -> OombisectError:
    near = [name for name in known if text and text.lower() in name.lower()]
    near = near or difflib.get_close_matches(text, known, n=4, cutoff=0.5)
    if near:
        way_out = f"Did you mean {', '.join(near[:4])}?"
    else:
        more = f" and {len(known) - 6} more" if len(known) > 6 else ""
        way_out = f"There is {', '.join(known[:6])}{more}." if known else "The database has none yet."
    return OombisectError(f"--param {parameter.name}={quoted(text)} is no {_WORDS[parameter.type]} here", way_out)


_WORDS = {"recipe": "recipe that was measured", "gpu": "GPU that is known"}


def _point(parameter: Parameter, text: str, ask: Ask, commits: Callable[[str], Iterable[str]]) -> str:
    if ask(_POINTS, {"key": text}):
        return text
    named = list(dict.fromkeys(commits(text)))
    for commit in named:
        if ask(_POINTS, {"key": commit}):
            return commit
    which = f" is commit {named[0][:10]}, which was never read" if named else " is no point that was read"
    raise OombisectError(
        f"--param {parameter.name}={quoted(text)}{which}",
        f"Name a commit that was (7 digits or more; `{hints.command('history', '--recipe', 'NAME')}` shows them), a "
        "tag or branch at one, with --repo PATH of its repository, or a version such as torch==2.9.1.",
    )
