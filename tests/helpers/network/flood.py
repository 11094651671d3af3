"""Strangers who connect to everything that listens in a namespace, say nothing, and stay."""

from __future__ import annotations

import resource
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

from tests.helpers.network.hosts import enter
from tests.helpers.ranks.fork_server import CONTEXT, start_server

KEPT = 3000  # connections that one of them holds, if it may have so many
LISTENS = "0A"


def listening() -> list[tuple[str, int]]:
    """The addresses and ports where somebody listens, over IPv4."""
    found = []
    for line in Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        if state == LISTENS:
            address, port = local.split(":")
            host = socket.inet_ntoa(bytes.fromhex(address)[::-1])
            found.append((host if host != "0.0.0.0" else "127.0.0.1", int(port, 16)))
    return found


def flood(namespace: str | None, per_second: int, avoid: frozenset[int], count: Any) -> None:
    """Connect so often to each listener until this process is ended."""
    if namespace is not None:
        enter(namespace)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kept = min(KEPT, most // 2)
    held: deque[socket.socket] = deque()
    began_s, made, looked_s = time.monotonic(), 0, 0.0
    places: list[tuple[str, int]] = []
    while True:
        if time.monotonic() - looked_s > 0.02:
            places = [place for place in listening() if place[1] not in avoid]
            looked_s = time.monotonic()
        due = int((time.monotonic() - began_s) * per_second) - made
        made += due
        for place in places * min(due, 10):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(place)
            held.append(sock)
            if len(held) > kept:
                held.popleft().close()
            count.value += 1
        time.sleep(0.01)


class Flood:
    """A process that floods, for as long as it is needed; `count` is how often it has connected."""

    def __init__(self, namespace: str | None, per_second: int, avoid: frozenset[int] = frozenset()) -> None:
        start_server()
        self._count = CONTEXT.Value("q", 0)
        self._process = CONTEXT.Process(target=flood, args=(namespace, per_second, avoid, self._count), daemon=True)

    @property
    def count(self) -> int:
        """How often strangers have connected."""
        return int(self._count.value)

    def __enter__(self) -> Flood:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
