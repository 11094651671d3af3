"""Connect the ranks of a communicator: each makes its segment, maps those of its host, and connects to other hosts."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import socket
import time
from pathlib import Path

import msgspec
import numpy as np

from choreo.errors import RendezvousError
from choreo.run.connection import Connection
from choreo.run.consensus.consensus import Consensus
from choreo.run.consensus.control_channel import ControlChannel, ControlConnection
from choreo.run.consensus.failure_detector import FailureDetector
from choreo.run.consensus.ledger import Ledger
from choreo.run.consensus.status import DIRECTORY_BYTES
from choreo.run.execute.backend import executor
from choreo.run.execute.segment import Segment, open_segment, remove_stale
from choreo.run.rendezvous.bootstrap import Bootstrap
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.transport.tcp import NetworkConfig, PeerListener, TcpConnections, connection_lost

__all__ = ["connect"]

STAGE_BYTES = 8 << 20  # of eight slots
# How long a rank spins before it yields its core: long where every rank has a core, hardly where they share cores. A
# spin is a PAUSE, which takes 15 ns on some processors and 50 ns on others.
SPINS_ALONE, SPINS_SHARED = 1000, 2
# Every rank has dialled by the time that connections are collected, so this is only for a busy host.
FINISH_S = 10.0


class _Introduction(msgspec.Struct):
    """What a rank tells the others about itself."""

    host: str
    host_name: str
    pid: int
    segment: str
    segment_bytes: int
    ledger: str
    address: str
    port: int  # where it listens while they connect; 0 if it can be reached from its own host only
    nonce: bytes
    scheduling_group: str


def connect(  # noqa: PLR0915 - everything that is opened here is closed here if it fails
    bootstrap: Bootstrap, name: str, host: str, timeout_s: float, network: NetworkConfig | None = None
) -> Connection:
    """Connect this rank to all others; every rank calls it. It takes two exchanges.

    `name` is part of the segment's file name. `host` is the same text on ranks that share memory. If there may be
    several hosts, every rank gives a `network`, all with the same secret.
    """
    rank, world_size, end_s = bootstrap.rank, bootstrap.world_size, time.monotonic() + timeout_s
    remove_stale()
    segment = Segment(f"choreo-{name}-{rank}", world_size, STAGE_BYTES)
    log = segment.path.with_name(segment.path.name.replace("choreo-", "choreo-log-", 1))
    with contextlib.ExitStack() as undo:
        undo.callback(segment.close)
        # In the end every rank has opened the files that it needs. Without names, nothing can be left behind.
        names = contextlib.ExitStack()
        names.callback(segment.unlink)
        names.callback(log.unlink, missing_ok=True)
        with names:
            ledger = Ledger(log, create=True)
            undo.callback(lambda: ledger.close())  # noqa: PLW0108 - the one that is open by then
            executor().prepare_segment(segment.map, rank, world_size, STAGE_BYTES)
            listener = None if network is None else PeerListener(network.address)
            if listener is not None:
                names.callback(listener.close)
            me = _Introduction(
                host,
                socket.gethostname(),
                os.getpid(),
                str(segment.path),
                segment.bytes,
                str(log),
                "" if network is None else network.address,
                0 if listener is None else listener.port,
                secrets.token_bytes(16),
                _scheduling_group(),
            )
            blobs = bootstrap.exchange(msgspec.json.encode(me), timeout_s)
            ranks = [msgspec.json.decode(blob, type=_Introduction) for blob in blobs]
            peers = tuple(PeerInfo(number, one.host_name, one.pid, one.address) for number, one in enumerate(ranks))
            here = [number for number, one in enumerate(ranks) if one.host == host]
            maps: list[mmap.mmap | None] = [None] * world_size
            pidfds = [-1] * world_size
            for number in here:
                if number != rank:
                    try:
                        maps[number] = open_segment(Path(ranks[number].segment), ranks[number].segment_bytes)
                        pidfds[number] = os.pidfd_open(ranks[number].pid)
                    except OSError as error:
                        raise connection_lost(peers[number], error) from None
                    undo.callback(os.close, pidfds[number])
            if here[0] != rank:
                ledger.close()
                try:
                    ledger = Ledger(Path(ranks[here[0]].ledger), create=False)
                except OSError as error:
                    raise connection_lost(peers[here[0]], error) from None
            tcp, elsewhere = TcpConnections(), [peer for peer in peers if peer.rank not in here]
            if elsewhere:
                network = _communicator_network(network, ranks)
                assert listener is not None
                ports = [ranks[peer.rank].port for peer in elsewhere]
                tcp = listener.connect(peers[rank], elsewhere, ports, network.secret, end_s)
                undo.callback(lambda: tcp.close())  # noqa: PLW0108 - the ones that there are by then
            bootstrap.exchange(b"", timeout_s)
            if elsewhere and listener is not None:
                tcp = listener.finish(tcp, elsewhere, max(end_s, time.monotonic() + FINISH_S))
            controls = {number: ControlConnection(one) for number, one in tcp.control.items()}
            detector = FailureDetector(
                rank,
                peers,
                segment.map,
                maps=maps,
                pidfds=pidfds,
                directory_at=segment.take(DIRECTORY_BYTES),
                channel=ControlChannel(controls) if elsewhere else None,
            )
            # The executor closes its descriptors when it ends, and the detector still needs its own then.
            watched = [controls[at].socket.fileno() if at in controls else fd for at, fd in enumerate(pidfds)]
            watched = [os.dup(fd) if fd >= 0 else -1 for fd in watched]
            streams = {number: tuple(one.fileno() for one in several) for number, several in tcp.streams.items()}
            others = [(maps[at], one.pid, watched[at], streams.get(at, ())) for at, one in enumerate(ranks)]
            spins = SPINS_ALONE if len(here) <= (os.cpu_count() or 1) else SPINS_SHARED
            apart = len({ranks[number].scheduling_group for number in here}) > 1
            endpoint = executor().Endpoint(rank, world_size, segment.map, STAGE_BYTES, others, spins, apart)
            if detector.channel is not None:
                detector.channel.progress_of = endpoint.progress_of
        undo.pop_all()
    return Connection(
        rank,
        world_size,
        peers,
        segment,
        endpoint,
        remote=np.array([one.host != host for one in ranks]),
        sockets=[one for several in tcp.streams.values() for one in several],
        host=host,
        detector=detector,
        consensus=Consensus(detector, ledger, _ranks_by_host(ranks)),
        maps=maps,
        pidfds=pidfds,
        network=network,
    )


def _scheduling_group(kernel: Path = Path("/proc")) -> str:
    """What shares the processor's time with this process as one: its autogroup, which is its session's, and cgroup.

    A process whose ancestors never made a session is in no autogroup: the kernel's file is empty then.
    """
    found = []
    with contextlib.suppress(OSError):
        if (kernel / "sys/kernel/sched_autogroup_enabled").read_text().strip() != "0":
            found.append((kernel / "self/autogroup").read_text().partition(" ")[0])
    with contextlib.suppress(OSError):
        found.append((kernel / "self/cgroup").read_text())
    return " ".join(found)


def _communicator_network(network: NetworkConfig | None, ranks: list[_Introduction]) -> NetworkConfig:
    """The network with this communicator's own key, which every rank derives alike."""
    unreachable = [rank for rank, one in enumerate(ranks) if not one.port]
    if network is None or unreachable:
        raise RendezvousError(
            f"the ranks are on several hosts, but rank {unreachable[0]} has no address at which the others reach it",
            ranks=unreachable,
        )
    return NetworkConfig(network.address, network.derive_key("communicator", (one.nonce for one in ranks)))


def _ranks_by_host(ranks: list[_Introduction]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each host, in order of the lowest."""
    found: dict[str, list[int]] = {}
    for rank, one in enumerate(ranks):
        found.setdefault(one.host, []).append(rank)
    return tuple(map(tuple, found.values()))
