"""`grow`: all ranks of a communicator let newcomers in. One of them opens a door, where `join` knocks.

The door is kept by the lowest rank on the machine that MASTER_ADDR names. The others take part through the communicator
that they have.
"""

from __future__ import annotations

import operator
import zlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from choreo.errors import CollectiveMismatch, CommunicatorClosed, JoinError, PeerFailure, UsageError
from choreo.run.connection import Connection
from choreo.run.objects import all_gather_bytes
from choreo.run.recover.membership import FINE, TROUBLE, come_together, own_network, untroubled
from choreo.run.recover.shrink import release, shrink
from choreo.run.rendezvous.admission import Entrance, is_here, open_entrance
from choreo.run.rendezvous.environment import Place
from choreo.run.rendezvous.messages import Admission
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.limits import MAX_RANKS
from choreo.run.transport.tcp import Network

if TYPE_CHECKING:
    from choreo.run.communicator import Communicator

__all__ = ["grow"]

EXTRA_S = 3.0  # by which those who wait for the one at the door outlast it
GROWN = CommunicatorClosed("this communicator has grown; use the one that grow() returned")


def grow(communicator: Communicator, newcomers: int, place: Place, timeout_s: float) -> Communicator:
    """A communicator of all who are there and so many newcomers, which takes the place of this one.

    All ranks call it, with the same arguments. Newcomers get the lowest numbers that nobody has. If they do not come
    in time all ranks raise `JoinError`, and the communicator is as it was.
    """
    try:
        wanted = operator.index(newcomers)
    except TypeError:
        raise UsageError(f"newcomers must be a whole number, not {newcomers!r:.60}") from None
    if not 1 <= wanted <= MAX_RANKS - communicator.world_size:
        raise UsageError(f"{wanted} newcomers cannot be; a communicator grows by at least 1")
    communicator._engine.progress.drain(None)  # each call has its deadline
    deadline = Deadline.after(timeout_s)
    ranks = _numbers(communicator.ranks, wanted)
    with ExitStack() as stack:
        keeper = _keeper(communicator, wanted, place, deadline)
        growth = _Growth(communicator, wanted, keeper, deadline, _network(communicator, place, deadline))
        if growth.keeps_door:
            try:
                door = stack.enter_context(
                    open_entrance(place, communicator.world_size, wanted, deadline, growth.disturbed)
                )
                growth.entrance = door
                door.let_in(deadline)
                door.admit(lambda rank: _admission(communicator, rank, ranks, deadline))
            except JoinError as error:
                growth.trouble = str(error)
        made = come_together(growth, deadline.left_s + EXTRA_S)
    release(communicator._engine.connection, GROWN)
    return _from(communicator, made, ranks)


def _numbers(ranks: tuple[int, ...], newcomers: int) -> tuple[int, ...]:
    free = (number for number in range(len(ranks) + newcomers) if number not in ranks)
    return ranks + tuple(next(free) for _ in range(newcomers))


def _keeper(communicator: Communicator, wanted: int, place: Place, deadline: Deadline) -> int:
    """Which rank keeps the door, as all of them see it."""
    where = f"{place.address}:{place.port}:{place.job}"
    mine = np.array([wanted, zlib.crc32(where.encode()), is_here(place, deadline)], np.int64)
    told = communicator.all_gather(mine, timeout=deadline.left_s + EXTRA_S)
    if (told[:, :2] != told[0, :2]).any():
        what = f"to let in {told[:, 0].tolist()} newcomers by rank" if (told[:, 0] != told[0, 0]).any() else "places"
        raise CollectiveMismatch(f"grow: the ranks were given different {what}; give all the same arguments")
    return int(np.argmax(told[:, 2]))


def _network(communicator: Communicator, place: Place, deadline: Deadline) -> Network | None:
    """How this rank is reached from elsewhere: as before, with what newcomers know too."""
    known = communicator._engine.connection.network
    if known is None or place.secret is None:
        return own_network(place, deadline)
    return Network(known.address, place.secret)


def _admission(communicator: Communicator, rank: int, ranks: tuple[int, ...], deadline: Deadline) -> Admission:
    chooser = communicator._engine.chooser.to_json().decode()
    return Admission(rank, ranks, deadline.left_s, communicator.timeout_s, chooser)


class _Growth:
    """Those who are there, over their communicator, and newcomers, over the rank that keeps the door."""

    def __init__(
        self, communicator: Communicator, newcomers: int, keeper: int, deadline: Deadline, network: Network | None
    ) -> None:
        self.network = network
        self._communicator, self._keeper, self._deadline = communicator, keeper, deadline
        self._newcomers = newcomers
        self.rank, self.world_size = communicator.rank, communicator.world_size + newcomers
        self.keeps_door = communicator.rank == keeper
        self.entrance: Entrance | None = None
        self.trouble = ""

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's blob, by rank."""
        del timeout_s  # it is for all of it
        mine = TROUBLE + self.trouble.encode()[:1000] if self.trouble else FINE + blob
        return self._exchanged(mine)

    def give_up(self, error: BaseException) -> NoReturn:
        """Tell all that this rank is in trouble."""
        self._exchanged(TROUBLE + f"{type(error).__name__}: {error}".encode()[:1000])
        raise AssertionError("an exchange with trouble in it raises")

    def disturbed(self) -> bool:
        """Whether a rank of the communicator is lost, so that nothing can come of this."""
        circle = self._communicator._engine.connection.circle
        return bool(circle.dead() or circle.gone())

    def _exchanged(self, mine: bytes) -> list[bytes]:
        brought = [mine]
        if self.keeps_door and mine.startswith(FINE):
            assert self.entrance is not None
            try:
                brought += self.entrance.collect(self._deadline)
            except JoinError as error:
                brought = [TROUBLE + str(error).encode()]
        try:
            lists = all_gather_bytes(self._communicator, _joined(brought), self._deadline.left_s + EXTRA_S)
            blobs, others = _parted(lists, self._keeper)
            if self.entrance is not None and others:
                self.entrance.tell([*blobs, *others])
            found = untroubled([*blobs, *others])
            assert len(found) == self.world_size
        except (JoinError, PeerFailure) as error:
            if self.entrance is not None:
                self.entrance.refuse(str(error))
            raise
        return found


def _joined(blobs: list[bytes]) -> bytes:
    return b"".join(len(blob).to_bytes(4, "big") + blob for blob in blobs)


def _parted(lists: list[bytes], keeper: int) -> tuple[list[bytes], list[bytes]]:
    """The blobs of those who are there, by rank, and those of the newcomers, which the keeper of the door added."""
    found: list[list[bytes]] = []
    for text in lists:
        blobs, at = [], 0
        while at < len(text):
            end = at + 4 + int.from_bytes(text[at : at + 4], "big")
            blobs.append(text[at + 4 : end])
            at = end
        found.append(blobs)
    return [blobs[0] for blobs in found], found[keeper][1:]


def _from(communicator: Communicator, connection: Connection, ranks: tuple[int, ...]) -> Communicator:
    """The new communicator, or what is left of it: whoever dies now dies in that, and the old one is gone."""
    communicator.retire(GROWN)
    while True:
        try:
            made = communicator.beside(connection)
        except PeerFailure:
            connection, members = shrink(connection)
            ranks = tuple(ranks[member] for member in members)
            continue
        made.ranks = ranks
        return made
