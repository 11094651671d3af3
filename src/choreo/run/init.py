"""How a process becomes a rank: it reads who it is, meets the others, and connects to them."""

from __future__ import annotations

import secrets

from choreo.errors import ChoreoError, UsageError
from choreo.run.communicator import DEFAULT_TIMEOUT_S, Communicator
from choreo.run.connection import connect
from choreo.run.execute.backend import warn_if_slow
from choreo.run.execute.choice import Chooser, forced_by_environment
from choreo.run.execute.constants import load_constants, network_constants
from choreo.run.rendezvous.environment import read_environment
from choreo.run.rendezvous.hosts import machines
from choreo.run.rendezvous.rendezvous import Meeting, meet
from choreo.run.transport.tcp import Network

__all__ = ["init"]

# The first byte of what rank 0 shares: how to choose, or why nobody can.
CHOOSER, REFUSED = b"+", b"!"


def init(*, timeout: float = DEFAULT_TIMEOUT_S) -> Communicator:
    """A communicator of all ranks of the job that this process belongs to; every rank calls it.

    Who they are is read from the environment, as `choreo run`, torchrun and mpirun set it; without one the process is
    alone. `timeout` is in seconds, for this call and for every later one that is given none of its own.
    """
    me = read_environment()
    if me.rank == 0:
        warn_if_slow()
    with meet(me.rank, me.world_size, me.address, me.port, me.secret, timeout_s=timeout, job=me.job) as meeting:
        lowest = machines(meeting, timeout)
        network = None
        if len(set(lowest)) > 1:
            assert me.secret is not None, "without a secret only ranks of one machine meet"
            network = Network(meeting.members[meeting.rank].address, me.secret)
        chooser = _shared_chooser(meeting, timeout, several_machines=network is not None)
        connection = connect(meeting, secrets.token_hex(6), str(lowest[meeting.rank]), timeout, network)
    return Communicator(connection, chooser, timeout_s=timeout)


def _shared_chooser(meeting: Meeting, timeout_s: float, *, several_machines: bool) -> Chooser:
    """Rank 0's constants and what its environment forces, so that all ranks choose alike."""
    told = b""
    if meeting.rank == 0:
        try:
            constants = network_constants() if several_machines else load_constants()
            told = CHOOSER + Chooser(meeting.world_size, constants, forced_by_environment()).to_json()
        except ChoreoError as error:
            told = REFUSED + str(error).encode()
    first = meeting.exchange(told, timeout_s)[0]
    if first.startswith(REFUSED):
        raise UsageError(first[1:].decode() if meeting.rank == 0 else f"rank 0: {first[1:].decode()}")
    return Chooser.from_json(first[1:], meeting.world_size)
