"""`explore`: serve the page from this machine until interrupted."""

from __future__ import annotations

import contextlib
import socket
import threading
import webbrowser
from collections.abc import Callable

from choreo.errors import UsageError
from choreo.explore.server import Server

__all__ = ["explore"]


def explore(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    browser: bool = True,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the page until Ctrl-C. `port` 0 means any free port; `ready` is called with the address.

    With `browser` the page is opened in the user's browser.

    >>> explore(port=1 << 20)
    Traceback (most recent call last):
    choreo.errors.UsageError: a port is 0 to 65535, not 1048576
    """
    if not 0 <= port < 1 << 16:
        raise UsageError(f"a port is 0 to 65535, not {port}")
    try:
        server = Server(host, port)
    except OSError as error:
        other = "--host" if isinstance(error, socket.gaierror) else "--port"
        raise UsageError(f"{host}:{port} cannot be served: {error.strerror or error}; use another {other}") from None
    with server:
        server.workers.warm()
        if ready is not None:
            ready(server.address)
        if browser:
            threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
