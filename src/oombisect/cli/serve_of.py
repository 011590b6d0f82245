"""`oombisect serve`: a server on the loopback interface."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import uvicorn

from oombisect.cli.query_of import GPUS, now_text
from oombisect.errors import OombisectError
from oombisect.history.connection import Connection
from oombisect.history.series import bring_up_to_date
from oombisect.printable import printable
from oombisect.serving.site import site

_HOST = "127.0.0.1"
_REFIT_SECONDS = 30.0


def serve_database(path: Path, port: int) -> None:
    """Serve until a signal comes.

    Raises:
        OombisectError: the database cannot be read, or the port cannot be had.
    """
    if not 0 <= port <= 65535:
        raise OombisectError(f"--port {port} is no port", "Use 1024 to 65535, or 0 for any that is free.")
    _keep_up(path)
    connection = Connection(path, now_text, 30.0, readonly=True)
    ended = threading.Event()
    try:
        with _listening(port) as listener:
            server = uvicorn.Server(uvicorn.Config(site(path, connection), log_level="warning", lifespan="on"))
            print(f"http://{_HOST}:{listener.getsockname()[1]}/  (Ctrl-C ends it)", file=sys.stderr, flush=True)
            threading.Thread(target=_keep_up_again, args=(path, ended), daemon=True).start()
            server.run(sockets=[listener])
    finally:
        ended.set()
        connection.close()


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
        listener.listen()  # whoever asks from now on is answered, if only once the pages are ready
    except OSError as error:
        listener.close()
        raise OombisectError(
            f"Port {port} cannot be had: {error.strerror or error}", "Name another with --port, or 0 for any."
        ) from error
    return listener


def _keep_up(path: Path) -> None:
    if why := bring_up_to_date(path, now_text, GPUS):
        print(f"oombisect: series and steps are as of an earlier day: {printable(why)}", file=sys.stderr)


def _keep_up_again(path: Path, ended: threading.Event) -> None:
    """New readings become part of their series while the pages are looked at."""
    while not ended.wait(_REFIT_SECONDS):
        try:
            bring_up_to_date(path, now_text, GPUS)
        except OombisectError:
            continue
