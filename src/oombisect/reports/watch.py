"""What is said while a session runs: one line a probe, on stderr, and on a terminal what is running right now."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from oombisect.probing.workload import Variation
from oombisect.readings import Outcome, Reading
from oombisect.reports.terminal import short
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


class ConsoleWatcher:
    """Prints to a console on stderr. The live line is shown on a terminal only."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status: Status | None = None
        self._shown: set[int] = set()
        self._doing = ""
        self._where = ""

    def say(self, text: str) -> None:
        self.console.print(escape(text), style="dim", highlight=False)

    def progress(self, text: str) -> None:
        """How far the search is: growth explained, what is still open."""
        self._where = text

    def probe_started(self, target: Target, variation: Variation, purpose: str) -> None:
        self._doing = f"{short(target.key)} {target.subject[:50]} {_detail(variation, purpose)}".rstrip()
        if self.console.is_terminal:
            self._status = self.console.status(escape(self._line(0.0)))
            self._status.start()

    def tick(self, seconds: float) -> None:
        if self._status:
            self._status.update(escape(self._line(seconds)))

    def probe_finished(self, target: Target, measured: Measured, purpose: str, seconds: float) -> None:
        if self._status:
            self._status.stop()
            self._status = None
        if measured.cached and measured.probe in self._shown:
            return  # told before
        self._shown.add(measured.probe)
        how = "from the database" if measured.cached else f"{seconds:.1f} s"
        detail = _PURPOSES.get(purpose, purpose)
        parts = [f"{short(target.key):<10}", summary(measured.reading), f"[{how}]", detail, target.subject[:60]]
        self.console.print(escape("  ".join(part for part in parts if part)), highlight=False, soft_wrap=True)

    def _line(self, seconds: float) -> str:
        return "  ".join(part for part in (f"probing {self._doing}", f"{seconds:.0f} s", self._where) if part)


def _detail(variation: Variation, purpose: str) -> str:
    words = [_PURPOSES.get(purpose, purpose)]
    if variation.limit_bytes:
        words.append(f"at {format_bytes(variation.limit_bytes)}")
    return f"({', '.join(word for word in words if word)})" if any(words) else ""


def summary(reading: Reading) -> str:
    """A reading in a few words."""
    match reading.outcome:
        case Outcome.EXACT:
            sizes = f"{format_bytes(reading.peak_allocated)} allocated, {format_bytes(reading.peak_reserved)} reserved"
            return f"{sizes} simulated" if reading.simulated else sizes
        case Outcome.CENSORED:
            oom = next((rank.oom for rank in reading.ranks if rank.oom), None)
            where = f" in {oom.phase}" if oom else ""
            return f"out of memory{where}, at least {format_bytes(reading.peak_allocated)} allocated"
        case _:
            return f"{reading.outcome}: {reading.reason}"
