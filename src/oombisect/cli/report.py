"""`oombisect report`: a session as a page, as Markdown or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oombisect.cli.options import Database, Megatron, Session
from oombisect.errors import OombisectError


def report(
    session: Session = "last",
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one page that needs no network to FILE.", show_default=False),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--md", help="Print Markdown that fits a comment on GitHub to stdout.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document to stdout (docs/json.md); sizes are bytes.")
    ] = False,
    repo: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Where the commits are. Default: the repository that was probed.", show_default=False
        ),
    ] = None,
    megatron: Megatron = None,
    database: Database = None,
) -> None:
    """Report all there is of a session: verdict, memory over the range, what is live at the peaks, what to set.

    Exit codes: 0 written, 2 usage, such as no such session, 14 a file or the database cannot be read or written,
    70 a bug, 130 interrupted.
    """
    from oombisect.cli.sessions_of import clock, named_session, print_json, stderr_watcher
    from oombisect.history.location import cache_dir, default_database
    from oombisect.history.store import open_store
    from oombisect.reports.report_gathering import Sources, gather

    if html is None and not markdown and not json:
        raise OombisectError("Nothing is asked for", "Use --html FILE, --md or --json.")
    if markdown and json:
        raise OombisectError("--md and --json both print to stdout", "Leave one of them out.")
    if html is not None:
        _require_writable(html)
    path = database or default_database()
    with open_store(path, clock=clock, readonly=True) as store:
        found = named_session(store, session)
        say = stderr_watcher().say
        document = gather(found, Sources(store, path, cache_dir(), clock, say, repo, megatron))
    if html is not None:
        from oombisect.reports.report_html import render_html

        text = render_html(document)
        _write(html, text)
        say(f"{html}: {len(text.encode()) / 1e6:.1f} MB")
    if markdown:
        from oombisect.reports.report_markdown import render_markdown

        typer.echo(render_markdown(document), nl=False)
    if json:
        print_json(document.to_json())


def _require_writable(path: Path) -> None:
    """Before anything is computed."""
    if path.is_dir():
        raise OombisectError(f"{path} is a folder", "Name the file that the page is to become.")
    if not path.absolute().parent.is_dir():
        raise OombisectError(f"There is no folder {path.absolute().parent}", "Make it first, or name another file.")


def _write(path: Path, text: str) -> None:
    """The whole file or, if that fails, what was there before."""
    if path.exists() and not path.is_file():  # a pipe, /dev/stdout
        path.write_text(text, encoding="utf-8")
        return
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
