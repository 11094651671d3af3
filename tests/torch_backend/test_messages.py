"""Messages of a process group: what goes straight through shared memory, and what cannot."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers.ranks.run import Job, RankError
from tests.helpers.suite.torch import dist, torch

Groups = Callable[[int], Job]
# Bytes: in the ring, in a buffer beside it, and read out of the sender's memory.
COUNTS = (0, 1, 7, 8192, 8193, 100_001, 300_001)


def of(number: int, count: int) -> Any:
    return (torch.arange(count) + number).to(torch.uint8)


def blocking(_: Any) -> None:
    """Around the ring of ranks, of every length, one after another and several before the first is asked for."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in COUNTS:
        got = torch.zeros(count, dtype=torch.uint8)
        if rank == 0:
            dist.send(of(rank, count), right)
        dist.recv(got, left)
        if rank > 0:
            dist.send(of(rank, count), right)
        assert torch.equal(got, of(left, count)), count
    several = [count for count in COUNTS if count < 200_000]
    for count in several:
        dist.send(of(rank, count), right)
    for count in several:
        got = torch.zeros(count, dtype=torch.uint8)
        assert dist.recv(got, left) == left
        assert torch.equal(got, of(left, count)), count
    dist.barrier()


@pytest.mark.parametrize("ranks", [2, 3])
def test_blocking_messages_of_every_length(groups: Groups, ranks: int) -> None:
    groups(ranks).run(blocking)


def tags(_: Any) -> None:
    """Receives are asked for in another order than messages are sent, and waited for in yet another."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    if rank == 0:
        for number in range(6):
            dist.send(of(number, 5 if number < 4 else 20_000), peer, tag=number % 3)
    else:
        got = [torch.zeros(5 if number < 4 else 20_000, dtype=torch.uint8) for number in range(6)]
        works = {number: dist.irecv(got[number], peer, tag=number % 3) for number in (2, 0, 1, 3, 5, 4)}
        for number in (4, 0, 5, 3, 1, 2):
            works[number].wait()
            assert torch.equal(got[number], of(number, got[number].numel())), number
    dist.barrier()


def same_tag(_: Any) -> None:
    """Receives with one tag get messages in the order in which they were made, whichever is waited for first."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    got = [torch.zeros(1) for _ in range(4)]
    if rank == 0:
        for number in range(4):
            dist.send(torch.full((1,), float(number)), peer)
    else:
        works = [dist.irecv(one, peer) for one in got[:2]]
        dist.recv(got[2], peer)
        dropped = dist.irecv(got[3], peer)
        assert isinstance(dropped.is_completed(), bool)
        for work in works[::-1]:
            work.wait()
        del dropped
        dist.barrier()
        assert [float(one) for one in got[:3]] == [0.0, 1.0, 2.0]
        return
    dist.barrier()


def any_source(_: Any) -> None:
    """A receive from any rank between two from one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.send(torch.tensor([rank * 10]), 0)
        dist.send(torch.tensor([rank * 10 + 1]), 0)
    else:
        first, rest = torch.zeros(1, dtype=torch.int64), []
        dist.recv(first, 1)
        assert int(first) == 10
        for _number in range(2 * (size - 1) - 1):
            x = torch.zeros(1, dtype=torch.int64)
            rest.append((dist.recv(x), int(x)))
        assert all(source == value // 10 for source, value in rest)
        assert sorted(value for _, value in rest) == sorted(
            source * 10 + number for source in range(1, size) for number in range(2) if (source, number) != (1, 0)
        )
    dist.barrier()


def odd_tensors(_: Any) -> None:
    """What is not plain memory takes the other way, and arrives all the same."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    plain = torch.arange(12.0).reshape(3, 4)
    negative = torch.complex(plain, plain).conj().imag
    for given, room in [
        (plain.t(), torch.zeros(4, 3)),
        (negative, torch.zeros(3, 4)),
        (plain[1:], torch.zeros(4, 2).t()),
        (plain.to(torch.bfloat16), torch.zeros(3, 4, dtype=torch.bfloat16)),
        (plain.clone().requires_grad_(), torch.zeros(3, 4)),
    ]:
        if rank == 0:
            dist.send(given, peer)
        else:
            dist.recv(room, peer)
            assert torch.equal(room, given.detach()), given
    dist.barrier()


def batches(_: Any) -> None:
    """As a pipeline exchanges: receives and sends at once, then all are waited for."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    for count in (3, 30_000, 300_001):
        got = [torch.zeros(count, dtype=torch.uint8) for _ in range(2)]
        operations = [dist.P2POp(dist.irecv, one, peer) for one in got]
        operations += [dist.P2POp(dist.isend, of(rank + number, count), peer) for number in range(2)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for number, one in enumerate(got):
            assert torch.equal(one, of(peer + number, count))
    work = dist.irecv(got[0], peer)
    future = work.get_future()
    dist.send(of(9, count), peer)
    assert torch.equal(future.wait()[0], of(9, count))
    assert work.is_success()
    dist.barrier()


def threads(_: Any) -> None:
    """Two threads receive at once, with tags of their own, while the main thread sends."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    found: dict[int, list[int]] = {1: [], 2: []}

    def receive(tag: int) -> None:
        for _ in range(30):
            x = torch.zeros(1, dtype=torch.int64)
            dist.recv(x, peer, tag=tag)
            found[tag].append(int(x))

    started = [threading.Thread(target=receive, args=(tag,)) for tag in found]
    for thread in started:
        thread.start()
    for number in range(30):
        for tag in (2, 1):
            dist.send(torch.tensor([number]), peer, tag=tag)
    for thread in started:
        thread.join(60)
    assert found == {1: list(range(30)), 2: list(range(30))}, (rank, found)
    dist.barrier()


def mismatch(_: Any) -> None:
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    if rank == 0:
        dist.send(torch.ones(3), peer)
    else:
        with pytest.raises(RuntimeError, match=r"12 bytes of float32.*asked for 8 bytes of float32"):
            dist.recv(torch.ones(2), peer)
    dist.barrier()


@pytest.mark.parametrize(
    "case", [tags, same_tag, odd_tensors, batches, threads, mismatch], ids=lambda one: one.__name__
)
def test_two_ranks(groups: Groups, case: Callable[..., None]) -> None:
    groups(2).run(case)


@pytest.mark.parametrize("ranks", [2, 4])
def test_any_source(groups: Groups, ranks: int) -> None:
    groups(ranks).run(any_source)


def times_out(_: Any) -> None:
    group, peer = dist.new_group(timeout=timedelta(seconds=0.3)), 1 - dist.get_rank()
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match="sent nothing before the deadline"):
            dist.recv(torch.ones(2), peer, group=group)
        with pytest.raises(TimeoutError):
            dist.irecv(torch.ones(2), peer, group=group).wait(timedelta(seconds=0.01))
    dist.barrier()


def test_a_receive_that_nothing_comes_for(groups: Groups) -> None:
    groups(2).run(times_out)


def killed(_: Any) -> None:
    """Rank 1 dies while rank 0 waits for it."""
    if dist.get_rank() == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"rank 1.*is gone"):
        dist.recv(torch.ones(2), 1)
    with pytest.raises(RuntimeError, match=r"rank 1.*is gone"):
        dist.send(torch.ones(2), 1)


def test_a_peer_that_dies_in_a_blocking_receive(groups: Groups) -> None:
    with pytest.raises(RankError) as caught:
        groups(2).run(killed, timeout_s=60)
    assert caught.value.errors == {1: "died"}
