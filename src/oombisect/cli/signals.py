"""Signals that ask the process to end raise `Stopped`, which unwinds it in order."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from oombisect.errors import Stopped

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PATIENCE_SECONDS = 20.0
"""Ending a probe's processes takes a few seconds; until then more signals change nothing, after it they end at once."""


def raise_on_signals() -> None:
    """Install the handlers. A signal that the caller ignores (nohup, a background job) stays ignored."""
    first: list[tuple[int, float]] = []

    def stop(number: int, _: FrameType | None) -> None:
        if not first:
            first.append((number, time.monotonic()))
            raise Stopped(number)
        if time.monotonic() - first[0][1] > _PATIENCE_SECONDS:
            os._exit(128 + first[0][0])

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def ignore_signals() -> None:
    """From here on the process ends, with the exit code it has; a default handler would replace that."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
