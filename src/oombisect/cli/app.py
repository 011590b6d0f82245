"""The list of commands."""

from __future__ import annotations

from pathlib import Path

import typer

from oombisect import __version__
from oombisect.cli import compare, config, demo, explain, probe, replay, resume, run, sessions, show
from oombisect.errors import ExitCode, OombisectError

app = typer.Typer(
    name="oombisect",
    help="Find the change that made a Megatron Bridge training run out of GPU memory.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("probe")(probe.probe)
app.command("resume")(resume.resume)
app.command("sessions")(sessions.sessions)
app.command("show")(show.show)
app.command("replay")(replay.replay)
app.command("compare")(compare.compare)
app.command("explain")(explain.explain)
app.command("config")(config.config)
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"oombisect {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Find the change that made a Megatron Bridge training run out of GPU memory."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise OombisectError(
            "The current directory no longer exists", "Change to another directory.", ExitCode.INFRASTRUCTURE
        ) from error
