"""Ranks that do the same are simulated once: the times are those of the simulation of all."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from choreo import build
from choreo.simulate.execution import folding, replay, simulate_workload
from choreo.simulate.execution.durations import durations_of
from choreo.simulate.execution.folded import unfolded
from choreo.simulate.execution.folding import Folding
from choreo.workload.execution import ExecutionGraph, GraphBuilder

AXES = (2, 4, 2)  # tensor, data, pipeline


def spmd(seed: int, axes: Sequence[int] = AXES, *, odd_one: bool = False) -> ExecutionGraph:
    """A random program of all ranks of a pipeline stage: collectives along axes, messages between stages."""
    tensor, data, pipeline = axes
    ranks, stage_ranks = tensor * data * pipeline, tensor * data
    graph = GraphBuilder(ranks)
    for rank in range(ranks):
        chance = random.Random(seed)  # the same at every rank
        stage, place = divmod(rank, stage_ranks)
        column = tuple(range(rank - rank % tensor, rank - rank % tensor + tensor))
        row = tuple(stage * stage_ranks + place % tensor + tensor * one for one in range(data))
        last: list[int] = []
        for number in range(12):
            what = chance.choice(("compute", "compute", "tensor", "data", "message", "beside"))
            micros, size = chance.uniform(1, 50), chance.choice((0, 4096, 300_000, 1 << 20))
            if what == "compute":
                slower = 2.0 if odd_one and rank == 3 and number > 0 else 1.0
                last = [graph.compute(rank, "work", slower * micros * 1e-6 * (1 + stage), after=last)]
            elif what in ("tensor", "data"):
                kind = chance.choice(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
                last = [graph.collective(rank, kind, size, column if what == "tensor" else row, after=last)]
            elif what == "beside":
                graph.collective(rank, "all_reduce", size, row, after=last)
            elif stage == 0:
                graph.send(rank, rank + stage_ranks, size, after=last)
            elif stage == 1:
                last = [graph.recv(rank, rank - stage_ranks, size, after=last)]
    return graph.finish()


def classes(graph: ExecutionGraph) -> int:
    return len(np.unique(Folding(graph, durations_of(graph, None)).classes()))


@pytest.mark.parametrize(
    "topology",
    ["torus(2x4x2, 50GB/s, 1us)", "hgx-h100:2", "switch(16, 25GB/s, 2us)", "fat_tree(4x4, 50GB/s, 1us, spines=2)"],
)
@pytest.mark.parametrize(
    "algorithm", ["suggested", "ring,all_to_all=bruck", "all_reduce=mst,all_gather=mst,all_to_all=pairwise"]
)
@pytest.mark.parametrize("seed", range(3))
def test_folded_ranks_take_what_all_of_them_take(topology: str, algorithm: str, seed: int) -> None:
    graph = spmd(seed)
    assert classes(graph) == 2  # the stages
    folded = simulate_workload(graph, topology, algorithm=algorithm)
    plain = simulate_workload(graph, topology, algorithm=algorithm, fold=False)
    for column in ("ready_s", "start_s", "end_s"):
        found, wanted = getattr(folded.times, column), getattr(plain.times, column)
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-15), column
    assert folded.link_bytes == pytest.approx(plain.link_bytes, rel=1e-9, abs=1e-6)
    assert folded.link_busy_s == pytest.approx(plain.link_busy_s, rel=1e-6, abs=1e-12)
    path = folded.critical_path
    assert path[-1].end_s == folded.time_s and path[0].start_s == 0
    assert sum(leg.end_s - leg.start_s for leg in path) == pytest.approx(folded.time_s)


@pytest.mark.parametrize("odd_one", [False, True])
def test_a_replay_of_folded_ranks_is_that_of_all_of_them(monkeypatch: pytest.MonkeyPatch, odd_one: bool) -> None:
    graph = spmd(1, odd_one=odd_one)
    folded = replay(graph)
    monkeypatch.setattr(folding, "WORTH_FOLDING", 0.0)
    plain = replay(graph)
    for column in ("ready_s", "start_s", "end_s"):
        assert (getattr(folded.times, column) == getattr(plain.times, column)).all(), column
    assert (folded.exposed_by_node == plain.exposed_by_node).all()


def test_a_rank_that_is_slower_is_distinguished_with_those_that_wait_for_it() -> None:
    graph = spmd(1, odd_one=True)
    assert classes(graph) > 2
    folded, plain = (simulate_workload(graph, "hgx-h100:2", fold=one) for one in (True, False))
    assert folded.times.end_s == pytest.approx(plain.times.end_s, rel=1e-9)


def test_ranks_that_an_algorithm_or_the_network_tells_apart_are_kept_apart() -> None:
    graph = GraphBuilder(8)
    for rank in range(8):
        first = graph.collective(rank, "broadcast", "1MiB", range(8), root=2)
        graph.compute(rank, "work", 1e-6, after=[first])
    made = graph.finish()
    for topology in ("ring(8, 50GB/s, 1us)", "mesh(8, 50GB/s, 1us)"):
        folded, plain = (simulate_workload(made, topology, algorithm="linear", fold=one) for one in (True, False))
        assert folded.times.end_s == pytest.approx(plain.times.end_s, rel=1e-9)


def test_neighbours_that_all_send_at_once_are_one_rank() -> None:
    graph = GraphBuilder(64)
    for rank in range(64):
        last: list[int] = []
        for turn in range(4):
            graph.send(rank, (rank + 1) % 64, "1MiB", tag=turn, after=last)
            last = [graph.recv(rank, (rank - 1) % 64, "1MiB", tag=turn, after=last)]
    made = graph.finish()
    assert classes(made) == 1
    folding = Folding(made, durations_of(made, None))
    made_of_one = folding.fold(folding.classes())
    assert made_of_one is not None
    folded = made_of_one[0]
    assert len(folded.graph) == 8 and len(folded.members[0].devices) == 64
    assert len(unfolded(made).nodes) == 256
    for topology in ("ring(64, 50GB/s, 1us)", "torus(8x8, 50GB/s, 1us)"):
        found, plain = (simulate_workload(made, topology, fold=one) for one in (True, False))
        assert found.times.end_s == pytest.approx(plain.times.end_s, rel=1e-9)
        assert found.link_bytes == pytest.approx(plain.link_bytes)


def test_a_ring_all_reduce_written_as_messages_folds_to_one_rank() -> None:
    from choreo.trace.messages import schedule_graph

    graph = schedule_graph(build("all_reduce", "ring", 16), 1 << 20)
    folded, plain = (simulate_workload(graph, "ring(16, 50GB/s, 1us)", fold=one) for one in (True, False))
    assert folded.times.end_s == pytest.approx(plain.times.end_s, rel=1e-9)
