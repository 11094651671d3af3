"""All_to_all with a traffic matrix between servers, in rounds of matchings: FAST.

What one server has for another is spread evenly over its GPUs first. Every GPU then sends its part to its twin in the
other server, which distributes it there. In a round every server sends to one other and receives from one, so nobody
waits for a port. The rounds are those of a Birkhoff decomposition of the server matrix, and together take as long as
the busiest server alone. All three parts of different rounds go on at the same time.

Source: FAST, arXiv 2505.09764; G. Birkhoff, "Tres observaciones sobre el algebra lineal", Universidad Nacional de
Tucuman, Revista A 5, 1946.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from scipy.optimize import linear_sum_assignment

from choreo.schedule import Schedule
from choreo.synthesize.network import Hops, hops_of
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.timeline import Tasks, in_time, steps_of
from choreo.synthesize.weights import whole_weights
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["matched", "rounds_of"]

# The busiest server's traffic is sent in at least so many pieces one after another.
PIECES = (16, 64, 256)
# With more ranks the blocks are too many.
MOST_RANKS = 256
# So many places, ranks times chunks, may be in a proof: blocks have as many chunks as the largest.
MOST_PLACES = 1 << 28
# Less than this part of the busiest server's traffic is rounding, and not worth a round.
LEAST_ROUND = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class _Servers:
    """How many GPUs a server has, the number of the hop from each rank to each other (-1: none), and the traffic."""

    gpus: int
    number: Ints
    traffic: Floats

    def between(self) -> Floats:
        """What each server has for each other."""
        count = len(self.traffic) // self.gpus
        found: Floats = self.traffic.reshape(count, self.gpus, count, self.gpus).sum(axis=(1, 3))
        np.fill_diagonal(found, 0.0)
        return found

    def near(self) -> Bools:
        """Which ranks are in the same server."""
        server = np.arange(len(self.traffic)) // self.gpus
        same: Bools = server[:, None] == server
        return same

    def reaches_all(self) -> bool:
        """Whether there are hops among all GPUs of a server, and from each GPU to its twins."""
        rank = np.arange(len(self.number))
        twins = rank[:, None] % self.gpus == rank % self.gpus
        needed = (self.near() | twins) & (rank[:, None] != rank)
        return bool((self.number[needed] >= 0).all())


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a block, its hops, and when its way over the network should begin, in units of traffic."""

    block: int
    part: float
    hops: tuple[int, ...]
    start: float


def matched(problem: Problem) -> Iterator[Candidate]:
    """Servers behind switches, and uneven traffic; in ever smaller pieces as long as that helps."""
    if problem.collective != "all_to_all" or problem.weights is None or not problem.in_order:
        return
    blocks, ranks = problem.topology.blocks, problem.ranks
    if len(blocks) < 2 or blocks[-1].kind != "switch" or ranks > MOST_RANKS:
        return
    hops = hops_of(problem.topology)
    number = np.full((ranks, ranks), -1)
    number[hops.src, hops.dst] = np.arange(len(hops))
    traffic = problem.weights.reshape(ranks, ranks).astype(np.float64)
    np.fill_diagonal(traffic, 0.0)
    servers = _Servers(ranks // blocks[-1].size, number, traffic)
    if not servers.reaches_all():
        return
    weight_bytes = float(problem.block_bytes.sum()) / float(problem.weights.sum())
    best = np.inf
    for count in PIECES:
        pieces = list(_pieces(servers, count, LEAST_CHUNK_BYTES / max(weight_bytes, 1e-300)))
        transfers = sum(len(piece.hops) for piece in pieces)
        if not pieces or transfers > problem.most_transfers:
            break
        tasks, sizes = _tasks(pieces, problem.weights, weight_bytes, hops)
        if ranks * len(sizes) > MOST_PLACES:
            break
        togethers = (False, True) if hops.send_busy_s.any() else (False,)
        timed = [
            in_time(tasks, hops, busiest_first=busy, together=one) for busy, one in product((False, True), togethers)
        ]
        start, end = min(timed, key=lambda found: found[1])
        if end > best:
            break
        best = end
        steps = steps_of(tasks, hops, start, len(sizes))
        yield Candidate("matched", Schedule("all_to_all", steps, None, "matched", sizes, receive_in_order=True))


def rounds_of(traffic: Floats) -> Iterator[tuple[Ints, float]]:
    """Rounds in which everybody sends to one other: to whom, and how much; together as long as the busiest takes.

    The matrix is filled up so that all rows and columns have the same sum. It is then a sum of permutations.

    >>> [(to.tolist(), amount) for to, amount in rounds_of(np.array([[0.0, 2.0], [1.0, 0.0]]))]
    [([1, 0], 2.0)]
    """
    left = traffic.copy()
    most = float(max(left.sum(axis=0).max(), left.sum(axis=1).max()))
    rows, columns = most - left.sum(axis=1), most - left.sum(axis=0)
    for here, there in product(range(len(left)), repeat=2):  # what is not there may be sent to anybody
        filled = min(rows[here], columns[there])
        left[here, there] += filled
        rows[here] -= filled
        columns[there] -= filled
    everybody = np.arange(len(left))
    while float(left.sum(axis=1).max()) > LEAST_ROUND * most:
        # Of the permutations over what is left, one whose amounts have the greatest product: it lasts long.
        to = np.asarray(linear_sum_assignment(-np.log(np.maximum(left, LEAST_ROUND**2 * most)))[1], np.int64)
        amount = float(left[everybody, to].min())
        if amount <= LEAST_ROUND**2 * most:
            break
        yield to, amount
        left[everybody, to] -= amount


def _pieces(servers: _Servers, count: int, least: float) -> Iterator[_Piece]:
    """All blocks in pieces, each with its way and its turn."""
    traffic, number, between = servers.traffic, servers.number, servers.between()
    busiest = float(max(between.sum(axis=0).max(), between.sum(axis=1).max()))
    inside = np.where(servers.near(), traffic, 0.0)
    # A GPU takes a part of its server's traffic, in pieces of this size.
    size = max((busiest / servers.gpus or float(inside.max())) / count, least)
    turns = _turns(between)
    for here, there in np.argwhere(inside).tolist():
        cuts = max(1, round(inside[here, there] / size))
        way = (int(number[here, there]),)
        for nth in range(cuts):
            yield _Piece(here * len(traffic) + there, 1 / cuts, way, nth / cuts * busiest)
    for pair, turn in turns.items():
        yield from _across(servers, pair, size, turn)


def _turns(between: Floats) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """For every pair of servers what it has sent by when: (amount, time) at the ends of its rounds."""
    turns: dict[tuple[int, int], list[tuple[float, float]]] = {
        (here, there): [(0.0, 0.0)] for here, there in np.argwhere(between).tolist()
    }
    now = 0.0
    for to, amount in rounds_of(between):
        for here, there in enumerate(to.tolist()):
            known = turns.get((here, there))
            if known is not None:
                sent = known[-1][0]
                known += [(sent, now), (sent + amount, now + amount)]
        now += amount
    return turns


def _across(servers: _Servers, pair: tuple[int, int], size: float, turn: list[tuple[float, float]]) -> Iterator[_Piece]:
    """What one server has for another, on a line by source, cut into equal parts for its GPUs and into pieces."""
    traffic, number, gpus = servers.traffic, servers.number, servers.gpus
    ranks, (here, there) = len(traffic), pair
    rows, columns = here * gpus + np.arange(gpus), there * gpus + np.arange(gpus)
    amounts = traffic[np.ix_(rows, columns)].ravel()
    ends = np.concatenate(([0.0], np.cumsum(amounts)))
    total = float(ends[-1])
    a_gpu = total / gpus
    sent, at = np.array(turn).T
    cuts = max(1, round(a_gpu / size))
    marks = np.arange(gpus * cuts) * (a_gpu / cuts)
    edges = np.unique(np.concatenate((ends, marks)))
    edges = edges[np.concatenate((np.diff(edges) > 1e-9 * total, [True]))]  # no slivers
    edges[0] = 0.0
    for low, high in pairwise(edges.tolist()):
        middle = (low + high) / 2
        cell = int(np.searchsorted(ends, middle, side="right")) - 1
        gpu = min(int(middle / a_gpu), gpus - 1)
        src, dst = int(rows[cell // gpus]), int(columns[cell % gpus])
        stops = [src, here * gpus + gpu, there * gpus + gpu, dst]
        way = tuple(int(number[first, second]) for first, second in pairwise(stops) if first != second)
        start = float(np.interp((low - gpu * a_gpu) * gpus, sent, at))
        yield _Piece(src * ranks + dst, (high - low) / float(amounts[cell]), way, start)


def _tasks(pieces: list[_Piece], totals: Ints, weight_bytes: float, hops: Hops) -> tuple[Tasks, Ints]:
    """A task for every hop of every piece, and the chunks' weights."""
    of_block: dict[int, list[_Piece]] = {}
    for piece in pieces:
        of_block.setdefault(piece.block, []).append(piece)
    a_block = max(map(len, of_block.values()))
    sizes = np.zeros(len(totals) * a_block, np.int64)
    sizes[::a_block] = totals  # a block that nobody sends, like a rank's own, is one piece
    hop: list[int] = []
    chunk: list[int] = []
    due: list[float] = []
    before: list[tuple[int, int]] = []
    second = weight_bytes / float(hops.bandwidth_bytes_per_s.min())
    for block, mine in of_block.items():
        first = block * a_block
        parts = np.array([piece.part for piece in mine])
        sizes[first : first + len(mine)] = whole_weights(parts / parts.sum(), int(totals[block]))
        for nth, piece in enumerate(mine):
            before += [(len(hop) + one, len(hop) + one + 1) for one in range(len(piece.hops) - 1)]
            hop += piece.hops
            chunk += [first + nth] * len(piece.hops)
            due += [piece.start * second] * len(piece.hops)
    order = np.array(before, np.int64).reshape(-1, 2)
    nothing = np.zeros(len(hop), np.bool_)
    tasks = Tasks(
        np.array(hop), np.array(chunk), sizes[chunk].astype(np.float64) * weight_bytes, nothing, order, np.array(due)
    )
    return tasks, sizes
