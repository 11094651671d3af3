"""A rank's connection to all others: shared memory on its own machine, sockets to the rest."""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from choreo.errors import ChoreoError, MeetingError
from choreo.run.execute.backend import executor
from choreo.run.execute.calls import Failed, PreparedCall
from choreo.run.execute.failures import Where
from choreo.run.execute.segment import Segment, open_segment, remove_stale
from choreo.run.recover.consensus import Circle, Verdict
from choreo.run.recover.control_channel import Line, Remote
from choreo.run.recover.failure_report import DIRECTORY_BYTES
from choreo.run.recover.ledger import Ledger
from choreo.run.transport.tcp import Doorway, Links, Network, lost

if TYPE_CHECKING:
    from choreo.run.execute.twin import Endpoint

__all__ = ["Connection", "Meeting", "connect"]

STAGE_BYTES = 8 << 20  # of eight slots
# How long a rank spins before it lets others run: long where every rank has a core, hardly where they share them. A
# spin is a PAUSE, which takes 15 ns on some processors and 50 ns on others.
SPINS_ALONE, SPINS_SHARED = 1000, 2
# All have called all by the time that their connections are taken in.
FINISH_S = 10.0


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
    length: int
    ledger: str
    address: str
    port: int  # where it listens while they connect; 0, if it can be reached from its machine only
    nonce: bytes


class Ended:
    """What stands in for the executor when a connection has ended: every call raises why."""

    def __init__(self, error: Callable[[], ChoreoError], calls: int) -> None:
        self.error, self.calls = error, calls

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
    network: Network | None = None  # the address of this rank, and what only the ranks of this communicator know
    verdict: Verdict | None = field(default=None)  # what all agreed on, if a call failed
    surviving: tuple[int, float] | None = None  # the call that is to survive failures, and its deadline
    closed: bool = False

    @property
    def calls(self) -> int:
        """The number of the last call."""
        return self.endpoint.calls

    def run(self, prepared: PreparedCall, input_array: object, work: object, *, timeout_s: float) -> Failed | None:
        """Run a call; None, or what went wrong, whose fault it is, and which operation it was."""
        failed: Failed | None = self.endpoint.run(
            self.endpoint.calls + 1,
            prepared.signature,
            prepared.ready,
            input_array,
            work,
            prepared.call.dtype,
            prepared.call.operation,
            timeout_s,
            prepared.stages,
        )
        return failed

    def end(self, error: Callable[[], ChoreoError]) -> None:
        """Close the executor, even for those who have hold of it; from now on every call raises this."""
        if self.circle.remote is not None and not isinstance(self.endpoint, Ended):
            self.circle.remote.outlive_executor()
        self.endpoint.close()
        self.endpoint = Ended(error, self.endpoint.calls)

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
        self.segment.close()


def connect(  # noqa: PLR0915 - what is opened here is closed here, whatever happens
    meeting: Meeting, name: str, machine: str, timeout_s: float, network: Network | None = None
) -> Connection:
    """Make a segment, tell the others, and map theirs, or call those that are on other machines.

    `machine` is a text that is the same on ranks that share memory. Where there may be several, each rank says under
    which address the others reach it, and all give the same secret. It takes two exchanges of the meeting.
    """
    rank, world_size, end_s = meeting.rank, meeting.world_size, time.monotonic() + timeout_s
    remove_stale()
    segment = Segment(f"choreo-{name}-{rank}", world_size, STAGE_BYTES)
    log = segment.path.with_name(segment.path.name.replace("choreo-", "choreo-log-", 1))
    with contextlib.ExitStack() as undo:
        undo.callback(segment.close)
        # Everybody who needs them has them open in the end; without names nothing can be left behind.
        names = contextlib.ExitStack()
        names.callback(segment.unlink)
        names.callback(log.unlink, missing_ok=True)
        with names:
            ledger = Ledger(log, create=True)
            undo.callback(lambda: ledger.close())  # noqa: PLW0108 - the one that is open by then
            executor().prepare_segment(segment.map, rank, world_size, STAGE_BYTES)
            doorway = None if network is None else Doorway(network.address)
            if doorway is not None:
                names.callback(doorway.close)
            facts = (machine, socket.gethostname(), os.getpid(), str(segment.path), segment.bytes, str(log))
            address = "" if network is None else network.address
            card = _Card(*facts, address, 0 if doorway is None else doorway.port, secrets.token_bytes(16))
            blobs = meeting.exchange(msgspec.json.encode(card), timeout_s)
            cards = [msgspec.json.decode(blob, type=_Card) for blob in blobs]
            here = [number for number, one in enumerate(cards) if one.machine == machine]
            maps: list[mmap.mmap | None] = [None] * world_size
            watched = [-1] * world_size
            places = tuple(Where(number, one.host, one.pid, one.address) for number, one in enumerate(cards))
            for number in here:
                if number != rank:
                    try:
                        maps[number] = open_segment(Path(cards[number].segment), cards[number].length)
                        watched[number] = os.pidfd_open(cards[number].pid)
                    except OSError as error:
                        raise lost(places[number], error) from None
                    undo.callback(os.close, watched[number])
            if here[0] != rank:
                ledger.close()
                try:
                    ledger = Ledger(Path(cards[here[0]].ledger), create=False)
                except OSError as error:
                    raise lost(places[here[0]], error) from None
            links, elsewhere = Links(), [place for place in places if place.rank not in here]
            if elsewhere:
                network = _common_network(network, cards)
                assert doorway is not None
                ports = [cards[place.rank].port for place in elsewhere]
                links = doorway.connect(places[rank], elsewhere, ports, network.secret, end_s)
                undo.callback(lambda: links.close())  # noqa: PLW0108 - the ones that there are by then
            meeting.exchange(b"", timeout_s)
            if elsewhere and doorway is not None:
                links = doorway.finish(links, elsewhere, max(end_s, time.monotonic() + FINISH_S))
            directory_at = segment.take(DIRECTORY_BYTES)
            circle = Circle(
                rank,
                places,
                segment.map,
                directory_at=directory_at,
                maps=maps,
                pidfds=watched,
                ledger=ledger,
                machines=_machines(cards),
                remote=Remote({number: Line(one) for number, one in links.control.items()}) if elsewhere else None,
            )
            # The executor closes its descriptors when it is closed, long before nobody needs to watch the others.
            controls = {number: one.socket.fileno() for number, one in links.control.items()}
            signs = [os.dup(fd) if fd >= 0 else -1 for fd in (controls.get(at, one) for at, one in enumerate(watched))]
            streams = {number: tuple(one.fileno() for one in several) for number, several in links.streams.items()}
            peers = [(maps[at], one.pid, signs[at], streams.get(at, ())) for at, one in enumerate(cards)]
            spins = SPINS_ALONE if len(here) <= (os.cpu_count() or 1) else SPINS_SHARED
            endpoint = executor().Endpoint(rank, world_size, segment.map, STAGE_BYTES, peers, spins)
            if circle.remote is not None:
                circle.remote.noted = endpoint.progress_of
        undo.pop_all()
    remote = np.array([one.machine != machine for one in cards])
    sockets = [one for several in links.streams.values() for one in several]
    made = Connection(rank, world_size, places, segment, endpoint, remote, sockets, machine, circle, network)
    _OPEN.add(made)
    return made


def _common_network(network: Network | None, cards: list[_Card]) -> Network:
    """The network with a secret of this communicator's own, which every rank derives alike."""
    deaf = [rank for rank, one in enumerate(cards) if not one.port]
    if network is None or deaf:
        raise MeetingError(
            f"ranks of several machines are to be connected, but rank {deaf[0]} was not told under which address the "
            "others reach it",
            ranks=deaf,
        )
    return Network(network.address, network.derived("communicator", (one.nonce for one in cards)))


def _machines(cards: list[_Card]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each machine, in order of the lowest."""
    found: dict[str, list[int]] = {}
    for rank, one in enumerate(cards):
        found.setdefault(one.machine, []).append(rank)
    return tuple(map(tuple, found.values()))


_OPEN: weakref.WeakSet[Connection] = weakref.WeakSet()


def _at_exit() -> None:
    """Say that this process is done: without it those who still are in its last call would see a process that died."""
    for connection in list(_OPEN):
        with contextlib.suppress(RuntimeError):  # another thread is in a call; its peers see the process end
            connection.close()


atexit.register(_at_exit)
