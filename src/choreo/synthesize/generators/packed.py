"""Packed trees, on any network: all_gather, reduce_scatter, all_reduce, broadcast and reduce.

The data of a root is divided among trees so that the busiest link has the least load, cut into chunks, and scheduled by
list scheduling. In reverse on the reversed network an all_gather is a reduce_scatter, and a reduce uses the trees of a
broadcast in the other direction. An all_reduce reduces up one tree and comes back down another, and its parts choose
their own roots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from choreo.schedule import Schedule, backwards
from choreo.schedule.weights import BLOCK_WEIGHT, whole_weights
from choreo.synthesize.network import Hops, along_switches, around
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.relays import connects, group_hops, relays_of, settled
from choreo.synthesize.timeline import Tasks, in_time, steps_of
from choreo.synthesize.trees.division import Division, disjoint_division, packed_division, part_bytes
from choreo.synthesize.trees.packing import Tree
from choreo.topology.graph import Floats

__all__ = ["packed"]

# The most chunks per share, or per vector of a rooted collective.
SHARE_CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
VECTOR_CHUNKS = (1, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)
# With more devices packing takes too long: where every device may be a root, and where one is.
MOST_DEVICES, MOST_DEVICES_ONE_ROOT = 80, 320
# The most relays (devices without a rank): each may be a root of trees as well.
MOST_RELAYS = 96
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")
# With this many hops of pieces, a way of scheduling is dropped once it gives the same result as another, or one worse
# than the best by this factor.
MANY_TASKS, NEAR = 3000, 1.3
# List scheduling looks at all hops of a link that becomes free; this many looks take a third of a second.
MOST_LOOKS = 1 << 27
# How often a plan is made again in the order of its starts.
AGAIN = 4
# After two numbers of chunks that gain less than this fraction of the time, more are not tried.
HARDLY = 0.002
# A ring through switches is tried if its trees reach this share of the bound.
NEAR_BOUND = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """A chunk, the trees it takes, its weight, and the part of its block that comes before it."""

    chunk: int
    tree: Tree
    weight: int
    before: float


@dataclass(frozen=True, slots=True)
class _Way:
    """How pieces are scheduled (see `in_time`): one after another or all at once, and with an exchange at the root."""

    busiest_first: bool
    together: bool
    in_turn: bool = True
    exchange: bool = False

    @property
    def kind(self) -> tuple[bool, bool]:
        """Ways of one kind have the same tasks."""
        return self.in_turn, self.exchange


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """When each task starts in a way of scheduling, and when the last has arrived."""

    way: _Way
    start_s: Floats
    end_s: float


def packed(problem: Problem) -> Iterator[Candidate]:
    """Trees by column generation, cut into more and more chunks while that helps."""
    if problem.collective not in KINDS or problem.ranks < 2:
        return
    shared = problem.collective in ("all_gather", "reduce_scatter")
    one_root = problem.collective in ("broadcast", "reduce")
    most = MOST_DEVICES_ONE_ROOT if one_root else MOST_DEVICES
    if problem.ranks > most:
        return
    relays = relays_of(problem, min(most - problem.ranks, MOST_RELAYS))
    hops = group_hops(problem, relays, through_switches=not shared)
    if not problem.in_order and not connects(hops):
        return
    networks = [hops.turned() if problem.collective == "reduce_scatter" else hops]
    # Where switches add, an all_reduce hardly needs the devices' own hops.
    if problem.in_order and not shared and (one_root or hops.members == hops.devices):
        chained = hops.keeping(along_switches(problem.topology, hops.src, hops.dst))
        networks += [chained] if len(chained) < len(hops) else []
    if one_root:
        for network in networks:
            disjoint = disjoint_division(problem, network)
            if disjoint is not None:
                yield from _on(problem, network, disjoint)
                return
    for network, division in _packings(problem, networks):
        for candidate in _on(problem, network, division):
            yield replace(candidate, schedule=settled(candidate.schedule, problem, relays))


def _packings(problem: Problem, networks: Sequence[Hops]) -> Iterator[tuple[Hops, Division]]:
    """Networks with trees packed into them.

    Where messages leave room on links, a ring through the switches comes first, if it is hardly slower than the bound.
    """
    first = networks[0]
    if first.leave_room and first.members == first.devices + first.relays:
        ring = first.keeping(around(first))
        if connects(ring):
            division = packed_division(problem, ring.with_busy_ports())
            if division(1)[1] * part_bytes(problem) * NEAR_BOUND <= problem.bound().bandwidth_bound_s:
                yield ring, division
    for network in networks:
        for loads in (network.with_busy_ports(), network) if network.leave_room else (network,):
            yield network, packed_division(problem, loads)


def _on(problem: Problem, hops: Hops, division: Division) -> Iterator[Candidate]:
    """Schedules from trees over these hops."""
    shared = problem.collective in ("all_gather", "reduce_scatter")
    undone = problem.collective == "reduce_scatter"
    size = part_bytes(problem)
    totals = _totals(problem) if shared else [BLOCK_WEIGHT]
    weight_bytes = size * len(totals) / sum(totals)
    ways = list(_ways(problem, hops))
    best, idle = np.inf, 0
    known: tuple[list[Tree] | None, int] = None, 0
    one_way = problem.collective in ("broadcast", "reduce")
    hops_a_chunk = (problem.ranks - 1) * (problem.ranks if shared else 1 if one_way else 2)
    most = min(problem.most_transfers // (2 if one_way else 4), MOST_LOOKS / _looks(hops))
    for chunks in SHARE_CHUNKS if shared else VECTOR_CHUNKS:
        transfers = chunks * hops_a_chunk
        if chunks > 1 and (size / chunks < LEAST_CHUNK_BYTES or transfers > most):
            break
        trees, seconds_a_byte = division(chunks)
        last_s = size * seconds_a_byte
        pieces, count = _cut(trees, chunks, totals)
        if known[0] is trees and known[1] == count:  # every tree has at least one piece, so fewer make no difference
            continue
        known = trees, count
        tasks = {
            kind: _tasks(pieces, hops, weight_bytes, last_s if kind[0] else 0.0, exchange=kind[1])
            for kind in {way.kind for way in ways}
        }
        many = max(map(len, tasks.values())) > MANY_TASKS
        timed = [
            _Timed(way, *in_time(tasks[way.kind], hops, busiest_first=way.busiest_first, together=way.together))
            for way in ways
        ]
        end = min(one.end_s for one in timed)
        distinct = {(one.way.together, one.way.kind, one.end_s): one.way for one in timed}
        if many:
            ways = [way for (*_, ends), way in distinct.items() if ends <= NEAR * end]
        fine = chunks * len(totals) > 2 * len(trees)  # otherwise there are as many pieces as trees anyway
        idle = idle + 1 if fine and end > best * (1 - HARDLY) else 0
        if end > NEAR * best or (idle > 1 and many):
            break
        if end > best:
            continue
        best = end
        weights = np.zeros(count, np.int64)
        for piece in pieces:
            weights[piece.chunk] = piece.weight
        kinds: dict[tuple[bool, bool], _Timed] = {}
        for one in sorted(timed, key=_end):  # those that exchange are not always as fast as planned
            kinds.setdefault(one.way.kind, one)
        for kind, one in kinds.items():
            for planned in _again(tasks[kind], hops, one.start_s):
                schedule = Schedule(
                    "all_gather" if undone else problem.collective,
                    steps_of(tasks[kind], hops, planned, count),
                    problem.root,
                    "packed",
                    weights,
                    switches=hops.members - hops.devices - hops.relays,
                    receive_in_order=True,
                    relays=hops.relays,
                )
                yield Candidate("packed", backwards(schedule) if undone else schedule)


def _end(timed: _Timed) -> float:
    return timed.end_s


def _again(tasks: Tasks, hops: Hops, start_s: Floats) -> Iterator[Floats]:
    """A plan, and others in the order of its starts: ranks prepare messages in order of steps, which is that order."""
    yield start_s
    for _ in range(AGAIN):
        before, (start_s, _) = start_s, in_time(tasks, hops, planned_s=start_s)
        if np.array_equal(start_s, before):
            break
        yield start_s


def _looks(hops: Hops) -> float:
    """How many hops share links with a hop, on average, counted once for each link."""
    sharing = np.diff(hops.load.indptr)
    return float((sharing * sharing).sum() / len(hops))


def _ways(problem: Problem, hops: Hops) -> Iterator[_Way]:
    """All ways to try; those far behind are dropped as chunks become smaller."""
    costs = hops.send_busy_s.any()
    for together in (False, True) if costs else (False,):
        for busiest in (False, True):
            yield _Way(busiest, together)
            if problem.collective == "all_reduce":
                yield _Way(busiest, together, exchange=True)
        if problem.collective in ("all_gather", "reduce_scatter"):
            yield _Way(True, together, in_turn=False)


def _totals(problem: Problem) -> list[int]:
    """The weights of the blocks."""
    return [BLOCK_WEIGHT] * problem.ranks if problem.weights is None else [int(weight) for weight in problem.weights]


def _cut(trees: Sequence[Tree], chunks: int, totals: Sequence[int]) -> tuple[list[_Piece], int]:
    """Cut each block's data into about `chunks` pieces, the same number for every block, each on one of its trees.

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


def _tasks(pieces: Sequence[_Piece], hops: Hops, weight_bytes: float, last_s: float, *, exchange: bool) -> Tasks:
    """A task for every hop of every piece: first towards its root if needed, then away from it.

    The last piece of a block is due `last_s` after the first. With `exchange` the root and a neighbour send each other
    what they have and both add, instead of sending a sum to the root and back: that saves a hop. The two messages must
    leave together, each with the data from before.
    """
    hop: list[int] = []
    chunk: list[int] = []
    size: list[float] = []
    due: list[float] = []
    reduce: list[bool] = []
    before: list[tuple[int, int]] = []
    joint: list[tuple[int, int]] = []
    orders: dict[int, tuple[list[int], list[int], tuple[int, int] | None]] = {}
    src, dst = hops.src.tolist(), hops.dst.tolist()

    def add(one: int, waits_for: Iterable[int], *, adds: bool) -> int:
        before.extend((first, len(hop)) for first in waits_for)
        hop.append(one)
        reduce.append(adds)
        return len(hop) - 1

    for piece in pieces:
        tree, known = piece.tree, len(hop)
        if id(tree) not in orders:
            orders[id(tree)] = _order(tree, hops, src, dst, exchange=exchange)
        into, back, pair = orders[id(tree)]
        arriving: dict[int, list[int]] = {}
        for here in back:
            arriving.setdefault(dst[here], []).append(add(here, arriving.get(src[here], ()), adds=True))
        delivered = {tree.root: arriving.get(tree.root, [])}
        if pair is not None:
            there, home = pair
            other = dst[there]
            ready = delivered[tree.root] + arriving.get(other, [])
            delivered[other] = [add(there, ready, adds=True)]
            delivered[tree.root] = [add(home, ready, adds=True)]
            joint.append((len(hop) - 2, len(hop) - 1))
        for here in into:
            delivered[dst[here]] = [add(here, delivered[src[here]], adds=False)]
        count = len(hop) - known
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
        np.array(joint, np.int64).reshape(-1, 2),
    )


def _order(
    tree: Tree, hops: Hops, src: list[int], dst: list[int], *, exchange: bool
) -> tuple[list[int], list[int], tuple[int, int] | None]:
    """The hops away from the root and towards it, in order, and the slowest two between it and one neighbour."""
    into = _outwards(tree.root, tree.into.tolist(), src, dst)
    back = [] if tree.back is None else _outwards(tree.root, tree.back.tolist(), dst, src)[::-1]
    homes = {src[hop]: hop for hop in back if dst[hop] == tree.root and exchange}
    pairs = [(hop, homes[dst[hop]]) for hop in into if src[hop] == tree.root and dst[hop] in homes]
    if not pairs:
        return into, back, None
    there, home = min(pairs, key=lambda pair: float(hops.bandwidth_bytes_per_s[pair[0]]))
    return [hop for hop in into if hop != there], [hop for hop in back if hop != home], (there, home)


def _outwards(root: int, into: list[int], src: list[int], dst: list[int]) -> list[int]:
    """The hops of a tree, parents before children."""
    children: dict[int, list[int]] = {}
    for hop in into:
        if hop >= 0:
            children.setdefault(src[hop], []).append(hop)
    order, queue = [], [root]
    for device in queue:
        for hop in children.get(device, ()):
            order.append(hop)
            queue.append(dst[hop])
    return order
