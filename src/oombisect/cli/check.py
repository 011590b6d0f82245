"""`oombisect check BASE..HEAD`: a pull request's memory."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.command_options import with_recipe_or_command
from oombisect.cli.options import Database, Json, Markdown, MinStep
from oombisect.session.request import ProbeRequest


@with_recipe_or_command
def check(
    range: Annotated[
        str,
        typer.Argument(metavar="BASE..HEAD", help="The branch that the change goes into, and the change."),
    ],
    request: ProbeRequest,
    min_step: MinStep = "64MiB",
    markdown: Markdown = False,
    database: Database = None,
    json: Json = False,
) -> None:
    """Tell what a change does to memory before it is merged: for pull requests.

    BASE is compared with HEAD merged into it; where that has conflicts, the commit where they parted with HEAD.

    Exit codes: 0 fine, 15 memory grows by --min-step or more, or no longer fits the limit, 14 infrastructure, 2 usage,
    such as a side that cannot be probed, 70 a bug, 130 interrupted (128 + n by signal n).
    """
    from oombisect.cli.gate_of import run_check
    from oombisect.session.gate import CheckRequest
    from oombisect.units import parse_bytes

    run_check(CheckRequest(range, request, parse_bytes(min_step)), database, as_json=json, as_markdown=markdown)
