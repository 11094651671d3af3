"""Forests: of each chunk trees in to its roots, rounds in which these exchange their sums, and trees out from them.

With one root the trees in are a reduce, the trees out a broadcast, and both an all_reduce; several roots, such as the
GPUs of one local rank in all servers, exchange their sums pair by pair. Switches that add and multicast are members of
the trees: a chunk may go through them, but need not.

Simulated annealing changes the parent of a member, the order of messages, the sizes of chunks, and how many of them go
together as one message. The search itself is compiled, in `core/forests.h`; without a compiler the first plan stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from choreo.compiled import import_compiled
from choreo.synthesize.annealing.search import (
    AGAIN,
    CHANGES,
    LATE,
    LATENESS,
    LONGER,
    MOVED,
    MOVED_ALL,
)
from choreo.synthesize.list_scheduling import start_times
from choreo.synthesize.problem import LEAST_CHUNK_BYTES
from choreo.synthesize.timeline import CORE, planner
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Forest", "Forests", "Ground"]

# As in `search`, but colder: the search begins with plans that are good already.
WARM, COLD = 0.001, 0.00005
# More plans than this for each task find nothing more.
PLANS_A_TASK = 1_500
# How often sizes change, and how often a message moves together with those that start with it.
RESIZED, ALIKE = 0.15, 0.7
# How often steps are put off until all are in order.
MOST_ROUNDS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """The ways between members: of `members` the first `devices` are devices, the others switches.

    `way_of` is a table: one more than the way from a member (columns) to another, 0 if there is none. By way there are
    bandwidth, latency, four rows of costs and two of payers, as in `Hops`. The lanes of way w are
    lanes[offsets[w] : offsets[w + 1]]. `room` has for each of them the part that a message takes, and for each lane
    whether it is a port; without it a message takes all of a lane.
    """

    members: int
    devices: int
    way_of: Ints
    bandwidth_bytes_per_s: Floats
    latency_s: Floats
    costs_s: Floats
    payers: Ints
    offsets: Ints
    lanes: Ints
    num_lanes: int
    room: tuple[Floats, Ints] | tuple[()] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """A plan: the parent by task, NOBODY at roots and in exchanges; the order of tasks, the size of each chunk.

    Chunks that wait for the same way go together while that takes no more than `longest_s`.
    """

    parent: Ints
    order: Floats
    chunk_bytes: Floats
    longest_s: float
    start_s: Floats = field(default_factory=lambda: np.zeros(0))
    end_s: float = np.inf


@dataclass(frozen=True, slots=True, eq=False)
class Tasks:
    """The tasks of a plan that are messages, as columns; `before` are pairs of which the second waits for the first."""

    number: Ints
    src: Ints
    dst: Ints
    chunk: Ints
    adds: Bools
    before: Ints


class Forests:
    """What is to be planned: `roots` by chunk (rows), and for each round of exchanges (rows) the partner of each root.

    `block` says which chunks are parts of the same block: their sizes add up to the same in every plan.
    """

    def __init__(
        self, ground: Ground, roots: Ints, partner: Ints, block: Ints, *, inward: bool, outward: bool, seed: int = 0
    ) -> None:
        self.ground, self.roots, self.partner, self.block = ground, roots, partner, block
        self.inward, self.outward = inward, outward
        self.chunks, self.rounds = len(roots), len(partner)
        self.first_out = inward * ground.members + partner.size
        self.each = self.first_out + outward * ground.members
        self.rng = np.random.default_rng(seed)
        self._start_times = planner()
        self._core = None if self._start_times is start_times else import_compiled(CORE)

    def planted(self, parents: Ints, depth_s: Floats, chunk_bytes: Floats, whole_s: float, longest_s: float) -> Forest:
        """The plan with these parents of all members in every tree, by chunk (rows); -1 for roots.

        `depth_s` is about when a member gets a chunk, and a `whole_s` passes until the last chunk follows the first.
        """
        deepest = float(depth_s.max())
        parent = np.full((self.chunks, self.each), -1)
        order = np.full((self.chunks, self.each), deepest)
        if self.inward:
            parent[:, : self.ground.members] = parents
            order[:, : self.ground.members] = deepest - depth_s
        if self.outward:
            parent[:, self.first_out :] = parents
            order[:, self.first_out :] = 2 * deepest + depth_s
        order += (np.cumsum(chunk_bytes) / chunk_bytes.sum() * whole_s)[:, None]
        return self.planned(Forest(parent.reshape(-1), order.reshape(-1), chunk_bytes, longest_s))

    def planned(self, plan: Forest) -> Forest:
        """Put in time."""
        ground, found = self.ground, self.tasks(plan)
        way = ground.way_of[found.dst, found.src] - 1
        before = found.before[np.argsort(found.before[:, 0], kind="stable")]
        count = len(found.number)
        start_s, end_s = self._start_times(
            way,
            plan.chunk_bytes[found.chunk] / ground.bandwidth_bytes_per_s[way],
            plan.order[found.number],
            np.bincount(before[:, 1], minlength=count),
            np.where(found.adds, found.chunk * ground.members + found.dst, -1),
            np.searchsorted(before[:, 0], np.arange(count + 1)),
            before[:, 1],
            ground.offsets,
            ground.lanes,
            ground.num_lanes,
            ground.latency_s,
            ground.payers,
            ground.costs_s,
            False,
            plan.longest_s,
            *ground.room,
        )
        all_s = np.zeros(len(plan.parent))
        all_s[found.number] = start_s
        return replace(plan, start_s=all_s, end_s=end_s)

    def run(self, plan: Forest, plans: int) -> Forest:
        """The best of so many plans, or of fewer if it has few tasks."""
        plans = min(plans, PLANS_A_TASK * len(plan.parent))
        if self._core is None or plans <= 0:
            return plan
        ground = self.ground
        tuning = (WARM, COLD, *CHANGES[:3], LATE, MOVED, MOVED_ALL, LONGER, LATENESS, 0.0, 0.0, AGAIN)
        columns = (
            plan.parent,
            plan.order,
            plan.chunk_bytes,
            self.block,
            ground.way_of,
            1 / ground.bandwidth_bytes_per_s,
            self.roots,
            self.partner,
            ground.offsets,
            ground.lanes,
            ground.latency_s,
            ground.payers,
            ground.costs_s,
            np.array(tuning),
        )
        figures = ground.num_lanes, ground.devices, self.inward, self.outward, plan.longest_s, RESIZED, ALIKE
        parent, order, chunk_bytes, longest_s = self._core.anneal_forests(
            *map(np.ascontiguousarray, columns),
            *figures,
            float(LEAST_CHUNK_BYTES),
            plans,
            int(self.rng.integers(1 << 62)),
            *map(np.ascontiguousarray, ground.room),
        )
        return self.planned(
            Forest(
                np.frombuffer(parent, np.int64),
                np.frombuffer(order, np.float64),
                np.frombuffer(chunk_bytes, np.float64),
                longest_s,
            )
        )

    def tasks(self, plan: Forest) -> Tasks:
        """The messages of a plan: those to and from devices, and through switches that something goes through."""
        rows: list[tuple[int, int, int, int, bool]] = []
        before: list[tuple[int, int]] = []
        parents = plan.parent.reshape(self.chunks, self.each).tolist()
        for chunk, mine in enumerate(parents):
            first = chunk * self.each
            roots = {root: turn for turn, root in enumerate(self.roots[chunk].tolist())}
            ins = self._active(mine[: self.ground.members]) if self.inward else {}
            outs = self._active(mine[self.first_out :]) if self.outward else {}
            rows += [(first + member, member, above, chunk, True) for member, above in ins.items()]
            rows += [(first + self.first_out + member, above, member, chunk, False) for member, above in outs.items()]
            for turn, root, partner in self._exchanges(chunk):
                rows.append((first + turn, root, partner, chunk, True))
            before += [(first + a, first + b) for a, b in self._before(roots, ins, outs)]
        number, src, dst, chunks, adds = (np.array(column) for column in zip(*rows, strict=True))
        at = np.zeros(len(plan.parent), np.int64)
        at[number] = np.arange(len(number))
        return Tasks(number, src, dst, chunks, adds, at[np.array(before, np.int64).reshape(-1, 2)])

    def _active(self, parents: Sequence[int]) -> dict[int, int]:
        """The members of one tree that take part, with their parents."""
        found: dict[int, int] = {}
        for device in range(self.ground.devices):
            member = device
            while parents[member] >= 0 and member not in found:
                found[member] = parents[member]
                member = parents[member]
        return found

    def _exchanges(self, chunk: int) -> Iterator[tuple[int, int, int]]:
        """The number within a chunk, the source and the target of each message between roots."""
        roots = self.roots[chunk].tolist()
        for turn, partner in enumerate(self.partner.reshape(-1).tolist()):
            yield self.inward * self.ground.members + turn, roots[turn % len(roots)], roots[partner]

    def _before(self, roots: dict[int, int], ins: dict[int, int], outs: dict[int, int]) -> Iterator[tuple[int, int]]:
        """Which task of a chunk waits for which; data must be sent before anything is added to it."""
        exchange, count = self.inward * self.ground.members, len(roots)
        partner = self.partner.tolist()
        for member, above in ins.items():
            if above not in roots:
                yield member, above
            elif self.rounds:
                yield member, exchange + roots[above]
                yield member, exchange + partner[0][roots[above]]
            else:
                yield from ((member, self.first_out + other) for other, one in outs.items() if one == above)
        for turn in range(1, self.rounds):
            for root in range(count):
                for waited in (partner[turn - 1][root], partner[turn - 1][partner[turn][root]]):
                    yield exchange + (turn - 1) * count + waited, exchange + turn * count + root
        for member, above in outs.items():
            if above not in roots:
                yield self.first_out + above, self.first_out + member
            elif self.rounds:
                yield exchange + (self.rounds - 1) * count + partner[-1][roots[above]], self.first_out + member

    def steps(self, plan: Forest, found: Tasks) -> Floats | None:
        """Numbers in order of which messages go: each after what it waits for, partners and parts of one together.

        None if there is no such order.
        """
        way = self.ground.way_of[found.dst, found.src]
        start_s = plan.start_s[found.number]
        _, message = np.unique(np.stack((start_s, way)), axis=1, return_inverse=True)
        message = message.reshape(-1)
        pairs = self._pairs(found)
        before, after = found.before.T
        step, gap = start_s, plan.end_s * 1e-9
        for _ in range(MOST_ROUNDS):
            later = step.copy()
            np.maximum.at(later, after, step[before] + gap)
            later[pairs] = later[pairs].max(axis=1, keepdims=True)
            together = np.zeros(len(step))
            np.maximum.at(together, message, later)
            later = together[message]
            if np.array_equal(later, step):
                return step
            step = later
        return None

    def _pairs(self, found: Tasks) -> Ints:
        """The rows of messages that two roots exchange."""
        at = {number: row for row, number in enumerate(found.number.tolist())}
        first, count = self.inward * self.ground.members, self.roots.shape[1]
        pairs = [
            (at[chunk * self.each + first + turn * count + root], at[chunk * self.each + first + turn * count + other])
            for chunk in range(self.chunks)
            for turn, others in enumerate(self.partner.tolist())
            for root, other in enumerate(others)
        ]
        return np.array(pairs, np.int64).reshape(-1, 2)
