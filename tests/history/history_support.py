"""Stores on a clock that ticks once a second from a fixed start, and the specs that tests vary."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from typing import Any

from oombisect.history.records import ProbeSpec, SessionSpec

DEVICE = "virtual:h100-80gb"


class Clock:
    """A time that only asking for it moves, by a second."""

    def __init__(self, start: datetime = datetime(2026, 11, 30, 12, tzinfo=UTC)) -> None:
        self._ticks = (start + timedelta(seconds=n) for n in itertools.count())

    def __call__(self) -> datetime:
        return next(self._ticks)


SESSION = SessionSpec(
    kind="run",
    command=("oombisect", "run", "a..b", "--set", "model.name=é"),
    arguments={"range": "a..b", "set": ["model.name=é"], "limit": None},
    repo="/repos/bridge",
    recipe="qwen3_8b_lora",
    device=DEVICE,
    good="a" * 40,
    bad="b" * 40,
    limit_bytes=80 << 30,
)


def probe_spec(session: str, signature: str = "s", **changes: Any) -> ProbeSpec:
    spec = ProbeSpec(
        session=session,
        signature=signature,
        repo="bridge",
        point="c" * 40,
        recipe="qwen3_8b_lora",
        device=DEVICE,
        simulated=True,
        probe_version="1",
        subject="Fuse the rope",
        settings={"overrides": ["model.seq_length=2048"], "iterations": 3},
        job={"schema": 1, "iterations": 3},
        committed=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    return replace(spec, **changes)


def child(function: Callable[..., None], *arguments: object) -> BaseProcess:
    """A started process of its own, which has none of this one's connections and locks.

    Args:
        function: of a module, not of another function; a process that it makes raise ends with exit code 1.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["oombisect.history.store", "pytest"])
    process = server.Process(target=function, args=arguments)
    process.start()
    return process


def exit_codes(children: list[BaseProcess], seconds: float = 60) -> list[int | None]:
    """Of children that have ended; one that does not end in time is killed."""
    for process in children:
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in children]
