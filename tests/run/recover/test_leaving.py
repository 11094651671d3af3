"""Ranks that leave early, and forks: what was sent before still comes, and the others are told."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import numpy as np
import pytest

from choreo.errors import CommunicatorClosed, PeerFailure
from choreo.run.communicator import Communicator
from tests.helpers.network.hosts import NetworkJob, hosts, why_no_hosts
from tests.helpers.ranks.faults import Ended, Job, Pipe, values


def leaves(comm: Communicator, talk: Pipe) -> str:
    comm.barrier()
    if comm.rank == 1:
        comm.close()
        comm.close()
        with pytest.raises(CommunicatorClosed):
            comm.barrier()
        return "left"
    comm.barrier()
    return "never"


def test_a_rank_that_leaves_early_and_twice_is_named() -> None:
    with Job(3, leaves) as job:
        ended = job.ended()
    assert ended[1].value == "left", ended
    for one in (ended[0], ended[2]):
        assert (one.error, one.ranks) == ("PeerFailure", (1,)) and "closed its communicator" in one.text, one


def slow_end(comm: Communicator, talk: Pipe) -> list[float]:
    """Rank 0 needs nothing of the others; rank 2 is slow; all end one after the other without a word."""
    if comm.rank == 2:
        time.sleep(1.0)
    x = np.full(5, float(comm.rank))
    comm.broadcast(x, root=0)
    comm.close()
    talk.send("through")
    os._exit(0)


def test_who_has_done_its_part_may_go_while_others_are_in_the_last_call() -> None:
    with Job(3, slow_end) as job:
        assert job.hear_all() == ["through"] * 3


def shrinks_early(comm: Communicator, _: Pipe) -> int:
    """Rank 0 only sends, and goes on; rank 2 still waits for rank 1, which is slow."""
    if comm.rank == 1:
        time.sleep(0.3)
    found = comm.gather(np.full(2, comm.rank), root=2)
    assert comm.rank != 2 or found.tolist() == [[0, 0], [1, 1], [2, 2]]
    return comm.shrink().world_size


@pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "they can")
def test_who_has_done_its_part_may_shrink_while_other_hosts_are_in_the_last_call() -> None:
    with hosts(2) as made, NetworkJob(made, [0, 1, 1], shrinks_early) as job:
        assert values(job.ended()) == [3] * 3


def makes_one_more_call(comm: Communicator, _: Pipe) -> tuple[str, int]:
    """Rank 2 makes another call, while the others are in shrink()."""
    comm.barrier()
    told = ""
    if comm.rank == 2:
        with pytest.raises(PeerFailure) as caught:
            comm.barrier(timeout=0.5)
        told = str(caught.value)
        assert not caught.value.ranks
    return told, comm.shrink().world_size


def check_one_more_call(ended: list[Ended]) -> None:
    found = values(ended)
    assert [size for _, size in found] == [3] * 3
    assert "called shrink() instead; no rank is given up" in found[2][0]


def test_ranks_that_shrink_early_are_not_given_up() -> None:
    with Job(3, makes_one_more_call) as job:
        check_one_more_call(job.ended())


@pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "they can")
def test_ranks_of_other_hosts_that_shrink_early_are_not_given_up() -> None:
    with hosts(2) as made, NetworkJob(made, [0, 0, 1], makes_one_more_call) as job:
        check_one_more_call(job.ended())


def shrinks_too_late(comm: Communicator, talk: Pipe) -> str:
    """Rank 1 never makes the call, as one does whose arguments are refused."""
    if comm.rank != 1:
        with pytest.raises(PeerFailure):
            comm.barrier(timeout=0.3)
        talk.send(comm.shrink().ranks)
        return ""
    talk.recv()
    with pytest.raises(CommunicatorClosed) as caught:
        comm.shrink()
    return str(caught.value)


def test_a_rank_that_was_given_up_in_a_call_learns_that_in_shrink() -> None:
    with Job(3, shrinks_too_late) as job:
        assert job.hear(0) == job.hear(2) == (0, 2)
        job.talks[1].send("shrink")
        told = values(job.ended(1))[0]
    assert re.search(r"^rank 1 .* did not answer in call \d+: the other ranks \(0, 2\) go on without it; ", told), told


def sends_and_leaves(comm: Communicator, talk: Pipe) -> list[int]:
    """Rank 1 asks for its first message when rank 0 has long gone."""
    if comm.rank == 0:
        comm.send(np.arange(3), 1, tag=1)
        comm.send(np.arange(5), 1, tag=2)
        comm.close()
        talk.send("left")
        return []
    assert talk.recv() == "ask"
    last, first = np.empty(5, np.int64), np.empty(3, np.int64)
    comm.recv(last, 0, tag=2)
    comm.recv(first, 0, tag=1)
    with pytest.raises(PeerFailure, match="is gone"):
        comm.recv(np.empty(1), 0)
    return [*last.tolist(), *first.tolist()]


def test_what_a_rank_sent_before_it_left_still_comes() -> None:
    with Job(2, sends_and_leaves) as job:
        assert job.hear(0) == "left"
        job.talks[1].send("ask")
        ended = job.ended()
    assert ended[1].value == [0, 1, 2, 3, 4, 0, 1, 2], ended


def forks(comm: Communicator, talk: Pipe) -> Any:
    comm.barrier()
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            comm.barrier()
        except CommunicatorClosed as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.wait()
    comm.barrier()
    x = comm.all_reduce(np.ones(3))
    return os.read(read, 1000).decode(), x.tolist()


def test_a_fork_is_not_a_rank_and_its_parent_still_is() -> None:
    with Job(2, forks) as job:
        ended = job.ended()
    for one in ended:
        story, x = one.value
        assert "is a fork" in story and x == [2.0] * 3
