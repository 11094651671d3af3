"""Calls that fail: mistakes told before anything is sent, ranks whose calls differ, and ranks that are gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import choreo
from choreo.errors import CollectiveMismatch, CommunicatorClosed, PeerFailure, RendezvousError, UsageError
from choreo.run import groups
from choreo.run.blobs import all_gather_blobs
from choreo.run.communicator import Communicator
from choreo.run.connection import Connection
from choreo.run.execute.dtypes import ReduceOp
from choreo.run.init import make_communicator
from choreo.run.recover import shrink
from tests.helpers.ranks.run import Job, RankError

Array = npt.NDArray[Any]


ones = np.ones(4, np.float32)
read_only = np.ones(4, np.float32)
read_only.flags.writeable = False

MISTAKES: list[tuple[str, Callable[[Communicator], object], str]] = [
    ("a list", lambda c: c.all_reduce([1, 2]), "x must be a NumPy array or a CPU tensor, not list"),
    ("read-only", lambda c: c.all_reduce(read_only), "x is read-only"),
    ("read-only out", lambda c: c.all_reduce(ones, out=read_only), "out is read-only"),
    ("objects", lambda c: c.all_reduce(np.array([{}])), "arrays of object cannot be sent"),
    ("text", lambda c: c.broadcast(np.array(["a"])), "arrays of <U1 cannot be sent"),
    ("byte order", lambda c: c.all_reduce(np.ones(4, ">f4")), "in the machine's byte order"),
    ("masked", lambda c: c.all_reduce(np.ma.array([1.0], mask=[True])), "masked array"),
    ("out's shape", lambda c: c.all_reduce(ones, out=np.ones(3, "f4")), r"out is float32 of shape \(3,\), and must be"),
    ("out's type", lambda c: c.all_gather(ones, out=np.ones((2, 4))), "out is float64 of shape"),
    ("part's shape", lambda c: c.reduce_scatter(ones, out=np.ones(3, "f4")), "out is float32 of shape"),
    ("root", lambda c: c.broadcast(ones.copy(), root=2), "root must be a rank from 0 to 1, not 2"),
    ("negative root", lambda c: c.reduce(ones.copy(), root=-1), "root must be a rank from 0 to 1, not -1"),
    ("root of a kind", lambda c: c.gather(ones, root="0"), "root must be a rank"),  # type: ignore[arg-type]
    ("op", lambda c: c.all_reduce(ones.copy(), "sum"), "op must be a ReduceOp"),  # type: ignore[arg-type]
    ("op of type", lambda c: c.all_reduce(ones.copy(), ReduceOp.BXOR), "bitwise xor has no meaning for float32"),
    ("timeout", lambda c: c.barrier(timeout=0), "timeout must be a finite"),
    ("no op", lambda c: c.all_reduce(ones.copy(), None), "op must be a ReduceOp"),  # type: ignore[arg-type]
    ("survivors' out", lambda c: c.all_reduce(ones, out=np.empty(3), survive=True), "out is float64 of shape"),
    (
        "survivors' timeout",
        lambda c: c.all_reduce(ones.copy(), survive=True, timeout=0),
        "timeout must be a finite",
    ),
    (
        "survivors at leisure",
        lambda c: c.all_reduce(ones.copy(), survive=True, async_op=True),
        "cannot be asynchronous",
    ),
    ("shrink's timeout", lambda c: c.shrink(timeout="soon"), "'soon' is not a time"),
    ("text of no time", lambda c: c.barrier(timeout="0s"), "timeout must be a finite"),
    ("text without a unit", lambda c: c.barrier(timeout="30"), "its unit is missing; write 30us or 30s"),
    ("grow's timeout", lambda c: c.grow(timeout=-1), "timeout must be a finite"),
    ("no end", lambda c: c.all_reduce(ones.copy(), timeout=float("inf")), "timeout must be a finite"),
    ("beyond numbers", lambda c: c.all_reduce(ones.copy(), timeout=10**400), "timeout must be a finite"),
    ("a duration", lambda c: c.barrier(timeout=np.timedelta64(1, "s")), "timeout must be a finite"),  # type: ignore[arg-type]
    ("text beyond numbers", lambda c: c.barrier(timeout="1e400s"), "beyond all measure"),
    ("shrink beyond numbers", lambda c: c.shrink(timeout=10**400), "timeout must be a finite"),
    ("0-d", lambda c: c.reduce_scatter(np.array(1.0)), "x is a scalar"),
    ("rows", lambda c: c.all_to_all(np.ones(3)), "x has 3 rows, which is not a multiple of 2 ranks"),
    ("sizes", lambda c: c.reduce_scatter(ones, sizes=[1, 2]), "sizes must be 2 numbers of rows that add up to 4"),
    ("sizes' kind", lambda c: c.reduce_scatter(ones, sizes=[1.5, 2.5]), "sizes must be"),  # type: ignore[list-item]
    ("recv_sizes alone", lambda c: c.all_to_all(ones, recv_sizes=[2, 2]), "without send_sizes"),
    (
        "recv_sizes beyond numbers",
        lambda c: c.all_to_all(ones, send_sizes=[2, 2], recv_sizes=[2, 10**30]),
        "sizes must",
    ),
    ("scatter of nothing", lambda c: c.scatter(None, root=c.rank), "the root must give x"),
    ("scatter into nothing", lambda c: c.scatter(None, root=1 - c.rank), "must give out, or x"),
    ("dst", lambda c: c.send(ones, 5), "dst must be a rank"),
    ("tag", lambda c: c.recv(ones.copy(), 0, tag="x"), "tag must be a whole number"),  # type: ignore[arg-type]
    ("group", lambda c: c.new_group([0, 0]), "ranks must be different ranks from 0 to 1"),
    ("mesh", lambda c: c.mesh((2, 2), ("a", "b")), "has 4 places for 2 ranks"),
    ("names", lambda c: c.mesh((2, 1), ("a", "a")), "2 different names"),
    ("names of no kind", lambda c: c.mesh((2,), 3), "1 different names"),  # type: ignore[arg-type]
    ("lists as names", lambda c: c.mesh((2,), [[0]]), "1 different names"),  # type: ignore[list-item]
    ("half a character", lambda c: c.mesh((2,), ["\ud800"]), "1 different names"),
    ("axes", lambda c: c.mesh((2, *[1] * 99), [str(axis) for axis in range(100)]), "at most 64 axes, not 100"),
    ("root of 5000 digits", lambda c: c.gather(ones, root=10**5000), "root must be a rank .* not a value of type int"),
    ("tag of 5000 digits", lambda c: c.send(ones, 0, 10**5000), "tag must be a whole number"),
    ("sizes of 5000 digits", lambda c: c.reduce_scatter(ones, sizes=[10**5000, 1]), "sizes must be 2 numbers"),
    ("rank of 5000 digits", lambda c: c.new_group([10**5000]), "ranks must be different ranks"),
    ("side of 5000 digits", lambda c: c.mesh([10**5000], ["a"]), "places for 2 ranks"),
    ("new ranks of 5000 digits", lambda c: c.grow(10**5000), "new_ranks must be from 1 to .* not a value of type int"),
    ("own rank of 5000 digits", lambda c: choreo.init(rank=10**5000, world_size=2), "RANK is a value of type int"),
    ("own rank alone", lambda c: choreo.init(rank=10**5000), "rank is a value of type int and world_size is None"),
    ("network of 5000 digits", lambda c: choreo.init(network=10**5000), "network is a value of type int"),  # type: ignore[arg-type]
    ("quorum of 5000 digits", lambda c: choreo.init(quorum=10**5000), "quorum is a value of type int"),  # type: ignore[arg-type]
    (
        "address that is no name",
        lambda c: c.grow(address="." * 300 + ":80"),
        "the address is .*, which is no host's name",
    ),
    ("bytes of 5000 digits", lambda c: c.explain("all_reduce", 10**5000), "the size must be a number of bytes"),
    ("empty", lambda c: c.empty((-1,)), "negative side"),
    ("empty beyond numbers", lambda c: c.empty((0, 10**30)), "larger than any array"),
    ("empty's dtype", lambda c: c.empty(3, object), "arrays of object"),
    ("dtype that is no text", lambda c: c.empty(3, "\ud800"), "dtype must be one of NumPy's"),
    ("dtype of 5000 digits", lambda c: c.empty(3, "9" * 5000), "dtype must be one of NumPy's"),
    ("address that is no text", lambda c: c.grow(address=29500), "an address must be text"),  # type: ignore[arg-type]
    ("secret that is no text", lambda c: c.grow(secret=1234), "a secret must be text or bytes"),  # type: ignore[arg-type]
    ("half a letter of a secret", lambda c: c.waiting(secret="\ud800" * 20), "cannot be written as UTF-8"),
    ("quorum that is no text", lambda c: choreo.init(quorum=ones), "quorum is "),  # type: ignore[arg-type]
    ("network that is no text", lambda c: choreo.init(network=ones), "network is "),  # type: ignore[arg-type]
    ("explain", lambda c: c.explain("allreduce", 8), "there is no collective 'allreduce'"),
    ("a pickle", lambda c: c.all_gather_object(lambda: 0), "cannot be pickled"),
]


def mistaken(comm: Communicator, name: str) -> None:
    wrong, sentence = next((call, text) for known, call, text in MISTAKES if known == name)
    with pytest.raises(UsageError, match=sentence) as caught:
        wrong(comm)
    assert "\n" not in str(caught.value)
    x = np.ones(3)
    comm.all_reduce(x)  # nothing was sent, so the communicator is as good as before
    assert (x == comm.world_size).all()


@pytest.mark.parametrize("name", [name for name, _, _ in MISTAKES])
def test_mistakes_are_reported_before_anything_is_sent(jobs: Callable[[int], Job], name: str) -> None:
    jobs(2).run(mistaken, name)


def alone(comm: Communicator) -> list[str]:
    """Calls that nobody else makes."""
    if comm.rank:
        time.sleep(1.5)
        return []
    work = comm.all_reduce(np.ones(3), timeout=0.3, async_op=True)
    after = comm.barrier(async_op=True)
    with pytest.raises(PeerFailure):
        work.wait()
    said = []
    for call in (after.wait, comm.barrier, lambda: comm.all_reduce(ones.copy()), lambda: comm.send(ones, 1)):
        began = time.monotonic()
        with pytest.raises(PeerFailure) as caught:
            call()
        said.append(str(caught.value))
        assert caught.value.ranks == {1}
        assert time.monotonic() - began < comm.timeout_s
    comm.close()
    return said


def test_after_a_failure_every_call_raises_it_at_once() -> None:
    with Job(2) as job:
        said = job.run(alone)[0]
    assert len(set(said)) == 1
    assert "rank 1 (host" in said[0]
    assert "all_reduce" in said[0]


def without_the_dead(comm: Communicator) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerFailure, match="died"):
        comm.all_reduce(np.ones(3))
    with pytest.raises(PeerFailure, match="rank 1 is gone"):
        comm.messages.receive(memoryview(bytearray(8)), 0, 1, 0, 20.0, finish=lambda: None).wait()


def test_a_dead_peer_is_noticed() -> None:
    with Job(2) as job, pytest.raises(RankError) as caught:
        job.run(without_the_dead)
    assert caught.value.errors == {1: "died"}


def different(comm: Communicator) -> None:
    with pytest.raises(CollectiveMismatch, match=r"called all_reduce\(3 x float64, sum\)"):
        comm.all_reduce(np.ones(3 + comm.rank))
    with pytest.raises(CollectiveMismatch, match=r"called all_reduce\(3 x float64, sum\)"):
        comm.barrier()


def sum_and_average(comm: Communicator) -> None:
    with pytest.raises(CollectiveMismatch, match="average"):
        comm.all_reduce(np.ones(3), (ReduceOp.SUM, ReduceOp.AVG)[comm.rank])


def test_an_average_is_not_a_sum() -> None:
    with Job(2) as job:
        job.run(sum_and_average)


def test_different_calls() -> None:
    with Job(2) as job:
        job.run(different)


def late_in_every_step(comm: Communicator, call: Callable[[Communicator, float], object]) -> set[int]:
    """Rank 1 comes to every exchange of the call, each time after most of the call's time."""
    timeout_s, prompt = 2.0, groups.exchange_blobs

    def late(*given: Any) -> list[bytes]:
        time.sleep(0.7 * timeout_s)
        return prompt(*given)

    if comm.rank == 1:
        groups.exchange_blobs = late  # type: ignore[assignment]
    with pytest.raises((PeerFailure, CommunicatorClosed)) as caught:  # closed: the others go on without it
        call(comm, timeout_s)
    comm.close()
    return set(getattr(caught.value, "ranks", ()))


def _group_of_all(comm: Communicator, timeout_s: float) -> object:
    return comm.new_group([0, 1, 2], timeout=timeout_s)


def _mesh_of_one_axis(comm: Communicator, timeout_s: float) -> object:
    return comm.mesh((1, 3), ("dp", "tp"), timeout=timeout_s)


@pytest.mark.parametrize(
    "call",
    [
        _group_of_all,
        _mesh_of_one_axis,
    ],
)
def test_a_timeout_is_for_all_steps_of_a_call(call: Callable[[Communicator, float], object]) -> None:
    with Job(3) as job:
        told = job.run(late_in_every_step, call)
    assert told[0] == told[2] == {1}


def late_in_every_exchange(comm: Communicator) -> str:
    """Rank 1 comes to every exchange of the setup of a communicator, each time after most of its time."""
    timeout_s = 2.0

    class Late:
        rank, world_size = comm.rank, comm.world_size

        def exchange(self, blob: bytes, left_s: float) -> list[bytes]:
            time.sleep(0.7 * timeout_s * (comm.rank == 1))
            return all_gather_blobs(comm._engine, blob, left_s, "init")

    with pytest.raises((PeerFailure, CommunicatorClosed)) as caught:
        make_communicator(Late(), "127.0.0.1", None, timeout_s=timeout_s, sealed=True)
    comm.close()
    return str(caught.value)


def test_a_timeout_is_for_all_of_the_setup() -> None:
    with Job(3) as job:
        told = job.run(late_in_every_exchange)
    assert told[0] == told[2]
    assert "rank 1 (host" in told[0]


def stuck_while_it_shrinks(comm: Communicator) -> tuple[int, ...]:
    """Rank 1 has a new connection, but never introduces itself on it. Rank 0 ends it once it has shrunk without it."""
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerFailure):
        comm.all_reduce(np.ones(3))
    if comm.rank == 1:
        Communicator._introduce = lambda *_: time.sleep(600)  # type: ignore[method-assign]
    with comm.shrink(timeout=2.0) as shrunk:
        os.kill(comm._engine.connection.peers[1].pid, signal.SIGKILL)
        return shrunk.ranks


def test_shrink_does_not_wait_for_a_rank_that_is_stuck_in_it() -> None:
    with Job(3) as job, pytest.raises(RankError) as caught:
        job.run(stuck_while_it_shrinks, timeout_s=60.0)
    assert caught.value.errors == {1: "died", 2: "died"}


def cannot_connect(comm: Communicator, how: str) -> None:
    """Ranks that reach each other on the connections that they have, and can make no others."""
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)

    def refused(*_: object, **__: object) -> Connection:
        time.sleep(0.1)
        raise RendezvousError("this rank cannot connect: the network does not let it")

    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(shrink, "connect", refused)
        patch.setattr(shrink, "SHRINK_S", 0.5)
        with pytest.raises(PeerFailure) as caught:
            if how == "shrink":
                comm.shrink(timeout=0.5)
            else:
                comm.all_reduce(np.ones(3), survive=True, timeout=0.5)
    told = str(caught.value)
    assert "could be built" in told and "the network does not let it" in told, told
    assert f"{shrink.ATTEMPTS} attempts" not in told, told


@pytest.mark.parametrize("how", ["shrink", "survive"])
def test_ranks_that_cannot_connect_anew_are_told_so(how: str) -> None:
    with Job(3) as job, pytest.raises(RankError) as caught:
        job.run(cannot_connect, how, timeout_s=60.0)
    assert caught.value.errors == {2: "died"}
