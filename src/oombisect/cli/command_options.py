"""The options of commands that probe either a recipe or a training command given after `--`."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from oombisect.cli.options import probe_request
from oombisect.errors import OombisectError
from oombisect.printable import quoted
from oombisect.repo.hotfix import Hotfix

Argv = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- COMMAND...]",
        help="Any training command, run unmodified in the place of a recipe. Write -- before it.",
        show_default=False,
    ),
]
Build = Annotated[
    str | None,
    typer.Option(
        metavar="SHELL", help="A shell command that builds each commit before COMMAND runs there.", show_default=False
    ),
]
Prepare = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="What COMMAND needs on a virtual GPU, e.g. megatron-lm (docs/command.md). Repeatable."
    ),
]
UntilExit = Annotated[
    bool, typer.Option("--until-exit", help="Let COMMAND run to its own end, not only --iterations optimizer steps.")
]

HotfixOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hotfix",
        metavar="PATCH",
        help="Apply this patch, or the change of this commit, to every commit before it is probed. Repeatable.",
    ),
]


def command_options(
    argv: Argv = None,
    build: Build = None,
    prepare: Prepare = None,
    until_exit: UntilExit = False,
    hotfix: HotfixOption = None,
) -> dict[str, Any]:
    """What these options say of a `ProbeRequest`."""
    return {
        "command": tuple(argv or ()),
        "build": build,
        "prepare": tuple(prepare or ()),
        "until_exit": until_exit,
        "hotfixes": tuple(map(Hotfix, hotfix or ())),
    }


class CommandAfterDashes(TyperCommand):
    """What comes after `--` is the training command, and never what an argument before it lacks."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        before, after = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        rest = super().parse_args(ctx, before)
        if stray := ctx.params.get("argv"):
            raise OombisectError(
                f"The command {quoted(shlex.join(stray))} stands without -- before it",
                f"Write the training command after --: oombisect {ctx.info_name} ... -- {shlex.join(stray)}",
            )
        if after:
            ctx.params["argv"] = after
        return rest


def with_recipe_or_command(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command(..., request: ProbeRequest)` the options of a probe of a recipe or of a training command."""
    own = inspect.signature(command, eval_str=True).parameters
    added = inspect.signature(command_options, eval_str=True).parameters
    shared = dict(inspect.signature(probe_request, eval_str=True).parameters)
    shared["recipe"] = shared["recipe"].replace(default="")

    @functools.wraps(command)
    def run(**values: Any) -> None:
        request = probe_request(**{name: values.pop(name) for name in shared})
        request = replace(request, **command_options(**{name: values.pop(name) for name in added}))
        if not request.label:
            raise OombisectError(
                "There is nothing to run: neither --recipe nor a command was given",
                "Name a recipe with --recipe NAME, or write a training command after --, e.g. -- python train.py.",
            )
        command(request=request, **values)

    keyword_only = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in {**own, **added, **shared}.items()
        if name != "request"
    ]
    run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    return run
