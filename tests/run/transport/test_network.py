"""Ranks on several hosts, which are network namespaces: shared memory within one, TCP between them."""

from __future__ import annotations

import gc
import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from choreo import ReduceOp
from choreo.errors import PeerFailure
from choreo.run.communicator import Communicator
from tests.helpers.network.hosts import Hosts, NetworkJob, why_no_hosts
from tests.helpers.ranks.faults import Pipe, eventually, names_held, values

pytestmark = pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "they can")
MIXED = (0, 0, 1, 1)  # two ranks on each of two hosts


def everything(comm: Communicator, _: Pipe) -> int:
    rank, size = comm.rank, comm.world_size
    for count in (0, 1, 7, 4099, 700_001):  # the last is cut up for the streams
        given = [np.arange(count, dtype=np.int64) * (other + 1) for other in range(size)]
        total = sum(given)
        x = given[rank].copy()
        assert (comm.all_reduce(x) == total).all()
        assert (comm.all_reduce(given[rank], ReduceOp.MAX, out=np.empty_like(x)) == np.max(given, axis=0)).all()
        x = given[rank].astype(np.float32)
        comm.broadcast(x, root=size - 1)
        assert (x == given[-1].astype(np.float32)).all()
        assert (comm.all_gather(given[rank]) == np.stack(given)).all()
        wide = np.stack([given[rank]] * size)
        assert (comm.reduce_scatter(wide).reshape(-1) == total).all()
        found = comm.reduce(given[rank].copy(), root=1)
        assert found is None if rank != 1 else (found == total).all()
        found = comm.gather(given[rank], root=2 % size)
        assert found is None if rank != 2 % size else (found == np.stack(given)).all()
        found = comm.scatter(np.stack(given) if rank == 0 else None, 0, out=np.empty((1, count), np.int64))
        assert (found == given[rank]).all()
        found = comm.all_to_all(np.stack([given[rank] + other for other in range(size)]))
        assert (found == np.stack([one + rank for one in given])).all()
        comm.barrier()
    summed = size * (size - 1) // 2
    uneven = comm.all_to_all(np.full((summed, 3), rank), send_sizes=list(range(size)), recv_sizes=[rank] * size)
    assert (uneven[:, 0] == np.repeat(np.arange(size), rank)).all()
    strided = np.arange(20.0)[::2] + rank
    comm.all_reduce(strided)
    assert (strided == size * np.arange(20.0)[::2] + summed).all()
    assert comm.broadcast_object({"from": rank}, root=3) == {"from": 3}
    work = [comm.all_reduce(np.full(100_000, float(rank)), async_op=True) for _ in range(3)]
    assert all((one.result() == summed).all() for one in work)
    return size


def messages(comm: Communicator, _: Pipe) -> float:
    rank, size = comm.rank, comm.world_size
    right, left = (rank + 1) % size, (rank - 1) % size
    out, into = np.full(500_000, float(rank)), np.empty(500_000)
    work = [comm.isend(out, right, tag=tag) for tag in (5, 6)]
    comm.recv(into, left, tag=6)  # the other way round
    assert (into == left).all()
    comm.recv(into, left, tag=5)
    for one in work:
        one.wait()
    across = (rank + 2) % size
    small = np.array([0])
    sent = comm.isend(np.array([rank]), across)
    comm.recv(small, across)
    sent.wait()
    with pytest.raises(PeerFailure, match="sent nothing before the deadline"):
        comm.recv(small, across, tag=99, timeout=0.05)
    comm.barrier()
    return float(small[0])


def gets_nonsense(comm: Communicator, _: Pipe) -> str:
    """Somebody who is not of this job finds where a rank takes messages."""
    place = (comm.messages._peers[comm.rank].address, comm.messages.port)
    x, across = np.arange(1000.0), (comm.rank + 2) % 4
    for nonsense in (b"", b"?", bytes(4096), random.Random(comm.rank).randbytes(5000)):
        with socket.socket() as outsider:
            outsider.connect(place)
            with suppress(OSError):
                outsider.sendall(nonsense)
        work = comm.isend(x, across, tag=7)
        assert (comm.recv(np.empty(1000), across, tag=7) == x).all()
        work.wait()
    comm.barrier()
    return "fine"


def test_strangers_who_send_messages_are_not_heard(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, MIXED, gets_nonsense) as job:
        assert values(job.ended()) == ["fine"] * 4


def from_any(comm: Communicator, _: Pipe) -> list[int]:
    """Rank 0 receives from its own host and from the other."""
    if comm.rank:
        comm.send(np.full(3, comm.rank), 0, tag=4)
        comm.barrier()
        return []
    x = np.empty(3, np.int64)
    sources = [comm.irecv(x, None, tag=4).result() for _ in range(3)]
    comm.barrier()
    return sorted(sources)


def test_a_receive_from_any_source_hears_both_hosts(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, MIXED, from_any) as job:
        assert values(job.ended())[0] == [1, 2, 3]


def groups(comm: Communicator, _: Pipe) -> tuple[float, ...]:
    rank = comm.rank
    sums = []
    for members in ((0, 1), (1, 2), (3, 0, 2)):
        group = comm.new_group(members)
        if group:
            x = np.full(200_000, float(rank))
            sums.append(float(group.all_reduce(x)[-1]))
            assert group.all_gather_object(rank) == list(members)
            group.close()
    mesh = comm.mesh((2, 2), ("host", "peer"))
    sums += [float(mesh[name].all_reduce(np.array([float(rank)]))[0]) for name in ("host", "peer")]
    comm.barrier()
    mesh.close()
    return tuple(sums)


def drops_groups(comm: Communicator, _: Pipe) -> bool:
    """Groups that nobody closes, without the garbage collector."""

    def held() -> tuple[int, int, int]:
        return (
            len(list(Path("/proc/self/fd").iterdir())),
            len(list(Path("/proc/self/task").iterdir())),
            len(names_held(os.getpid())),
        )

    gc.disable()
    peer, before = 1 - comm.rank, held()
    for how in ("plain", "messages", "work"):
        group = comm.new_group([1, 0])
        group.all_reduce(np.ones(10))
        if how == "messages":
            work = group.isend(np.ones(3), peer)
            group.recv(np.empty(3), peer)
            work.wait()
            del work
        if how == "work":
            group.all_reduce(np.ones(10), async_op=True)
        del group
        comm.barrier()
        assert eventually(lambda: held() == before), (how, held(), before)
    return True


def test_groups_between_hosts_that_are_dropped_leave_nothing(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, [0, 1], drops_groups) as job:
        assert values(job.ended()) == [True, True]


@pytest.mark.parametrize(("pure", "network"), [("", "sealed"), ("1", "sealed"), ("", "plain")])
def test_every_collective_over_shared_memory_and_tcp_at_once(three_hosts: Hosts, pure: str, network: str) -> None:
    with NetworkJob(three_hosts, MIXED, everything, CHOREO_PURE_PYTHON=pure, CHOREO_NETWORK=network) as job:
        assert values(job.ended()) == [4] * 4


@pytest.mark.parametrize(
    "algorithms",
    [
        "all_reduce:ring_bidirectional, all_gather:mst, reduce:ring, reduce_scatter:halving_doubling",
        "all_reduce:rabenseifner, all_gather:bruck, broadcast:double_binary_tree, barrier:mst",
    ],
)
def test_chunks_that_a_receiver_has_in_several_places_come_in_one_message(three_hosts: Hosts, algorithms: str) -> None:
    with NetworkJob(three_hosts, (0, 1, 2, 0, 1, 2), everything, CHOREO_ALGORITHM=algorithms) as job:
        assert values(job.ended()) == [6] * 6


def test_messages_between_hosts(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, MIXED, messages) as job:
        assert values(job.ended()) == [2, 3, 0, 1]


def test_groups_and_meshes_across_hosts(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, MIXED, groups) as job:
        found = values(job.ended())
    assert found == [(1, 5, 2, 1), (1, 3, 4, 1), (3, 5, 2, 5), (5, 4, 5)]


def test_a_job_of_the_launcher_on_three_hosts(three_hosts: Hosts, tmp_path: Path) -> None:
    script, secret = tmp_path / "sum.py", tmp_path / "secret"
    script.write_text(
        "import choreo, numpy as np\n"
        "with choreo.init() as comm:\n"
        "    print(comm.rank, comm.all_reduce(np.full(300_000, comm.rank + 1.0))[-1])\n"
    )
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    order = ["-m", "choreo", "run", "-n", "2", "--nodes", "2", "--master", f"{three_hosts.addresses[0]}:29650"]
    started = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", three_hosts.names[node], sys.executable, *order, "--node-rank", str(node)),
                *("--network", "plain", "--secret-file", str(secret), str(script)),
            ],
            env=os.environ | {"CHOREO_DEBUG": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    outputs = [one.communicate(timeout=60) for one in started]
    told, warned = ("".join(parts) for parts in zip(*outputs, strict=True))
    assert [one.returncode for one in started] == [0, 0], warned
    assert warned.count("choreo: --network plain: what arrays hold is neither encrypted nor authenticated") == 2
    assert "the network between the hosts is plain" in warned
    assert sorted(line.split("] ")[1] for line in told.splitlines()) == [f"{rank} 10.0" for rank in range(4)]
