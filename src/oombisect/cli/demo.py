"""`oombisect demo`: the whole thing on a small repository made on the spot."""

from __future__ import annotations

from oombisect.cli.options import Database, Json


def demo(database: Database = None, json: Json = False) -> None:
    """Make a small repository in Bridge's layout, with regressions in it, and bisect it on the virtual GPU.

    Exit codes: 0 named, 10 no change, 11 blurred by points that cannot be probed, 12 creep, 13 budget spent,
    14 infrastructure, 2 usage, 70 a bug, 130 interrupted (128 + n by signal n).
    """
    from oombisect.demo.command import run_demo

    run_demo(database, as_json=json)
