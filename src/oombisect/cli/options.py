"""The options that several commands share, and how their texts become values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from oombisect import hints
from oombisect.cli import completion
from oombisect.errors import OombisectError
from oombisect.session.request import ProbeRequest
from oombisect.units import parse_bytes


def _told_to_hints(database: Path | None) -> Path | None:
    hints.use_database(database)
    return database


Session = Annotated[
    str,
    typer.Argument(
        metavar="SESSION",
        help="The session, a unique prefix of it, or last: the newest bisection.",
        autocompletion=completion.sessions,
    ),
]
Recipe = Annotated[
    str,
    typer.Option(
        "--recipe",
        metavar="NAME",
        autocompletion=completion.recipes,
        help="The workload: a recipe function of Bridge, a model and mode such as qwen3_8b_lora, or ci:TEST, a test of "
        "Megatron-LM's CI (docs/command.md).",
        show_default=False,
    ),
]
BaseRecipe = Annotated[
    str,
    typer.Option(
        "--recipe",
        metavar="NAME",
        help="The recipe that a YAML file's or a probe's values are laid over. Default: that of the probe, or of the "
        "other side.",
        show_default=False,
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        metavar="GPU",
        autocompletion=completion.gpus,
        help="cuda, virtual:h100-80gb (or another profile) or virtual:79.6GiB. "
        "Default: the machine's GPUs, else a virtual H100.",
        show_default=False,
    ),
]
Limit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory the run must fit in, e.g. 79.6GiB. Default: the device's capacity.",
        show_default=False,
    ),
]
Repo = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="A Megatron Bridge clone, or for a command any git repository. Default: the one that the current "
        "directory lies in; where it lies in none, a clone of Bridge in the cache.",
        show_default=False,
    ),
]
Megatron = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="A Megatron-LM clone, if the submodule is not checked out.", show_default=False),
]
Python = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="The Python that trains: probes run in it. Default: oombisect's own.", show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A config override as Bridge writes it, e.g. model.seq_length=2048. Repeatable.",
    ),
]
Ranks = Annotated[
    str | None,
    typer.Option(
        metavar="R,R,...",
        help="Ranks to probe, e.g. 0,7. Default: one of each pipeline stage that differs.",
        show_default=False,
    ),
]
WorldSize = Annotated[
    int | None,
    typer.Option(metavar="N", help="Number of ranks of the run. Default: the recipe's own.", show_default=False),
]
Iterations = Annotated[int, typer.Option(metavar="N", help="Training steps of a probe, at least 3.")]
MicroBatches = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Micro-batches of a step. Default: as few as show the full peak.", show_default=False
    ),
]
MoeSkew = Annotated[
    float, typer.Option(metavar="X", help="Tokens of the local experts over balanced routing (virtual GPU).")
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="NAME=VALUE for the probe's environment; or per-lock: Python packages as each commit's uv.lock has them. "
        "Repeatable.",
    ),
]
PER_LOCK = "per-lock"
TimeLimit = Annotated[float, typer.Option(metavar="SECONDS", help="Seconds a probe may take.")]
HostMemory = Annotated[str, typer.Option(metavar="SIZE", help="Host memory a probe may take.")]
Database = Annotated[
    Path | None,
    typer.Option(
        "--db",
        metavar="FILE",
        help="The SQLite database. Default: in the user's data folder.",
        callback=_told_to_hints,
    ),
]
Jobs = Annotated[
    str,
    typer.Option(
        metavar="N",
        help="Probes at once, or auto: as many as cores and host memory carry (real GPUs: as many as these hold).",
    ),
]
MinStep = Annotated[str, typer.Option(metavar="SIZE", help="The growth that is too much.")]
Markdown = Annotated[
    bool,
    typer.Option("--md", help="Print Markdown on stdout, for a comment or a job's summary."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout; everything else goes to stderr.")]


def probe_request(
    recipe: Recipe,
    repo: Repo = None,
    megatron: Megatron = None,
    python: Python = None,
    gpu: Gpu = None,
    limit: Limit = None,
    overrides: Overrides = None,
    iterations: Iterations = 3,
    ranks: Ranks = None,
    world_size: WorldSize = None,
    micro_batches: MicroBatches = None,
    moe_skew: MoeSkew = 1.0,
    env: Env = None,
    time_limit: TimeLimit = 900.0,
    host_memory: HostMemory = "16GiB",
) -> ProbeRequest:
    """The texts of the options, checked and made values.

    Raises:
        OombisectError: one of them is not what it should be.
    """
    return ProbeRequest(
        recipe=recipe,
        repo=str(repo.expanduser().absolute()) if repo else None,
        megatron=str(megatron.expanduser().absolute()) if megatron else None,
        python=str(python.expanduser().absolute()) if python else None,
        gpu=gpu,
        limit_bytes=None if limit is None else parse_bytes(limit),
        overrides=tuple(assignments("--set", overrides)),
        iterations=iterations,
        ranks=_ranks(ranks),
        world_size=world_size,
        micro_batches=micro_batches,
        moe_skew=moe_skew,
        env=dict(item.split("=", 1) for item in assignments("--env", [item for item in env or () if item != PER_LOCK])),
        time_limit=time_limit,
        host_bytes=parse_bytes(host_memory),
        per_lock=PER_LOCK in (env or ()),
    )


def with_probe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command(..., request: ProbeRequest)` the options of `probe_request` on the command line."""
    return _with_options(command, inspect.signature(probe_request, eval_str=True).parameters)


def with_base_recipe(command: Callable[..., None]) -> Callable[..., None]:
    """As `with_probe_options`, for a command that may do without a recipe: "" if none was given."""
    shared = dict(inspect.signature(probe_request, eval_str=True).parameters)
    shared["recipe"] = shared["recipe"].replace(annotation=BaseRecipe, default="")
    return _with_options(command, shared)


def _with_options(command: Callable[..., None], shared: Mapping[str, inspect.Parameter]) -> Callable[..., None]:
    own = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def run(**values: Any) -> None:
        request = probe_request(**{name: values.pop(name) for name in shared})
        command(request=request, **values)

    keyword_only = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in {**own, **shared}.items()
        if name != "request"
    ]
    run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    return run


def assignments(option: str, items: list[str] | None) -> list[str]:
    """The texts given to a repeatable option, each checked to be `NAME=VALUE`.

    Raises:
        OombisectError: one of them is not.
    """
    for item in items or ():
        if not item.partition("=")[1] or not item.partition("=")[0].strip():
            raise OombisectError(f"{option} {item!r} is no assignment", f"Write {option} NAME=VALUE.")
    return list(items or ())


def job_count(text: str) -> int | None:
    """The value of --jobs; None for `auto`.

    Raises:
        OombisectError: it is neither.
    """
    if text == "auto":
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise OombisectError(f"--jobs {text!r} is no number of probes", "Write a number like 2, or auto.")
    return int(text)


def _ranks(text: str | None) -> tuple[int, ...]:
    if text is None or text == "auto":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise OombisectError(f"--ranks {text!r} is no list of ranks", "Write it like 0,7 (or leave it out).")
    return tuple(dict.fromkeys(int(part) for part in parts))
