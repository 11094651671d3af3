"""How a process becomes a rank: it reads who it is, meets the others, and connects to them."""

from __future__ import annotations

import secrets

from choreo.errors import ChoreoError, UsageError
from choreo.run.calibration import load_constants
from choreo.run.choice import Chooser, forced_by_environment
from choreo.run.communicator import DEFAULT_TIMEOUT_S, Communicator
from choreo.run.connection import connect
from choreo.run.meeting.environment import read_environment
from choreo.run.meeting.hosts import machines
from choreo.run.meeting.meet import Meeting, meet

__all__ = ["init"]

# The first byte of what rank 0 shares: how to choose, or why nobody can.
CHOOSER, REFUSED = b"+", b"!"


def init(*, timeout: float = DEFAULT_TIMEOUT_S) -> Communicator:
    """A communicator of all ranks of the job that this process belongs to; every rank calls it.

    Who they are is read from the environment, as `choreo run`, torchrun and mpirun set it; without one the process is
    alone. `timeout` is in seconds, for this call and for every later one that is given none of its own.
    """
    me = read_environment()
    with meet(me.rank, me.world_size, me.address, me.port, me.secret, timeout_s=timeout, job=me.job) as meeting:
        chooser = _shared_chooser(meeting, timeout)
        machine = str(machines(meeting, timeout)[meeting.rank])
        connection = connect(meeting, secrets.token_hex(6), machine, timeout)
    return Communicator(connection, chooser, timeout_s=timeout)


def _shared_chooser(meeting: Meeting, timeout_s: float) -> Chooser:
    """Rank 0's constants and what its environment forces, so that all ranks choose alike."""
    told = b""
    if meeting.rank == 0:
        try:
            told = CHOOSER + Chooser(meeting.world_size, load_constants(), forced_by_environment()).to_json()
        except ChoreoError as error:
            told = REFUSED + str(error).encode()
    first = meeting.exchange(told, timeout_s)[0]
    if first.startswith(REFUSED):
        raise UsageError(first[1:].decode() if meeting.rank == 0 else f"rank 0: {first[1:].decode()}")
    return Chooser.from_json(first[1:], meeting.world_size)
