"""Ranks that make different calls: all of them hear of it, with both sides, and no data is shared."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from choreo.errors import CollectiveMismatch
from choreo.run.communicator import Communicator
from choreo.run.execute.dtypes import ReduceOp
from tests.helpers.network.hosts import NetworkJob, hosts, why_no_hosts
from tests.helpers.ranks.faults import Job, Pipe, values


def other_call(comm: Communicator, talk: Pipe, kind: str) -> str:
    x = np.ones(12, np.float32)
    odd = comm.rank == 2
    if kind == "collective" and odd:
        comm.all_gather(x)
    elif kind == "size":
        comm.all_reduce(x[:7] if odd else x)
    elif kind == "dtype":
        comm.all_reduce(x.astype(np.int32) if odd else x)
    elif kind == "op":
        comm.all_reduce(x, ReduceOp.MAX if odd else ReduceOp.SUM)
    elif kind == "rows":
        comm.reduce_scatter(x, sizes=[1, 5, 3, 3] if odd else [3, 3, 4, 2])
    elif kind == "root":
        comm.broadcast(x, root=1 if odd else 0)
        comm.barrier()
    else:
        comm.all_reduce(x)
    return "went through"


SIDES = {
    "collective": ("all_gather(48 x float32)", "all_reduce(12 x float32, sum)"),
    "size": ("all_reduce(7 x float32, sum)", "all_reduce(12 x float32, sum)"),
    "dtype": ("all_reduce(12 x int32, sum)", "all_reduce(12 x float32, sum)"),
    "op": ("all_reduce(12 x float32, max)", "all_reduce(12 x float32, sum)"),
    "rows": ("reduce_scatter(1+5+3+3 x float32, sum)", "reduce_scatter(3+3+4+2 x float32, sum)"),
    "root": ("broadcast(12 x float32, root 1)", "broadcast(12 x float32, root 0)"),
}


def two_roots(comm: Communicator, talk: Pipe, count: int) -> str:
    """Two ranks take themselves for the root: both send, nobody waits, and the call goes well."""
    x, y = np.zeros(4, np.float32), np.ones(count, np.float32)
    for _ in range(12):
        for root in range(comm.world_size):
            comm.broadcast(x, root)
        comm.all_reduce(y)
    comm.broadcast(x, min(comm.rank, 1))
    for number in range(1000):
        y[:] = number
        comm.all_reduce(y)
        assert (y == number * comm.world_size).all(), "a wrong sum"
    return "went through"


@pytest.mark.parametrize("count", [2, 16_000, 100_000])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_once_made_different_calls_never_share_data_again(ranks: int, count: int) -> None:
    with Job(ranks, two_roots, count) as job:
        ended = job.ended()
    assert [one.error for one in ended] == ["CollectiveMismatch"] * ranks, ended


@pytest.mark.parametrize("kind", SIDES)
def test_different_calls_are_reported_on_all_ranks_with_both_sides(kind: str) -> None:
    with Job(4, other_call, kind) as job:
        ended = job.ended()
    odd, many = SIDES[kind]
    for one in ended:
        assert one.error == "CollectiveMismatch", one
        assert f"called {odd}" in one.text and f"called {many}" in one.text and "rank 2 (host" in one.text


def survives_or_not(comm: Communicator, talk: Pipe) -> None:
    """One rank forgets `survive=True`, and makes a barrier of its own after the call."""
    comm.all_reduce(np.ones(4), survive=comm.rank != 1)
    comm.barrier()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_forgets_to_survive_is_reported_with_both_calls(ranks: int) -> None:
    with Job(ranks, survives_or_not) as job:
        for one in job.ended():
            assert one.error == "CollectiveMismatch" and "called all_reduce(4 x float64, sum)" in one.text, one
            assert "called all_reduce(survive=True), in its all_reduce(4 x float64, sum)" in one.text


STEPS: dict[str, Callable[[Communicator], object]] = {
    "all_gather_object": lambda comm: comm.all_gather_object("a"),
    "new_group": lambda comm: comm.new_group([0]),
    "mesh": lambda comm: comm.mesh((3,), ("a",)),
    "all_gather": lambda comm: comm.all_gather(np.array([7])),
    "broadcast_object": lambda comm: comm.broadcast_object("a"),
    "broadcast": lambda comm: comm.broadcast(np.array([7])),
    "scatter_object": lambda comm: comm.scatter_object(["a"] * 3),
    "all_to_all": lambda comm: comm.all_to_all(np.ones(3), send_sizes=[1, 1, 1]),
    "grow": lambda comm: comm.grow(1, address="127.0.0.1:29517", secret="s" * 32, timeout=5),
}


def other_steps(comm: Communicator, talk: Pipe) -> list[str]:
    """Rank 1 makes one of two calls, the others the other one."""
    told = []
    for odd, many in pairwise([*STEPS, "all_gather_object", "all_gather"]):
        with pytest.raises(CollectiveMismatch, match=rf"called {odd}[,(].* called {many}[,(]") as caught:
            STEPS[odd if comm.rank == 1 else many](comm)
            comm.barrier()
        told.append(str(caught.value))
        comm = comm.shrink()
    return told


def test_calls_of_several_steps_are_told_apart() -> None:
    """Their first steps may be equal: arrays of the same size and type."""
    with Job(3, other_steps) as job:
        told = values(job.ended())
    assert len(told[0]) == len(STEPS) + 1 and told[0] == told[1] == told[2]


def only_sends(comm: Communicator, talk: Pipe, collective: str, goes_on: bool) -> str:
    """Rank 0 makes a call in which it waits for no one; after that, the others make another one."""
    x = np.ones(3)
    if comm.rank:
        talk.recv()
        comm.all_reduce(x)
        return "went through"
    calls = {
        "broadcast": lambda: comm.broadcast(x, 0),
        "scatter": lambda: comm.scatter(np.ones((comm.world_size, 3)), 0),
        "reduce": lambda: comm.reduce(x, 1),
        "gather": lambda: comm.gather(x, 1),
    }
    calls[collective]()
    talk.send("returned")
    talk.recv()
    if goes_on:
        comm.barrier()
    else:
        comm.close()
    return "left"


@pytest.mark.parametrize("collective", ["broadcast", "scatter", "reduce", "gather"])
@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "leaves"])
def test_a_rank_that_only_sends_learns_of_a_mismatch_in_its_next_call(collective: str, goes_on: bool) -> None:
    with Job(3, only_sends, collective, goes_on) as job:
        assert job.hear(0) == "returned"
        for talk in job.talks:
            talk.send("go")
        ended = job.ended()
    for one in ended if goes_on else ended[1:]:
        assert one.error == "CollectiveMismatch", ended
        assert f"called {collective}(" in one.text and "called all_reduce(3 x float64, sum)" in one.text, ended
    if not goes_on:
        assert ended[0].value == "left", ended


def mismatch_and_on(comm: Communicator, talk: Pipe) -> Any:
    with pytest.raises(Exception, match="called"):
        comm.all_reduce(np.ones(4 + comm.rank))
    again = comm.shrink()
    x = again.all_reduce(np.ones(4))
    found = (again.world_size, x.tolist())
    again.close()
    return found


def test_after_a_mismatch_all_ranks_can_go_on() -> None:
    with Job(2, mismatch_and_on) as job:
        assert [one.value for one in job.ended()] == [(2, [2.0] * 4)] * 2


# ---- an all_reduce that survives ----


def roots_differ(comm: Communicator, talk: Pipe) -> str:
    """The last rank takes itself for the root: it waits for nobody in that call, and goes on to others."""
    x = np.full(4, float(comm.rank))
    comm.broadcast(x, comm.world_size - 1 if comm.rank == comm.world_size - 1 else 0)
    for _ in range(3):
        comm.all_gather(x)
    return "went through"


@pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "they can")
@pytest.mark.parametrize("where", [(0, 1), (0, 1, 1)])
def test_a_call_that_some_had_returned_from_is_named_between_hosts(where: tuple[int, ...]) -> None:
    last = len(where) - 1
    with hosts(2) as made, NetworkJob(made, where, roots_differ) as job:
        ended = job.ended()
    for one in ended:
        assert one.error == "CollectiveMismatch", one
        assert f"root {last})" in one.text and "root 0)" in one.text, one
