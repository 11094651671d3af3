"""Commit a new connection of a job's ranks and of joining processes, or leave everything as it was.

All of them make the same exchanges. One that cannot continue says so in the next exchange, and all give up. In the end
all hold a new connection, and the old one's consensus commits it: a rank that completed the last exchange proposes yes,
one that did not proposes no. So the old connection has one successor, whenever a rank dies or is cut off. New processes
have no vote; the rank that admits them tells them the outcome.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import NoReturn, Protocol

from choreo.errors import JoinError, RendezvousError, UsageError
from choreo.run.connect import connect
from choreo.run.connection import Connection
from choreo.run.rendezvous.bootstrap import Bootstrap
from choreo.run.rendezvous.environment import JobAddress
from choreo.run.rendezvous.hosts import lowest_rank_per_host
from choreo.run.transport.addresses import is_local, resolve
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.tcp import NetworkConfig, address_toward

__all__ = ["OK", "JointBootstrap", "check_all_ok", "connect_and_commit", "error_blob", "own_network_config"]

# The first byte of a blob in an exchange.
OK, ERROR = b"+", b"!"
MAX_ERROR_BYTES = 1000


class JointBootstrap(Bootstrap, Protocol):
    """Old and new ranks. `exchange` raises JoinError on all of them if one cannot go on."""

    @property
    def network(self) -> NetworkConfig | None:
        """This rank's address for other hosts; None if they cannot reach it."""
        ...

    def give_up(self, error: BaseException) -> NoReturn:
        """Tell all in the next exchange that this rank cannot go on; raises JoinError, as on all others."""
        ...

    def commit(self) -> None:
        """After a last exchange, agree that all go on with the new connection; raises if they do not."""
        ...


def connect_and_commit(bootstrap: JointBootstrap, timeout_s: float, quorum: str) -> Connection:
    """Connect all of them, or raise JoinError on all of them."""
    try:
        lowest = lowest_rank_per_host(bootstrap, timeout_s)
        network = bootstrap.network if len(set(lowest)) > 1 else None
        name, host = secrets.token_hex(6), str(lowest[bootstrap.rank])
        connection = connect(bootstrap, name, host, timeout_s, network, quorum=quorum)
    except (OSError, UsageError, RendezvousError) as error:
        bootstrap.give_up(error)
    try:
        bootstrap.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def own_network_config(job: JobAddress, deadline: Deadline, *, sealed: bool) -> NetworkConfig | None:
    """This process's address for ranks on other hosts; None without a secret, or if the job's address is unknown."""
    if job.secret is None:
        return None
    with suppress(OSError):
        first = resolve(job.address, job.port, deadline)[0]
        there = str(first.address[0])
        own = there if is_local(there, deadline) else address_toward(first)
        return NetworkConfig(own, job.secret, sealed)
    return None


def error_blob(reason: object) -> bytes:
    """The blob of a rank that cannot go on."""
    named = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else str(reason)
    return ERROR + named.encode()[:MAX_ERROR_BYTES]


def check_all_ok(blobs: list[bytes]) -> list[bytes]:
    """The contents of the blobs; JoinError if a rank cannot go on."""
    for rank, blob in enumerate(blobs):
        if not blob.startswith(OK):
            raise JoinError(f"rank {rank} cannot go on: {blob[len(ERROR) :].decode(errors='replace')}")
    return [blob[len(OK) :] for blob in blobs]
