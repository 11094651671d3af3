"""`choreo.init()`: a process becomes a rank, finds the others, and connects to them."""

from __future__ import annotations

import contextlib
import secrets

from choreo.errors import ChoreoError, UsageError
from choreo.run.communicator import DEFAULT_TIMEOUT_S, Communicator
from choreo.run.connect import CONNECTING_SHARE, connect
from choreo.run.consensus.quorum import given_quorum
from choreo.run.execute.backend import warn_if_slow
from choreo.run.execute.choice import Chooser, forced_by_environment
from choreo.run.execute.constants import load_constants, network_constants
from choreo.run.object_calls import PICKLE, Codec, choose_codec
from choreo.run.rendezvous.bootstrap import Bootstrap, WithDeadline
from choreo.run.rendezvous.environment import given_or_environment, network_is_sealed
from choreo.run.rendezvous.hosts import lowest_rank_per_host
from choreo.run.rendezvous.known_addresses import remember_addresses
from choreo.run.rendezvous.rendezvous import rendezvous
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.tcp import NetworkConfig
from choreo.units import time_of

__all__ = ["init", "make_communicator"]

# The first byte of rank 0's blob: its chooser, or why it has none.
CHOOSER, REFUSED = b"+", b"!"
# Ranks that have met at the last moment still get so long to connect, or `timeout` if that is less.
CONNECT_S = 10.0


def init(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    address: str | None = None,
    secret: str | bytes | None = None,
    network: str | None = None,
    codec: Codec | None = None,
    allow_pickle: bool = True,
    timeout: float | str = DEFAULT_TIMEOUT_S,
    quorum: str | None = None,
) -> Communicator:
    """Connect this process to all ranks of its job, and return their communicator. Every rank calls it.

    The rank is read from the environment, as `choreo run`, torchrun and mpirun set it, unless `rank` and `world_size`
    are given. Without either, the process is the only rank. `address` ("HOST:PORT") is where rank 0 listens, instead of
    MASTER_ADDR and MASTER_PORT; `secret` replaces CHOREO_SECRET.

    Data between hosts is "sealed" (encrypted and authenticated), unless `network` or CHOREO_NETWORK is "plain" on all
    ranks. Calls with objects use `codec.encode` and `codec.decode` instead of pickle; `allow_pickle=False` refuses
    them. `timeout` is in seconds, or text like "30s". It holds for this call, and is the default of all later ones.
    `quorum` says who continues after a network partition between hosts: a "majority" of the ranks, or "any" side. The
    default is CHOREO_QUORUM, or else "majority".

    >>> import choreo, numpy as np
    >>> with choreo.init() as comm:
    ...     comm
    ...     comm.all_reduce(np.ones(3))
    <Communicator rank 0 of 1>
    array([1., 1., 1.])
    """
    seconds, rule = time_of(timeout, "timeout"), given_quorum(quorum)
    deadline = Deadline.after(seconds)
    me = given_or_environment(rank, world_size, address, secret)
    sealed, objects = network_is_sealed(network), choose_codec(codec, allow_pickle)
    with rendezvous(me.rank, me.world_size, me.address, me.port, me.secret, timeout_s=seconds, job=me.job) as found:
        where = found.members[found.rank].address
        left_s = max(deadline.left_s, min(seconds, CONNECT_S))
        return make_communicator(
            found, where, me.secret, timeout_s=seconds, sealed=sealed, codec=objects, quorum=rule, setup_s=left_s
        )


def make_communicator(
    bootstrap: Bootstrap,
    address: str,
    secret: bytes | None,
    *,
    timeout_s: float,
    sealed: bool,
    codec: Codec | None = PICKLE,
    quorum: str | None = None,
    setup_s: float | None = None,
) -> Communicator:
    """A communicator of ranks that can exchange blobs; every rank calls it, and it takes at most `setup_s`.

    `address` is where other hosts reach this rank. Ranks on several hosts need a secret. `sealed` says whether
    what they send is encrypted. `quorum` is as for `init`.
    """
    rule, deadline = given_quorum(quorum), Deadline.after(timeout_s if setup_s is None else setup_s)
    bootstrap = WithDeadline(bootstrap, deadline)
    if bootstrap.rank == 0:
        warn_if_slow()
    lowest = lowest_rank_per_host(bootstrap, timeout_s)
    network = None
    if len(set(lowest)) > 1:
        assert secret is not None, "without a secret all ranks are on one host"
        network = NetworkConfig(address, secret, sealed)
    chooser = _shared_chooser(bootstrap, timeout_s, several_hosts=network is not None)
    host = str(lowest[bootstrap.rank])
    connecting_s = CONNECTING_SHARE * deadline.left_s
    connection = connect(bootstrap, secrets.token_hex(6), host, connecting_s, network, quorum=rule)
    is_first_here = lowest[bootstrap.rank] == bootstrap.rank
    remember_addresses((peer.address for peer in connection.peers), write=is_first_here)
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        communicator = Communicator(connection, chooser, timeout_s=timeout_s, codec=codec, setup_s=deadline.left_s)
        undo.pop_all()
    return communicator


def _shared_chooser(bootstrap: Bootstrap, timeout_s: float, *, several_hosts: bool) -> Chooser:
    """Rank 0's constants and what its environment forces, so that all ranks choose the same algorithms."""
    blob = b""
    if bootstrap.rank == 0:
        try:
            constants = network_constants() if several_hosts else load_constants()
            blob = CHOOSER + Chooser(bootstrap.world_size, constants, forced_by_environment()).to_json()
        except ChoreoError as error:
            blob = REFUSED + str(error).encode()
    first = bootstrap.exchange(blob, timeout_s)[0]
    if first.startswith(REFUSED):
        reason = first[1:].decode()
        raise UsageError(reason if bootstrap.rank == 0 else f"rank 0: {reason}")
    return Chooser.from_json(first[1:], bootstrap.world_size)
