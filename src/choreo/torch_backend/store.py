"""Rendezvous of a process group's members through torch's store."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from choreo.errors import RendezvousError
from choreo.run.communicator import Communicator
from choreo.run.init import make_communicator
from choreo.run.rendezvous.environment import network_is_sealed
from choreo.run.transport.addresses import LOOPBACK
from choreo.run.transport.deadline import Deadline

__all__ = ["StoreBootstrap", "connect_through_store"]


class StoreBootstrap:
    """Exchanges blobs between the members of a group. Only they take part.

    A key says how often this rank has made a group of this name, so that a group can be made again on the same store.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self._store, self.rank, self.world_size = store, rank, world_size
        self._attempt = store.add(f"choreo/attempts/{rank}", 1)
        self._exchange = 0

    def exchange(self, blob: bytes, timeout_s: float) -> list[bytes]:
        """The blobs of all members, by rank."""
        self._exchange += 1
        keys = [self._key(self._exchange, rank) for rank in range(self.world_size)]
        try:
            self._store.set(keys[self.rank], blob)
            self._store.wait(keys, timedelta(seconds=timeout_s))
            found = [self._store.get(key) for key in keys]
        except (dist.DistStoreError, dist.DistNetworkError, RuntimeError) as error:
            raise self._missing(keys, timeout_s, error) from None
        # All have come to this exchange, so all have read the one before.
        if self._exchange > 1:
            self._forget(self._exchange - 1)
        return found

    def _key(self, exchange: int, rank: int) -> str:
        return f"choreo/{self._attempt}/{exchange}/{rank}"

    def _forget(self, exchange: int) -> None:
        with suppress(RuntimeError):  # some stores keep what they have
            self._store.delete_key(self._key(exchange, self.rank))

    def _missing(self, keys: list[str], timeout_s: float, error: Exception) -> RendezvousError:
        """The members that did not come."""
        try:
            absent = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        except RuntimeError:
            return RendezvousError(f"rank {self.rank} of {self.world_size} lost torch's store: {error}", ranks=(0,))
        if not absent:
            return RendezvousError(f"torch's store failed at rank {self.rank} of {self.world_size}: {error}")
        who = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {', '.join(map(str, absent))}"
        return RendezvousError(
            f"{who} of {self.world_size} did not join the process group within {timeout_s:.3g} s; rank {self.rank} "
            "waited for them in torch's store",
            ranks=absent,
        )


def connect_through_store(store: Any, rank: int, world_size: int, timeout_s: float) -> Communicator:
    """A communicator of the members of a process group; every member calls it.

    Rank 0 makes a secret for connections between hosts, unless CHOREO_SECRET has one. The store hands it to the
    others, so it is as safe as the store.
    """
    deadline = Deadline.after(timeout_s)
    bootstrap = StoreBootstrap(store, rank, world_size)
    secret = os.environ.get("CHOREO_SECRET", "").encode() or secrets.token_hex(32).encode()
    secret = bootstrap.exchange(secret if rank == 0 else b"", deadline.left_s)[0]
    return make_communicator(bootstrap, _local_address(store), secret, timeout_s=timeout_s, sealed=network_is_sealed())


def _local_address(store: Any) -> str:
    """This process's address for other hosts: its address on the way to the store, if that is on the network."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", None) or socket.gethostname()
    port = getattr(store, "port", None) or 1
    try:
        for family, kind, protocol, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # of a datagram socket: nothing is sent
                return str(probe.getsockname()[0])
    except OSError:
        pass
    return LOOPBACK
