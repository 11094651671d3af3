"""Ranks that die, stop or are stuck: all others hear of it, agree, and go on."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import choreo
from choreo.errors import CommunicatorClosed, PeerFailure
from choreo.run.communicator import Communicator
from choreo.run.execute.choice import Chooser
from choreo.run.execute.constants import default_constants
from tests.helpers.ranks.faults import Job, Pipe, Ranks, eventually, names_held, segments

KILL, STOP, RESUME = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


def until_failure(comm: Communicator, talk: Pipe, size: int, shrinks: bool = False) -> Any:
    """All-reduce without end; when that fails, say so, and go on with whoever is left."""
    talk.send(os.getpid())
    x = np.empty(size, np.float64)
    try:
        while True:
            x[:] = comm.rank + 1
            comm.all_reduce(x)
            assert (x == comm.world_size * (comm.world_size + 1) / 2).all()
    except PeerFailure:
        if not shrinks:
            raise
    smaller = comm.shrink()
    x[:] = comm.rank
    for _ in range(20):
        y = smaller.all_gather(x[:3])
    with pytest.raises(CommunicatorClosed, match="shrunk"):
        comm.barrier()
    found = (smaller.rank, smaller.ranks, y[:, 0].tolist())
    smaller.close()
    return found


@pytest.mark.parametrize("size", [1, 3000, 1 << 20], ids=["tiny", "staged", "exposed"])
def test_a_rank_that_is_killed_is_named_by_all_the_others(size: int) -> None:
    with Job(4, until_failure, size) as job:
        pids = job.hear_all()
        time.sleep(0.2)
        job.tell(2, KILL)
        ended = job.ended(0, 1, 3)
    for one in ended:
        assert (one.error, one.ranks) == ("PeerFailure", (2,)), one.text
        assert f"pid {pids[2]}" in one.text and "rank 2 (host " in one.text and "died" in one.text
        assert f"all_reduce({size} x float64, sum)" in one.text


def test_ranks_that_die_together_are_all_found() -> None:
    with Job(5, until_failure, 100, True) as job:
        job.hear_all()
        for rank in (0, 3):
            job.tell(rank, KILL)
        ended = job.ended(1, 2, 4)
    # They may die so far apart that the first failure names one, and shrinking leaves out the other.
    assert [one.value for one in ended] == [(at, (1, 2, 4), [1.0, 2.0, 4.0]) for at in range(3)], ended


def test_survivors_go_on_without_rank_zero_and_leave_nothing_behind() -> None:
    with Job(4, until_failure, 3000, True) as job:
        pids = job.hear_all()
        ours = {name for pid in pids for name in names_held(pid)}
        assert ours
        assert eventually(lambda: not ours & segments())  # names are gone as soon as everybody has mapped
        job.tell(0, KILL)
        ended = job.ended(1, 2, 3)
        assert [one.value for one in ended] == [(at, (1, 2, 3), [1.0, 2.0, 3.0]) for at in range(3)], ended
    assert not segments(*pids)


def test_a_stopped_rank_counts_as_failed_at_the_deadline_and_is_out_when_it_wakes() -> None:
    with Job(3, until_failure, 3000, True, timeout_s=2.0) as job:
        job.hear_all()
        job.tell(1, STOP)
        ended = job.ended(0, 2)
        assert [one.value for one in ended] == [(0, (0, 2), [0.0, 2.0]), (1, (0, 2), [0.0, 2.0])], ended
        job.tell(1, RESUME)
        (woken,) = job.ended(1)
    assert woken.error == "CommunicatorClosed" and "go on without it" in woken.text, woken


def open_things() -> tuple[int, int]:
    """How many descriptors and threads this process has."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def given_up(comm: Communicator, talk: Pipe, victim: int) -> tuple[str, bool]:
    """One rank stops in a communicator, and the others go on; how it ended, and whether nothing of it is left."""

    def use() -> str:
        group = comm.new_group(range(comm.world_size))
        assert isinstance(group, Communicator)
        group.all_reduce(np.ones(10), async_op=True).wait()  # which starts a thread
        group.barrier()
        group.timeout_s = 1.0
        talk.send("ready")
        talk.recv()
        if comm.rank == victim:
            os.kill(os.getpid(), STOP)
        try:
            while True:
                group.all_reduce(np.ones(1000))
        except PeerFailure:
            group.shrink().close()
            return "went on"
        except CommunicatorClosed:
            return "is out"  # and drops its communicator without closing it

    comm.barrier()
    before = open_things()
    how = use()
    return how, eventually(lambda: open_things() == before, 10.0)


def test_a_rank_that_was_given_up_keeps_nothing_open() -> None:
    with Job(3, given_up, 1) as job:
        job.hear_all()
        for talk in job.talks:
            talk.send("go")
        assert [one.value for one in job.ended(0, 2)] == [("went on", True)] * 2
        job.tell(1, RESUME)
        (woken,) = job.ended(1)
    assert woken.value == ("is out", True), woken


def returns_early(comm: Communicator, talk: Pipe) -> None:
    """Rank 0 has nothing to wait for, and returns before rank 1 dies; its next call tells it."""
    talk.send("there")
    x = np.ones(10)
    if comm.rank == 1:
        talk.recv()
    comm.broadcast(x, root=0)
    talk.send("returned")
    talk.recv()
    for _ in range(8):
        comm.broadcast(x, root=0)


def test_who_had_returned_hears_of_it_in_a_later_call() -> None:
    with Job(3, returns_early) as job:
        job.hear_all()
        assert job.hear(0) == "returned"
        job.tell(1, KILL)
        for rank in (0, 2):
            job.talks[rank].send("go on")
        ended = job.ended(0, 2)
    assert [(one.error, one.ranks) for one in ended] == [("PeerFailure", (1,))] * 2, ended


def late(comm: Communicator, talk: Pipe) -> list[int]:
    if comm.rank == 1:
        time.sleep(4)
    comm.barrier(timeout=1.0 if comm.rank != 1 else 30.0)
    return []


def test_who_comes_after_the_deadline_finds_itself_excluded() -> None:
    with Job(3, late) as job:
        ended = job.ended()
    assert [one.error for one in ended] == ["PeerFailure", "CommunicatorClosed", "PeerFailure"], ended
    assert ended[0].ranks == ended[2].ranks == (1,)
    assert "rank 1 (host " in ended[0].text and "had not come to call" in ended[0].text


def is_stuck(comm: Communicator, talk: Pipe, victim: int, stops: bool, times: int) -> list[tuple[float, list[int]]]:
    """One rank does not come to a call, again and again; how long after the deadline the others name it."""
    found, deadline_s = [], 0.3
    groups = [comm.new_group(range(comm.world_size)) for _ in range(times)]
    for group in groups:
        assert isinstance(group, Communicator)
        comm.barrier()
        if comm.rank == victim:
            talk.send("stuck")
            if stops:
                os.kill(os.getpid(), STOP)
            talk.recv()
            continue
        began_s = time.monotonic()
        with pytest.raises(PeerFailure) as caught:
            group.all_reduce(np.ones(1000), timeout=deadline_s)
        found.append((time.monotonic() - began_s - deadline_s, sorted(caught.value.ranks)))
        talk.send("told")
    return found


def named(job: Ranks, victim: int, times: int, *, stops: bool) -> list[float]:
    """That all others name the one that is stuck; how long after the deadline they did so at best."""
    others = [rank for rank in range(len(job.talks)) if rank != victim]
    for _ in range(times):
        assert job.hear(victim) == "stuck"
        assert [job.hear(rank) for rank in others] == ["told"] * len(others)
        if stops:
            job.tell(victim, RESUME)
        job.talks[victim].send("go on")
    ended = job.ended(*others)
    assert [[ranks for _, ranks in one.value] for one in ended] == [[[victim]] * times] * len(others), ended
    return [min(after_s for after_s, _ in one.value) for one in ended]


@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "elsewhere"])
def test_a_rank_that_is_stuck_is_named_by_all_the_others(stops: bool) -> None:
    with Job(3, is_stuck, 1, stops, 1) as job:
        named(job, 1, 1, stops=stops)


def calls_a_long_name(comm: Communicator, talk: Pipe) -> str:
    """An algorithm of the user's, whose name takes three bytes a letter; all ranks but one are stuck before a call."""
    name = "\N{CJK UNIFIED IDEOGRAPH-74B0}" * 150
    choreo.algorithm("all_reduce", name=name)(lambda ranks: choreo.build("all_reduce", "ring", ranks=ranks))
    comm._engine.chooser = Chooser(comm.world_size, default_constants(), {"all_reduce": name})
    comm.all_reduce(np.ones(3))
    if comm.rank:
        talk.recv()
        return ""
    with pytest.raises(PeerFailure) as caught:
        comm.all_reduce(np.ones(3), timeout=0.3)
    assert caught.value.ranks == {1, 2, 3, 4}
    return str(caught.value)


def test_calls_with_long_names_fit_into_a_decision() -> None:
    with Job(5, calls_a_long_name) as job:
        told = job.ended(0)[0]
    assert "had not come to call" in told.value, told


@pytest.mark.grid
@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "elsewhere"])
def test_a_rank_that_is_stuck_is_named_within_half_a_second_of_the_deadline(stops: bool) -> None:
    with Job(3, is_stuck, 1, stops, 5) as job:
        assert max(named(job, 1, 5, stops=stops)) < 0.5


# ---- different calls ----


def survives(comm: Communicator, talk: Pipe, rounds: int, size: int) -> Any:
    talk.send(os.getpid())
    found = []
    for number in range(rounds):
        if number == rounds // 3:
            talk.send("a third")
        x = np.full(size, float(10 ** comm_original(comm)), np.float64)
        result, contributors = comm.all_reduce(x, survive=True)
        assert result is x
        # The sum says who is in it.
        assert (x == sum(10.0**rank for rank in contributors)).all(), (number, x[0], contributors)
        found.append(contributors)
    comm.close()
    return found


def comm_original(comm: Communicator) -> int:
    return int(comm.ranks[comm.rank])


@pytest.mark.parametrize("size", [5, 1 << 19])
def test_an_all_reduce_that_survives_gives_all_survivors_the_same(size: int) -> None:
    rounds = 900 if size == 5 else 60
    with Job(4, survives, rounds, size) as job:
        job.hear_all()
        assert job.hear(3) == "a third"
        job.tell(1, KILL)
        job.tell(0, KILL)
        ended = job.ended(2, 3)
    assert not any(one.error for one in ended), ended
    assert ended[0].value == ended[1].value and len(ended[0].value) == rounds
    assert ended[0].value[0] == (0, 1, 2, 3) and ended[0].value[-1] == (2, 3)


# ---- leaving ----


def interrupted(comm: Communicator, talk: Pipe) -> Any:
    """Rank 1 is told to stop while it waits for rank 0 in a call."""
    talk.send(os.getpid())
    if comm.rank == 0:
        talk.recv()
    try:
        comm.barrier()
    except KeyboardInterrupt:
        with pytest.raises(CommunicatorClosed, match="the other ranks go on without it"):
            comm.barrier()  # the call may be done on others and not on this one: there is no next
        return "interrupted"


def test_a_rank_that_is_interrupted_in_a_call_is_named() -> None:
    with Job(3, interrupted) as job:
        job.hear_all()
        time.sleep(0.2)
        job.tell(1, signal.SIGINT)
        time.sleep(0.2)
        job.talks[0].send("go on")
        ended = job.ended()
    assert ended[1].value == "interrupted", ended
    for one in (ended[0], ended[2]):
        assert (one.error, one.ranks) == ("PeerFailure", (1,)) and "was interrupted" in one.text, one


# ---- crashes in the middle of something ----


def crashes(comm: Communicator, talk: Pipe, delay_s: float, size: int) -> Any:
    """Rank 1 ends somewhere in the middle of handing over data."""
    comm.barrier()
    if comm.rank == 1:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, delay_s)
    x = np.empty(size)
    try:
        while True:
            x[:] = comm.rank
            comm.all_reduce(x)
            assert (x == 3).all()
    except PeerFailure:
        smaller = comm.shrink()
    x[:] = 1
    found = (smaller.all_reduce(x) == smaller.world_size).all() and smaller.ranks
    smaller.close()
    return found


@pytest.mark.parametrize("size", [40_000, 2_000_000], ids=["staged", "exposed"])
def test_a_crash_in_the_middle_of_a_write_spoils_nothing(size: int) -> None:
    for number in range(1, 5):
        with Job(3, crashes, 0.003 * number + 0.0007, size) as job:
            assert [one.value for one in job.ended(0, 2)] == [(0, 2)] * 2
