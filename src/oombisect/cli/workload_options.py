"""The options that choose workloads, of every command that shows them over commits."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from oombisect.cli import completion

if TYPE_CHECKING:
    from oombisect.history.asking import Wanted


class Provenance(StrEnum):
    """Whose numbers."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    IMPORTED = "imported"


OfRecipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="NAME",
        help="The recipe as it was probed, or the name of an imported test or run; a part of it, if that is clear.",
        show_default=False,
        autocompletion=completion.recipes,
    ),
]
OfGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="Only of this device, e.g. cuda or virtual:h100-80gb.",
        show_default=False,
        autocompletion=completion.gpus,
    ),
]
OfProvenance = Annotated[
    Provenance | None, typer.Option("--provenance", help="Only what was obtained so.", show_default=False)
]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="NAME=VALUE", help="A setting of the workload, e.g. world_size=8. Repeatable."),
]
OfWorkload = Annotated[
    int | None, typer.Option("--workload", metavar="N", help="The workload of this number.", show_default=False)
]


def wanted(
    recipe: str | None,
    gpu: str | None,
    provenance: Provenance | None,
    workload: int | None,
    overrides: Sequence[str] | None,
    where: Sequence[str] | None,
) -> Wanted:
    """What those options choose.

    Raises:
        OombisectError: one is no `NAME=VALUE`.
    """
    from oombisect.cli.options import assignments
    from oombisect.history.asking import Wanted

    return Wanted(
        recipe,
        gpu,
        provenance.value if provenance else None,
        workload,
        tuple(assignments("--set", list(overrides or ()))),
        tuple(assignments("--where", list(where or ()))),
    )
