"""`oombisect explain FILE|-`: what the out-of-memory errors of a log say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from oombisect.cli.options import Json
from oombisect.errors import OombisectError
from oombisect.files import irregular

_CHUNK = 1 << 20


def explain(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A log or a message; -: read standard input.")],
    json: Json = False,
) -> None:
    """Explain the out-of-memory errors in a log: who ran out of what, and what the numbers prove.

    Exit codes: 0 an out-of-memory error was found; 1 none was; 2 usage, 70 a bug, 130 interrupted.
    """
    from oombisect.cli.sessions_of import print_json
    from oombisect.memory.oom_messages import read_messages
    from oombisect.memory.oom_messages.groups import summarize
    from oombisect.reports.explain import explain_json, render_explanation
    from oombisect.reports.terminal import report_console

    if file == "-":
        _say("reading standard input, Ctrl-D ends it" if sys.stdin.isatty() else "")
        summary = summarize(read_messages(_chunks(sys.stdin.buffer)))
    else:
        try:
            _look(Path(file))
            with Path(file).open("rb") as stream:
                summary = summarize(read_messages(_chunks(stream)))
        except (OSError, ValueError) as error:  # a ValueError: a name with a NUL byte
            raise OombisectError(
                f"{file!r} cannot be read: {getattr(error, 'strerror', None) or error}",
                "Name the file of a log, or - to read standard input.",
            ) from error
    exit_code = 0 if summary.errors else 1
    if json:
        print_json(explain_json(summary, exit_code))
    else:
        render_explanation(summary, "standard input" if file == "-" else file, report_console())
    raise typer.Exit(exit_code)


def _look(path: Path) -> None:
    """Refuse what has no end, or no bytes; say of a pipe, which may wait for its other end for ever, how to leave."""
    kind = irregular(path)
    if kind == "a pipe":
        _say("reading a pipe, Ctrl-C ends it")
    elif kind:
        raise OombisectError(
            f"{str(path)!r} cannot be read: it is {kind}, not a log",
            "Name the file of a log, or - to read standard input.",
        )


def _say(text: str) -> None:
    if text and sys.stderr.isatty():
        print(f"oombisect: {text}", file=sys.stderr)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk
