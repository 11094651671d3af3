"""What `stats` counts: the bytes and calls that were really moved, by collective and peer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from choreo.errors import PeerFailure
from choreo.run.communicator import Communicator
from choreo.run.execute.backend import is_compiled
from tests.helpers.ranks.run import Job


def by_collective(comm: Communicator, name: str) -> dict[str, int]:
    """The sums over all peers."""
    rows = [row for row in comm.stats() if row.collective == name]
    return {column: sum(row[column] for row in rows) for column in ("sent_bytes", "received_bytes")}


def ring(comm: Communicator, count: int) -> dict[str, Any]:
    assert comm.stats() == []
    x = np.ones(count)
    calls = 5
    for number in range(calls):
        comm.all_reduce(x) if number % 2 else comm.all_reduce(x, async_op=True).wait()
    moved = by_collective(comm, "all_reduce")
    right, left = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    assert {row.peer for row in comm.stats()} == {right, left}
    assert all(row.calls == calls for row in comm.stats())
    before = comm.stats(reset=True)
    assert comm.stats() == []
    comm.barrier()
    assert {row.collective for row in comm.stats()} == {"barrier"}
    assert all(row.calls == 1 and row.sent_bytes == row.received_bytes == 0 for row in comm.stats())
    assert dict(before[0])["collective"] == "all_reduce"
    return {name: total / calls for name, total in moved.items()}


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("count", [600, 240_000])
def test_ring_all_reduce_moves_twice_all_but_one_part(ranks: int, count: int) -> None:
    with Job(ranks, forced={"all_reduce": "ring"}) as job:
        for moved in job.run(ring, count):
            assert moved == dict.fromkeys(moved, 2 * (ranks - 1) * 8 * count / ranks)


def every_collective(comm: Communicator) -> dict[str, dict[str, int]]:
    p, rows = comm.world_size, np.ones((6 * comm.world_size, 5))
    comm.all_gather(rows)
    comm.reduce_scatter(rows)
    comm.all_to_all(rows)
    comm.broadcast(rows, root=p - 1)
    comm.all_to_all(rows, send_sizes=[6] * p)
    return {name: by_collective(comm, name) for name in ("all_gather", "reduce_scatter", "all_to_all", "broadcast")}


def test_what_is_sent_is_received() -> None:
    with Job(3) as job:
        found = job.run(every_collective)
    size = 18 * 5 * 8
    for name in found[0]:
        assert sum(one[name]["sent_bytes"] for one in found) == sum(one[name]["received_bytes"] for one in found) > 0
    assert all(one["reduce_scatter"]["received_bytes"] >= 2 * size // 3 for one in found)
    assert [one["all_to_all"]["sent_bytes"] for one in found] == [2 * 2 * size // 3] * 3
    assert [one["broadcast"]["received_bytes"] for one in found] == [size, size, 0]


def messages(comm: Communicator) -> None:
    """Every rank sends to the next, and to itself; what failed does not count."""
    right, left = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    sizes = (0, 1, 5000, 100_000)  # in the ring and beside it
    works = [comm.isend(np.ones(size), right) for size in sizes]
    for size in sizes:
        comm.recv(np.empty(size), left if size % 2 else None)
    for work in works:
        work.wait()
    comm.send(np.ones(3), comm.rank, tag=1)
    comm.recv(np.ones(3), comm.rank, tag=1)
    with pytest.raises(PeerFailure):
        comm.recv(np.ones(3), right, tag=2, timeout=0.01)
    total = 8 * sum(sizes)
    rows = {(row.collective, row.peer): tuple(row[name] for name in row.columns[2:]) for row in comm.stats(reset=True)}
    assert rows == {
        ("send", right): (4, 4, 0, total, 0),
        ("recv", left): (4, 0, 4, 0, total),
        ("send", comm.rank): (1, 1, 0, 24, 0),
        ("recv", comm.rank): (1, 0, 1, 0, 24),
    }, rows
    assert comm.stats() == []
    comm.barrier()


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_count_when_they_are_done(ranks: int) -> None:
    with Job(ranks) as job:
        job.run(messages)


def test_both_executors_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled():
        pytest.skip("there is no compiled executor")
    with Job(2) as job:
        compiled = job.run(every_collective)
    monkeypatch.setenv("CHOREO_PURE_PYTHON", "1")
    with Job(2) as job:
        assert job.run(every_collective) == compiled
