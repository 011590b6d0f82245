"""The command that makes a laid-out point ready to run (a compiled extension, an editable install)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oombisect.probing.collect import last_line
from oombisect.probing.command import command_environment
from oombisect.probing.guard import Killed, Limits, run_guarded
from oombisect.probing.interpreter import Interpreter
from oombisect.probing.prober import inherited_environment


@dataclass(frozen=True, slots=True)
class Build:
    """Runs `command` through the shell. It needs no GPU and gets none: a virtual one is not put before it."""

    command: str
    interpreter: Interpreter
    limits: Limits
    on_tick: Callable[[float], None] | None = None

    def run(self, folder: Path, log: Path) -> str | None:
        """Build in `folder`; why it failed, None if it did not.

        Raises:
            OSError: nothing can be started, or the log cannot be written.
        """
        log.unlink(missing_ok=True)
        ended = run_guarded(
            ["/bin/sh", "-c", self.command],
            env=command_environment(inherited_environment(), self.interpreter),
            cwd=folder,
            log=log,
            limits=self.limits,
            on_tick=self.on_tick,
        )
        if ended.killed is Killed.TIME:
            return f"the build hung: ended after {self.limits.seconds:.0f} s (--time-limit)"
        if ended.killed is not None:
            return f"the build was ended: it passed its limit of {ended.killed}"
        if ended.exit_code == 0:
            return None
        return f"the build failed with exit code {ended.exit_code}: {last_line(log)}"
