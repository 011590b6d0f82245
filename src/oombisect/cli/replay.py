"""`oombisect replay SNAPSHOT|PROBE`: what the allocator would have done under other settings, or with less memory."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from oombisect.cli.options import Database, Json
from oombisect.units import parse_bytes


def replay(
    snapshot: Annotated[
        str,
        typer.Argument(
            metavar="SNAPSHOT|PROBE",
            help="A snapshot file (torch.cuda.memory._dump_snapshot), a probe's number, or SESSION/PROBE. "
            "A number is a probe, ./NUMBER a file.",
        ),
    ],
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Device memory it must fit in, e.g. 79.6GiB. Default: the memory of --gpu, else the limit of the "
            "probe's session; a bare file has none.",
            show_default=False,
        ),
    ] = None,
    external: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory of that device outside PyTorch (CUDA context, NCCL), e.g. 2GiB. Default: as the probe "
            "measured; 0 for a bare file.",
            show_default=False,
        ),
    ] = None,
    alloc_conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONF",
            help="Settings to try, as in PYTORCH_CUDA_ALLOC_CONF. Repeatable. Default: a table of the usual ones.",
            show_default=False,
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            metavar="R", help="The rank of a probe. Default: the one with the largest peak.", show_default=False
        ),
    ] = None,
    device: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Of a snapshot of several devices: only this one, by its index. Default: all, in full the one that "
            "needs most.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="GPU",
            help="The device it must fit on: virtual:h100-80gb (or another profile) or virtual:79.6GiB. Default: the "
            "probe's own; of a bare file none is known.",
            show_default=False,
        ),
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option(
            metavar="RELEASE",
            help="The PyTorch release whose allocator it was, e.g. 2.9. Default: the probe's own, or inferred.",
            show_default=False,
        ),
    ] = None,
    fraction: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="What the run gave torch.cuda.set_per_process_memory_fraction: no snapshot tells it. It is a share of "
            "--gpu, or of the probe's device.",
            show_default=False,
        ),
    ] = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Replay a recorded allocation history: peaks, whether it fits, and what other allocator settings would do.

    Exit codes: 0 replayed; no device is known not to fit. 1 a device does not fit as it was recorded. 2 usage,
    14 a file or the database cannot be read, 70 a bug, 130 interrupted.
    """
    from rich.console import Console
    from rich.markup import escape

    from oombisect.cli.sessions_of import clock, print_json
    from oombisect.history.location import default_database
    from oombisect.history.store import open_store
    from oombisect.reports.replay import render_replay
    from oombisect.reports.terminal import report_console
    from oombisect.session.replay_report import Question, replay_snapshot
    from oombisect.session.snapshots_of import database_for, resolve_snapshot

    asked = Question(
        limit=None if limit is None else parse_bytes(limit),
        external=None if external is None else parse_bytes(external, least=0),
        alloc_confs=tuple(alloc_conf or ()),
        device=device,
        gpu=gpu,
        torch_version=torch,
        fraction=fraction,
    )
    asked.check()
    path = database_for([snapshot], database, default_database())
    said = Console(stderr=True, highlight=False)
    with ExitStack() as stack:
        store = None if path is None else stack.enter_context(open_store(path, clock=clock, readonly=True))
        located = resolve_snapshot(snapshot, store, rank)
        status = stack.enter_context(said.status("")) if said.is_terminal else None
        report = replay_snapshot(located, store, asked, lambda text: status.update(escape(text)) if status else None)
    if json:
        print_json(report.to_json())
    else:
        render_replay(report, report_console())
    raise typer.Exit(report.exit_code)
