"""What came of an import, in words and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from oombisect.imports.run_import import SCHEMA, Imported
from oombisect.printable import printable
from oombisect.units import counted

_SHOWN = 5


def import_json(done: Sequence[Imported], exit_code: int) -> dict[str, Any]:
    """The document of `import --json`."""
    return {
        "schema": SCHEMA,
        "provenance": "imported",
        "sources": [one.to_json() for one in done],
        "added": sum(one.added for one in done),
        "exit": exit_code,
    }


def render_imports(done: Sequence[Imported], console: Console) -> None:
    """Each source with what was new in it, and what of it was left out."""

    def line(text: str, style: str = "", indent: int = 0) -> None:
        console.print(Text(f"{' ' * indent}{printable(text)}", style), soft_wrap=True)

    for one in done:
        if one.undone:
            line(f"{one.source}: not imported: {one.undone}", "bold")
        elif not one.added:
            line(f"{one.source}: nothing new; {counted(one.readings, 'reading')} known before", "bold")
        else:
            known = one.readings - one.added
            before = f", {known:,} known before" if known else ""
            line(f"{one.source}: {counted(one.added, 'reading')} imported{before}", "bold")
        for note in one.notes:
            line(note, indent=2)
        if one.problems:
            line(f"{counted(len(one.problems), 'part')} left out:", indent=2)
        for problem in one.problems[:_SHOWN]:
            line(f"- {problem.where}: {problem.what}" if problem.where else f"- {problem.what}", indent=2)
        if len(one.problems) > _SHOWN:
            line(f"- and {len(one.problems) - _SHOWN:,} more (--json lists them)", indent=2)
