"""`oombisect probe REV`: one reading."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.command_options import with_recipe_or_command
from oombisect.cli.options import Database, Json
from oombisect.session.request import ProbeRequest


@with_recipe_or_command
def probe(
    request: ProbeRequest,
    revision: Annotated[str, typer.Argument(metavar="REV", help="The commit to probe.")] = "HEAD",
    fresh: Annotated[bool, typer.Option("--fresh", help="Probe even if this was measured before.")] = False,
    megatron_commit: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Lay this commit of Megatron-LM out in the place of the one REV pins: an id, or any revision of the "
            "Megatron-LM clone.",
            show_default=False,
        ),
    ] = None,
    freeze_config: Annotated[
        str | None,
        typer.Option(metavar="REV", help="Run with the resolved config of this commit.", show_default=False),
    ] = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Measure one commit: peak allocated and reserved memory of a short training run.

    Of a recipe of Bridge (--recipe), or of any training command: oombisect probe HEAD -- torchrun train.py --lr 1e-4

    Exit codes, as git bisect run has them: 0 fits, 1 does not fit, 125 unresolved. Whatever is no measurement stops
    git bisect run: 128 infrastructure, 129 usage, 130 interrupted (128 + n by signal n), 198 a bug.
    """
    from oombisect.cli.probing_of import probe_once

    probe_once(
        revision, request, database, fresh=fresh, as_json=json, megatron=megatron_commit, config_of=freeze_config
    )
