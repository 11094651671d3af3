"""Trees in to several roots, which exchange their sums pair by pair, and trees out from them: an all_reduce of a share.

With one root all contributions go to it, and the sum goes all the way back. Several neighbours as roots exchange what
they have in rounds, and then each of them has the whole sum. That costs few messages more, and both ways are shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from choreo.synthesize.annealing.compiled import JOIN, NEAR, CompiledSearch
from choreo.synthesize.annealing.search import LATE, Messages, Plan
from choreo.synthesize.annealing.ways import Ways
from choreo.synthesize.symmetry import Symmetry
from choreo.topology.graph import Bools, Floats, Ints

__all__ = ["Exchanges", "Roots", "roots_of"]

# How often steps are put off until all are in order.
MOST_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Roots:
    """The roots of device 0's share, and for each round of exchanges the partner of each root."""

    devices: tuple[int, ...]
    rounds: tuple[tuple[int, ...], ...]


def roots_of(symmetry: Symmetry, most: int) -> Iterator[Roots]:
    """Two neighbours along some dimensions, or all four devices of one of four: so many roots at most, but several."""
    choices = [_choices(size) for size in symmetry.sizes]
    found = []
    for chosen in product(*(range(len(some)) for some in choices)):
        used = [dimension for dimension, choice in enumerate(chosen) if choice]
        if not used or _is_repeated(symmetry, chosen):
            continue
        orders = [tuple(used)] if _are_alike(symmetry, used) else permutations(used)
        found += [_along(symmetry, [(one, choices[one][chosen[one]]) for one in order]) for order in orders]
    yield from sorted((roots for roots in found if len(roots.devices) <= most), key=lambda roots: len(roots.devices))


def _choices(size: int) -> list[list[list[int]]]:
    """For a dimension, the partners of its first coordinates in each round; on a ring they are neighbours."""
    found: list[list[list[int]]] = [[]]
    if size >= 2:
        found.append([[1, 0]])
    if size == 4:
        found.append([[1, 0, 3, 2], [3, 2, 1, 0]])
    return found


def _is_repeated(symmetry: Symmetry, chosen: Sequence[int]) -> bool:
    """Whether another choice is the same with dimensions exchanged."""
    pairs = [(a, b) for b in range(len(chosen)) for a in range(b)]
    return any(chosen[a] < chosen[b] and _are_alike(symmetry, [a, b]) for a, b in pairs)


def _are_alike(symmetry: Symmetry, dimensions: Sequence[int]) -> bool:
    def figures(dimension: int) -> tuple[object, ...]:
        lanes = [lane for lane in symmetry.lanes if lane.dimension == dimension]
        costs = {(one.bandwidth_bytes_per_s, one.latency_s, one.overhead_s, one.gap_s) for one in lanes}
        return symmetry.sizes[dimension], costs, [len(one.offsets) for one in lanes]

    return all(figures(one) == figures(dimensions[0]) for one in dimensions)


def _along(symmetry: Symmetry, rounds: Sequence[tuple[int, list[list[int]]]]) -> Roots:
    """The roots that exchange along these dimensions, one after another."""
    devices = np.zeros(1, np.int64)
    for dimension, partners in rounds:
        devices = (devices[:, None] + np.arange(len(partners[0])) * symmetry.stride(dimension)).reshape(-1)
    found = []
    for dimension, partners in rounds:
        here = symmetry.coordinates(dimension)[devices]
        for partner in partners:
            with_whom = devices + (np.array(partner)[here] - here) * symmetry.stride(dimension)
            found.append(tuple(with_whom.tolist()))
    return Roots(tuple(devices.tolist()), tuple(found))


class Exchanges(CompiledSearch):
    """A shape is, for each chunk, whom each device but the roots gives its sum, and then who gives it the whole.

    The messages of a chunk come in levels: in to the roots, each round of exchanges, out from them.
    """

    def __init__(self, ways: Ways, chunk_bytes: float, chunks: int, roots: Roots) -> None:
        number = {device: turn for turn, device in enumerate(roots.devices)}
        partners = np.array([[number[partner] for partner in one] for one in roots.rounds], np.int64)
        super().__init__(ways, chunk_bytes, roots=np.array(roots.devices), partners=partners)
        self.chunks, self.roots = chunks, roots
        self.others = np.setdiff1d(np.arange(self.devices), roots.devices)
        self.at = np.full(self.devices, -1)  # where a device stands among the others
        self.at[self.others] = np.arange(len(self.others))
        count, rounds = len(self.others), len(roots.rounds)
        level = np.repeat(np.arange(rounds + 2), [count, *[len(roots.devices)] * rounds, count])
        between = np.isin(level, np.arange(1, rounds + 1))
        # Of two messages in a tree or one round none waits for the other by its level.
        self.may_wait = (level[:, None] < level) | ((level[:, None] == level) & ~between)
        self.between, self.per_chunk = between, len(level)
        self.rounds = np.flatnonzero(between).reshape(rounds, -1)
        self.partner = np.take_along_axis(self.rounds, partners, axis=1)
        self.reduces: Bools = np.tile(level <= rounds, chunks)
        self.chunk = np.repeat(np.arange(chunks), self.per_chunk)

    def ends(self, shape: Ints) -> tuple[Ints, Ints]:
        """The source and the target of each message."""
        roots = np.tile(np.array(self.roots.devices), len(self.roots.rounds))
        partners = np.array(self.roots.rounds).reshape(-1)
        src, dst = [], []
        for inward, outward in shape.reshape(self.chunks, 2, -1):
            src += [self.others, roots, outward]
            dst += [inward, partners, self.others]
        return np.concatenate(src), np.concatenate(dst)

    def starts(self) -> list[Plan[Ints]]:
        """Straight to the nearest root and back, and by way of neighbours."""
        latency_s = np.concatenate(([0.0], self.ways.latency_s))
        roots = np.array(self.roots.devices)
        to_root_s = latency_s[self.ways.offset_of[roots]]
        away_s = to_root_s.min(axis=0)
        straight = roots[to_root_s.argmin(axis=0)]
        onward = [near[away_s[near].argmin()] for near in self.near]
        nearer = np.where(away_s[onward] < away_s, onward, straight)
        return [self._given(trees[self.others], away_s[self.others]) for trees in (straight, nearer)]

    def _given(self, parents: Ints, away_s: Floats) -> Plan[Ints]:
        """The same trees in and out; the farthest first."""
        most = away_s.max(initial=0.0)
        between = np.repeat(2 * most, self.rounds.size)
        order = np.tile(np.concatenate((-away_s, between, 4 * most - away_s)), self.chunks)
        return self.planned(np.tile(parents, 2 * self.chunks), order, float(self.takes_s.sum()))

    def messages(self, shape: Ints) -> Messages:
        """A message waits for what its sender adds up or passes on; an exchange also for what its partner does."""
        src, dst = self.ends(shape)
        befores, afters = [], []
        for chunk in range(self.chunks):
            mine = slice(chunk * self.per_chunk, (chunk + 1) * self.per_chunk)
            waits = dst[mine, None] == src[mine]
            waits |= (dst[mine, None] == dst[mine]) & self.between
            before, after = np.nonzero(waits & self.may_wait)
            befores.append(before + mine.start)
            afters.append(after + mine.start)
        before, after = np.concatenate(befores), np.concatenate(afters)
        missing = np.bincount(after, minlength=len(src))
        offsets = np.concatenate(([0], np.cumsum(np.bincount(before, minlength=len(src)))))
        place = np.where(self.reduces, dst * self.chunks + self.chunk, -1)
        return Messages(self.ways.offset_of[dst, src] - 1, missing, place, offsets, after)

    def reshaped(self, plan: Plan[Ints]) -> tuple[Ints, Floats] | None:
        """Another parent for one device in one tree; None if that is behind it."""
        rng, count = self.rng, len(self.others)
        if not count:
            return None
        at = self._chosen(plan)
        tree, device = plan.shape[at // count * count :][:count], int(self.others[at % count])
        joined = int(rng.integers(len(plan.way))) if rng.random() < JOIN else -1
        if joined >= 0:
            offset_of, inward = self.ways.offset_of, at // count % 2 == 0
            ways = offset_of[:, device] if inward else offset_of[device]
            other = int(np.flatnonzero(ways == plan.way[joined] + 1)[0])
        else:
            near = rng.random() < NEAR
            other = int(rng.choice(self.near[device]) if near else rng.integers(self.devices))
        above = other
        while self.at[above] >= 0 and above != device:
            above = int(tree[self.at[above]])
        if above == device:
            return None
        shape, order = plan.shape.copy(), plan.order
        shape[at] = other
        if joined >= 0 or rng.random() < 0.5:
            order = order.copy()
            order[self._message(at)] = plan.start_s[joined] if joined >= 0 else rng.random() * plan.end_s
        return shape, order

    def _message(self, at: int) -> int:
        """The message that belongs to a place in the shape."""
        chunk, rest = divmod(at, 2 * len(self.others))
        return chunk * self.per_chunk + rest + (self.rounds.size if rest >= len(self.others) else 0)

    def _chosen(self, plan: Plan[Ints]) -> int:
        """A place in the shape: any, or that of a message that the last of all has waited for."""
        if self.rng.random() < LATE:
            chunk, rest = np.divmod(self._waited_for(plan), self.per_chunk)
            in_tree = ~self.between[rest]
            place = chunk * 2 * len(self.others) + rest - np.where(rest >= len(self.others), self.rounds.size, 0)
            if in_tree.any():
                return int(self.rng.choice(place[in_tree]))
        return int(self.rng.integers(len(plan.shape)))

    def _waited_for(self, plan: Plan[Ints]) -> Ints:
        """The last message, what it has waited for last, and so on."""
        src, dst = self.ends(plan.shape)
        arrived_s = self.arrived_s(plan)
        chain = [int(arrived_s.argmax())]
        while True:
            last = chain[-1]
            first = last // self.per_chunk * self.per_chunk
            mine = slice(first, first + self.per_chunk)
            before = first + np.flatnonzero((dst[mine] == src[last]) & self.may_wait[:, last - first])
            if not len(before):
                return np.array(chain)
            chain.append(int(before[arrived_s[before].argmax()]))

    def steps(self, plan: Plan[Ints]) -> Floats | None:
        """Numbers in order of which messages go: each after what it waits for, partners and parts of one together.

        None if there is no such order.
        """
        found = self.messages(plan.shape)
        before = np.repeat(np.arange(len(found.way)), np.diff(found.offsets))
        first = np.arange(self.chunks)[:, None, None] * self.per_chunk
        rounds, partner = first + self.rounds, (first + self.partner).reshape(-1)
        before = np.concatenate((before, rounds[:, :-1].reshape(-1)))
        after = np.concatenate((found.after, rounds[:, 1:].reshape(-1)))
        _, message = np.unique(np.stack((plan.start_s, plan.way)), axis=1, return_inverse=True)
        message = message.reshape(-1)
        step, gap = plan.start_s, plan.end_s * 1e-9
        for _ in range(MOST_ROUNDS):
            later = step.copy()
            np.maximum.at(later, after, step[before] + gap)
            np.maximum.at(later, rounds.reshape(-1), later[partner])
            together = np.zeros(len(step))
            np.maximum.at(together, message, later)
            later = together[message]
            if np.array_equal(later, step):
                return step
            step = later
        return None
