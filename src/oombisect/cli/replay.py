"""`oombisect replay SNAPSHOT|PROBE`: what the allocator would have done under other settings, or with less memory."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from oombisect.cli.options import Database, Json
from oombisect.units import parse_bytes


def replay(
    snapshot: Annotated[
        str, typer.Argument(metavar="SNAPSHOT|PROBE", help="A snapshot file, a probe's number, or SESSION/PROBE.")
    ],
    limit: Annotated[
        str | None,
        typer.Option(
            help="Device memory it must fit in, e.g. 79.6GiB. Default: that of the probe's session.", show_default=False
        ),
    ] = None,
    external: Annotated[
        str | None,
        typer.Option(
            help="Memory of that device outside PyTorch (CUDA context, NCCL). Default: as the probe measured.",
            show_default=False,
        ),
    ] = None,
    alloc_conf: Annotated[
        list[str] | None,
        typer.Option(
            help="Settings to try, as in PYTORCH_CUDA_ALLOC_CONF. Repeatable. Default: a table of the usual ones.",
            show_default=False,
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Rank of a probe. Default: the one with the largest peak.", show_default=False)
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="The device, e.g. virtual:h100-80gb. Default: the probe's own.", show_default=False),
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option(
            help="The PyTorch release whose allocator it was, e.g. 2.9. Default: the probe's own, or inferred.",
            show_default=False,
        ),
    ] = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Replay a recorded allocation history: peaks, whether it fits, and what other allocator settings would do.

    Exit codes: 0 replayed, and it fits if a limit is known; 1 it does not fit as it was recorded; 2 usage.
    """
    from rich.console import Console

    from oombisect.cli.sessions_of import clock, print_json
    from oombisect.history.location import default_database
    from oombisect.history.store import open_store
    from oombisect.reports.replay import render_replay
    from oombisect.reports.terminal import report_console
    from oombisect.session.replay_report import limit_of, replay_snapshot
    from oombisect.session.snapshots_of import names_probe, resolve_snapshot

    path = database or default_database()
    said = Console(stderr=True, highlight=False)
    with ExitStack() as stack:
        needed = names_probe(snapshot) or path.is_file()
        store = stack.enter_context(open_store(path, clock=clock, readonly=True)) if needed else None
        located = resolve_snapshot(snapshot, store, rank)
        status = stack.enter_context(said.status("")) if said.is_terminal else None
        report = replay_snapshot(
            located,
            limit=parse_bytes(limit) if limit else limit_of(located, store),
            external=parse_bytes(external) if external else None,
            alloc_confs=alloc_conf or [],
            gpu=gpu,
            torch_version=torch,
            progress=status.update if status else lambda _: None,
        )
    if json:
        print_json(report.to_json())
    else:
        render_replay(report, report_console())
    raise typer.Exit(1 if report.fits is False else 0)
