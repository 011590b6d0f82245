"""Which sessions a living process works on: a lock file each, which the kernel releases when the process dies."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

_NAME = "lock"
# Someone who only looks holds a shared lock for an instant; whoever wants to own the session waits that long.
_PATIENCE_SECONDS, _RETRY_SECONDS = 0.5, 0.02


class SessionLock:
    """Held from construction to `release`, or to the end of the process however it ends.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the folder cannot be written, or its file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if not isinstance(error, BlockingIOError) or time.monotonic() > end:
                    os.close(self._file)
                    raise
            time.sleep(_RETRY_SECONDS)

    def release(self) -> None:
        """Let go of it: another process may hold it now."""
        os.close(self._file)


def is_held(folder: Path) -> bool:
    """Whether a living process holds the lock in `folder`; if that cannot be told, it is taken to."""
    try:
        file = os.open(folder / _NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False
