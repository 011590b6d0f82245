"""`oombisect config GOOD BAD`: which config keys made memory grow."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.options import Database, Jobs, Json, assignments, job_count, with_base_recipe
from oombisect.session.config_request import ConfigRequest, SideRequest
from oombisect.session.request import ProbeRequest
from oombisect.units import parse_bytes

_SIDE = (
    "A recipe, a YAML file that Bridge saved (*.yaml), or the stored config of a probe (its number, or SESSION/PROBE)."
)


@with_base_recipe
def config(
    good: Annotated[str, typer.Argument(metavar="GOOD", help=f"The config that is fine. {_SIDE}")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="The one that takes too much; named in the same ways.")],
    request: ProbeRequest,
    at: Annotated[str, typer.Option("--at", metavar="REV", help="The commit both run at.")] = "HEAD",
    good_set: Annotated[
        list[str] | None,
        typer.Option("--good-set", metavar="KEY=VALUE", help="As --set, for GOOD alone. Repeatable."),
    ] = None,
    bad_set: Annotated[
        list[str] | None,
        typer.Option("--bad-set", metavar="KEY=VALUE", help="As --set, for BAD alone. Repeatable."),
    ] = None,
    good_env: Annotated[
        list[str] | None,
        typer.Option("--good-env", metavar="NAME=VALUE", help="As --env, for GOOD alone. Repeatable."),
    ] = None,
    bad_env: Annotated[
        list[str] | None,
        typer.Option("--bad-env", metavar="NAME=VALUE", help="As --env, for BAD alone. Repeatable."),
    ] = None,
    find: Annotated[
        str, typer.Option(metavar="WHAT", help="regression (memory grew), improvement (it fell) or any (either way).")
    ] = "regression",
    budget: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most probes for search and confirmation, ends included.", show_default=False),
    ] = None,
    min_step: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Look for no smaller steps, e.g. 256MiB. Default: growth/8.", show_default=False
        ),
    ] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Find every step, whatever its size.")] = False,
    jobs: Jobs = "1",
    database: Database = None,
    json: Json = False,
) -> None:
    """Name the config keys that made peak GPU memory grow at one commit, the bytes of each, and what to take back.

    Keys move from GOOD's values to BAD's one after another; those that only go together move together. For example:
    oombisect config qwen3_8b_lora qwen3_8b_lora --bad-set model.seq_length=8192 --bad-set train.micro_batch_size=2

    Exit codes: 0 named, 10 no change, 11 blurred by states that cannot be probed, 12 creep, 13 budget spent,
    14 infrastructure, 2 usage, 70 a bug, 130 interrupted (128 + n by signal n).
    """
    from oombisect.cli.sessions_of import run_config

    run_config(
        ConfigRequest(
            good=_side(good, "--good-set", good_set, "--good-env", good_env),
            bad=_side(bad, "--bad-set", bad_set, "--bad-env", bad_env),
            probe=request,
            at=at,
            find=find,
            budget=budget,
            min_step_bytes=parse_bytes(min_step) if min_step else None,
            exhaustive=exhaustive,
            jobs=job_count(jobs),
        ),
        database,
        as_json=json,
    )


def _side(text: str, set_name: str, sets: list[str] | None, env_name: str, env: list[str] | None) -> SideRequest:
    variables = dict(item.split("=", 1) for item in assignments(env_name, env))
    return SideRequest(text, tuple(assignments(set_name, sets)), variables)
