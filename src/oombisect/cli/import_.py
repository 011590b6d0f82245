"""`oombisect import`: what others measured, for the history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oombisect.cli.options import Database, Json, assignments

if TYPE_CHECKING:
    from oombisect.history.store import Store
    from oombisect.imports.place import Place
    from oombisect.imports.run_import import Imported

app = typer.Typer(
    name="import",
    help="Import what others measured. The history shows it, labelled `imported`, and never mixes it with probes.\n\n"
    "A second import of the same thing adds nothing. Exit codes: 0 imported, or known before; 2 a source could not be "
    "imported, the others were.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Files = Annotated[list[Path], typer.Argument(metavar="FILES...", help="The files, also gzipped.", show_default=False)]
Recipe = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="What ran. Default: the run's name in the source, else the file's.", show_default=False
    ),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The hardware, e.g. dgx_h100. Default: as the source says.", show_default=False),
]
Commit = Annotated[
    str | None,
    typer.Option(metavar="REV", help="The commit that ran, looked up in --repo.", show_default=False),
]
Repo = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="The clone that has the commit. Default: the current directory.", show_default=False
    ),
]
Date = Annotated[
    str | None,
    typer.Option(
        metavar="DATE",
        help="When it ran, in place of a commit. Default: as the source says, else when the file was last changed.",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="What tells this series from others. Repeatable."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Import nothing of a source that cannot be read to its end.")]


@app.command("goldens", short_help="Goldens of Megatron-LM's CI, over a clone's whole history.")
def goldens(
    clone: Annotated[Path, typer.Argument(metavar="CLONE", help="A clone of Megatron-LM with its history.")],
    branch: Annotated[str, typer.Option(metavar="REV", help="Whose first-parent history is read.")] = "HEAD",
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only goldens committed since then.", show_default=False)
    ] = None,
    strict: Strict = False,
    database: Database = None,
    json: Json = False,
) -> None:
    """Import what Megatron-LM's CI measured on real GPUs: the memory in tests/functional_tests/**/golden_values*.json.

    Each change of a golden is one reading, at the commit that changed it. The recipe is the test (gpt/gpt3_...), the
    device its hardware (dgx_h100); the environment (dev, lts) is a setting. Renamed files keep their series.
    """

    def run(store: Store) -> list[Imported]:
        from oombisect.imports.run_import import import_goldens

        return [import_goldens(store, clone, revision=branch, since=since, strict=strict)]

    _run(run, database, json)


@app.command("snapshot", short_help="Peaks of CUDA memory snapshots.")
def snapshot(
    files: Files,
    recipe: Recipe = None,
    device: Device = None,
    commit: Commit = None,
    repo: Repo = None,
    date: Date = None,
    settings: Settings = None,
    strict: Strict = False,
    database: Database = None,
    json: Json = False,
) -> None:
    """Import the peaks in snapshots (torch.cuda.memory._dump_snapshot); lower bounds where the history is cut.

    The rank is read from the file's name (rank3, _3.pickle), the recipe is the folder's name.
    """

    def run(store: Store) -> list[Imported]:
        from oombisect.imports.run_import import import_snapshots

        return import_snapshots(store, files, _place(recipe, device, commit, repo, date, settings), strict=strict)

    _run(run, database, json)


@app.command("tensorboard", short_help="Memory scalars of TensorBoard's event files.")
def tensorboard(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with event files in it or below it.")],
    recipe: Recipe = None,
    device: Device = None,
    commit: Commit = None,
    repo: Repo = None,
    date: Date = None,
    settings: Settings = None,
    strict: Strict = False,
    database: Database = None,
    json: Json = False,
) -> None:
    """Import the memory scalars that Megatron-LM (mem-max-allocated-bytes) and Bridge (memory/mem-...) write.

    Each folder of event files is one run. Needs the extra: pip install 'oombisect[tensorboard]'.
    """

    def run(store: Store) -> list[Imported]:
        from oombisect.imports.run_import import import_tensorboard

        return import_tensorboard(store, folder, _place(recipe, device, commit, repo, date, settings), strict=strict)

    _run(run, database, json)


@app.command("log", short_help="Memory lines and out-of-memory errors of training logs.")
def log(
    files: Files,
    recipe: Recipe = None,
    device: Device = None,
    commit: Commit = None,
    repo: Repo = None,
    date: Date = None,
    settings: Settings = None,
    strict: Strict = False,
    database: Database = None,
    json: Json = False,
) -> None:
    """Import the memory lines of training logs of Megatron-LM and Bridge, by rank.

    A log with an out-of-memory error gives lower bounds.
    """

    def run(store: Store) -> list[Imported]:
        from oombisect.imports.run_import import import_logs

        return import_logs(store, files, _place(recipe, device, commit, repo, date, settings), strict=strict)

    _run(run, database, json)


@app.command("wandb", short_help="Exports of Weights & Biases: CSV, JSON, JSONL.")
def wandb(
    files: Files,
    recipe: Recipe = None,
    device: Device = None,
    commit: Commit = None,
    repo: Repo = None,
    date: Date = None,
    settings: Settings = None,
    strict: Strict = False,
    database: Database = None,
    json: Json = False,
) -> None:
    """Import the memory in exported histories: a chart's CSV, or run.history() as CSV, JSON or JSONL."""

    def run(store: Store) -> list[Imported]:
        from oombisect.imports.run_import import import_wandb

        return import_wandb(store, files, _place(recipe, device, commit, repo, date, settings), strict=strict)

    _run(run, database, json)


@app.command("csv", short_help="Plain CSV with named columns.")
def csv(
    files: Files,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD=COLUMN[:UNIT],...",
            help="Which column is what. Default: columns that have a field's name (docs/imports.md lists them).",
            show_default=False,
        ),
    ] = None,
    unit: Annotated[
        str, typer.Option(metavar="UNIT", help="Of sizes without one: B, MiB, GiB, GB, ...", show_default=False)
    ] = "",
    recipe: Recipe = None,
    device: Device = None,
    commit: Commit = None,
    repo: Repo = None,
    date: Date = None,
    settings: Settings = None,
    strict: Strict = False,
    database: Database = None,
    json: Json = False,
) -> None:
    """Import a table: one run a row, or one iteration of a run a row where there is a column `iteration`.

    oombisect import csv runs.csv --columns 'peak_allocated=Max mem:GiB,commit=sha,rank=rank' --recipe llama3_8b
    """

    def run(store: Store) -> list[Imported]:
        from oombisect.imports.run_import import import_csv

        place = _place(recipe, device, commit, repo, date, settings)
        return import_csv(store, files, place, columns, unit, strict=strict)

    _run(run, database, json)


def _place(
    recipe: str | None,
    device: str | None,
    commit: str | None,
    repo: Path | None,
    date: str | None,
    settings: list[str] | None,
) -> Place:
    from oombisect.cli.sessions_of import clock
    from oombisect.errors import OombisectError
    from oombisect.imports.place import Place, parse_begin

    if commit is not None and date is not None:
        raise OombisectError("--commit and --date say two different things", "Give the commit alone: it has a date.")
    held: dict[str, Any] = dict(item.split("=", 1) for item in assignments("--set", settings))
    return Place(recipe, device, commit, None if date is None else parse_begin(date, clock()), repo, held)


def _run(run: Callable[[Store], Sequence[Imported]], database: Path | None, as_json: bool) -> None:
    """Import, say what came of it, exit."""
    from oombisect.cli.sessions_of import clock, print_json
    from oombisect.history.location import default_database
    from oombisect.history.store import open_store
    from oombisect.reports.imports import import_json, render_imports
    from oombisect.reports.terminal import report_console

    with open_store(database or default_database(), clock=clock) as store:
        done = run(store)
    exit_code = 2 if any(one.undone for one in done) else 0
    if as_json:
        print_json(import_json(done, exit_code))
    else:
        render_imports(done, report_console())
    raise typer.Exit(exit_code)
