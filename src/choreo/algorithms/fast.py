"""FAST: all_to_all with uneven traffic between servers, in rounds in which every server sends to one other.

The traffic from one server to another is first spread evenly over its GPUs. Every GPU then sends its part to its peer
in the other server, which distributes it there during the next round. The rounds come from a Birkhoff decomposition of
the server matrix. So no port is contended in a round, and all rounds together take as long as the busiest server alone.

The first axis is the GPUs of a server. `traffic` is the amount that each rank (rows) sends to each other, in any unit.
Without it all blocks are equal, and nothing needs to be spread first.

Source: FAST, arXiv 2505.09764; G. Birkhoff, "Tres observaciones sobre el algebra lineal", Universidad Nacional de
Tucuman, Revista A 5, 1946.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from choreo.algorithms import AxesLike, Cost, algorithm, axes_for
from choreo.schedule import Move, Schedule, Steps, move
from choreo.schedule.weights import whole_amounts, whole_weights

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

# Less than this fraction of the busiest server's traffic is rounding error, and not worth a round.
LEAST_ROUND = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Servers:
    """The number of GPUs in a server, and the traffic of each rank for each other."""

    gpus: int
    traffic: Floats

    def between(self) -> Floats:
        """The traffic of each server for each other."""
        count = len(self.traffic) // self.gpus
        found: Floats = self.traffic.reshape(count, self.gpus, count, self.gpus).sum(axis=(1, 3))
        np.fill_diagonal(found, 0.0)
        return found

    def near(self) -> Bools:
        """A mask of the ranks that are in the same server."""
        server = np.arange(len(self.traffic)) // self.gpus
        same: Bools = server[:, None] == server
        return same

    def across(self, pair: tuple[int, int], marks: Floats) -> Pieces:
        """The traffic of one server for another, laid out by source, and cut into a part for each GPU and at `marks`.

        Marks are fractions of a GPU's part, from 0 on. `place` says where in that part a piece begins.
        """
        gpus, ranks, (here, there) = self.gpus, len(self.traffic), pair
        rows, columns = here * gpus + np.arange(gpus), there * gpus + np.arange(gpus)
        amounts = self.traffic[np.ix_(rows, columns)].ravel()
        ends = np.concatenate(([0.0], np.cumsum(amounts)))
        total = float(ends[-1])
        cuts = ((np.arange(gpus)[:, None] + marks) * (total / gpus)).ravel()
        edges = np.unique(np.concatenate((ends, cuts)))
        edges = edges[np.concatenate((np.diff(edges) > LEAST_ROUND * total, [True]))]  # no slivers
        edges[0] = 0.0
        middle = (edges[:-1] + edges[1:]) / 2
        cell = np.searchsorted(ends, middle, side="right") - 1
        gpu = np.minimum((middle / total * gpus).astype(np.int64), gpus - 1)
        src, dst = rows[cell // gpus], columns[cell % gpus]
        stops = np.stack((src, here * gpus + gpu, there * gpus + gpu, dst), axis=1)
        place = edges[:-1] / total * gpus - gpu
        return Pieces(src * ranks + dst, np.diff(edges) / amounts[cell], stops, place)


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Parts of blocks as columns: the block, the fraction of it, its stops, and its place in the GPU's part."""

    block: Ints
    part: Floats
    stops: Ints
    place: Floats


def rounds_of(traffic: Floats) -> Iterator[tuple[Ints, float]]:
    """Rounds in which every server sends to one other: the target and the amount. Together they take the minimum time.

    The matrix is filled up so that all rows and columns have the same sum. It is then a sum of permutations.

    >>> [(to.tolist(), amount) for to, amount in rounds_of(np.array([[0.0, 2.0], [1.0, 0.0]]))]
    [([1, 0], 2.0)]
    """
    everybody, even = np.arange(len(traffic)), float(traffic[0, -1])
    if even and np.array_equal(traffic, even * ~np.eye(len(traffic), dtype=bool)):  # all have as much for all others
        yield from (((everybody + turn) % len(traffic), even) for turn in range(1, len(traffic)))
        return
    from scipy.optimize import linear_sum_assignment

    left = traffic.copy()
    most = float(max(left.sum(axis=0).max(), left.sum(axis=1).max()))
    rows, columns = most - left.sum(axis=1), most - left.sum(axis=0)
    for here, there in product(range(len(left)), repeat=2):  # the padding may go to any server
        filled = min(rows[here], columns[there])
        left[here, there] += filled
        rows[here] -= filled
        columns[there] -= filled
    while float(left.sum(axis=1).max()) > LEAST_ROUND * most:
        # Among the permutations over the remaining traffic take the one with the greatest product: its round is long.
        to = np.asarray(linear_sum_assignment(-np.log(np.maximum(left, LEAST_ROUND**2 * most)))[1], np.int64)
        amount = float(left[everybody, to].min())
        if amount <= LEAST_ROUND**2 * most:
            break
        yield to, amount
        left[everybody, to] -= amount


def turns_of(between: Floats) -> dict[tuple[int, int], list[tuple[int, float, float]]]:
    """The turns of every pair of servers: the round, how much the pair has already sent, and when the round begins.

    Times are from the start, in units of traffic.

    >>> turns_of(np.array([[0.0, 2.0], [1.0, 0.0]]))
    {(0, 1): [(0, 0.0, 0.0)], (1, 0): [(0, 0.0, 0.0)]}
    """
    turns: dict[tuple[int, int], list[tuple[int, float, float]]] = {
        (here, there): [] for here, there in np.argwhere(between).tolist()
    }
    sent = dict.fromkeys(turns, 0.0)
    now = 0.0
    for number, (to, amount) in enumerate(rounds_of(between)):
        for pair in enumerate(to.tolist()):
            if pair in turns and sent[pair] < between[pair] * (1 - LEAST_ROUND):
                turns[pair].append((number, sent[pair], now))
                sent[pair] += amount
        now += amount
    return turns


def chunked(blocks: Ints, parts: Floats, totals: Ints) -> tuple[Ints, Ints]:
    """The chunk of every piece, and all chunk weights. Every block has as many chunks as the one with the most pieces.

    A block that nobody sends, like a rank's own, is one chunk.
    """
    order = np.argsort(blocks, kind="stable")
    of = blocks[order]
    first = np.searchsorted(of, of)
    a_block = int((np.arange(len(of)) - first).max(initial=0)) + 1
    chunk = np.empty(len(blocks), np.int64)
    chunk[order] = of * a_block + np.arange(len(of)) - first
    weights = np.zeros(len(totals) * a_block, np.int64)
    weights[::a_block] = totals
    for start, end in zip(*_runs(of), strict=True):
        mine = order[start:end]
        if len(mine) > 1:
            weights[chunk[mine]] = whole_weights(parts[mine] / parts[mine].sum(), int(totals[of[start]]))
    return chunk, weights


def _runs(values: Ints) -> tuple[list[int], list[int]]:
    """The beginnings and ends of runs of equal values."""
    starts = np.flatnonzero(np.concatenate(([True], np.diff(values) != 0))) if len(values) else np.zeros(0, np.int64)
    return starts.tolist(), [*starts[1:].tolist(), len(values)] if len(values) else []


@algorithm("all_to_all", cost=Cost(alpha="p - 1", beta="2 * (sqrt(p) - 1) / sqrt(p)", at="squares"))
def all_to_all(
    ranks: int,
    axes: AxesLike | None = None,
    traffic: Sequence[Sequence[float]] | Floats | None = None,
) -> Schedule:
    """Spread inside, then rounds between servers, each distributed during the next."""
    gpus = axes_for(ranks, axes).sizes[0]
    totals = np.ones(ranks**2, np.int64) if traffic is None else whole_amounts("traffic", traffic, (ranks, ranks))
    amounts = totals.reshape(ranks, ranks).astype(np.float64)
    np.fill_diagonal(amounts, 0.0)
    servers = Servers(gpus, amounts)
    src, dst = np.nonzero(np.where(servers.near(), amounts, 0.0))
    blocks, parts = [src * ranks + dst], [np.ones(len(src))]
    stops, turn = [np.stack((src, dst, dst, dst), axis=1)], [np.full(len(src), -1)]
    between = servers.between()
    for pair, turns in turns_of(between).items() if between.any() else ():
        number, begins = np.array([turn[0] for turn in turns]), np.array([turn[1] for turn in turns]) / between[pair]
        found = servers.across(pair, begins)
        blocks.append(found.block)
        parts.append(found.part)
        stops.append(found.stops)
        turn.append(number[np.searchsorted(begins, found.place + LEAST_ROUND, side="right") - 1])
    chunk, weights = chunked(np.concatenate(blocks), np.concatenate(parts), totals)
    steps = _steps(np.concatenate(stops), np.concatenate(turn), chunk)
    body = Steps.from_list(ranks, len(weights), steps)
    return Schedule("all_to_all", body, weights=None if traffic is None else weights)


def _steps(stops: Ints, turn: Ints, chunk: Ints) -> list[Move]:
    """Step 0 spreads, and sends what stays in a server. Each later step is a round, and distributes the one before."""
    step = np.stack((np.zeros(len(turn), np.int64), turn + 1, turn + 2), axis=1)
    src, dst = stops[:, :-1], stops[:, 1:]
    moves = src != dst
    step, src, dst, chunks = step[moves], src[moves], dst[moves], np.repeat(chunk[:, None], 3, axis=1)[moves]
    found = []
    for number in np.unique(step).tolist():
        now = step == number
        found.append(move(src[now], dst[now], chunks[now]))
    return found
