"""Strangers who connect by the hundred: members connect and work, and no descriptor of the program's is taken."""

from __future__ import annotations

import itertools
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import choreo
from choreo.errors import PeerFailure
from choreo.run.communicator import Communicator
from choreo.run.transport import strangers, tcp
from choreo.run.transport.dial import AuthenticatedSocket
from choreo.run.transport.limits import MAX_UNAUTHENTICATED
from choreo.run.transport.peer_info import PeerInfo
from choreo.run.transport.strangers import Strangers
from choreo.run.transport.tcp import PeerListener, TcpConnections
from tests.helpers.network.flood import Flood, listening
from tests.helpers.network.hosts import Hosts, NetworkJob, hosts, why_no_hosts
from tests.helpers.ranks.faults import Pipe, eventually

LIMIT = 256  # descriptors of a rank


def test_listeners_share_one_bound_and_the_oldest_goes() -> None:
    dropped: list[int] = []
    first, second = Strangers(dropped.append), Strangers(dropped.append)
    most = MAX_UNAUTHENTICATED // len(strangers._listeners)
    for number in range(most + 2):
        first.add(number, descriptor=3)
    assert dropped == [0, 1]
    second.close()
    first.add(-1, descriptor=3)
    assert dropped == [0, 1]
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    first.add(-2, descriptor=soft - 1)  # the program would run out of descriptors
    assert dropped == [0, 1, 2]


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Hosts]:
    if why_no_hosts():
        pytest.skip(why_no_hosts())
    with hosts(2) as made:
        yield made


def limit_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, hard))


def works_on(comm: Communicator, _: Pipe, seconds: float) -> int:
    """Groups, sums and messages, and files of the program's own."""
    left, right = (comm.rank - 1) % comm.world_size, (comm.rank + 1) % comm.world_size
    opened, end_s = 0, time.monotonic() + seconds
    while comm.broadcast_object(time.monotonic() < end_s):
        group = comm.new_group(range(comm.world_size))
        for at, used in enumerate((comm, group)):
            assert (used.all_reduce(np.ones(1000)) == comm.world_size).all()
            work = used.isend(np.full(5, comm.rank), right, at)
            assert (used.recv(np.empty(5, int), left, at) == left).all()
            work.wait()
            with ExitStack() as files:  # what the program itself needs
                for _number in range(40):
                    files.enter_context(Path("/dev/null").open("rb"))
                    opened += 1
        group.close()
    comm.barrier()
    assert eventually(lambda: len(listening()) == 2), listening()  # of the two ranks here, for messages
    return opened


def test_members_work_while_strangers_flood_every_port(two_hosts: Hosts) -> None:
    """They come to the rendezvous, to the listeners of groups and to those of messages, and say nothing."""
    with ExitStack() as floods:
        made = [floods.enter_context(Flood(name, 300)) for name in two_hosts.names]
        with NetworkJob(two_hosts, [0, 1, 0, 1], works_on, 3.0, before=limit_descriptors) as job:
            ended = job.ended()
        counts = [one.count for one in made]
    assert not [one for one in ended if one.error], "\n".join(one.text for one in ended)
    assert min(one.value for one in ended) > 0
    assert min(counts) > 300, counts


def limit_descriptors_and_be_late() -> None:
    """Rank 4 comes late, so that the rendezvous is open long enough for strangers, however fast the machine is."""
    limit_descriptors()
    if os.environ["RANK"] == "4":
        time.sleep(0.5)


def works_alone(comm: Communicator, _: Pipe) -> tuple[int, int]:
    """A program on one host, where only the rendezvous listened."""
    assert (comm.all_reduce(np.ones(10)) == comm.world_size).all()
    group = comm.new_group([0, 2, 4])
    members = int(group.all_reduce(np.ones(1))[0]) if group else 0
    comm.barrier()
    return members, len(listening())


def test_ranks_of_one_host_meet_while_strangers_flood(two_hosts: Hosts) -> None:
    """And then nobody listens, for all that they do."""
    with Flood(two_hosts.names[0], 300) as flood:
        with NetworkJob(two_hosts, [0] * 5, works_alone, before=limit_descriptors_and_be_late) as job:
            ended = job.ended()
        assert flood.count > 30, flood.count
    assert not [one for one in ended if one.error], "\n".join(one.text for one in ended)
    assert [one.value for one in ended] == [(3 if rank % 2 == 0 else 0, 0) for rank in range(5)]


def leaves_and_comes_back(comm: Communicator, _: Pipe) -> list[int]:
    """Rank 2 leaves; the others shrink, and then grow with it."""
    if comm.rank == 2:
        comm.close()
        time.sleep(0.5)  # strangers find the admission listener meanwhile
        comm = choreo.join(timeout=30.0)
    else:
        with pytest.raises(PeerFailure):
            comm.barrier()
        comm = comm.shrink()
        comm = comm.grow(1, timeout=30.0)
    found = comm.all_gather(np.array([comm.rank])).reshape(-1).tolist()
    comm.barrier()
    comm.close()
    return sorted(found)


def test_a_job_shrinks_and_grows_while_strangers_flood(two_hosts: Hosts) -> None:
    with ExitStack() as floods:
        made = [floods.enter_context(Flood(name, 80)) for name in two_hosts.names]
        with NetworkJob(two_hosts, [0, 1, 0], leaves_and_comes_back, before=limit_descriptors) as job:
            ended = job.ended()
        assert min(one.count for one in made) > 20
    assert not [one for one in ended if one.error], "\n".join(one.text for one in ended)
    assert [one.value for one in ended] == [[0, 1, 2]] * 3


@pytest.fixture
def five() -> Iterator[tuple[list[PeerListener], list[PeerInfo]]]:
    peers = [PeerInfo(rank, "here", 100 + rank, "127.0.0.1") for rank in range(5)]
    listeners = [PeerListener("127.0.0.1") for _ in peers]
    yield listeners, peers
    for one in listeners:
        one.close()


def connect_all(listeners: list[PeerListener], peers: list[PeerInfo]) -> None:
    """All ranks connect, each in a thread."""

    def one(rank: int) -> TcpConnections:
        others = [peer for peer in peers if peer.rank != rank]
        ports = [listeners[peer.rank].port for peer in others]
        end_s = time.monotonic() + 20.0
        return listeners[rank].finish(
            listeners[rank].connect(peers[rank], others, ports, bytes(32), end_s), others, end_s
        )

    with ThreadPoolExecutor(len(peers)) as pool:
        for rank, found in enumerate(pool.map(one, range(len(peers)))):
            assert sorted(found.control) == [other for other in range(len(peers)) if other != rank]
            found.close()


def test_the_rendezvous_accepts_members_behind_more_strangers_than_it_keeps(
    five: tuple[list[PeerListener], list[PeerInfo]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred silent ones come first, and eighty a second after them; their own time is not up before the end."""
    listeners, peers = five
    monkeypatch.setattr(strangers, "HANDSHAKE_S", 60.0)
    monkeypatch.setattr(strangers, "CROWDED_S", 60.0)
    stop = threading.Event()
    with ExitStack() as outsiders:

        def one_more(place: PeerListener) -> None:
            sock = outsiders.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", place.port))

        def keep_coming() -> None:
            while not stop.wait(1 / 80):
                one_more(listeners[0])

        for number in range(2 * MAX_UNAUTHENTICATED):
            one_more(listeners[number % 2])
        thread = threading.Thread(target=keep_coming)
        thread.start()
        try:
            connect_all(listeners, peers)
        finally:
            stop.set()
            thread.join()


def test_a_rank_that_was_dropped_among_strangers_dials_again(
    five: tuple[list[PeerListener], list[PeerInfo]], monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners, peers = five
    drops = iter(range(6))
    real = Strangers.add

    def add(self: Strangers[object], one: object, descriptor: int) -> None:
        real(self, one, descriptor)
        if next(drops, None) is not None:
            self.drop_oldest()

    monkeypatch.setattr(Strangers, "add", add)
    connect_all(listeners, peers)
    assert next(drops, None) is None


def test_a_rank_that_is_slow_after_its_proof_is_waited_for(
    five: tuple[list[PeerListener], list[PeerInfo]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one is that was stopped there, or whose packets were lost: it thinks that it is connected."""
    listeners, peers = five
    monkeypatch.setattr(tcp, "HANDSHAKE_S", 0.3)
    monkeypatch.setattr(strangers, "HANDSHAKE_S", 0.3)
    dial, dialled = tcp.dial_peer, itertools.count()

    def slow(*given: Any) -> AuthenticatedSocket:
        made = dial(*given)
        if next(dialled) < 3:
            time.sleep(2 * tcp.LOOK_S)
        return made

    monkeypatch.setattr(tcp, "dial_peer", slow)
    connect_all(listeners, peers)
    assert next(dialled) == sum(range(5)) * (tcp.STREAMS + 1)


def test_a_full_queue_is_not_death(five: tuple[list[PeerListener], list[PeerInfo]]) -> None:
    """As where there are more ranks than net.core.somaxconn."""
    listeners, peers = five
    with ExitStack() as outsiders:
        for one in listeners[:3]:
            one._listener.listen(0)
            for _ in range(3):
                outsider = outsiders.enter_context(socket.socket())
                outsider.setblocking(False)
                outsider.connect_ex(("127.0.0.1", one.port))
        connect_all(listeners, peers)
