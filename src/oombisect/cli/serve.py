"""`oombisect serve`: the database in Datasette."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.options import Database


def serve(
    port: Annotated[int, typer.Option(metavar="N", help="The port; 0: any that is free.")] = 8001,
    database: Database = None,
) -> None:
    """Show the database in a browser, with canned questions and plots: on this machine alone, nothing can be changed.

    Needs the extra: `pip install 'oombisect[serve]'`. Ctrl-C ends it.

    Exit codes: 2 usage, such as a port that is taken, 14 the database cannot be read, 70 a bug, 130 ended by Ctrl-C.
    """
    from importlib.util import find_spec

    from oombisect.errors import OombisectError
    from oombisect.history.location import default_database

    if find_spec("datasette") is None:
        raise OombisectError("Datasette is not installed", "Install it with `pip install 'oombisect[serve]'`.")
    from oombisect.cli.serve_of import serve_database

    serve_database((database or default_database()).absolute(), port)
