"""A broadcast over rails: pieces of the vector, the way of each, and the tasks that list scheduling puts in time.

The vector is cut into pieces that follow one another, and a piece into columns, one for each rail in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from choreo.schedule.weights import whole_weights
from choreo.synthesize.problem import LEAST_CHUNK_BYTES, Problem
from choreo.synthesize.rails.rails import Rails, Route, Strand, Tree
from choreo.synthesize.rails.swarm import swarm
from choreo.synthesize.timeline import Tasks, in_time
from choreo.topology.graph import Floats, Ints

__all__ = ["CHAIN", "STAR", "SWARM", "Columns", "Planned", "Planner", "Shape"]

# The ways of a piece between servers: from the root's to all, from one to the next, or as each of them lacks it.
STAR, CHAIN, SWARM = "star", "chain", "swarm"
# Pieces arrive at the carriers of the root's server in this part of the time that the bound allows.
READY = 0.9
# The most hops of chunks in a plan.
MOST_TASKS = 1 << 18


@dataclass(frozen=True, slots=True)
class Shape:
    """The pieces: how many, and how many smaller ones at the start and at the end, by a factor from one to the next."""

    pieces: int
    rising: int = 0
    falling: int = 0
    factor: float = 0.7

    def parts(self) -> Floats:
        """The relative size of each piece."""
        sizes = np.ones(self.pieces)
        for nth in range(min(self.rising, self.pieces // 2)):
            sizes[nth] = self.factor ** (self.rising - nth)
        for nth in range(min(self.falling, self.pieces // 2)):
            sizes[-1 - nth] = self.factor ** (self.falling - nth)
        parts: Floats = sizes / sizes.sum()
        return parts


@dataclass(frozen=True, slots=True)
class Columns:
    """The carriers of each column, by server, and the way of pieces between servers."""

    carriers: list[list[int]]
    way: str

    def __len__(self) -> int:
        return len(self.carriers)


class Planned(NamedTuple):
    """When a plan ends, its tasks, when each starts, and the weight of each chunk."""

    end_s: float
    tasks: Tasks
    start_s: Floats
    weights: Ints


class _Chunk(NamedTuple):
    part: float
    strand: Strand
    starts_s: Floats  # when its messages between servers should start


class Planner:
    """Makes plans for one choice of columns."""

    def __init__(self, problem: Problem, rails: Rails, columns: Columns) -> None:
        self.problem, self.rails, self.columns = problem, rails, columns
        self.strands: dict[tuple[int, Route, int, tuple[int, ...]], Strand] = {}
        self.depth = np.array([[_depth(tree, max(one[1:])) for tree, _ in rails.away] for one in columns.carriers])
        self.bound_s = problem.bound().bandwidth_bound_s
        hops = rails.hops
        self.alone_s = hops.latency_s + hops.send_s + hops.receive_s
        self.rail = rails.number[rails.root, (rails.root + rails.gpus) % problem.ranks]

    def plan(self, shape: Shape) -> Planned | None:
        """The plan with pieces of this shape; None if they are too small or too many."""
        parts = shape.parts()
        too_small = parts.min() / len(self.columns) * self.problem.size_bytes < LEAST_CHUNK_BYTES
        if too_small or shape.pieces * len(self.columns) * self.rails.hops.members > MOST_TASKS:
            return None
        chunks = list(self._in_pieces(parts))
        weights = whole_weights(np.array([chunk.part for chunk in chunks]))
        part = weights / weights.sum()
        due_s = np.cumsum(part) * self.bound_s
        lengths = np.array([len(chunk.strand.hop) for chunk in chunks])
        first = np.repeat(np.cumsum(lengths) - lengths, lengths)
        parent = np.concatenate([chunk.strand.parent for chunk in chunks])
        later = np.flatnonzero(parent >= 0)
        number = np.repeat(np.arange(len(chunks)), lengths)
        hop = np.concatenate([chunk.strand.hop for chunk in chunks])
        size = (part * self.problem.size_bytes)[number]
        before = np.stack((parent[later] + first[later], later), axis=1)
        tasks = Tasks(hop, number, size, np.zeros(len(hop), np.bool_), before, due_s[number])
        orders: list[Floats | None] = [None]
        if self.columns.way == SWARM:
            hop_s = float((self.alone_s[hop] + size / self.rails.hops.bandwidth_bytes_per_s[hop]).mean())
            begins = [np.append(chunk.starts_s, due * READY) for chunk, due in zip(chunks, due_s, strict=True)]
            orders.append(
                np.concatenate(
                    [
                        begin[chunk.strand.since] + chunk.strand.depth * hop_s
                        for chunk, begin in zip(chunks, begins, strict=True)
                    ]
                )
            )
        found = [in_time(tasks, self.rails.hops, planned_s=order) for order in orders]
        start, end = min(found, key=lambda one: one[1])
        return Planned(end, tasks, start, weights)

    def again(self, plan: Planned, times: int) -> Iterator[Planned]:
        """The plan, and then again with messages prepared in the order in which they started: ranks prepare them so."""
        yield plan
        for _ in range(times):
            start, end = in_time(plan.tasks, self.rails.hops, planned_s=plan.start_s)
            plan = plan._replace(end_s=end, start_s=start)
            yield plan

    def _in_pieces(self, parts: Floats) -> Iterator[_Chunk]:
        """The chunks of pieces, column by column."""
        routes = self._routes(parts)
        for part, (route, starts_s), trees in zip(parts, routes, self._trees(len(parts)), strict=True):
            for column, (away, onward) in enumerate(trees):
                turned = _turned(route, column, self.rails.servers)
                strand = self._strand(column, turned, away, onward)
                yield _Chunk(float(part) / len(self.columns), strand, starts_s)

    def _routes(self, parts: Floats) -> list[tuple[Route, Floats]]:
        """The way of each piece between servers, and when its messages should start."""
        servers, pieces = self.rails.servers, len(parts)
        messages: list[list[tuple[int, int, float]]] = [[] for _ in range(pieces)]
        ready_s = (np.cumsum(parts) - parts) * self.bound_s * READY
        takes_s = parts * self.problem.size_bytes / len(self.columns) / self.rails.hops.bandwidth_bytes_per_s[self.rail]
        if self.columns.way == SWARM:
            for one in swarm(servers, takes_s.tolist(), float(self.alone_s[self.rail]), ready_s.tolist()):
                messages[one.piece].append((one.src, one.dst, one.start_s))
        else:
            star = self.columns.way == STAR
            for mine, start_s in zip(messages, ready_s.tolist(), strict=True):
                mine += [(0 if star else server - 1, server, start_s) for server in range(1, servers)]
        return [(tuple(one[:2] for one in mine), np.array([one[2] for one in mine])) for mine in messages]

    def _trees(self, pieces: int) -> Iterator[list[tuple[int, tuple[int, ...]]]]:
        """For each piece and column: the tree in the root's server, and the ones in the others.

        Trees take turns in proportion to the part that each carries; in the root's server a carrier that is near goes
        first.
        """
        rails, columns = self.rails, self.columns.carriers
        shares = np.array([part for _, part in rails.away])
        wanted = [np.array([part for _, part in trees]) for trees in rails.onward]
        credit, owed = np.zeros(len(shares)), [np.zeros(len(parts)) for parts in wanted]
        nearest = [divmod(pair, len(shares)) for pair in np.argsort(self.depth, axis=None, kind="stable").tolist()]
        for _ in range(pieces):
            credit += shares * len(columns)
            away: dict[int, int] = {}
            for column, tree in nearest:
                if column not in away and credit[tree] > 0.5:
                    away[column] = tree
                    credit[tree] -= 1
            for column in range(len(columns)):
                if column not in away:
                    away[column] = int(credit.argmax())
                    credit[away[column]] -= 1
            found = []
            for column, carriers in enumerate(columns):
                onward = {}
                for rank in set(carriers[1:]):
                    owed[rank] += wanted[rank]
                    onward[rank] = int(owed[rank].argmax())
                    owed[rank][onward[rank]] -= 1
                found.append((away[column], tuple(onward[rank] for rank in carriers[1:])))
            yield found

    def _strand(self, column: int, route: Route, away: int, onward: tuple[int, ...]) -> Strand:
        key = column, route, away, onward
        if key not in self.strands:
            rails, carriers = self.rails, self.columns.carriers[column]
            spread: list[Tree] = [()]
            spread += [rails.onward[rank][tree][0] for rank, tree in zip(carriers[1:], onward, strict=True)]
            self.strands[key] = rails.strand(carriers, route, rails.away[away][0], spread)
        return self.strands[key]


def _turned(route: Route, column: int, servers: int) -> Route:
    """The route with the servers other than the root's shifted, so that no server is always the last."""
    turned = [0, *(1 + (server + column) % (servers - 1) for server in range(servers - 1))]
    return tuple((turned[src], turned[dst]) for src, dst in route)


def _depth(tree: Tree, rank: int) -> int:
    depth: dict[int, int] = {}
    for here, there in tree:
        depth[there] = depth.get(here, 0) + 1
    return depth.get(rank, 0)
