"""What is said while a session runs: one line a probe, on stderr, and on a terminal what is running right now."""

from __future__ import annotations

import contextlib

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from oombisect.printable import printable
from oombisect.probing.workload import Variation
from oombisect.readings import Outcome, Reading
from oombisect.reports.points import short
from oombisect.reports.terminal import simulated
from oombisect.session.measuring import Measured, Target
from oombisect.units import format_bytes

_PURPOSES = {
    "measure": "",
    "remeasure": "fresh, to confirm",
    "revert": "bad end with the change reverted",
    "fit": "with the limit enforced",
    "capacity": "needed capacity",
    "expandable": "with expandable segments",
}
_MINUTE = 60.0


class ConsoleWatcher:
    """Prints to a console on stderr. A terminal shows what runs in a live line; anything else gets a line when a probe
    begins, and one each minute that it lasts.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status: Status | None = None
        self._shown: set[int] = set()
        self._running: dict[tuple[str, str], tuple[str, int | None]] = {}
        self._where = ""
        self._tick_due = _MINUTE

    def say(self, text: str) -> None:
        """A line of its own."""
        self._print(escape(text), style="dim")

    def progress(self, text: str) -> None:
        """How far the search is: growth explained, what is still open."""
        self._where = text

    def probe_started(self, target: Target, variation: Variation, purpose: str) -> None:
        """The live line tells of it until it has finished; where there is none, a line of its own."""
        doing = f"{short(target.key)} {printable(target.subject)[:50]} {_detail(variation, purpose)}".rstrip()
        self._running[target.key, purpose] = (doing, variation.limit_bytes)
        self._tick_due = _MINUTE
        if not self.console.is_terminal:
            self.say(f"probing {doing}")
        self._show()

    def _show(self) -> None:
        self.close()
        if self.console.is_terminal:
            self._status = self.console.status(escape(self._line(0.0)))
            with contextlib.suppress(OSError):
                self._status.start()

    def tick(self, seconds: float) -> None:
        """The probe is so many seconds old."""
        if self._status:
            self._status.update(escape(self._line(seconds)))
        elif not self.console.is_terminal and self._running and seconds >= self._tick_due:
            self._tick_due += _MINUTE
            self.say(self._line(seconds))

    def probe_finished(self, target: Target, measured: Measured, purpose: str, seconds: float) -> None:
        """A line with what it read; an answer from the database is told once."""
        _, capacity = self._running.pop((target.key, purpose), ("", None))
        self._told(target, measured, purpose, seconds, capacity)
        if self._running:
            self._show()

    def _told(self, target: Target, measured: Measured, purpose: str, seconds: float, capacity: int | None) -> None:
        self.close()
        if measured.cached and measured.probe in self._shown:
            return  # told before
        self._shown.add(measured.probe)
        how = "from the database" if measured.cached else f"{seconds:.1f} s"
        detail = _PURPOSES.get(purpose, purpose)
        if not measured.cached and capacity:
            detail = f"{detail} at {format_bytes(capacity)}".strip()
        parts = [
            f"{short(target.key):<10}",
            summary(measured.reading),
            f"[{how}]",
            detail,
            printable(target.subject)[:60],
        ]
        self._print(escape("  ".join(part for part in parts if part)))

    def close(self) -> None:
        """Take the live line off the terminal."""
        if self._status:
            with contextlib.suppress(OSError):
                self._status.stop()
            self._status = None

    def _print(self, text: str, style: str | None = None) -> None:
        with contextlib.suppress(OSError):  # nobody reads stderr: the result does not depend on it
            self.console.print(text, style=style, highlight=False, soft_wrap=True)

    def _line(self, seconds: float) -> str:
        doing = ", ".join(doing for doing, _ in self._running.values())
        return "  ".join(part for part in (f"probing {doing}", f"{seconds:.0f} s", self._where) if part)


def _detail(variation: Variation, purpose: str) -> str:
    words = [_PURPOSES.get(purpose, purpose)]
    if variation.limit_bytes:
        words.append(f"at {format_bytes(variation.limit_bytes)}")
    return f"({' '.join(word for word in words if word)})" if any(words) else ""


def summary(reading: Reading) -> str:
    """A reading in a few words."""
    label = simulated(reading)
    match reading.outcome:
        case Outcome.EXACT:
            allocated, reserved = format_bytes(reading.peak_allocated), format_bytes(reading.peak_reserved)
            return f"{allocated} allocated, {reserved} reserved{label}"
        case Outcome.CENSORED:
            oom = next((rank.oom for rank in reading.ranks if rank.oom), None)
            where = f" in {oom.phase}" if oom else ""
            return f"out of memory{where}, at least {format_bytes(reading.peak_allocated)} allocated{label}"
        case _:
            return f"{reading.outcome}: {printable(reading.reason)}"
