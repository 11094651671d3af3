"""Rendezvous of real processes over real sockets, with the job's secret: when all goes well, and when it does not."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path

import pytest

import choreo.run.rendezvous.coordinator
from choreo.errors import UsageError
from choreo.run.rendezvous.gave_up import Attempt
from choreo.run.rendezvous.rendezvous import Rendezvous
from tests.helpers.ranks.rendezvous import (
    OTHER,
    SECRET,
    Process,
    join,
    join_and_exchange,
    outcomes,
    ranks_do,
    same_reason,
    shares,
)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_everybody_gets_everything(world_size: int, port: int) -> None:
    found = outcomes(ranks_do(join_and_exchange, world_size, port, times=4))
    assert [outcome.value for outcome in found] == [shares(world_size, 4)] * world_size


def introduced(rank: int, world_size: int, port: int) -> object:
    with join(rank, world_size, port) as rendezvous:
        return rendezvous.rank, [(member.rank, member.pid, member.address) for member in rendezvous.members]


def test_everybody_knows_everybody(port: int) -> None:
    processes = ranks_do(introduced, 3, port)
    expected = [(rank, process.pid, "127.0.0.1") for rank, process in enumerate(processes)]
    assert [outcome.value for outcome in outcomes(processes)] == [(rank, expected) for rank in range(3)]


def exchange_large(rank: int, world_size: int, port: int) -> object:
    with join(rank, world_size, port) as rendezvous:
        blobs = rendezvous.exchange(bytes([rank]) * (5_000_000 + rank), 10.0)
        assert rendezvous.exchange(b"", 5.0) == [b""] * world_size
        return [(len(blob), blob.count(number)) for number, blob in enumerate(blobs)]


def test_large_blobs(port: int) -> None:
    for outcome in outcomes(ranks_do(exchange_large, 3, port)):
        assert outcome.value == [(5_000_000 + rank, 5_000_000 + rank) for rank in range(3)]


def test_patience_without_end(port: int) -> None:
    found = outcomes(ranks_do(join_and_exchange, 2, port, timeout_s=1e12))
    assert [outcome.value for outcome in found] == [shares(2, 1)] * 2


def join_later(rank: int, late_s: float, **how: object) -> object:
    time.sleep(late_s if rank == 0 else 0)
    return join_and_exchange(rank, **how)  # type: ignore[arg-type]


def test_rank_0_comes_last(port: int) -> None:
    found = outcomes(ranks_do(join_later, 3, port, late_s=0.5))
    assert [outcome.value for outcome in found] == [shares(3, 1)] * 3


@pytest.mark.parametrize("address", ["localhost", "::1", "0.0.0.0"])
def test_names_and_addresses(address: str, port: int) -> None:
    found = outcomes(ranks_do(join_and_exchange, 2, port, address=address))
    assert [outcome.value for outcome in found] == [shares(2, 1)] * 2


def exchange_at_various_times(rank: int, world_size: int, port: int) -> object:
    """Some are an exchange ahead of others."""
    with join(rank, world_size, port) as rendezvous:
        found = []
        for number in range(12):
            time.sleep(0.01 if (rank + number) % world_size == 0 else 0)
            found.append(rendezvous.exchange(b"%d" % number, 5.0))
        return found


def test_the_quick_and_the_slow(port: int) -> None:
    for outcome in outcomes(ranks_do(exchange_at_various_times, 4, port)):
        assert outcome.value == [[b"%d" % number] * 4 for number in range(12)]


# Who should not be there


def test_another_secret(port: int) -> None:
    outsiders = [Process(join, {"rank": 1, "world_size": 2, "port": port, "secret": OTHER}) for _ in range(2)]
    host = Process(join, {"rank": 0, "world_size": 2, "port": port, "timeout_s": 4.0})
    refused, hosted = outcomes(outsiders), outcomes([host])[0]
    for outcome in refused:
        assert re.search(rf"rank 0 at 127.0.0.1:{port} and rank 1 \(pid {outcome.pid} .* another secret", outcome.told)
    assert re.search(r"rank 1 did not join .* within 4 s; 1 of 2 ranks did; refused 2 from 127.0.0.1", hosted.told)
    for outcome in (*refused, hosted):
        assert SECRET.decode() not in outcome.told and OTHER.decode() not in outcome.told


def test_a_stranger_does_not_disturb(port: int) -> None:
    outsider = Process(join, {"rank": 1, "world_size": 3, "port": port, "secret": OTHER})
    host = Process(join_and_exchange, {"rank": 0, "world_size": 3, "port": port})
    assert "another secret" in outsider.outcome().told
    found = outcomes([host, *ranks_do(join_and_exchange, 3, port, only=range(1, 3))])
    assert [outcome.value for outcome in found] == [shares(3, 1)] * 3


def test_two_claim_one_rank(port: int) -> None:
    twins = [Process(join, {"rank": 1, "world_size": 3, "port": port}) for _ in range(2)]
    found = outcomes([Process(join, {"rank": 0, "world_size": 3, "port": port}), *twins])
    reason = same_reason(found, "two processes claim rank 1", "give every process its own RANK")
    assert all(f"pid {twin.pid} on " in reason for twin in twins)
    assert all(outcome.ranks == (1,) for outcome in found)


def join_and_tell_for_long(rank: int, world_size: int, port: int) -> object:
    choreo.run.rendezvous.coordinator.ABORT_S = 30.0
    return join(rank, world_size, port)


def test_whoever_comes_a_little_later_hears_it_too(port: int) -> None:
    first = Process(join_and_tell_for_long, {"rank": 0, "world_size": 3, "port": port})
    found = outcomes([Process(join, {"rank": 1, "world_size": 3, "port": port}) for _ in range(2)])
    late = Process(join, {"rank": 2, "world_size": 3, "port": port})
    same_reason([*found, *outcomes([late, first])], "two processes claim rank 1")


def test_two_claim_rank_0(port: int) -> None:
    processes = [Process(join, {"rank": rank, "world_size": 3, "port": port}) for rank in (0, 0, 1)]
    reason = same_reason(outcomes(processes), "two processes claim rank 0")
    assert all(f"pid {process.pid} on " in reason for process in processes[:2])


def test_another_number_of_ranks(port: int) -> None:
    processes = [
        Process(join, {"rank": rank, "world_size": world_size, "port": port})
        for rank, world_size in ((0, 3), (1, 3), (2, 4))
    ]
    pid = processes[2].pid
    same_reason(outcomes(processes), rf"rank 2 \(pid {pid} on .*\) was told that there are 4 ranks, rank 0 .* are 3")


def test_a_rank_beyond_the_others(port: int) -> None:
    with pytest.raises(UsageError, match="rank 4 is not one of 4 ranks, which go from 0 to 3"):
        join(4, 4, port)
    with pytest.raises(UsageError, match="a job has 1 to 65535 ranks, not 0"):
        join(0, 0, port)
    with pytest.raises(UsageError, match="70000 is not a port"):
        join(0, 2, 70_000)
    with pytest.raises(UsageError, match="timeout must be a number of seconds, more than 0, not 0"):
        join(0, 2, port, timeout_s=0)
    with pytest.raises(UsageError, match="has 5 bytes; it must have 16 to 4096"):
        join(0, 2, port, secret=b"short")


def exchange_until_told(rank: int, world_size: int, port: int, folder: Path) -> object:
    """Say when all have come, and go on until rank 0 has found the file that says to stop."""
    with join(rank, world_size, port) as rendezvous:
        (folder / f"met {rank}").touch()
        while rendezvous.exchange(b"stop" if (folder / "stop").exists() else b"", 5.0)[0] != b"stop":
            time.sleep(0.01)
        return "undisturbed"


def test_one_too_many_when_all_are_there(port: int, tmp_path: Path) -> None:
    processes = ranks_do(exchange_until_told, 2, port, folder=tmp_path)
    while len(list(tmp_path.iterdir())) < 2:
        time.sleep(0.01)
    late = Process(join, {"rank": 1, "world_size": 2, "port": port})
    told = late.outcome().told
    assert f"two processes claim rank 1: pid {processes[1].pid} on" in told
    (tmp_path / "stop").touch()
    assert [outcome.value for outcome in outcomes(processes)] == ["undisturbed"] * 2


# Mistakes


def test_too_much_to_share() -> None:
    with (
        join(0, 1, 1) as rendezvous,
        pytest.raises(UsageError, match="are more than the 16777188 that each of 1 ranks"),
    ):
        rendezvous.exchange(bytes(2**24), 1.0)


def fork_and_use(rank: int, world_size: int, port: int) -> object:
    with join(rank, world_size, port) as rendezvous:
        pid = os.fork()
        if pid == 0:
            os._exit(_child(rendezvous))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code, rendezvous.exchange(b"still here", 5.0)


def _child(rendezvous: Rendezvous) -> int:
    try:
        rendezvous.exchange(b"", 1.0)
    except UsageError as error:
        rendezvous.close()  # must not say goodbye in its parent's name
        return 7 if "must make its own" in str(error) else 8
    return 9


def test_a_fork_has_no_meeting(port: int) -> None:
    assert [outcome.value for outcome in outcomes(ranks_do(fork_and_use, 2, port))] == [(7, [b"still here"] * 2)] * 2


def join_impatiently(**how: object) -> object:
    import choreo.run.rendezvous.rendezvous

    choreo.run.rendezvous.rendezvous.TAKEN_S = 0.3
    return join(**how)  # type: ignore[arg-type]


def test_a_port_that_is_taken(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as taken:
        taken.settimeout(5)
        outcome = Process(join_impatiently, {"rank": 0, "world_size": 2, "port": port, "timeout_s": 1.0}).outcome()
    assert re.search(
        rf"rank 0 \(pid {outcome.pid} on .*\) cannot listen at 127.0.0.1:{port}: Address already in use; choose",
        outcome.told,
    )


def test_the_others_of_its_host_learn_that_rank_0_cannot_listen(port: int) -> None:
    """Not at their deadline, though nobody answers them; and what is left of it does not disturb the next attempt."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        rank_0 = Process(join_impatiently, {"rank": 0, "world_size": 2, "port": port, "timeout_s": 600.0})
        other = Process(join, {"rank": 1, "world_size": 2, "port": port, "timeout_s": 600.0})
        told = rank_0.outcome().told
        assert f"cannot listen at 127.0.0.1:{port}" in told
        assert other.outcome().told == told
        assert "did not find rank 0" in Process(_again, {"port": port}).outcome().told
    assert [outcome.value for outcome in outcomes(ranks_do(join_and_exchange, 2, port))] == [shares(2, 1)] * 2


def _again(port: int) -> object:
    Attempt("another job", None)  # this process has met before, so the note is older than what it does now
    return join(1, 2, port, timeout_s=0.3)


def test_something_else_listens_there(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as server:
        participant = Process(join, {"rank": 1, "world_size": 2, "port": port})
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
            outcome = participant.outcome()
    assert (
        f"looked for rank 0 at 127.0.0.1:{port}: what listens there does not speak the protocol of a Choreo job"
        in outcome.told
    )


def test_a_name_that_nobody_knows() -> None:
    outcome = Process(
        join, {"rank": 1, "world_size": 2, "port": 1, "address": "no-such-host.invalid", "timeout_s": 0.5}
    ).outcome()
    assert "did not find rank 0 at no-such-host.invalid:1" in outcome.told


def test_an_address_of_another_host(port: int) -> None:
    """Rank 0 listens anyway, since something may forward to it, and says so if nobody comes."""
    how = {"rank": 0, "world_size": 2, "port": port, "address": "192.0.2.1", "timeout_s": 0.5}
    outcome = Process(join, how).outcome()
    assert re.search(r"rank 1 did not join .*; 192.0.2.1 is no address of .*, which listened on all its", outcome.told)
