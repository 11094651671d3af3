"""All_to_all, send_recv, scatter and gather along flows, on any network, also with blocks of different sizes.

A linear program with one commodity per source spreads the traffic over all paths so that the busiest link has the least
load. Each source's flow is decomposed into paths, each with its part of a block, and every hop of a path is a message.
On a network that looks the same from every device one source is enough; the others do the same, shifted. A scatter has
one source, and in reverse on the reversed network it is a gather.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, csr_array, csr_matrix, hstack, kron
from scipy.sparse.csgraph import dijkstra

from choreo.bound.paths import Arcs, spread
from choreo.schedule import Schedule, Steps, backwards
from choreo.schedule.weights import block_weight, whole_weights
from choreo.synthesize.network import Hops
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem, UnsolvedError
from choreo.synthesize.relays import connects, group_hops, relays_of, settled
from choreo.synthesize.symmetry import Symmetry, symmetry_of, translated_rows
from choreo.synthesize.timeline import Tasks, in_time, steps_of
from choreo.topology.graph import Floats, Ints

__all__ = ["routed"]

# The most chunks of the largest block.
CHUNKS = (1, 4, 16, 64, 256, 512)
KINDS = ("all_to_all", "send_recv", "scatter", "gather")
# The most variables of the linear program with a commodity for each source, and the most ranks that send to their next.
MOST_VARIABLES, MOST_SENDERS = 60_000, 320
# The most relays (devices without a rank).
MOST_RELAYS = 256
# A flow below this fraction of a block is a rounding error of the solver.
LEAST_FLOW = 1e-4
# More chunks are not tried once a plan takes longer than the best by this factor: a few more may not help, but many.
FAR = 1.2
# A small cost per hop, so that the shortest of equally good paths is taken.
HOP_COST = 1e-4
# Hops without latency count as much as this, so that they are hops at all.
LEAST_S = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """A part of a block, and the hops it takes."""

    block: int
    part: float
    hops: tuple[int, ...]


def routed(problem: Problem) -> Iterator[Candidate]:
    """All_to_all and send_recv by multicommodity flow; scatter and gather by the flow of their root."""
    if problem.collective not in KINDS or problem.ranks < 2:
        return
    everywhere = problem.collective == "all_to_all"
    symmetry = symmetry_of(problem.topology) if everywhere and problem.weights is None and problem.in_order else None
    relays = relays_of(problem, MOST_RELAYS)
    hops = group_hops(problem, relays) if symmetry is None else symmetry.hops()
    if not problem.in_order and not connects(hops):
        return
    if problem.collective == "gather":
        hops = hops.turned()
    sources = [problem.root] if problem.root is not None else list(range(problem.ranks if symmetry is None else 1))
    to_next = problem.collective == "send_recv"
    if (problem.ranks > MOST_SENDERS) if to_next else (len(sources) * len(hops) > MOST_VARIABLES):
        return
    traffic = _traffic(problem, sources)
    demand, totals = traffic.demand, traffic.totals
    if not demand.any():  # the root, or every rank, keeps what there is
        nothing = Schedule.from_list(problem.collective, problem.ranks, [], num_chunks=len(totals), root=problem.root)
        yield Candidate("routed", replace(nothing, weights=totals))
        return
    for loads in (hops.with_busy_ports(), hops) if hops.leave_room else (hops,):
        paths = _to_next(loads, traffic) if to_next else _from_sources(loads, traffic)
        for schedule in _along(traffic, hops, paths, symmetry):
            yield Candidate("routed", settled(schedule, problem, relays))


@dataclass(frozen=True, slots=True, eq=False)
class _Traffic:
    """For each source (a row) how much of a mean block every rank gets. `totals` are the blocks' weights."""

    problem: Problem
    sources: Sequence[int]
    totals: Ints
    demand: Floats

    @property
    def mean_bytes(self) -> float:
        """The mean size of a block."""
        return float(self.problem.block_bytes.mean())

    def block(self, row: int, target: int) -> int:
        """The block that a source has for a rank: its only one in a send_recv."""
        return row if self.problem.collective == "send_recv" else row * self.problem.ranks + target


def _traffic(problem: Problem, sources: Sequence[int]) -> _Traffic:
    """What the sources send."""
    to_next = problem.collective == "send_recv"
    blocks = problem.contract.blocks(problem.ranks)
    totals = np.full(blocks if len(sources) > 1 else problem.ranks, block_weight(blocks))
    if problem.weights is not None:
        totals = problem.weights
    amounts = totals / totals.mean()
    if to_next:
        return _Traffic(problem, sources, totals, np.roll(np.diag(amounts), 1, axis=1))
    demand = amounts.reshape(len(sources), problem.ranks)
    demand[np.arange(len(sources)), sources] = 0.0
    return _Traffic(problem, sources, totals, demand)


def _from_sources(hops: Hops, traffic: _Traffic) -> list[_Path]:
    """Paths along the flow of each source to all others."""
    flow = _flows(hops, traffic.sources, traffic.demand)
    return [
        _Path(traffic.block(row, target), part, way)
        for row, source in enumerate(traffic.sources)
        for target, part, way in _paths(hops, source, traffic.demand[row], flow[row])
    ]


def _to_next(hops: Hops, traffic: _Traffic) -> list[_Path]:
    """Paths from each rank to the next, which are found one by one: there are few pairs, but as many sources."""
    source, target = np.nonzero(traffic.demand)
    units = traffic.demand[source, target]
    arcs = Arcs(hops.members, hops.src, hops.dst, csr_array(hops.load), hops.capacity)
    found = spread(arcs, list(zip(source.tolist(), target.tolist(), strict=True)), units)
    if found is None:
        raise UnsolvedError("paths")
    part = np.where(found.units > LEAST_FLOW * units[found.pair], found.units, 0.0)
    part /= np.bincount(found.pair, part)[found.pair]
    return [_Path(int(source[found.pair[one]]), float(part[one]), found.ways[one]) for one in np.flatnonzero(part)]


def _along(traffic: _Traffic, hops: Hops, paths: Sequence[_Path], symmetry: Symmetry | None) -> Iterator[Schedule]:
    """Schedules along paths, cut into more and more chunks while that helps."""
    problem, totals, mean_bytes = traffic.problem, traffic.totals, traffic.mean_bytes
    crossed = np.zeros(len(hops))
    for path in paths:
        crossed[list(path.hops)] += path.part * totals[path.block] / totals.mean()
    last_s = float((hops.load @ crossed / hops.capacity).max()) * mean_bytes
    copies = problem.ranks if symmetry is not None else 1
    togethers = (False, True) if hops.send_busy_s.any() else (False,)
    best = np.inf
    for chunks in CHUNKS:
        if chunks > 1 and mean_bytes * totals.max() / totals.mean() / chunks < LEAST_CHUNK_BYTES:
            break
        tasks, weights = _tasks(paths, totals, chunks, mean_bytes, last_s)
        if chunks > 1 and copies * len(tasks) > problem.most_transfers:
            break
        ways = product((False, True), togethers)
        timed = (in_time(tasks, hops, busiest_first=busiest, together=together) for busiest, together in ways)
        start, end = min(timed, key=_end)
        if end > FAR * best:
            break
        best = min(best, end)
        if symmetry is None:
            steps, sizes = steps_of(tasks, hops, start, len(weights)), weights
        else:
            steps, sizes = _translated(symmetry, hops, tasks, start, weights)
        collective = "scatter" if problem.collective == "gather" else problem.collective
        schedule = Schedule(collective, steps, problem.root, "routed", sizes, receive_in_order=True, relays=hops.relays)
        yield backwards(schedule) if problem.collective == "gather" else schedule


def _end(timed: tuple[Floats, float]) -> float:
    return timed[1]


def _flows(hops: Hops, source: Sequence[int], demand: Floats) -> Floats:
    """For each source (rows) what crosses each hop (columns), such that the busiest link has the least load."""
    sources, members = len(demand), hops.members
    count = len(hops)
    ends = coo_matrix(
        (np.repeat([1.0, -1.0], count), (np.concatenate((hops.dst, hops.src)), np.tile(np.arange(count), 2))),
        shape=(members, count),
    )
    balance = hstack((kron(csr_matrix(np.eye(sources)), ends), csr_matrix((sources * members, 1))))
    wanted = np.zeros((sources, members))
    wanted[:, : hops.devices] = demand
    wanted[np.arange(sources), source] = -demand.sum(axis=1)
    scale = float(hops.capacity.max())
    most = hstack((csr_matrix(np.tile(hops.load.toarray(), sources)), csr_matrix(-(hops.capacity / scale)[:, None])))
    cost = np.full(sources * count + 1, HOP_COST / sources / count)
    cost[-1] = 1.0
    limits = most, np.zeros(len(hops.capacity)), balance, wanted.reshape(-1)
    found = linprog(cost, *limits, method="highs")  # type: ignore[call-overload]  # the stubs have no sparse matrices
    if found.x is None:  # links of very different speed
        raise UnsolvedError(found.message)
    flow: Floats = found.x[:-1].reshape(sources, count)
    return flow


def _paths(hops: Hops, source: int, demand: Floats, flow: Floats) -> Iterator[tuple[int, float, tuple[int, ...]]]:
    """Decompose a source's flow into paths, from every target back to the source: the target, a part, its hops.

    A block so small that the solver rounded its flow away takes the quickest path.
    """
    left = flow.tolist()
    src = hops.src.tolist()
    arriving: list[list[int]] = [[] for _ in range(hops.members)]
    for hop in np.flatnonzero(flow > LEAST_FLOW * float(demand.min(initial=np.inf, where=demand > 0))).tolist():
        arriving[int(hops.dst[hop])].append(hop)
    quickest: list[int] = []
    for target in np.flatnonzero(demand > 0).tolist():
        missing = float(demand[target])
        found: dict[tuple[int, ...], float] = {}
        while missing > LEAST_FLOW * demand[target]:
            way: list[int] = []
            at = target
            while at != source and arriving[at] and len(way) <= hops.members:
                hop = max(arriving[at], key=left.__getitem__)
                way.append(hop)
                at = src[hop]
            if at != source:
                quickest = quickest or _quickest(hops, source)
                way, at = [], target
                while at != source:
                    way.append(quickest[at])
                    at = src[way[-1]]
            part = min(missing, *(left[hop] for hop in way))
            if part <= LEAST_FLOW * demand[target]:  # a rounding error: the rest takes this path
                part = missing
            for hop in way:
                left[hop] -= part
            missing -= part
            key = tuple(reversed(way))
            found[key] = found.get(key, 0.0) + part
        total = sum(found.values())
        for way_there, part in found.items():
            yield target, part / total, way_there


def _quickest(hops: Hops, source: int) -> list[int]:
    """The last hop of a short message's quickest path from the source to each member."""
    hop_s = np.maximum(hops.latency_s + hops.send_s + hops.receive_s, LEAST_S)
    ways = csr_matrix((hop_s, (hops.src, hops.dst)), shape=(hops.members,) * 2)
    _, before = dijkstra(ways, indices=np.array([source]), return_predecessors=True)
    number = dict(zip(zip(hops.src.tolist(), hops.dst.tolist(), strict=True), range(len(hops)), strict=True))
    return [number.get((start, end), -1) for end, start in enumerate(before[0].tolist())]


def _tasks(paths: Sequence[_Path], totals: Ints, chunks: int, mean_bytes: float, last_s: float) -> tuple[Tasks, Ints]:
    """A task for every hop of every piece of a block, and the chunks' weights.

    The largest block is cut into about `chunks` pieces, and others into pieces of that size. Blocks with fewer pieces
    are padded with empty ones. The pieces of a path are due one after another, the last `last_s` after the first.
    """
    piece_weight = totals.max() / chunks
    cuts = [max(1, round(path.part * float(totals[path.block]) / piece_weight)) for path in paths]
    of_block: dict[int, list[tuple[_Path, int]]] = {}
    for path, cut in zip(paths, cuts, strict=True):
        of_block.setdefault(path.block, []).append((path, cut))
    a_block = max(sum(cut for _, cut in mine) for mine in of_block.values())
    sizes = np.zeros(len(totals) * a_block, np.int64)
    sizes[::a_block] = totals  # a block that nobody sends, like a rank's own, is one piece
    hop: list[int] = []
    chunk: list[int] = []
    due: list[float] = []
    before: list[tuple[int, int]] = []
    for block, mine in of_block.items():
        counts = [cut for _, cut in mine]
        parts = np.repeat([path.part / cut for path, cut in mine], counts)
        first = block * a_block
        sizes[first : first + len(parts)] = whole_weights(parts, int(totals[block]))
        nth = np.concatenate([np.arange(cut) / cut for cut in counts]).tolist()
        for piece, way in enumerate(np.repeat(np.arange(len(mine)), counts).tolist()):
            for number, one in enumerate(mine[way][0].hops):
                if number:
                    before.append((len(hop) - 1, len(hop)))
                hop.append(one)
                chunk.append(first + piece)
                due.append(nth[piece] * last_s)
    size_bytes = sizes[chunk].astype(np.float64) * (mean_bytes / totals.mean())
    nothing = np.zeros(len(hop), np.bool_)
    order = np.array(before, np.int64).reshape(-1, 2)
    tasks = Tasks(np.array(hop), np.array(chunk), size_bytes, nothing, order, np.array(due))
    return tasks, sizes


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
