"""`oombisect skip`: points that are not to be probed."""

from __future__ import annotations

from typing import Annotated

import typer

from oombisect.cli.options import Database, Json


def skip(
    points: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION] POINT...",
            help="Commits, or other points of the session by their names or beginnings of these. The session comes "
            "first, by its whole id or as last. Default: the newest bisection.",
        ),
    ],
    database: Database = None,
    json: Json = False,
) -> None:
    """Mark points of a session as never to be probed, as `git bisect skip` does; what they told is not used.

    `oombisect resume` goes on without them; a session that is finished is taken up again, and its verdict superseded.

    Exit codes: 0, 2 usage, such as no such point, 14 the database cannot be written, 70 a bug.
    """
    from oombisect.cli.corrections import skip_points

    skip_points(points, database, as_json=json)
