"""Ranks on other hosts that die, stop, leave or make other calls: all survivors name them."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from choreo.errors import CommunicatorClosed, PeerFailure
from choreo.run.communicator import Communicator
from choreo.run.transport import tcp
from choreo.run.transport.dial import AuthenticatedSocket
from choreo.run.transport.peer_info import PeerInfo
from tests.helpers.network.hosts import Hosts, NetworkJob, why_no_hosts
from tests.helpers.ranks.faults import PATIENCE_S, Pipe, values
from tests.run.recover.test_faults import given_up, is_stuck, named

pytestmark = pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "they can")
MIXED = (0, 0, 1, 1)  # two ranks on each of two hosts


def die_while_they_connect() -> None:
    """Rank 2 calls rank 0, and is gone before it calls rank 1."""

    def dial_or_die(peer: PeerInfo, port: int, key: bytes, end_s: float) -> AuthenticatedSocket:
        if os.environ["RANK"] == "2" and peer.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return dial(peer, port, key, end_s)

    dial, tcp.dial_peer = tcp.dial_peer, dial_or_die


def test_a_rank_that_dies_while_they_connect_is_named(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, MIXED, leaves_early, before=die_while_they_connect) as job:
        found = job.ended(0, 1, 3)
    assert all(one.error in ("RendezvousError", "AbortError") for one in found), found
    # Rank 0 keeps the rendezvous; the others may see first that one of them has left because of it.
    assert "rank 2" in found[0].text, found


def until_failure(comm: Communicator, talk: Pipe, count: int, timeout_s: float, victim: int, number: int) -> Any:
    """Calls until one fails; whom it names, and what those that are left do together."""
    comm.all_reduce(np.ones(10))
    talk.send("ready")
    talk.recv()
    if comm.rank == victim:
        os.kill(os.getpid(), number)
    try:
        while True:
            comm.all_reduce(np.ones(count, np.float32), timeout=timeout_s)
    except PeerFailure as error:
        failed, text = sorted(error.ranks), str(error)
    with comm.shrink(timeout=10.0) as left:
        total = left.all_reduce(np.full(1000, comm.rank + 1.0))[-1]
        left.barrier()
        return failed, text, left.ranks, float(total)


def go(job: NetworkJob, *ranks: int) -> None:
    for rank in ranks:
        assert job.hear(rank) == "ready"
    for rank in ranks:
        job.talks[rank].send("go")


@pytest.mark.parametrize(("where", "victim"), [(MIXED, 3), (MIXED, 0), ((0, 1, 2), 0), ((0, 1, 2), 2)])
@pytest.mark.parametrize("count", [100, 2_000_000])
def test_a_rank_that_dies_on_another_host(three_hosts: Hosts, where: tuple[int, ...], victim: int, count: int) -> None:
    left = tuple(rank for rank in range(len(where)) if rank != victim)
    with NetworkJob(three_hosts, where, until_failure, count, 2 * PATIENCE_S, victim, signal.SIGKILL) as job:
        go(job, *range(len(where)))
        found = values(job.ended(*left))
    for failed, text, ranks, total in found:
        assert failed == [victim]
        assert f"rank {victim} " in text
        assert "died" in text
        assert ranks == left
        assert total == sum(rank + 1 for rank in left)


def test_a_rank_that_is_stopped_is_given_up_at_the_deadline_and_hears_of_it(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, MIXED, until_failure, 100_000, 3.0, 3, signal.SIGSTOP) as job:
        go(job, 0, 1, 2, 3)
        found = values(job.ended(0, 1, 2))
        assert [(failed, ranks, total) for failed, _, ranks, total in found] == [([3], (0, 1, 2), 6.0)] * 3
        job.tell(3, signal.SIGCONT)
        (woken,) = job.ended(3)
    assert woken.error == CommunicatorClosed.__name__
    assert "go on without it" in woken.text


@pytest.mark.parametrize(("where", "victim"), [(MIXED, 3), ((0, 1), 0)])
def test_a_rank_that_is_stuck_is_named_by_all_the_others(
    three_hosts: Hosts, where: tuple[int, ...], victim: int
) -> None:
    with NetworkJob(three_hosts, where, is_stuck, victim, False, 1) as job:
        named(job, victim, 1, stops=False)


@pytest.mark.grid
@pytest.mark.parametrize(("where", "victim"), [(MIXED, 3), ((0, 1, 2), 2), ((0, 1), 0)])
@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "elsewhere"])
def test_a_rank_that_is_stuck_is_named_within_half_a_second_of_the_deadline(
    three_hosts: Hosts, where: tuple[int, ...], victim: int, stops: bool
) -> None:
    with NetworkJob(three_hosts, where, is_stuck, victim, stops, 5) as job:
        assert max(named(job, victim, 5, stops=stops)) < 0.5


def test_a_rank_that_was_given_up_keeps_no_socket_open(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, MIXED, given_up, 3) as job:
        go(job, 0, 1, 2, 3)
        assert values(job.ended(0, 1, 2)) == [("went on", True)] * 3
        job.tell(3, signal.SIGCONT)
        assert values(job.ended(3)) == [("is out", True)]


def test_by_the_quorum_any_each_side_of_a_cut_names_the_other_and_goes_on(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, MIXED, until_failure, 100_000, 1.5, -1, 0, CHOREO_QUORUM="any") as job:
        for rank in range(4):
            assert job.hear(rank) == "ready"
        three_hosts.cut(1)
        try:
            for talk in job.talks:
                talk.send("go")
            found = values(job.ended())
        finally:
            three_hosts.mend(1)
    assert [one[0] for one in found] == [[2, 3], [2, 3], [0, 1], [0, 1]]
    assert [one[2:] for one in found] == [((0, 1), 3.0), ((0, 1), 3.0), ((2, 3), 7.0), ((2, 3), 7.0)]


def survives(comm: Communicator, talk: Pipe) -> Any:
    talk.send("ready")
    talk.recv()
    for number in range(1000):
        if comm.rank == 2 and comm.ranks == (0, 1, 2, 3) and number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        x, who = comm.all_reduce(np.full(1000, comm.ranks[comm.rank] + 1.0), survive=True, timeout=20.0)
        assert x[0] == sum(rank + 1 for rank in who)
        if len(who) == 3 and number > 8:
            comm.barrier()
            return who, float(x[-1])
    return None


def test_an_all_reduce_survives_a_death_on_another_host(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, MIXED, survives) as job:
        go(job, 0, 1, 2, 3)
        assert values(job.ended(0, 1, 3)) == [((0, 1, 3), 7.0)] * 3


def mismatched(comm: Communicator, _: Pipe) -> None:
    comm.all_reduce(np.ones(10 + (comm.rank == 3)), timeout=20.0)


def test_calls_that_do_not_match_are_named_on_both_hosts(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, MIXED, mismatched) as job:
        found = job.ended()
    assert [one.error for one in found] == ["CollectiveMismatch"] * 4
    assert all("all_reduce(11 x float64" in one.text and "all_reduce(10 x float64" in one.text for one in found)


def leaves_early(comm: Communicator, _: Pipe) -> str:
    comm.all_reduce(np.ones(1000))
    if comm.rank == 3:
        comm.close()
        return "closed"
    with pytest.raises(PeerFailure, match="closed its communicator") as caught:
        while True:
            comm.all_reduce(np.ones(1000), timeout=20.0)
    assert "after call" in str(caught.value) and "call -1" not in str(caught.value), str(caught.value)
    return f"without {sorted(caught.value.ranks)}"


def test_a_rank_that_leaves_early(three_hosts: Hosts) -> None:
    with NetworkJob(three_hosts, MIXED, leaves_early) as job:
        assert values(job.ended()) == ["without [3]"] * 3 + ["closed"]
