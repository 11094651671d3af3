"""Packed trees, on any network: all_gather, reduce_scatter, all_reduce, broadcast and reduce.

The data of a root is divided among trees that keep the busiest link least busy, cut into chunks, and put in time by
list scheduling. Backwards on the turned network an all_gather is a reduce_scatter, and a broadcast a reduce. An
all_reduce sums up one tree and comes back along another, and its parts choose their own roots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from choreo.schedule import Schedule, backwards
from choreo.synthesize.network import Hops, hops_of
from choreo.synthesize.packing import Tree, pack, pack_both_ways
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.timeline import Tasks, in_time, steps_of
from choreo.synthesize.weights import BLOCK_WEIGHT, whole_weights

__all__ = ["packed"]

# Into how many chunks a share, or the vector of a rooted collective, may be cut.
SHARE_CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128)
VECTOR_CHUNKS = (1, 4, 16, 64, 128, 256, 512, 1024)
# Beyond so many devices packing takes too long.
MOST_DEVICES = 80


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """A chunk, the trees it takes, its weight, and the part of its block that comes before it."""

    chunk: int
    tree: Tree
    weight: int
    before: float


def packed(problem: Problem) -> Iterator[Candidate]:
    """Trees by column generation, cut into ever more chunks as long as that helps."""
    kinds = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")
    if problem.collective not in kinds or not problem.in_order or not 1 < problem.ranks <= MOST_DEVICES:
        return
    hops = hops_of(problem.topology)
    turn = problem.collective in ("reduce_scatter", "reduce")
    if turn:
        hops = hops.turned()
    shared = problem.collective in ("all_gather", "reduce_scatter")
    if shared:
        shares = problem.block_bytes / problem.block_bytes.mean() if problem.size_bytes else np.ones(problem.ranks)
        trees, seconds_a_byte = pack(hops, dict(enumerate(shares.tolist())))
    elif problem.collective == "all_reduce":
        trees, seconds_a_byte = pack_both_ways(hops)
    else:
        assert problem.root is not None
        trees, seconds_a_byte = pack(hops, {problem.root: 1.0})
    size = problem.size_bytes / (problem.ranks if shared else 1)
    best = np.inf
    hops_a_chunk = (problem.ranks - 1) * (problem.ranks if shared else 2)
    for chunks in SHARE_CHUNKS if shared else VECTOR_CHUNKS:
        transfers = chunks * hops_a_chunk
        if chunks > 1 and (size / chunks < LEAST_CHUNK_BYTES or transfers > problem.most_transfers // 4):
            break
        totals = [BLOCK_WEIGHT] if not shared else _totals(problem)
        pieces, count = _cut(trees, chunks, totals)
        weight_bytes = size * len(totals) / sum(totals)
        at_once, in_turn = (_tasks(pieces, hops, weight_bytes, last_s) for last_s in (0.0, size * seconds_a_byte))
        ways = ((in_turn, False), (in_turn, True), (at_once, True)) if shared else ((in_turn, False), (in_turn, True))
        timed = ((one, *in_time(one, hops, busiest_first=busiest)) for one, busiest in ways)
        tasks, start, end = min(timed, key=lambda found: found[2])
        if end > best:
            continue
        best = min(best, end)
        weights = np.zeros(count, np.int64)
        for piece in pieces:
            weights[piece.chunk] = piece.weight
        steps = steps_of(tasks, hops, start, count)
        collective = {"reduce_scatter": "all_gather", "reduce": "broadcast"}.get(problem.collective, problem.collective)
        schedule = Schedule(collective, steps, problem.root, "packed", weights, receive_in_order=True)
        yield Candidate("packed", backwards(schedule) if turn else schedule)


def _totals(problem: Problem) -> list[int]:
    """The weights of the blocks."""
    return [BLOCK_WEIGHT] * problem.ranks if problem.weights is None else [int(weight) for weight in problem.weights]


def _cut(trees: Sequence[Tree], chunks: int, totals: Sequence[int]) -> tuple[list[_Piece], int]:
    """The data of each block cut into pieces, as many for every block and about `chunks`, each on one of its trees.

    An empty block has no trees and no pieces.
    """
    blocks = len(totals)
    of_block: list[list[Tree]] = [[] for _ in range(blocks)]
    for tree in trees:
        of_block[tree.root if blocks > 1 else 0].append(tree)
    cuts = [_pieces_a_tree([tree.part for tree in mine], chunks) for mine in of_block]
    a_block = max(sum(counts) for counts in cuts)
    pieces = []
    for block, (mine, counts) in enumerate(zip(of_block, cuts, strict=True)):
        if not mine:
            continue
        while sum(counts) < a_block:
            counts[int(np.argmax([tree.part / count for tree, count in zip(mine, counts, strict=True)]))] += 1
        total = sum(tree.part for tree in mine)
        parts = np.repeat([tree.part / total / count for tree, count in zip(mine, counts, strict=True)], counts)
        owner = np.repeat(np.arange(len(mine)), counts)
        # Pieces of different trees take turns, so that all trees are busy from the start.
        nth = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        weights = whole_weights(parts, totals[block])
        for index, piece in enumerate(np.argsort(nth, kind="stable").tolist()):
            pieces.append(
                _Piece(block * a_block + index, mine[int(owner[piece])], int(weights[piece]), index / a_block)
            )
    return pieces, blocks * a_block


def _pieces_a_tree(parts: Sequence[float], chunks: int) -> list[int]:
    total = sum(parts)
    return [max(1, round(chunks * part / total)) for part in parts]


def _tasks(pieces: Sequence[_Piece], hops: Hops, weight_bytes: float, last_s: float) -> Tasks:
    """A task for every hop of every piece: first towards its root where it must, then away from it.

    The last piece of a block is due `last_s` after the first.
    """
    hop: list[int] = []
    chunk: list[int] = []
    size: list[float] = []
    due: list[float] = []
    reduce: list[bool] = []
    before: list[tuple[int, int]] = []
    orders: dict[int, tuple[list[int], list[int]]] = {}
    src, dst = hops.src.tolist(), hops.dst.tolist()
    for piece in pieces:
        tree = piece.tree
        if id(tree) not in orders:
            into = _outwards(tree.into.tolist(), src, dst)
            back = [] if tree.back is None else _outwards(tree.back.tolist(), dst, src)[::-1]
            orders[id(tree)] = into, back
        into, back = orders[id(tree)]
        arriving: dict[int, list[int]] = {}
        for here in back:
            task = len(hop)
            before += [(first, task) for first in arriving.get(src[here], ())]
            arriving.setdefault(dst[here], []).append(task)
            hop.append(here)
            reduce.append(True)
        delivered = {tree.root: arriving.get(tree.root, [])}
        for here in into:
            task = len(hop)
            before += [(first, task) for first in delivered[src[here]]]
            delivered[dst[here]] = [task]
            hop.append(here)
            reduce.append(False)
        count = len(into) + len(back)
        chunk += [piece.chunk] * count
        size += [piece.weight * weight_bytes] * count
        due += [piece.before * last_s] * count
    return Tasks(
        np.array(hop),
        np.array(chunk),
        np.array(size),
        np.array(reduce),
        np.array(before, np.int64).reshape(-1, 2),
        np.array(due),
    )


def _outwards(into: list[int], src: list[int], dst: list[int]) -> list[int]:
    """The hops of a tree, parents before children."""
    children: dict[int, list[int]] = {}
    for hop in into:
        if hop >= 0:
            children.setdefault(src[hop], []).append(hop)
    root = into.index(-1)
    order, queue = [], [root]
    for device in queue:
        for hop in children.get(device, ()):
            order.append(hop)
            queue.append(dst[hop])
    return order
