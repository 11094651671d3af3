"""How those who are in a job and those who come to it become one communicator, or stay what they were.

Both sides take part in the same exchanges, in which everybody tells everybody something. Whoever has trouble says so in
the next one, and all give up together. In the end all hold a new connection, and its own ledger settles whether it
stands: whoever saw the last exchange through says yes, whoever did not says no, and the first who spoke is right. So
whoever dies at whatever moment, the others all go on with the new one, or none does.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import NoReturn, Protocol

from choreo.errors import ChoreoError, JoinError, MeetingError, UsageError
from choreo.run.connection import Connection, connect
from choreo.run.rendezvous.environment import Place
from choreo.run.rendezvous.hosts import machines
from choreo.run.transport.addresses import is_local, resolve
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.tcp import Network, address_toward

__all__ = ["FINE", "TROUBLE", "Gathering", "come_together", "own_network", "untroubled"]

# The first byte of what is brought to an exchange.
FINE, TROUBLE = b"+", b"!"
SETTLED = "grown"


class Gathering(Protocol):
    """All who are to be in the new communicator, by their ranks there."""

    @property
    def rank(self) -> int:
        """Which of them this is."""
        ...

    @property
    def world_size(self) -> int:
        """How many there are."""
        ...

    @property
    def network(self) -> Network | None:
        """How this one is reached from other machines; None where there can be none."""
        ...

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """Everybody's blob, by rank; JoinError on all of them where one is in trouble."""
        ...

    def give_up(self, error: BaseException) -> NoReturn:
        """Tell all in the next exchange that this one is in trouble; raises JoinError as they do."""
        ...


def come_together(gathering: Gathering, timeout_s: float) -> Connection:
    """A connection of them all; each finds out itself with whom it shares memory."""
    try:
        lowest = machines(gathering, timeout_s)
        network = gathering.network if len(set(lowest)) > 1 else None
        made = connect(gathering, secrets.token_hex(6), str(lowest[gathering.rank]), timeout_s, network)
    except (OSError, UsageError, MeetingError) as error:
        gathering.give_up(error)
    failure: ChoreoError | None = None
    try:
        try:
            gathering.exchange(b"", timeout_s)
        except ChoreoError as error:
            failure = error
        proposal = b"yes" if failure is None else b"no"
        stands = made.circle.decide(SETTLED, proposal) == b"yes"
    except BaseException:
        made.close()
        raise
    if not stands:
        made.close()
        raise failure or JoinError("a rank was lost in the last moment")
    return made


def own_network(place: Place, deadline: Deadline) -> Network | None:
    """How this process is reached from other machines of a job that meets at this place."""
    if place.secret is None:
        return None
    with suppress(OSError):
        first = resolve(place.address, place.port, deadline)[0]
        there = str(first.address[0])
        return Network(there if is_local(there, deadline) else address_toward(there, place.port), place.secret)
    return None


def untroubled(blobs: list[bytes]) -> list[bytes]:
    """What was brought to an exchange, if nobody is in trouble."""
    for rank, blob in enumerate(blobs):
        if not blob.startswith(FINE):
            raise JoinError(f"rank {rank} cannot go on: {blob[len(TROUBLE) :].decode(errors='replace')}")
    return [blob[len(FINE) :] for blob in blobs]
