"""Ranks that never come to a rendezvous, die in it, or leave it early: the others are told why."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from choreo.errors import RendezvousError
from choreo.run.rendezvous.coordinator_connection import CoordinatorConnection
from choreo.run.transport.deadline import Deadline
from choreo.run.transport.frames import FrameKind
from tests.helpers.ranks.rendezvous import (
    Process,
    join,
    outcomes,
    ranks_do,
    same_reason,
)


def test_a_rank_that_never_comes(port: int) -> None:
    found = outcomes(ranks_do(join, 4, port, only=range(3), timeout_s=3.0))
    same_reason(found, r"^rank 3 did not join the rendezvous within [\d.]+ s; 3 of 4 ranks did$")
    assert all(outcome.ranks == (3,) for outcome in found)


def test_rank_0_never_comes(port: int) -> None:
    outcome = Process(join, {"rank": 1, "world_size": 2, "port": port, "timeout_s": 0.5}).outcome()
    assert re.search(
        rf"rank 1 .* did not find rank 0 at 127.0.0.1:{port} within 0.5 s: Connection refused", outcome.told
    )
    assert outcome.seconds >= 0.5


def killed_when_joined(rank: int, world_size: int, port: int) -> None:
    """Says who it is, and is killed while it waits for those who are still to come."""
    say = CoordinatorConnection.send

    def say_and_die(self: CoordinatorConnection, kind: FrameKind, payload: bytes, deadline: Deadline) -> None:
        say(self, kind, payload, deadline)
        os.kill(os.getpid(), signal.SIGKILL)

    CoordinatorConnection.send = say_and_die  # type: ignore[method-assign]
    join(rank, world_size, port)


def test_a_rank_killed_before_all_have_come(port: int) -> None:
    victim = Process(killed_when_joined, {"rank": 2, "world_size": 4, "port": port})
    found = outcomes(ranks_do(join, 4, port, only=range(2)))
    same_reason(found, rf"rank 2 \(pid {victim.pid} on .*\) was lost before all 4 ranks had joined: its process")
    assert all(outcome.ranks == (2,) for outcome in found)
    victim.outcome()


def join_late(rank: int, world_size: int, port: int) -> object:
    """Proves itself at once, and says who it is a second later."""
    say = CoordinatorConnection.send

    def say_late(self: CoordinatorConnection, kind: FrameKind, payload: bytes, deadline: Deadline) -> None:
        time.sleep(1.0 if kind == FrameKind.JOIN else 0.0)
        say(self, kind, payload, deadline)

    CoordinatorConnection.send = say_late  # type: ignore[method-assign]
    return join(rank, world_size, port)


def join_quickly(**how: object) -> object:
    import choreo.run.rendezvous.server
    import choreo.run.transport.strangers

    choreo.run.rendezvous.server.HANDSHAKE_S = 0.2  # type: ignore[attr-defined]
    choreo.run.transport.strangers.HANDSHAKE_S = 0.2  # type: ignore[attr-defined]
    return join(**how)  # type: ignore[arg-type]


def test_a_rank_that_is_slow_after_its_proof_is_waited_for(port: int) -> None:
    rank_1 = Process(join_late, {"rank": 1, "world_size": 2, "port": port})
    rank_0 = Process(join_quickly, {"rank": 0, "world_size": 2, "port": port})
    found = outcomes([rank_0, rank_1])
    assert not [one.error for one in found if one.error], found


def exchange_until(rank: int, world_size: int, port: int, victim: int, number: int, timeout_s: float = 60.0) -> object:
    """Exchange for ever; the victim stops itself with a signal before its third exchange."""
    with join(rank, world_size, port) as rendezvous:
        for times in range(1000):
            if rank == victim and times == 2:
                os.kill(os.getpid(), number)
            rendezvous.exchange(b"%d" % times, timeout_s)
    return None


@pytest.mark.parametrize("victim", [1, 3])
def test_a_rank_killed_in_an_exchange(victim: int, port: int) -> None:
    processes = ranks_do(exchange_until, 4, port, victim=victim, number=signal.SIGKILL)
    found = outcomes(processes)
    del found[victim]
    same_reason(
        found, rf"rank {victim} \(pid {processes[victim].pid} on .*\) was lost (in|after) exchange [23]: its process"
    )
    assert all(outcome.ranks == (victim,) for outcome in found)


def test_rank_0_killed_in_an_exchange(port: int) -> None:
    processes = ranks_do(exchange_until, 3, port, victim=0, number=signal.SIGKILL)
    for outcome in outcomes(processes)[1:]:
        assert f"rank 0 (pid {processes[0].pid} on " in outcome.told
        assert "was lost in exchange 3" in outcome.told
        assert outcome.ranks == (0,)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_stopped_in_an_exchange(victim: int, port: int) -> None:
    """Its connection is fine, it just says nothing: the deadline holds for everybody else."""
    processes = ranks_do(exchange_until, 3, port, victim=victim, number=signal.SIGSTOP, timeout_s=1.0)
    others = [process for rank, process in enumerate(processes) if rank != victim]
    try:
        found = [other.outcome() for other in others]
    finally:
        processes[victim].end()
    assert all(f"rank {victim} (pid {processes[victim].pid} on " in outcome.told for outcome in found)
    assert all(re.search(r"exchange 3 within [\d.]+ s", outcome.told) for outcome in found)
    assert all(outcome.ranks == (victim,) for outcome in found)


def exchange_with_little_patience(rank: int, world_size: int, port: int) -> None:
    with join(rank, world_size, port) as rendezvous:
        if rank == 2:
            time.sleep(100)
        rendezvous.exchange(b"", 1.0 if rank == 1 else 80.0)


def test_the_least_patient_is_reported_in_time(port: int) -> None:
    """Who is missing, not only that somebody gave up; and the others are told as early."""
    processes = ranks_do(exchange_with_little_patience, 3, port)
    try:
        found = [process.outcome() for process in processes[:2]]
    finally:
        processes[2].end()
    same_reason(
        found, rf"^rank 2 \(pid {processes[2].pid} on .*\) did not come to exchange 1 within (1|0\.\d+) s, where 2 of 3"
    )


def leave_early(rank: int, world_size: int, port: int) -> object:
    rendezvous = join(rank, world_size, port)
    rendezvous.exchange(b"", 5.0)
    if rank == 1:
        rendezvous.close()
        rendezvous.close()
        with pytest.raises(RendezvousError, match="the rendezvous is over: rank 1 has left it"):
            rendezvous.exchange(b"", 5.0)
        return None
    with pytest.raises(RendezvousError) as raised:
        rendezvous.exchange(b"", 5.0)
    with pytest.raises(RendezvousError, match="the rendezvous is over: rank 1"):
        rendezvous.exchange(b"", 5.0)
    return str(raised.value)


def test_a_rank_that_leaves_early(port: int) -> None:
    processes = ranks_do(leave_early, 3, port)
    pid = processes[1].pid
    reasons = {outcome.value for outcome in outcomes(processes)} - {None}
    assert len(reasons) == 1
    assert re.fullmatch(
        rf"rank 1 \(pid {pid} on .*\) left the rendezvous (in exchange 2|after exchange 1)", str(*reasons)
    )


def fail_early(rank: int, world_size: int, port: int) -> object:
    with join(rank, world_size, port) as rendezvous:
        if rank == 1:
            raise ValueError("there is no room for it")
        rendezvous.exchange(b"", 60.0)
    return None


def test_why_a_rank_leaves_is_reported(port: int) -> None:
    first, _, third = outcomes(ranks_do(fail_early, 3, port))
    assert first.told == third.told
    assert re.fullmatch(r"rank 1 \(pid .*\) left the rendezvous .*: there is no room for it", first.told)


def rank_0_leaves(rank: int, world_size: int, port: int) -> object:
    with join(rank, world_size, port) as rendezvous:
        if rank == 0:
            return None
        rendezvous.exchange(b"", 5.0)
    return None


def test_rank_0_leaves_early(port: int) -> None:
    processes = ranks_do(rank_0_leaves, 2, port)
    told = outcomes(processes)[1].told
    assert re.match(rf"rank 0 \(pid {processes[0].pid} on .*\) left the rendezvous in exchange 1", told)


def interrupted(rank: int, world_size: int, port: int) -> object:
    if rank == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
    return join(rank, world_size, port)


def test_rank_0_is_interrupted(port: int) -> None:
    first, second = outcomes(ranks_do(interrupted, 3, port, only=range(2)))
    assert isinstance(first.error, KeyboardInterrupt)
    assert "rank 0 at" in second.told and "left the rendezvous" in second.told and "it was interrupted" in second.told
