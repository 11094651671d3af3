"""Stars inside servers and between them, for short messages: as few hops and messages as possible.

A megabyte is sent quickly; what counts is how often a rank waits for a message. A share crosses the network to its
peers in the other servers (the GPUs of the same local rank), in a few pieces, and whoever receives a piece sends it to
all others of its server at once. A broadcast first gives every GPU of the root's server a part of the vector, so that
all adapters are busy. An all_reduce is reduced inside the servers, exchanged between them, and spread inside. In an
all_to_all a GPU sends its peer everything for a whole server, and adds its own blocks to what it forwards.

The number of pieces and their sizes are found by trying: one more piece costs every rank a message, and the first and
the last piece have nothing to overlap with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product

import numpy as np

from choreo.schedule import Schedule, backwards, then
from choreo.schedule.weights import BLOCK_WEIGHT, whole_weights
from choreo.synthesize.network import Hops, hops_of
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Candidate, Problem
from choreo.synthesize.stars import Plan, Servers
from choreo.synthesize.timeline import Tasks, steps_of
from choreo.topology.graph import Floats, Ints

__all__ = ["layered"]

# Above this size the busiest link decides, and other generators are near the bound.
MOST_BYTES = 4 << 20
# The most pieces of an adapter's part.
PIECES = (1, 2, 3, 4, 5, 6, 8, 12)
# One more piece is not tried once plans take longer than the best by this factor.
FAR = 1.15
# How many numbers of servers are tried beyond which shares are sent together.
STRAIGHT = 3
# Factors by which a single piece is made larger or smaller.
FACTORS = (1.6, 1 / 1.6, 1.2, 1 / 1.2)
# The most messages in a plan, and in all plans that are tried for a problem.
MOST_MESSAGES, MOST_TRIED = 1 << 17, 1 << 18
# Collectives that are planned in reverse, on the reversed network.
UNDONE = {"reduce_scatter": "all_gather", "reduce": "broadcast"}
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")

Maker = Callable[[Plan, Floats, Floats], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """A plan with its end time, its tasks and when each starts."""

    end_s: float
    tasks: Tasks
    start_s: Floats
    weights: Ints


def layered(problem: Problem) -> Iterator[Candidate]:
    """Short messages on servers where each GPU reaches the others of its server, and the same local rank elsewhere."""
    if problem.collective not in KINDS or not problem.in_order or problem.weights is not None or problem.ranks < 2:
        return
    if not 0 < problem.size_bytes <= MOST_BYTES:
        return
    for through in (False, True) if problem.topology.reduces.any() else (False,):
        hops = hops_of(problem.topology, through_switches=through)
        for search in _searches(problem, hops):
            yield from search.run()
        if problem.collective == "all_reduce":
            yield from _one_by_one(problem, hops)


def _searches(problem: Problem, hops: Hops) -> list[_Search]:
    """One for each kind of plan that there is on these hops."""
    net = Servers.of(problem, hops.turned() if problem.collective in UNDONE else hops)
    return [] if net is None else [_Search(problem, net, make, blocks) for make, blocks in _makers(problem, net)]


def _one_by_one(problem: Problem, hops: Hops) -> Iterator[Candidate]:
    """All_reduces that scatter the sums and then gather them, both in plans of the same kind and pieces."""
    parts = (replace(problem, collective=collective) for collective in ("reduce_scatter", "all_gather"))
    for pair in zip(*(_searches(part, hops) for part in parts), strict=True):
        best = [candidate for search in pair for candidate in list(search.run())[-1:]]
        if len(best) == len(pair) and np.array_equal(best[0].schedule.weights, best[1].schedule.weights):
            yield Candidate("layered", then(best[0].schedule, best[1].schedule))


def _makers(problem: Problem, net: Servers) -> Iterator[tuple[Maker, int]]:
    """What can be planned, and in how many blocks."""
    several = net.servers > 1
    match problem.collective:
        case "all_gather" | "reduce_scatter" if several:
            away = net.servers - 1
            fewest = max(0, away - net.gpus)
            for straight in [away, *range(fewest, min(away - 1, fewest + STRAIGHT))]:
                yield partial(_all_gather, straight=straight), problem.ranks
        case "broadcast" | "reduce":
            assert problem.root is not None
            yield partial(_broadcast, root=problem.root), net.gpus if several else net.gpus - 1
        case "all_reduce":
            if net.servers & (net.servers - 1) == 0:
                yield partial(_all_reduce, exchanging=True), net.gpus
            if several:
                yield partial(_all_reduce, exchanging=False), problem.ranks
        case "all_to_all" if several or net.switch:
            yield _all_to_all, problem.ranks**2


class _Search:
    """Tries numbers of pieces, then their sizes."""

    def __init__(self, problem: Problem, net: Servers, make: Maker, blocks: int) -> None:
        self.problem, self.net, self.make, self.blocks = problem, net, make, blocks
        self.total_bytes = float(problem.contract.total_bytes(problem.size_bytes, problem.ranks))
        self.network_s = problem.bound().bandwidth_bound_s
        self.messages = 0

    def run(self) -> Iterator[Candidate]:
        """Schedules, each better than the last by its plan."""
        best: tuple[float, Floats] = np.inf, np.ones(1)
        for count in PIECES:
            parts = np.full(count, 1 / count)
            found = self._timed(parts)
            if found is None or found.end_s > FAR * best[0]:
                break
            if found.end_s < best[0]:
                best = found.end_s, parts
                yield self._candidate(found)
        improved = len(best[1]) > 1
        while improved:
            improved = False
            for nth, factor in product(range(len(best[1])), FACTORS):
                parts = best[1].copy()
                parts[nth] *= factor
                parts /= parts.sum()
                found = self._timed(parts) if self.messages < MOST_TRIED else None
                if found is not None and found.end_s < best[0] * (1 - 1e-3):
                    best, improved = (found.end_s, parts), True
                    yield self._candidate(found)

    def _timed(self, parts: Floats) -> _Timed | None:
        """The best plan with pieces of these sizes; None if they are too small or too many."""
        cut = self.problem.collective != "all_to_all"
        if cut and len(parts) > 1 and self.total_bytes / self.blocks * parts.min() < LEAST_CHUNK_BYTES:
            return None
        weights = self._weights(parts) if cut else np.ones(self.blocks, np.int64)
        plan = Plan(self.net, (weights * (self.total_bytes / weights.sum())).tolist())
        self.make(plan, parts, np.cumsum(parts) * self.network_s)
        self.messages += len(plan.hop)
        if len(plan.hop) > MOST_MESSAGES:
            return None
        found = [plan.in_time(busiest_first=busiest) for busiest in (False, True)]
        tasks, start_s, end_s = min(found, key=lambda one: one[2])
        return _Timed(end_s, tasks, start_s, weights)

    def _weights(self, parts: Floats) -> Ints:
        """The chunks' weights: the pieces of a share are adjacent, those of a vector follow one another."""
        pieces = whole_weights(parts, BLOCK_WEIGHT)
        shared = self.problem.collective in ("all_gather", "reduce_scatter")
        return np.tile(pieces, self.blocks) if shared else np.repeat(pieces, self.blocks)

    def _candidate(self, found: _Timed) -> Candidate:
        collective = self.problem.collective
        schedule = Schedule(
            UNDONE.get(collective, collective),
            steps_of(found.tasks, self.net.hops, found.start_s, len(found.weights)),
            self.problem.root,
            "layered",
            found.weights,
            switches=self.net.hops.members - self.net.hops.devices,
            receive_in_order=True,
        )
        return Candidate("layered", backwards(schedule) if collective in UNDONE else schedule)


def _all_gather(plan: Plan, parts: Floats, due_s: Floats, *, straight: int) -> None:
    """Shares cross to the same local rank of other servers, spread there as they come, and spread whole at home.

    To the next `straight` servers every GPU sends its own share. Beyond them it sends to one server only, several
    shares together, once it has them: fewer messages, but later.
    """
    net, count = plan.net, len(parts)
    home: dict[int, list[int]] = {}
    for server in range(net.servers):
        own = {at: (tuple(range(at * count, (at + 1) * count)), ()) for at in net.members(server)}
        home |= plan.spread(server, own, due_s[-1])
    for nth, turn in product(range(count), range(net.servers - 1)):
        held: list[dict[int, tuple[tuple[int, ...], list[int]]]] = [{} for _ in range(net.servers)]
        for server, (carrier, shares) in product(range(net.servers), _carried(net, turn, straight).items()):
            at = server * net.gpus + carrier
            twin = net.twins(at)[turn]
            chunks = tuple((server * net.gpus + share) * count + nth for share in shares)
            after = [] if shares == [carrier] else home[at]
            held[twin // net.gpus][twin] = chunks, [plan.add((at, twin), chunks, after, due_s[nth])]
        for server, those in enumerate(held):
            plan.spread(server, those, due_s[nth])


def _carried(net: Servers, turn: int, straight: int) -> dict[int, list[int]]:
    """By local rank: the shares, by local rank as well, that each GPU sends to the server this many on, less one."""
    if turn < straight:
        return {gpu: [gpu] for gpu in range(net.gpus)}
    carriers = range(turn - straight, net.gpus, net.servers - 1 - straight)
    return {gpu: list(range(number, net.gpus, len(carriers))) for number, gpu in enumerate(carriers)}


def _broadcast(plan: Plan, parts: Floats, due_s: Floats, *, root: int) -> None:
    """Every GPU of the root's server gets a part, and passes it on there and to its peers, which do the same."""
    net = plan.net
    others = net.others(root)
    carriers = [*others, root] if net.servers > 1 else others
    home = root // net.gpus
    for nth in range(len(parts)):
        chunks = {carrier: nth * len(carriers) + number for number, carrier in enumerate(carriers)}
        got: dict[int, list[int]] = {root: []}
        if net.switch:
            got |= plan.spread(home, {root: (tuple(chunks.values()), ())}, due_s[nth])
        else:
            for carrier, chunk in chunks.items():
                # What the root itself sends over the network is spread inside its server by another GPU.
                inside = carrier if carrier != root else others[nth % len(others)]
                given = plan.add((root, inside), (chunk,), (), due_s[nth])
                if carrier != root:
                    got[carrier] = [given]
                for other in net.others(inside):
                    if other != root:
                        plan.add((inside, other), (chunk,), [given], due_s[nth])
        held: list[dict[int, tuple[tuple[int, ...], list[int]]]] = [{} for _ in range(net.servers)]
        for carrier, chunk in chunks.items():
            for twin in net.twins(carrier):
                arrived = plan.add((carrier, twin), (chunk,), got[carrier], due_s[nth])
                held[twin // net.gpus][twin] = (chunk,), [arrived]
        for server, those in enumerate(held):
            if those:
                plan.spread(server, those, due_s[nth])


def _all_reduce(plan: Plan, parts: Floats, due_s: Floats, *, exchanging: bool) -> None:
    """A GPU reduces its part inside its server; then the servers exchange theirs, or one server reduces it for all."""
    net = plan.net
    a_piece = 1 if exchanging else net.servers
    for nth in range(len(parts)):
        chunks = [
            tuple(range(first * a_piece, (first + 1) * a_piece))
            for first in range(nth * net.gpus, (nth + 1) * net.gpus)
        ]
        summed: dict[int, list[int]] = {}
        for server in range(net.servers):
            wanted = dict(zip(net.members(server), chunks, strict=True))
            summed |= plan.sum_up(server, wanted, due_s[nth])
        ready: dict[int, list[int]] = {}
        for gpu in range(net.gpus):
            holders = list(range(gpu, net.servers * net.gpus, net.gpus))
            across = _exchanged if exchanging else _by_owners
            ready |= across(plan, holders, chunks[gpu], summed, due_s[nth])
        for server in range(net.servers):
            held = {at: (those, ready[at]) for at, those in zip(net.members(server), chunks, strict=True)}
            plan.spread(server, held, due_s[nth])


def _exchanged(
    plan: Plan, holders: list[int], chunks: tuple[int, ...], summed: dict[int, list[int]], due_s: float
) -> dict[int, list[int]]:
    """Servers at distance 1, 2, 4, ... send each other what they have, and both add."""
    ready = {holder: summed[holder] for holder in holders}
    distance = 1
    while distance < len(holders):
        for number, here in enumerate(holders):
            there = holders[number ^ distance]
            if here < there:
                # Data must be sent before anything is added to it.
                ready[here] = ready[there] = plan.exchange((here, there), chunks, ready[here] + ready[there], due_s)
        distance *= 2
    return ready


def _by_owners(
    plan: Plan, holders: list[int], chunks: tuple[int, ...], summed: dict[int, list[int]], due_s: float
) -> dict[int, list[int]]:
    """Every server reduces one of the chunks, and sends the sum to the others."""
    ready: dict[int, list[int]] = {holder: [] for holder in holders}
    for owner, chunk in zip(holders, chunks, strict=True):
        others = [holder for holder in holders if holder != owner]
        whole = [plan.add((other, owner), (chunk,), summed[other], due_s, adds=True) for other in others]
        whole += summed[owner]
        ready[owner] += whole
        for other in others:
            ready[other].append(plan.add((owner, other), (chunk,), whole, due_s))
    return ready


def _all_to_all(plan: Plan, parts: Floats, due_s: Floats) -> None:
    """To each peer go the blocks for its server, its neighbour's first; it forwards them together with its own.

    Inside a server they go from GPU to GPU, or through a switch that takes all that a GPU has in a few messages.
    """
    net, ranks = plan.net, plan.net.servers * plan.net.gpus
    edges = np.unique(np.round(np.concatenate(([0.0], np.cumsum(parts))) * net.gpus).astype(np.int64))
    arrived: dict[tuple[int, int], list[int]] = {}
    for device in range(ranks):
        for low, high in pairwise(edges.tolist()):
            for twin in net.twins(device):
                ends = [*net.others(twin), twin][low:high]
                blocks = tuple(device * ranks + end for end in ends)
                message = plan.add((device, twin), blocks, (), high / net.gpus * due_s[-1])
                for end in ends:
                    arrived.setdefault((twin, end), []).append(message)
    if net.switch:
        _through_switches(plan, edges, arrived, due_s[-1])
        return
    for device in range(ranks):
        for turn, end in enumerate(net.others(device)):
            blocks = tuple(source * ranks + end for source in [device, *net.twins(device)])
            plan.add((device, end), blocks, arrived.get((device, end), ()), (turn + 1) / net.gpus * due_s[-1])


def _through_switches(plan: Plan, edges: Ints, arrived: dict[tuple[int, int], list[int]], due_s: float) -> None:
    """What a GPU has for those at some distances goes up as one message; what is for a GPU comes down as one."""
    net, ranks = plan.net, plan.net.servers * plan.net.gpus
    for low, high in pairwise(edges.tolist()):
        coming: dict[int, list[tuple[int, int]]] = {}  # by GPU: from whom, and the message to the switch
        for device in range(ranks):
            ends = net.others(device)[low:high]
            blocks = tuple(source * ranks + end for end in ends for source in [device, *net.twins(device)])
            if blocks:
                after = {message for end in ends for message in arrived.get((device, end), ())}
                up = plan.add((device, net.switch[device // net.gpus]), blocks, sorted(after), high / net.gpus * due_s)
                for end in ends:
                    coming.setdefault(end, []).append((device, up))
        for end, those in coming.items():
            blocks = tuple(source * ranks + end for device, _ in those for source in [device, *net.twins(device)])
            ends_here = net.switch[end // net.gpus], end
            plan.add(ends_here, blocks, [up for _, up in those], high / net.gpus * due_s)
