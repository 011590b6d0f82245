"""The entry point: the one place where errors and signals become words and exit codes."""

from __future__ import annotations

import os
import sys

from oombisect import hints
from oombisect.cli.signals import ignore_signals, raise_on_signals
from oombisect.errors import ExitCode, OombisectError, Stopped, probe_failure
from oombisect.printable import quoted

_RUN_AGAIN = ("probe", "check", "watch")
_RESUMED = ("run", "config", "releases", "resume", "demo", "replay-log")


def main() -> None:
    """Run the command line; the exit codes are those of `oombisect.errors`."""
    debug = "--debug" in _own_arguments()
    if debug:  # wherever it stands: a user adds it to the end of the line that failed
        sys.argv.remove("--debug")
    code: int
    try:
        _open_closed_streams()
        raise_on_signals()
        code = _run()
        sys.stdout.flush()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else int(ExitCode.UNEXPECTED)
    except BaseException as error:
        ignore_signals()
        code = _exit_code(error)
        _report(error, code, debug)
    ignore_signals()
    _flush()
    hints.use_database(None)
    sys.exit(code)


def _run() -> int:
    """The command's exit code. What is heavy is imported here, where an error or Ctrl-C is caught."""
    from oombisect.cli.app import app

    if wrong := next((argument for argument in sys.argv[1:] if "\0" in argument), None):
        raise OombisectError(f"The argument {quoted(wrong)} has a NUL byte", "No name, size or setting has one.")
    try:
        return int(app(prog_name="oombisect", standalone_mode=False) or 0)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # the parser makes it exit code 1
            raise ended.__context__ from None
        sys.stdout.flush()  # a result that cannot be written is an error
        return int(ended.code or 0)


def _own_arguments() -> list[str]:
    """Those of oombisect: what comes after `--` is of the training command."""
    arguments = sys.argv[1:]
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _command() -> str:
    """The subcommand: no option that comes before it takes a value."""
    return next((argument for argument in sys.argv[1:] if not argument.startswith("-")), "")


def _exit_code(error: BaseException) -> int:
    match error:
        case Stopped() | OombisectError():
            code = error.exit_code
        case KeyboardInterrupt():
            code = int(ExitCode.INTERRUPTED)
        case BrokenPipeError():
            code = 128 + 13  # as a shell reports SIGPIPE
        case OSError():
            code = int(ExitCode.INFRASTRUCTURE)
        case _ if _is_usage(error):
            code = int(ExitCode.USAGE)
        case _:
            code = int(ExitCode.UNEXPECTED)
    return probe_failure(code) if _command() == "probe" else code


def _is_usage(error: BaseException) -> bool:
    """Whether it is one of the parser's own: an unknown option, a missing value."""
    return hasattr(error, "show") and hasattr(error, "format_message")


def _report(error: BaseException, code: int, debug: bool) -> None:
    """Two sentences on stderr, and a document on stdout where JSON was asked for; silence if nobody listens."""
    cause, way_out = _words(error)
    try:
        if debug and not isinstance(error, Stopped | KeyboardInterrupt):
            import traceback

            traceback.print_exception(error)
        elif _is_usage(error):
            error.show()  # type: ignore[attr-defined]  # with the usage line above it
        elif not isinstance(error, BrokenPipeError):
            print(f"oombisect: {cause}", file=sys.stderr)
            if way_out:
                print(f"  {way_out}", file=sys.stderr)
    except OSError:
        pass
    if "--json" in _own_arguments() and not isinstance(error, BrokenPipeError):
        import json

        try:
            json.dump({"schema": 1, "exit": code, "error": {"cause": cause, "way_out": way_out}}, sys.stdout, indent=1)
            print()
        except OSError:
            pass


def _words(error: BaseException) -> tuple[str, str]:
    """The cause and the way out."""
    match error:
        case OombisectError():
            return error.cause, error.way_out
        case Stopped() | KeyboardInterrupt():
            way_out = f"`{hints.command('sessions')}` shows what can be resumed." if _command() in _RESUMED else ""
            if _command() in _RUN_AGAIN:
                way_out = "Run the same line again: every finished probe is kept, and the one that ran begins anew."
            return "Interrupted", way_out
        case OSError():
            where = f" ({error.filename})" if error.filename else ""
            return f"{error.strerror or error}{where}", "Run the same line with --debug to see where it happened."
        case _ if _is_usage(error):
            return str(error.format_message()), "See --help."  # type: ignore[attr-defined]
    return (
        f"unexpected {type(error).__name__}: {error}",
        "This is a bug in oombisect. Run the same line with --debug and report what it prints.",
    )


def _open_closed_streams() -> None:
    """Streams closed by the caller become /dev/null: no file opened later may take their place."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115  # for as long as the process lives


def _flush() -> None:
    """Flush here, where a reader that went away ends in silence; Python itself would complain and exit 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
