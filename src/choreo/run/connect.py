"""Connect the ranks of a communicator: each makes its segment, maps those of its host, and connects to other hosts."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from choreo.errors import RendezvousError, UsageError
from choreo.run.connection import Connection
from choreo.run.consensus.consensus import Consensus
from choreo.run.consensus.control_channel import ControlChannel, ControlConnection
from choreo.run.consensus.failure_detector import FailureDetector
from choreo.run.consensus.ledger import Ledger
from choreo.run.consensus.quorum import MAJORITY, Quorum
from choreo.run.consensus.status import DIRECTORY_BYTES
from choreo.run.execute.backend import executor, prepare_sealing
from choreo.run.execute.choice import load_algorithms
from choreo.run.execute.segment import Segment, open_segment, remove_stale
from choreo.run.rendezvous.bootstrap import Bootstrap, exchange_made
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.transport.records import available_ciphers
from choreo.run.transport.shortage import why
from choreo.run.transport.tcp import NetworkConfig, PeerListener, TcpConnections, connection_lost

if TYPE_CHECKING:
    from choreo.run.execute.twin.sockets import StreamSpec

__all__ = ["CONNECTING_SHARE", "EXCHANGES", "connect"]

EXCHANGES = 3
# Of the time that is left, for dialling: what remains is for telling the others how that ended.
CONNECTING_SHARE = 0.8
STAGE_BYTES = 8 << 20  # of eight slots
# How long a rank spins before it yields its core: long if every rank has its own core, briefly if they share cores. A
# spin is a PAUSE, which takes 15 ns on some processors and 50 ns on others.
SPINS_ALONE, SPINS_SHARED = 1000, 2
# Every rank has dialled by the time that connections are collected, so this only matters on a busy host.
FINISH_S = 10.0


class _Introduction(msgspec.Struct):
    """The information about itself that a rank sends to the others."""

    host: str
    host_name: str
    pid: int
    segment: str
    segment_bytes: int
    ledger: str
    address: str
    port: int  # where it listens while they connect; 0 if it can be reached from its own host only
    nonce: bytes
    scheduling_group: str  # a digest: the path of a cgroup has any length, and a status has little room
    quorum: str
    ciphers: tuple[str, ...]  # that it can seal its data to other hosts with; none on a plain network


def connect(
    bootstrap: Bootstrap,
    name: str,
    host: str,
    timeout_s: float,
    network: NetworkConfig | None = None,
    *,
    quorum: str = MAJORITY,
) -> Connection:
    """Connect this rank to all others; every rank calls it. It exchanges introductions, "dialled", and "connected".

    `name` is part of the segment's file name. `host` is the same text on ranks that share memory. If there may be
    several hosts, every rank gives a `network`, all with the same secret. All give the same `quorum`. A rank that
    cannot continue tells the others why in the next exchange, and all raise.
    """
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as names:
        mine = _Connecting(bootstrap, host, network, quorum, timeout_s=timeout_s, undo=undo, names=names)
        blobs = exchange_made(bootstrap.exchange, lambda: mine.introduce(name), timeout_s)
        ranks = [msgspec.json.decode(blob, type=_Introduction) for blob in blobs]
        _check_quorums(ranks)
        exchange_made(bootstrap.exchange, lambda: mine.open(ranks), timeout_s)
        try:
            mine.accept()
            bootstrap.exchange(b"", timeout_s)
            connection = mine.finish(ranks)
        except (OSError, MemoryError) as error:
            raise RendezvousError(f"this rank could not connect: {why(error)}") from None
        names.close()  # once the names are gone, nothing can be left behind
        undo.pop_all()
    return connection


class _Connecting:
    """A rank that connects. `undo` closes what it has opened so far, `names` removes what the others open by name."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        host: str,
        network: NetworkConfig | None,
        quorum: str,
        *,
        timeout_s: float,
        undo: contextlib.ExitStack,
        names: contextlib.ExitStack,
    ) -> None:
        self._rank, self._world_size, self._host, self._network = bootstrap.rank, bootstrap.world_size, host, network
        self._end_s, self._undo, self._names = time.monotonic() + timeout_s, undo, names
        self._quorum = quorum
        self._listener: PeerListener | None = None
        self._tcp = TcpConnections()
        self._maps: list[mmap.mmap | None] = [None] * self._world_size
        self._pidfds, self._watched = [-1] * self._world_size, [-1] * self._world_size
        self._until_watched = undo.enter_context(contextlib.ExitStack())  # the executor closes these

    def introduce(self, name: str) -> bytes:
        """Create what the other ranks open, and say where it is."""
        remove_stale()
        load_algorithms()
        self._segment = segment = Segment(f"choreo-{name}-{self._rank}", self._world_size, STAGE_BYTES)
        self._undo.callback(segment.map.close)
        self._undo.callback(segment.close)
        self._directory_at = segment.take(DIRECTORY_BYTES)  # now, while a shortage can still be told to the others
        log = segment.path.with_name(segment.path.name.replace("choreo-", "choreo-log-", 1))
        self._names.callback(segment.unlink)
        self._names.callback(log.unlink, missing_ok=True)
        self._ledger = Ledger(log, create=True)
        self._undo.callback(lambda: self._ledger.close())  # noqa: PLW0108 - the one that is open by then
        executor().prepare_segment(segment.map, self._rank, self._world_size, STAGE_BYTES)
        if self._network is not None:
            self._listener = PeerListener(self._network.address)
            self._names.callback(self._listener.close)
        me = _Introduction(
            self._host,
            socket.gethostname(),
            os.getpid(),
            str(segment.path),
            segment.bytes,
            str(log),
            "" if self._network is None else self._network.address,
            0 if self._listener is None else self._listener.port,
            secrets.token_bytes(16),
            hashlib.sha256(_scheduling_group().encode()).hexdigest()[:16],
            self._quorum,
            available_ciphers() if self._network is not None and self._network.sealed else (),
        )
        return msgspec.json.encode(me)

    def open(self, ranks: list[_Introduction]) -> bytes:
        """Open what the others have created, and dial the lower ranks on other hosts."""
        try:
            self._open(ranks)
        except BaseException:
            if self._listener is not None:
                self._listener.close()  # or those that dial this rank would wait for it
            raise
        return b""

    def _open(self, ranks: list[_Introduction]) -> None:
        self._peers = tuple(
            PeerInfo(number, rank.host_name, rank.pid, rank.address) for number, rank in enumerate(ranks)
        )
        here = [number for number, rank in enumerate(ranks) if rank.host == self._host]
        for number in here:
            if number != self._rank:
                try:
                    self._maps[number] = theirs = open_segment(Path(ranks[number].segment), ranks[number].segment_bytes)
                    self._undo.callback(theirs.close)
                    self._pidfds[number] = os.pidfd_open(ranks[number].pid)
                except OSError as error:
                    raise connection_lost(self._peers[number], error) from None
                self._undo.callback(os.close, self._pidfds[number])
                self._watch(number, self._pidfds[number])
        if here[0] != self._rank:
            self._ledger.close()
            try:
                self._ledger = Ledger(Path(ranks[here[0]].ledger), create=False)
            except OSError as error:
                raise connection_lost(self._peers[here[0]], error) from None
        self._elsewhere = [peer for peer in self._peers if peer.rank not in here]
        if self._elsewhere:
            self._network = _communicator_network(self._network, ranks)
            if self._network.sealed:
                prepare_sealing()
            assert self._listener is not None
            ports = [ranks[peer.rank].port for peer in self._elsewhere]
            me, key = self._peers[self._rank], self._network.secret
            self._undo.callback(lambda: self._tcp.close())  # noqa: PLW0108 - the connections that exist by then
            self._tcp = self._listener.connect(me, self._elsewhere, ports, key, self._end_s)

    def accept(self) -> None:
        """Accept the higher ranks on other hosts, which have all dialled."""
        if self._elsewhere:
            assert self._listener is not None
            end_s = max(self._end_s, time.monotonic() + FINISH_S)
            self._tcp = self._listener.finish(self._tcp, self._elsewhere, end_s)
            # The executor closes its descriptors when it ends, and the failure detector still needs its own then.
            for number, connection in self._tcp.control.items():
                self._watch(number, connection.socket.fileno())

    def finish(self, ranks: list[_Introduction]) -> Connection:
        """The connection, once all ranks have opened what they need."""
        rank, segment = self._rank, self._segment
        controls = {number: ControlConnection(connection) for number, connection in self._tcp.control.items()}
        detector = FailureDetector(
            rank,
            self._peers,
            segment.map,
            maps=self._maps,
            pidfds=self._pidfds,
            directory_at=self._directory_at,
            channel=ControlChannel(controls) if self._elsewhere else None,
        )
        streams = _streams(self._tcp, "" if self._network is None else self._network.cipher)
        others = [
            (self._maps[number], rank.pid, self._watched[number], streams.get(number, ()), controls.get(number))
            for number, rank in enumerate(ranks)
        ]
        here = [rank for rank in ranks if rank.host == self._host]
        spins = SPINS_ALONE if len(here) <= (os.cpu_count() or 1) else SPINS_SHARED
        apart = len({neighbour.scheduling_group for neighbour in here}) > 1
        endpoint = executor().Endpoint(rank, self._world_size, segment.map, STAGE_BYTES, others, spins, apart)
        self._until_watched.pop_all()
        return Connection(
            rank,
            self._world_size,
            self._peers,
            segment,
            endpoint,
            remote=np.array([rank.host != self._host for rank in ranks]),
            sockets=[stream.socket for several in self._tcp.streams.values() for stream in several],
            host=self._host,
            detector=detector,
            consensus=Consensus(detector, self._ledger, Quorum(_ranks_by_host(ranks), self._quorum)),
            maps=self._maps,
            pidfds=self._pidfds,
            network=self._network,
        )

    def _watch(self, number: int, descriptor: int) -> None:
        self._watched[number] = os.dup(descriptor)
        self._until_watched.callback(os.close, self._watched[number])


def _check_quorums(ranks: list[_Introduction]) -> None:
    for rank, introduction in enumerate(ranks):
        if introduction.quorum != ranks[0].quorum:
            raise UsageError(
                f'the quorum of rank {rank} is "{introduction.quorum}" and that of rank 0 "{ranks[0].quorum}"; '
                "give all ranks the same CHOREO_QUORUM, or quorum="
            )


def _scheduling_group(kernel: Path = Path("/proc")) -> str:
    """The scheduler's groups in which this process shares cores: its autogroup (that of its session) and its cgroup.

    A process whose ancestors never made a session is in no autogroup: then the kernel's file is empty.
    """
    found = []
    with contextlib.suppress(OSError):
        if (kernel / "sys/kernel/sched_autogroup_enabled").read_text().strip() != "0":
            found.append((kernel / "self/autogroup").read_text().partition(" ")[0])
    with contextlib.suppress(OSError):
        found.append((kernel / "self/cgroup").read_text())
    return " ".join(found)


def _communicator_network(network: NetworkConfig | None, ranks: list[_Introduction]) -> NetworkConfig:
    """The network with this communicator's own key. Every rank derives the same one."""
    unreachable = [rank for rank, introduction in enumerate(ranks) if not introduction.port]
    if network is None or unreachable:
        raise RendezvousError(
            f"the ranks are on several hosts, but rank {unreachable[0]} has no address at which the others reach it",
            ranks=unreachable,
        )
    others = [rank for rank, introduction in enumerate(ranks) if bool(introduction.ciphers) != bool(ranks[0].ciphers)]
    if others:
        first, other = ("sealed", "plain") if ranks[0].ciphers else ("plain", "sealed")
        raise RendezvousError(
            f"the network is {first} for rank 0 and {other} for rank {others[0]}; give all ranks the same --network "
            "(CHOREO_NETWORK)",
            ranks=others,
        )
    cipher = next((name for name in ranks[0].ciphers if all(name in rank.ciphers for rank in ranks)), "")
    if network.sealed and not cipher:
        raise RendezvousError("the ranks' libcryptos have no cipher in common; use --network plain on all hosts")
    return replace(network, secret=network.derive_key("communicator", (rank.nonce for rank in ranks)), cipher=cipher)


def _streams(tcp: TcpConnections, cipher: str) -> dict[int, tuple[StreamSpec, ...]]:
    """The streams as the executor takes them: descriptors, and keys if they are sealed."""
    return {
        number: tuple(
            (stream.socket.fileno(), cipher, *stream.record_keys) if cipher else stream.socket.fileno()
            for stream in several
        )
        for number, several in tcp.streams.items()
    }


def _ranks_by_host(ranks: list[_Introduction]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each host, in order of the lowest."""
    found: dict[str, list[int]] = {}
    for rank, introduction in enumerate(ranks):
        found.setdefault(introduction.host, []).append(rank)
    return tuple(map(tuple, found.values()))
