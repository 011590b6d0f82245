"""The list of commands."""

from __future__ import annotations

from pathlib import Path

import typer

from oombisect import __version__
from oombisect.cli import (
    check,
    compare,
    config,
    demo,
    explain,
    gc,
    history,
    import_,
    log,
    plot,
    probe,
    query,
    releases,
    replay,
    replay_log,
    report,
    resume,
    run,
    serve,
    sessions,
    show,
    skip,
    sql,
    undo,
    watch,
)
from oombisect.cli.command_options import CommandAfterDashes
from oombisect.errors import ExitCode, OombisectError
from oombisect.resources import docs_dir

app = typer.Typer(
    name="oombisect",
    help="Find the change that made a Megatron Bridge training run out of GPU memory.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"\b\nThe documentation (docs/*.md) is in\n{docs_dir()}",  # \b: a path is not to be wrapped
)
app.command("run", cls=CommandAfterDashes, short_help="Name the commits that made GPU memory grow, and why.")(run.run)
app.command("config", short_help="Name the config keys that made GPU memory grow.")(config.config)
app.command("releases", short_help="Name the releases of a package that made GPU memory grow.")(releases.releases)
app.command("probe", cls=CommandAfterDashes, short_help="Measure one commit; for git bisect run, too.")(probe.probe)
app.command("resume", short_help="Go on where an interrupted session stopped.")(resume.resume)
app.command("skip", short_help="Mark points of a session as never to be probed.")(skip.skip)
app.command("undo", short_help="Take back the last answers of a session.")(undo.undo)
app.command("log", short_help="Print what a session asked and was told.")(log.log)
app.command("replay-log", short_help="Run a logged session again.")(replay_log.replay_log)
app.command("sessions", short_help="List what was run.")(sessions.sessions)
app.command("show", short_help="Show a session's verdict and its probes.")(show.show)
app.command("report", short_help="A session as a page, as Markdown or as JSON.")(report.report)
app.command("history", short_help="Memory over commits, with its steps and creep.")(history.history)
app.command("query", short_help="Answer a canned question about all that was measured.")(query.query)
app.command("sql", short_help="Answer SQL; nothing can be changed by it.")(sql.sql)
app.command("serve", short_help="Show the database in a browser, on this machine alone.")(serve.serve)
app.command("plot", short_help="Memory over a range or over commits, in the terminal.")(plot.plot)
app.command("compare", short_help="Which allocations make up a difference of two peaks.")(compare.compare)
app.command("replay", short_help="Would a recorded run fit, and with which settings?")(replay.replay)
app.command("explain", short_help="What the out-of-memory errors of a log prove.")(explain.explain)
app.command("check", cls=CommandAfterDashes, short_help="What a pull request does to memory.")(check.check)
app.command("watch", cls=CommandAfterDashes, short_help="Probe a branch's new commits; name what grew.")(watch.watch)
app.add_typer(import_.app, short_help="Import what others measured: goldens, snapshots, logs, exports.")
app.command("gc", short_help="Delete old files of probes; every number stays.")(gc.gc)
app.command("demo", short_help="See it work on a small repository made on the spot.")(demo.demo)


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
