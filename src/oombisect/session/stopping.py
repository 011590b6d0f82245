"""A session that stops early stays in the database, ready to be resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oombisect.errors import ExitCode, OombisectError
from oombisect.session.events import STOPPED

if TYPE_CHECKING:
    from oombisect.history.store import Store


@contextmanager
def interrupted_unless_finished(store: Store, session: str) -> Iterator[None]:
    """Mark the session interrupted, with the error's exit code, if the block raises; what it says is an event."""
    try:
        yield
    except BaseException as error:
        code = error.exit_code if isinstance(error, OombisectError) else ExitCode.INTERRUPTED
        with store.transaction():
            if isinstance(error, OombisectError):
                store.append_event(session, STOPPED, {"cause": error.cause, "way_out": error.way_out})
            store.interrupt_session(session, int(code))
        raise
