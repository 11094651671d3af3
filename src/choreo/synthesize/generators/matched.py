"""An uneven all_to_all between servers, in rounds of matchings whose three stages overlap.

The rounds and pieces are those of `fast`: inside a server to the GPU that sends them, across to its peer in the other
server, and from there to their destination. Here they are cut finer, and list scheduling keeps all ports busy; the
rounds give the order in which pieces should start.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from choreo.algorithms.fast import Pieces, Servers, chunked, turns_of
from choreo.schedule import Schedule
from choreo.synthesize.network import Hops, hops_of
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.timeline import Tasks, in_time, steps_of
from choreo.topology.graph import Floats, Ints

__all__ = ["matched"]

# The busiest server's traffic is sent in at least this many pieces, one after another.
PIECES = (16, 64, 256)
# With more ranks there are too many blocks.
MOST_RANKS = 256
# The most places (ranks x chunks) in a proof: every block has as many chunks as the largest.
MOST_PLACES = 1 << 28


def matched(problem: Problem) -> Iterator[Candidate]:
    """Servers behind switches with uneven traffic; in smaller and smaller pieces while that helps."""
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
    servers = Servers(ranks // blocks[-1].size, traffic)
    if not traffic.any() or not _reaches_all(servers, number):
        return
    weight_bytes = float(problem.block_bytes.sum()) / float(problem.weights.sum())
    best = np.inf
    for count in PIECES:
        pieces, due = _pieces(servers, count, LEAST_CHUNK_BYTES / max(weight_bytes, 1e-300))
        transfers = int((np.diff(pieces.stops, axis=1) != 0).sum())
        if transfers > problem.most_transfers:
            break
        chunk, sizes = chunked(pieces.block, pieces.part, problem.weights)
        if ranks * len(sizes) > MOST_PLACES:
            break
        tasks = _tasks(
            number, pieces.stops, chunk, sizes.astype(np.float64) * weight_bytes, due * _second(hops, weight_bytes)
        )
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


def _reaches_all(servers: Servers, number: Ints) -> bool:
    """Whether there are hops between all GPUs of a server, and from each GPU to the same local rank elsewhere."""
    rank = np.arange(len(number))
    twins = rank[:, None] % servers.gpus == rank % servers.gpus
    needed = (servers.near() | twins) & (rank[:, None] != rank)
    return bool((number[needed] >= 0).all())


def _second(hops: Hops, weight_bytes: float) -> float:
    """The time of the slowest hop for a unit of traffic."""
    return weight_bytes / float(hops.bandwidth_bytes_per_s.min())


def _pieces(servers: Servers, count: int, least: float) -> tuple[Pieces, Floats]:
    """All blocks in pieces, and when each should start across the network, in units of traffic."""
    between = servers.between()
    busiest = float(max(between.sum(axis=0).max(), between.sum(axis=1).max()))
    inside = np.where(servers.near(), servers.traffic, 0.0)
    # A GPU takes a part of its server's traffic, in pieces of this size.
    size = max((busiest / servers.gpus or float(inside.max())) / count, least)
    src, dst = np.nonzero(inside)
    cuts = np.maximum(1, np.round(inside[src, dst] / size)).astype(np.int64)
    of = np.repeat(np.arange(len(src)), cuts)
    place = (np.arange(len(of)) - np.repeat(np.cumsum(cuts) - cuts, cuts)) / cuts[of]
    stops = np.stack((src, dst, dst, dst), axis=1)[of]
    parts = [Pieces((src * len(inside) + dst)[of], 1 / cuts[of], stops, place)]
    due = [place * busiest]
    for pair, turns in turns_of(between).items() if busiest else ():
        cut = max(1, round(between[pair] / servers.gpus / size))
        found = servers.across(pair, np.arange(cut) / cut)
        begins, at = (np.array([one[column] for one in turns]) for column in (1, 2))
        sent = found.place * between[pair]
        turn = np.searchsorted(begins, sent, side="right") - 1
        parts.append(found)
        due.append(at[turn] + sent - begins[turn])
    columns = (np.concatenate([getattr(one, name) for one in parts]) for name in Pieces.__slots__)
    return Pieces(*columns), np.concatenate(due)


def _tasks(number: Ints, stops: Ints, chunk: Ints, chunk_bytes: Floats, due_s: Floats) -> Tasks:
    """A task for every hop of every piece."""
    moves = stops[:, :-1] != stops[:, 1:]
    of = np.repeat(np.arange(len(stops)), moves.sum(axis=1))
    first = np.flatnonzero(of[:-1] == of[1:])  # the next task is the piece's next hop
    return Tasks(
        number[stops[:, :-1][moves], stops[:, 1:][moves]],
        chunk[of],
        chunk_bytes[chunk[of]],
        np.zeros(len(of), np.bool_),
        np.stack((first, first + 1), axis=1),
        due_s[of],
    )
