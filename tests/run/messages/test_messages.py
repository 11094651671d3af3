"""Messages between ranks of one host."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from choreo.errors import CommunicatorClosed, PeerFailure
from choreo.run import communicator
from choreo.run.communicator import Communicator
from choreo.run.groups import NonMember
from choreo.run.messages import point_to_point, words
from choreo.run.messages.channel import BUFFERED_BYTES, EAGER_BYTES
from choreo.run.work import Work
from tests.helpers.ranks.faults import eventually
from tests.helpers.ranks.run import Job, RankError

LENGTHS = (0, 1, 7, 8, EAGER_BYTES, EAGER_BYTES + 1, BUFFERED_BYTES, BUFFERED_BYTES + 1, 300_001)


def content(source: int, tag: int, number: int, length: int) -> Any:
    return np.random.default_rng([source, abs(tag), number]).integers(0, 255, length, np.uint8)


def all_lengths(comm: Communicator) -> None:
    """Every rank sends to every rank, in two orders of tags, blocking and not."""
    everyone = range(comm.world_size)
    cases = [(tag, number, length) for number, length in enumerate(LENGTHS) for tag in (0, -5)]
    works = [
        comm.isend(content(comm.rank, tag, number, length), peer, tag)
        for tag, number, length in cases
        for peer in everyone
    ]
    for tag, number, length in sorted(cases):  # first all of one tag, then all of the other
        for peer in everyone:
            got = comm.recv(np.empty(length, np.uint8), peer, tag)
            assert (got == content(peer, tag, number, length)).all(), (peer, tag, length)
    for work in works:
        work.wait()
    heap = comm.empty(100_000, np.float64)
    heap[:] = comm.rank
    right, left = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    works = [comm.isend(heap, right), comm.isend(heap.astype(ml_dtypes.bfloat16), right, 1)]
    assert (comm.recv(np.empty_like(heap), left) == left).all()
    assert (comm.recv(np.empty(100_000, ml_dtypes.bfloat16), left, 1) == left).all()
    assert [work.result() for work in works] == [right, right]
    comm.barrier()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_length_arrives_in_order(jobs: Callable[[int], Job], ranks: int) -> None:
    jobs(ranks).run(all_lengths)


def test_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_to_point, "message_core", lambda: words)
    with Job(2) as job:
        job.run(all_lengths)


def test_where_nobody_may_read_private_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communicator, "can_read", lambda *_: False)
    with Job(2) as job:
        job.run(all_lengths)


def held() -> tuple[int, int, int]:
    """The descriptors, maps of segments, and threads of this process."""
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/choreo-" in line]
    return len(list(Path("/proc/self/fd").iterdir())), len(maps), len(list(Path("/proc/self/task").iterdir()))


def use_all(group: Communicator | NonMember) -> Communicator:
    """Messages of all kinds, and calls of all kinds."""
    assert isinstance(group, Communicator)
    peer, x = 1 - group.rank, np.ones(3)
    work: list[Work[Any]] = [group.isend(np.ones(size), peer) for size in (1, 100_000)]
    for size in (1, 100_000):
        group.recv(np.empty(size), peer)
    for _ in range(3):
        group.all_reduce(x)
    work += [group.all_reduce(x, async_op=True), group.all_reduce(np.ones(300_000), async_op=True)]
    for one in work:
        one.wait()
    group.barrier()
    return group


def nothing_is_left(comm: Communicator) -> None:
    """The garbage collector is not needed, except where somebody else has made a cycle."""
    use_all(comm)
    x = np.ones(3)
    before = held()
    gc.disable()
    for how in ("closed", "dropped", "dropped with work") * 2:
        group = use_all(comm.new_group([0, 1]))
        if how == "closed":
            group.close()
        elif how == "dropped with work":
            if comm.rank:
                time.sleep(0.05)
            group.all_reduce(x, async_op=True)
        del group
        comm.barrier()
        assert eventually(lambda: held() == before), (how, held(), before)
    gc.enable()
    assert not [path for path in Path("/dev/shm").glob("choreo-*") if f"-{os.getpid()}-" in path.name]


def test_no_thread_no_descriptor_and_no_file_is_left(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(nothing_is_left)


def many_tags(comm: Communicator) -> None:
    peer, x = 1 - comm.rank, np.zeros(1)
    for tag in range(2000):
        comm.send(x, peer, tag)
        comm.recv(x, peer, tag)
    for tag in range(2000, 2100):
        comm.send(x, peer, tag)
    for tag in range(2099, 1999, -1):
        comm.recv(x, peer, tag)
    with pytest.raises(PeerFailure):
        comm.recv(x, peer, 5000, timeout=0.01)
    matcher = comm.messages._matcher
    assert not matcher._waiting and not matcher._kept and not any(matcher.kept_bytes)
    comm.barrier()


def test_tags_leave_nothing_behind(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(many_tags)


# From any source


def from_any(comm: Communicator) -> list[int]:
    x = np.empty(1, np.int64)
    if comm.rank > 0:
        for _ in range(20 if comm.rank == 1 else 2):
            comm.send(np.array([comm.rank]), 0, 3)
        comm.barrier()
        return []
    comm.barrier()
    sources = []
    for _ in range(22 + 2 * (comm.world_size - 3)):
        work = comm.irecv(x, None, 3)
        sources.append(work.result())
        assert x[0] == sources[-1]
    with pytest.raises(PeerFailure, match="from any rank: no rank sent anything before the deadline"):
        comm.recv(x, None, 3, timeout=0.02)
    return sources


def test_a_receive_from_any_source_says_which_and_is_fair(jobs: Callable[[int], Job]) -> None:
    sources = jobs(4).run(from_any)[0]
    assert sources[:7].count(2) == sources[:7].count(3) == 2
    assert sorted(sources) == [1] * 20 + [2] * 2 + [3] * 2


def any_or_one(comm: Communicator) -> list[float]:
    """Receives are matched in the order in which they were posted, whether from any source or from one."""
    peer = 1 - comm.rank
    got = np.empty((3, 1))
    works = [comm.irecv(got[0], None), comm.irecv(got[1], peer), comm.irecv(got[2], None)]
    comm.barrier()
    for number in range(3):
        comm.send(np.array([float(number)]), peer)
    for work in works:
        assert work.result() == peer
    comm.barrier()
    large = np.full(200_000, comm.rank)
    sent = comm.isend(large, peer)
    assert comm.irecv(large.copy(), None).result() == peer
    sent.wait()
    return [float(one) for one in got[:, 0]]


def test_receives_from_any_and_from_one_take_turns(jobs: Callable[[int], Job]) -> None:
    assert jobs(2).run(any_or_one) == [[0.0, 1.0, 2.0]] * 2


# Threads, forks, the end


def two_threads(comm: Communicator) -> None:
    if comm.rank == 1:
        for tag in (2, 1):
            time.sleep(0.02)
            comm.send(np.array([tag]), 0, tag)
    else:
        got: dict[int, int] = {}
        threads = [
            threading.Thread(target=lambda tag=tag: got.update({tag: comm.recv(np.zeros(1, int), 1, tag)[0]}))
            for tag in (1, 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {1: 1, 2: 2}
    comm.barrier()


def test_two_threads_wait_at_once(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(two_threads)


def forks(comm: Communicator) -> None:
    peer, x = 1 - comm.rank, np.zeros(1)
    work = comm.irecv(x, peer)
    comm.barrier()  # or the peer may have sent it already
    child = os.fork()
    if child == 0:
        try:
            work.wait(5.0)
        except CommunicatorClosed:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    comm.send(np.ones(1), peer)
    work.wait()
    assert x == 1
    comm.barrier()


def test_a_fork_has_no_messages_and_its_parent_does(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(forks)


def closes_while_it_waits(comm: Communicator) -> None:
    group = comm.new_group([0, 1])
    assert isinstance(group, Communicator)
    if comm.rank == 1:
        comm.barrier()
        comm.barrier()
        group.close()
        return
    work = group.irecv(np.zeros(1), 1)
    sent = group.isend(np.zeros(100_000), 1)
    found: list[BaseException] = []

    def wait() -> None:
        try:
            work.wait()
        except CommunicatorClosed as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    comm.barrier()
    group.close()
    thread.join()
    assert len(found) == 1
    with pytest.raises(CommunicatorClosed):
        sent.wait()
    comm.barrier()


def test_close_ends_what_is_in_progress(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(closes_while_it_waits)


def outlives(comm: Communicator) -> None:
    """Rank 1 dies when its sends are done; one more is not."""
    if comm.rank == 1:
        comm.send(np.arange(3), 0, 1)
        comm.send(np.arange(200_000), 0, 2)
        comm.isend(np.arange(200_000), 0, 3)
        os.kill(os.getpid(), signal.SIGKILL)
    assert select.select([comm._engine.connection.pidfds[1]], [], [], 60)[0]  # it has ended
    waiting = comm.irecv(np.empty(1), None, 9)
    assert (comm.recv(np.empty(200_000, np.int64), 1, 2) == np.arange(200_000)).all()
    assert (comm.recv(np.empty(3, np.int64), 1, 1) == np.arange(3)).all()
    with pytest.raises(PeerFailure, match="rank 1 is gone") as caught:
        comm.recv(np.empty(200_000, np.int64), 1, 3)
    assert caught.value.ranks == {1}
    with pytest.raises(PeerFailure, match="rank 1 is gone"):
        comm.send(np.arange(3), 1)
    with pytest.raises(PeerFailure, match="no rank is left"):
        waiting.wait()


def test_what_a_rank_has_sent_outlives_it() -> None:
    with Job(2) as job, pytest.raises(RankError) as caught:
        job.run(outlives)
    assert caught.value.errors == {1: "died"}


def called_back(comm: Communicator) -> None:
    """Nobody waits for the receives, and yet somebody hears of them, and answers."""
    peer, heard, came = 1 - comm.rank, threading.Event(), threading.Event()
    x, large = np.zeros(1), np.zeros(200_000)

    def answer(work: Any) -> None:
        assert work.result() == peer
        comm.isend(large, peer, 2)
        came.set()

    comm.irecv(x, peer, 1).add_done_callback(answer)
    comm.irecv(large.copy(), peer, 2).add_done_callback(lambda _: heard.set())
    comm.barrier()
    comm.send(np.ones(1), peer, 1)
    assert heard.wait(20.0) and came.wait(20.0)
    assert x == 1
    comm.barrier()


def test_callbacks_are_called_though_nobody_waits(jobs: Callable[[int], Job]) -> None:
    jobs(2).run(called_back)
