"""A rank's connection to all others: shared memory on its own machine, sockets to the rest."""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import socket
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from choreo.errors import ChoreoError
from choreo.run.agreement import Circle, Verdict
from choreo.run.board import DIRECTORY_BYTES
from choreo.run.failures import Where
from choreo.run.ledger import Ledger
from choreo.run.machine import endpoint_type, prepare
from choreo.run.plans import Plan
from choreo.run.segment import Segment, open_segment, remove_stale
from choreo.run.twin import Endpoint

__all__ = ["Connection", "Meeting", "connect"]

STAGE_BYTES = 4 << 20
# How long a rank spins before it lets others run: long where every rank has a core, hardly where they share them. A
# spin is a PAUSE, which takes 15 ns on some processors and 50 ns on others.
SPINS_ALONE, SPINS_SHARED = 20, 2


class Meeting(Protocol):
    """How ranks find each other at the start."""

    @property
    def rank(self) -> int:
        """Which of them this is."""
        ...

    @property
    def world_size(self) -> int:
        """How many there are."""
        ...

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's blob, by rank."""
        ...


class _Card(msgspec.Struct):
    """What a rank tells the others of itself."""

    machine: str
    host: str
    pid: int
    segment: str
    bytes: int
    ledger: str


class Ended:
    """What stands in for the executor when a connection has ended: every call raises why."""

    def __init__(self, error: Callable[[], ChoreoError]) -> None:
        self.error = error

    def run(self, *_: object) -> NoReturn:
        """No call runs any more."""
        raise self.error()

    def close(self) -> None:
        """There is nothing left to close."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Connection:
    """Everything a rank holds of its communicator."""

    rank: int
    world_size: int
    places: tuple[Where, ...]
    segment: Segment
    endpoint: Endpoint | Ended
    exposes: npt.NDArray[np.bool_]  # peers that are reached through a socket
    sockets: list[socket.socket]
    machine: str
    circle: Circle
    calls: int = 0
    verdict: Verdict | None = field(default=None)  # what all agreed on, if a call failed
    surviving: tuple[int, float] | None = None  # the call that is to survive failures, and its deadline
    closed: bool = False

    def run(self, plan: Plan, input_array: object, work: object, *, timeout_s: float) -> tuple[int, int, int] | None:
        """Run a call; None, or what went wrong, whose fault it is, and which operation it was."""
        self.calls += 1
        failed: tuple[int, int, int] | None = self.endpoint.run(
            self.calls,
            plan.signature,
            plan.ready,
            input_array,
            work,
            plan.call.dtype,
            plan.call.operation,
            timeout_s,
            plan.stages,
        )
        return failed

    def end(self, error: Callable[[], ChoreoError]) -> None:
        """Close the executor, even for those who have hold of it; from now on every call raises this."""
        self.endpoint.close()
        self.endpoint = Ended(error)

    def raise_end(self) -> NoReturn:
        """Raise what every call raises by now."""
        assert isinstance(self.endpoint, Ended)
        raise self.endpoint.error()

    def close(self) -> None:
        """Let go of segments and sockets."""
        self.closed = True
        _OPEN.discard(self)
        self.endpoint.close()
        self.circle.close()
        for one in self.sockets:
            one.close()
        self.segment.unlink()


def connect(meeting: Meeting, name: str, machine: str, timeout_s: float) -> Connection:
    """Make a segment, tell the others, and map theirs."""
    rank, world_size = meeting.rank, meeting.world_size
    remove_stale()
    segment = Segment(f"choreo-{name}-{rank}", world_size, STAGE_BYTES)
    log = segment.path.with_name(segment.path.name.replace("choreo-", "choreo-log-", 1))
    with contextlib.ExitStack() as undo:
        # Everybody who needs them has them open in the end; without names nothing can be left behind.
        names = contextlib.ExitStack()
        names.callback(segment.unlink)
        names.callback(log.unlink, missing_ok=True)
        with names:
            ledger = Ledger(log, create=True)
            undo.callback(lambda: ledger.close())  # noqa: PLW0108 - the one that is open by then
            prepare()(segment.map, rank, world_size, STAGE_BYTES)
            card = _Card(machine, socket.gethostname(), os.getpid(), str(segment.path), segment.bytes, str(log))
            blobs = meeting.exchange(msgspec.json.encode(card), timeout_s)
            cards = [msgspec.json.decode(blob, type=_Card) for blob in blobs]
            here = [number for number, one in enumerate(cards) if one.machine == machine]
            maps: list[mmap.mmap | None] = [None] * world_size
            watched, pidfds = [-1] * world_size, [-1] * world_size
            for number in here:
                if number != rank:
                    maps[number] = open_segment(Path(cards[number].segment), cards[number].bytes)
                    watched[number] = os.pidfd_open(cards[number].pid)
                    undo.callback(os.close, watched[number])
            if here[0] != rank:
                ledger.close()
                ledger = Ledger(Path(cards[here[0]].ledger), create=False)
            places = tuple(Where(number, one.host, one.pid) for number, one in enumerate(cards))
            directory_at = segment.take(DIRECTORY_BYTES)
            circle = Circle(
                rank, places, segment.map, directory_at=directory_at, maps=maps, pidfds=watched, ledger=ledger
            )
            # The executor closes its descriptors when it is closed, long before nobody needs to watch the others.
            pidfds = [os.dup(one) if one >= 0 else -1 for one in watched]
            peers = [(maps[number], one.pid, pidfds[number], -1) for number, one in enumerate(cards)]
            spins = SPINS_ALONE if len(here) <= (os.cpu_count() or 1) else SPINS_SHARED
            endpoint = endpoint_type()(rank, world_size, segment.map, STAGE_BYTES, peers, spins)
            undo.callback(endpoint.close)
            meeting.exchange(b"", timeout_s)
        undo.pop_all()
    remote = np.array([one.machine != machine for one in cards])
    made = Connection(rank, world_size, places, segment, endpoint, remote, [], machine, circle)
    _OPEN.add(made)
    return made


_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()


def _at_exit() -> None:
    """Say that this process is done: without it those who still are in its last call would see a process that died."""
    for connection in list(_OPEN):
        with contextlib.suppress(RuntimeError):  # another thread is in a call; its peers see the process end
            connection.close()


atexit.register(_at_exit)
