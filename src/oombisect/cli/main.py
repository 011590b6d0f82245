"""The entry point: the list of commands, and the one place where errors become words and exit codes."""

from __future__ import annotations

import sys

import typer

from oombisect import __version__
from oombisect.cli import demo, probe, resume, run, sessions, show
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


def main() -> None:
    """Run the command line; the exit codes are those of `oombisect.errors`."""
    debug = "--debug" in sys.argv[1:]
    if debug:  # wherever it stands: a user adds it to the end of the line that failed
        sys.argv.remove("--debug")
    try:
        app()
    except OombisectError as error:
        if debug:
            raise
        print(f"oombisect: {error.cause}", file=sys.stderr)
        if error.way_out:
            print(f"  {error.way_out}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.exit(ExitCode.UNEXPECTED)
    except Exception as error:
        if debug:
            raise
        print(f"oombisect: unexpected {type(error).__name__}: {error}", file=sys.stderr)
        print(
            "  This is a bug in oombisect. Run the same line with --debug and report what it prints.", file=sys.stderr
        )
        sys.exit(ExitCode.UNEXPECTED)
