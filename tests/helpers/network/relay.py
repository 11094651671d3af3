"""Cables that lose and delay packets, where the kernel cannot: TUN devices, and a process that carries between them."""

from __future__ import annotations

import fcntl
import os
import random
import select
import signal
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import permutations
from pathlib import Path

from tests.helpers.ranks.faults import PATIENCE_S, Pipe
from tests.helpers.ranks.fork_server import CONTEXT, start_server

TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET = 1 << 16


class Relay:
    """A process that holds both ends of all cables of some hosts; end `toN` of a host leads to host N."""

    def __init__(self, names: Sequence[str], enter: Callable[[str], None], loss: float, delay_s: float) -> None:
        start_server()
        self._talk, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_carry, args=(theirs, names, enter, loss, delay_s), daemon=True)
        self._process.start()
        theirs.close()
        told = self._talk.recv() if self._talk.poll(PATIENCE_S) else "it says nothing"
        if told:
            self.stop()
            raise OSError(f"packets cannot be carried between hosts: {told}")

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._talk.close()


@cache
def why_no_relay() -> str:
    """Why packets cannot be carried here; empty if they can."""
    try:
        os.close(os.open(TUN, os.O_RDWR))
    except OSError as error:
        return f"cables that lose packets need {TUN}: {error.strerror}"
    return ""


def _device(name: str) -> int:
    """A new TUN device in the namespace of this process, which ends with its descriptor."""
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def _carry(talk: Pipe, names: Sequence[str], enter: Callable[[str], None], loss: float, delay_s: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ends: dict[tuple[int, int], int] = {}
    try:
        for here, there in permutations(range(len(names)), 2):
            enter(names[here])
            ends[here, there] = _device(f"to{there}")
    except OSError as error:
        talk.send(str(error))
        return
    talk.send("")
    far = {device: ends[there, here] for (here, there), device in ends.items()}
    poll = select.poll()
    for readable in (talk.fileno(), *far):
        poll.register(readable, select.POLLIN)
    on_the_way: deque[tuple[float, int, bytes]] = deque()  # when each arrives, and where
    while True:
        left_s = on_the_way[0][0] - time.monotonic() if on_the_way else PATIENCE_S
        for readable, _ in poll.poll(max(0.0, left_s) * 1000):
            if readable == talk.fileno():
                return  # the test has ended
            with suppress(OSError):  # nothing, or the cable is pulled
                while packet := os.read(readable, PACKET):
                    if random.random() >= loss:
                        on_the_way.append((time.monotonic() + delay_s, far[readable], packet))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, device, packet = on_the_way.popleft()
            with suppress(OSError):  # the cable is pulled
                os.write(device, packet)
