"""All_to_all along flows, on any network, also with blocks of different sizes.

A linear program with one commodity for each source spreads the traffic over all paths so that the busiest link is least
busy. The flow of a source is taken apart into paths, each with its part of a block, and every hop of a path is a
message of its own. On a network that looks the same from every device one source is enough; the others do the same,
shifted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, csr_matrix, hstack, kron

from choreo.schedule import Schedule, Steps
from choreo.synthesize.network import Hops, hops_of
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.symmetry import Symmetry, symmetry_of, translated_rows
from choreo.synthesize.timeline import Tasks, in_time, steps_of
from choreo.synthesize.weights import BLOCK_WEIGHT, whole_weights
from choreo.topology.graph import Floats, Ints

__all__ = ["routed"]

# Into how many chunks a block may be cut beside its paths.
CHUNKS = (1, 2, 4, 8)
# How many variables the linear program may have.
MOST_VARIABLES = 60_000
# A flow below this part of a block is the solver's rounding.
LEAST_FLOW = 1e-4
# What a hop costs beside the time of the busiest link, so that of equal ways the shortest is taken.
HOP_COST = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """A part of the block that `source` has for `target`, and the hops it takes."""

    source: int
    target: int
    part: float
    hops: tuple[int, ...]


def routed(problem: Problem) -> Iterator[Candidate]:
    """All_to_all by multicommodity flow."""
    if problem.collective != "all_to_all" or not problem.in_order or problem.ranks < 2:
        return
    symmetry = symmetry_of(problem.topology)
    hops = hops_of(problem.topology) if symmetry is None else symmetry.hops()
    sources = range(problem.ranks) if symmetry is None else range(1)
    if len(sources) * len(hops) > MOST_VARIABLES:
        return
    demand = np.ones((len(sources), problem.ranks))
    demand[np.arange(len(sources)), np.arange(len(sources))] = 0.0
    flow = _flows(hops, demand)
    paths = [path for source in sources for path in _paths(hops, source, demand[source], flow[source])]
    block_bytes = problem.size_bytes / problem.ranks
    copies = problem.ranks // len(sources)
    best = np.inf
    for chunks in CHUNKS:
        rows = copies * chunks * sum(len(path.hops) for path in paths)
        if chunks > 1 and (block_bytes / chunks < LEAST_CHUNK_BYTES or rows > problem.most_transfers):
            break
        tasks, weights, a_block = _tasks(paths, problem.ranks, len(sources), chunks, block_bytes)
        start, end = in_time(tasks, hops)
        if end > best:
            break
        best = end
        num_chunks = problem.ranks**2 * a_block
        if symmetry is None:
            steps, sizes = steps_of(tasks, hops, start, num_chunks), weights
        else:
            steps, sizes = _translated(symmetry, hops, tasks, start, weights)
        yield Candidate("routed", Schedule("all_to_all", steps, None, "routed", sizes, receive_in_order=True))


def _flows(hops: Hops, demand: Floats) -> Floats:
    """For each source (rows) what crosses each hop (columns), such that the busiest link is least busy."""
    sources, devices = demand.shape
    count = len(hops)
    ends = coo_matrix(
        (np.repeat([1.0, -1.0], count), (np.concatenate((hops.dst, hops.src)), np.tile(np.arange(count), 2))),
        shape=(devices, count),
    )
    balance = hstack((kron(csr_matrix(np.eye(sources)), ends), csr_matrix((sources * devices, 1))))
    wanted = demand.copy()
    wanted[np.arange(sources), np.arange(sources)] = -demand.sum(axis=1)
    scale = float(hops.capacity.max())
    most = hstack((csr_matrix(np.tile(hops.load.toarray(), sources)), csr_matrix(-(hops.capacity / scale)[:, None])))
    cost = np.full(sources * count + 1, HOP_COST / sources / count)
    cost[-1] = 1.0
    limits = most, np.zeros(len(hops.capacity)), balance, wanted.reshape(-1)
    found = linprog(cost, *limits, method="highs")  # type: ignore[call-overload]  # the stubs have no sparse matrices
    assert found.x is not None, found.message
    flow: Floats = found.x[:-1].reshape(sources, count)
    return flow


def _paths(hops: Hops, source: int, demand: Floats, flow: Floats) -> Iterator[_Path]:
    """Take a source's flow apart into paths, from every target back to the source."""
    left = flow.tolist()
    src = hops.src.tolist()
    arriving: list[list[int]] = [[] for _ in range(hops.devices)]
    for hop in np.flatnonzero(flow > LEAST_FLOW * max(float(demand.max()), 1e-300)).tolist():
        arriving[int(hops.dst[hop])].append(hop)
    for target in np.flatnonzero(demand > 0).tolist():
        missing = float(demand[target])
        found: dict[tuple[int, ...], float] = {}
        while missing > LEAST_FLOW * demand[target]:
            way: list[int] = []
            at = target
            while at != source and len(way) <= hops.devices:
                hop = max(arriving[at], key=left.__getitem__)
                way.append(hop)
                at = src[hop]
            assert at == source, "the flow runs in a circle"
            part = min(missing, *(left[hop] for hop in way))
            if part <= LEAST_FLOW * demand[target]:  # rounding: the rest takes the widest way there is
                part = missing
            for hop in way:
                left[hop] -= part
            missing -= part
            key = tuple(reversed(way))
            found[key] = found.get(key, 0.0) + part
        total = sum(found.values())
        for way_there, part in found.items():
            yield _Path(source, target, part / total, way_there)


def _tasks(
    paths: Sequence[_Path], ranks: int, sources: int, chunks: int, block_bytes: float
) -> tuple[Tasks, Ints, int]:
    """A task for every hop of every piece of a block, the chunks' weights, and how many chunks a block has."""
    of_block: dict[tuple[int, int], list[_Path]] = {}
    for path in paths:
        of_block.setdefault((path.source, path.target), []).append(path)
    a_block = max(chunks, *(len(mine) for mine in of_block.values()))
    weights = whole_weights(np.full(a_block, 1 / a_block))
    sizes = np.tile(weights, sources * ranks)
    hop: list[int] = []
    chunk: list[int] = []
    before: list[tuple[int, int]] = []
    for (source, target), mine in of_block.items():
        counts = [1] * len(mine)
        while sum(counts) < a_block:
            counts[int(np.argmax([path.part / count for path, count in zip(mine, counts, strict=True)]))] += 1
        parts = np.repeat([path.part / count for path, count in zip(mine, counts, strict=True)], counts)
        first = (source * ranks + target) * a_block
        sizes[first : first + a_block] = whole_weights(parts)
        for piece, way in enumerate(np.repeat(np.arange(len(mine)), counts).tolist()):
            for number, one in enumerate(mine[way].hops):
                if number:
                    before.append((len(hop) - 1, len(hop)))
                hop.append(one)
                chunk.append(first + piece)
    size_bytes = sizes[chunk].astype(np.float64) * (block_bytes / BLOCK_WEIGHT)
    nothing = np.zeros(len(hop), np.bool_)
    order = np.array(before, np.int64).reshape(-1, 2)
    tasks = Tasks(np.array(hop), np.array(chunk), size_bytes, nothing, order, np.zeros(len(hop)))
    return tasks, sizes, a_block


def _translated(symmetry: Symmetry, hops: Hops, tasks: Tasks, start_s: Floats, sizes: Ints) -> tuple[Steps, Ints]:
    """What source 0 does, translated to every source."""
    devices = symmetry.devices
    a_block = len(sizes) // devices
    origin = np.arange(devices)

    def chunk_of(chunk: Ints) -> Ints:
        block = origin * devices + symmetry.shifted(chunk // a_block, origin)
        return block * a_block + chunk % a_block

    steps = translated_rows(
        symmetry,
        start_s,
        src=hops.src[tasks.hop],
        dst=hops.dst[tasks.hop],
        chunk=tasks.chunk,
        chunk_of=chunk_of,
        num_chunks=devices**2 * a_block,
    )
    table = np.empty(devices**2 * a_block, np.int64)
    every = np.arange(len(sizes))[:, None]
    table[chunk_of(every)] = sizes[every]
    return steps, table
