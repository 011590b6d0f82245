"""Text from elsewhere in Markdown for GitHub: nothing that Markdown, HTML or GitHub acts on is left in it."""

from __future__ import annotations

import re

from oombisect.printable import printable

_MOST_CELL = 160
# An entity is shown as its character, and is neither a mark of Markdown nor a tag.
_ACTIVE = re.compile(r"[&<>\"'`*_{}\[\]()#+!|~@:/\\$^=-]")
# GitHub looks for mentions and references in the text as it is shown: a word joiner, which nobody sees, parts them.
_REFERENCE = re.compile(r"[@#](?=\w)|\bgh-(?=\d)", re.IGNORECASE)
_JOINER = "\u2060"


def escaped(value: object, most: int = 2000) -> str:
    """On one line, every character that means something written as an entity."""
    line = printable(str(value))
    line = line if len(line) <= most else f"{line[: most - 3]}..."
    line = _REFERENCE.sub(lambda found: found[0] + _JOINER, line)
    return _ACTIVE.sub(lambda found: f"&#{ord(found[0])};", line)


def cell(value: object) -> str:
    """As `escaped`, short enough for a cell of a table."""
    return escaped(value, _MOST_CELL)


def code(value: object) -> str:
    """As `cell`, in the type of code. It is an element: a code span cannot hold any number of backticks."""
    return f"<code>{cell(value)}</code>"
