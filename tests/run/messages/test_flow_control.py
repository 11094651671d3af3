"""Messages that nobody takes: bounds on what is kept, deadlines, and too little memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from choreo.errors import PeerFailure, UsageError
from choreo.run import communicator
from choreo.run.communicator import Communicator
from choreo.run.execute.heap import Heap
from choreo.run.messages import channel, send_buffers
from tests.helpers.ranks.run import Job

# Flow control and deadlines


def floods(comm: Communicator, count: int) -> int:
    x = np.zeros(1000)
    if comm.rank == 0:
        works = [comm.isend(np.full(1000, float(number)), 1, 1) for number in range(count)]
        comm.isend(np.ones(1), 1, 2)
        comm.barrier()
        for work in works:
            work.wait()
        comm.barrier()
        return 0
    with pytest.raises(PeerFailure, match="so much with others that no more of it is kept"):
        comm.recv(np.empty(1), 0, 2, timeout=1.0)
    kept = sum(comm.messages._matcher.kept_bytes)
    comm.barrier()
    for number in range(count):
        assert (comm.recv(x, 0, 1) == number).all()
    assert comm.recv(np.empty(1), 0, 2) == 1
    comm.barrier()
    return kept


def test_a_flood_is_kept_only_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "KEPT_BYTES", 100_000)
    with Job(2) as job:
        kept = job.run(floods, 200)[1]
    assert 100_000 < kept < 110_000


def sends_in_vain(comm: Communicator) -> None:
    large = np.ones(200_000)
    if comm.rank == 0:
        work = comm.isend(large, 1, timeout=1.0)
        with pytest.raises(TimeoutError, match="it goes on, so wait again"):
            work.wait(0.001)
        with pytest.raises(PeerFailure, match=r"send of 1600000 bytes .*: rank 1 did not take it before the deadline"):
            work.wait()
        comm.barrier()
        comm.send(2 * large, 1)
    else:
        comm.barrier()
        assert (comm.recv(np.empty(200_000), 0) == 2).all()  # and not what was withdrawn


def test_a_send_that_nobody_takes_is_withdrawn_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_buffers.SendBuffers, "take", lambda *_: None)
    with Job(2) as job:
        job.run(sends_in_vain)


def without_memory(comm: Communicator) -> None:
    if comm.rank == 0:
        comm.send(np.ones(10), 1)  # small ones need none
        with pytest.raises(PeerFailure, match=r"did not take it before the deadline: there is no room for 1\.0 MiB"):
            comm.send(np.ones(100_000), 1, timeout=0.05)
    else:
        comm.recv(np.empty(10), 0)
    comm.barrier()


def test_a_send_without_shared_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise UsageError("there is no room for 1.0 MiB of shared memory")

    monkeypatch.setattr(communicator, "can_read", lambda *_: False)
    monkeypatch.setattr(Heap, "empty", no_room)
    with Job(2) as job:
        job.run(without_memory)


def expired_receive(comm: Communicator) -> None:
    if comm.rank == 0:
        late = np.zeros(1)
        work = comm.irecv(late, 1, timeout=0.01)
        time.sleep(0.02)
        comm.barrier()
        assert comm.recv(np.zeros(1), 1) == 7
        with pytest.raises(PeerFailure, match="sent nothing before the deadline"):
            work.wait()
        assert late == 0
    else:
        comm.barrier()
        comm.send(np.array([7.0]), 0)


def test_a_receive_whose_time_is_up_takes_no_message(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(expired_receive)
