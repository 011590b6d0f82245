"""What a user can be told, and the exit code that goes with it.

Every foreseen failure is an `OombisectError`: a cause, a way out, a documented exit code.
The command line prints the two sentences and exits; a traceback appears with `--debug` only.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `run`, `resume`, `demo` and, where they apply, of every command but `probe`.

    1 is an answer (`replay`: does not fit; `explain`: no error found), so a mistake of the program has a code of its
    own: EX_SOFTWARE of sysexits.h. GREW is what `watch` and `check` end with where memory grew by more than is allowed.
    """

    CULPRIT = 0
    USAGE = 2
    NO_REGRESSION = 10
    BLURRED = 11
    CREEP = 12
    BUDGET = 13
    INFRASTRUCTURE = 14
    GREW = 15
    UNEXPECTED = 70
    INTERRUPTED = 130


class ProbeExit(IntEnum):
    """Exit codes of `probe`, as `git bisect run` understands them.

    It takes 1 to 127 (but for 125, skip) for a bad commit and stops on 128 and above. So whatever is no measurement is
    128 and above.
    """

    FITS = 0
    DOES_NOT_FIT = 1
    UNRESOLVED = 125
    INFRASTRUCTURE = 128
    USAGE = 129
    INTERRUPTED = 130
    UNEXPECTED = 198


def probe_failure(code: int) -> int:
    """The exit code of `probe` for a failure that other commands report with `code`."""
    if code >= ProbeExit.INFRASTRUCTURE:
        return code
    match code:
        case ExitCode.USAGE:
            return int(ProbeExit.USAGE)
        case ExitCode.UNEXPECTED:
            return int(ProbeExit.UNEXPECTED)
    return int(ProbeExit.INFRASTRUCTURE)


class Stopped(BaseException):
    """A signal that asks the process to end: it unwinds like Ctrl-C, so that probes end and sessions are kept."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class OombisectError(Exception):
    """A foreseen failure.

    Args:
        cause: one sentence, what is wrong, with the offending value in it.
        way_out: one sentence, what the user can do about it.
        exit_code: the process's exit code.
    """

    def __init__(self, cause: str, way_out: str = "", exit_code: int = ExitCode.USAGE) -> None:
        super().__init__(cause)
        self.cause = cause
        self.way_out = way_out
        self.exit_code = int(exit_code)
